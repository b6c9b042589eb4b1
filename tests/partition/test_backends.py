"""One contract for all partitioners, and what happens to the process that they run in."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hypergraphs

from hgpart.errors import ArgumentError, BackendError, HypergraphError, MissingPackageError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.backends import BACKENDS, Backend, backend
from hgpart.partition.external import isolated
from hgpart.partition.external.program import ProgramBackend
from hgpart.partition.problem.balance import capacities

# A program that reads hMETIS's format; `test_program` has what programs may do wrong.
PROGRAM = Path(__file__).parents[1] / "mtkahypar_program.py"
COMMAND = ProgramBackend(f"command:'{sys.executable}' '{PROGRAM}' {{graph}} {{k}} {{eps}} {{seed}}")
PARTITIONERS: dict[str, Backend] = {**BACKENDS, "command": COMMAND}


def build(
    weights: Sequence[int], nets: Sequence[Sequence[int]], costs: Sequence[int] | None = None
) -> Hypergraph:
    return Hypergraph(
        weights=np.array(weights, dtype=np.int64),
        costs=np.array([1] * len(nets) if costs is None else costs, dtype=np.int64),
        pointers=np.cumsum([0, *map(len, nets)], dtype=np.int64),
        pins=np.array([pin for net in nets for pin in net], dtype=np.int32),
        gathers=np.zeros(len(nets), dtype=np.bool_),
        net_layers=np.zeros(len(nets), dtype=np.int32),
    )


def layers(count: int, width: int, weight: int = 1, cost: int = 1) -> Hypergraph:
    """A chain of dense layers: each map is read by all of the next layer."""
    vertices = count * width
    nets = [
        [vertex, *range(vertex // width * width + width, vertex // width * width + 2 * width)]
        for vertex in range(vertices - width)
    ]
    return build([weight] * vertices, nets, [cost] * len(nets))


def room(hypergraph: Hypergraph, k: int, eps: float = 0.1) -> np.ndarray:
    return capacities(sum(hypergraph.weights.tolist()), [1] * k, eps)


def loads(hypergraph: Hypergraph, parts: np.ndarray, k: int) -> list[int]:
    sums = [0] * k
    for weight, part in zip(hypergraph.weights.tolist(), parts.tolist(), strict=True):
        sums[part] += weight
    return sums


def volume(hypergraph: Hypergraph, parts: np.ndarray) -> int:
    ends, pins = hypergraph.pointers.tolist(), hypergraph.pins.tolist()
    return sum(
        cost * (len({int(parts[pin]) for pin in pins[ends[net] : ends[net + 1]]}) - 1)
        for net, cost in enumerate(hypergraph.costs.tolist())
    )


def assert_is_partition(parts: np.ndarray, hypergraph: Hypergraph, k: int) -> None:
    assert parts.dtype == np.int32
    assert parts.shape == (hypergraph.vertices,)
    assert parts.min() >= 0
    assert parts.max() < k


def assert_fits(parts: np.ndarray, hypergraph: Hypergraph, most: np.ndarray) -> None:
    assert_is_partition(parts, hypergraph, len(most))
    sums = loads(hypergraph, parts, len(most))
    assert all(load <= limit for load, limit in zip(sums, most.tolist(), strict=True))


def enough(partition: Backend) -> float:
    """Seconds within which any busy machine has an answer; `exact` would search for a minute."""
    return 2 if partition is BACKENDS["exact"] else 600


@pytest.fixture(params=PARTITIONERS)
def partition(request: pytest.FixtureRequest) -> Backend:
    return PARTITIONERS[request.param]


# Where each would run several times; others show the same of those that take long.
SHORT = [
    pytest.param(name, marks=[pytest.mark.full] * (name not in ("native", "kahypar")))
    for name in PARTITIONERS
]


@pytest.fixture(params=["kahypar", "mtkahypar"])
def packaged(request: pytest.FixtureRequest) -> Backend:
    """A partitioner that is a package of others, in a process of its own."""
    return BACKENDS[request.param]


def test_unknown_name_is_told_the_known_ones() -> None:
    known = "'patoh': accepted are native, kahypar, mtkahypar, exact, command:PROGRAM or a function"
    with pytest.raises(ArgumentError, match=known):
        backend("patoh")


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_capacities_are_kept_and_volume_is_low(partition: Backend, k: int) -> None:
    hypergraph = layers(6, 24)
    most = room(hypergraph, k)
    parts = partition(hypergraph, most, time_limit=enough(partition))
    assert_fits(parts, hypergraph, most)
    scattered = np.arange(hypergraph.vertices, dtype=np.int32) % k
    assert volume(hypergraph, parts) < volume(hypergraph, scattered) / 2


@pytest.mark.few(2)
def test_two_separate_halves_are_found(partition: Backend) -> None:
    half = [[0, 1, 2], [1, 2, 3], [3, 0]]
    hypergraph = build([1] * 8, half + [[pin + 4 for pin in net] for net in half])
    parts = partition(hypergraph, room(hypergraph, 2, 0))
    assert volume(hypergraph, parts) == 0
    assert loads(hypergraph, parts, 2) == [4, 4]


@pytest.mark.few(2)
def test_costly_net_is_not_cut(partition: Backend) -> None:
    ring = [[0, 1], [1, 2], [2, 3], [3, 0]]
    hypergraph = build([1] * 4, ring, [10**12, 1, 10**12, 1])
    parts = partition(hypergraph, room(hypergraph, 2, 0))
    assert volume(hypergraph, parts) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("partition", SHORT, indirect=True)
def test_same_seed_gives_the_same_partition(partition: Backend) -> None:
    hypergraph = layers(5, 12)
    most = room(hypergraph, 4)
    first, second = (partition(hypergraph, most, seed=7) for _ in range(2))
    assert first.tolist() == second.tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("partition", SHORT, indirect=True)
def test_another_seed_may_give_another_partition(partition: Backend) -> None:
    hypergraph = layers(5, 12)
    most = room(hypergraph, 4)
    found = {tuple(partition(hypergraph, most, seed=seed).tolist()) for seed in (0, 1, 2**63 - 1)}
    assert len(found) > 1


def test_one_part_takes_all(partition: Backend) -> None:
    hypergraph = layers(2, 3)
    assert partition(hypergraph, room(hypergraph, 1, 0)).tolist() == [0] * 6


def test_a_part_with_room_for_all_takes_all(partition: Backend) -> None:
    hypergraph = layers(2, 3)
    assert partition(hypergraph, np.array([3, 6, 6])).tolist() == [1] * 6


@pytest.mark.parametrize("k", [3, 4])
def test_as_many_parts_as_vertices(partition: Backend, k: int) -> None:
    hypergraph = build([1, 1, 1], [[0, 1, 2]])
    parts = partition(hypergraph, np.array([1] * k))
    assert sorted(parts.tolist()) == sorted(set(parts.tolist()))


@pytest.mark.parametrize(
    ("nets", "costs"),
    [([], []), ([[0], [1], [2]], [5, 5, 5]), ([[0, 1, 2, 3]], [0])],
    ids=["no nets", "single pins", "no costs"],
)
def test_what_no_net_joins_is_balanced(
    partition: Backend, nets: list[list[int]], costs: list[int]
) -> None:
    hypergraph = build([4, 3, 2, 1], nets, costs)
    parts = partition(hypergraph, np.array([5, 5]))
    assert loads(hypergraph, parts, 2) == [5, 5]


@pytest.mark.few(2)
def test_free_and_single_pin_nets_do_not_matter(partition: Backend) -> None:
    hypergraph = build([1] * 4, [[0], [0, 1], [1, 2], [2, 3], [3]], [9, 7, 0, 7, 9])
    parts = partition(hypergraph, np.array([2, 2]))
    assert volume(hypergraph, parts) == 0


def test_no_weight_at_all(partition: Backend) -> None:
    hypergraph = build([0, 0, 0], [[0, 1], [1, 2]])
    parts = partition(hypergraph, room(hypergraph, 2))
    assert_fits(parts, hypergraph, np.array([0, 0]))
    assert volume(hypergraph, parts) == 0


@pytest.mark.few(2)
def test_vertices_without_weight_take_no_room(partition: Backend) -> None:
    """With the backend's least weight of 1 in place of 0, these would need a capacity of 7."""
    hypergraph = build([2, 2, *[0] * 10], [[0, *range(2, 7)], [1, *range(7, 12)], [0, 1]])
    parts = partition(hypergraph, np.array([2, 2]))
    assert_fits(parts, hypergraph, np.array([2, 2]))
    assert volume(hypergraph, parts) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("weight", [2**31, 4 * 10**9, 10**15 + 1])
def test_weights_beyond_32_bits(partition: Backend, weight: int) -> None:
    hypergraph = layers(6, 10, weight=weight, cost=weight)
    most = room(hypergraph, 3)
    assert_fits(partition(hypergraph, most), hypergraph, most)


@pytest.mark.full
def test_weights_whose_sum_wraps_in_32_bits(partition: Backend) -> None:
    generator = np.random.default_rng(0)
    weights = generator.integers(2**28, 2**29, 60).tolist()
    hypergraph = build(weights, [[v, (v + 1) % 60, (v + 7) % 60] for v in range(60)])
    most = room(hypergraph, 4)
    assert_fits(partition(hypergraph, most, time_limit=enough(partition)), hypergraph, most)


@pytest.mark.few(2)
@pytest.mark.parametrize("speeds", [[1, 1, 2], [4, 1], [0.5, 1.5, 1, 1]])
def test_unequal_capacities(partition: Backend, speeds: list[float]) -> None:
    hypergraph = layers(6, 24)
    most = capacities(hypergraph.vertices, speeds, 0.1)
    parts = partition(hypergraph, most)
    if partition is COMMAND:  # asked for equal parts, whatever is too much is moved afterwards
        assert_is_partition(parts, hypergraph, len(most))
    else:
        assert_fits(parts, hypergraph, most)


@pytest.mark.few(2)
@pytest.mark.parametrize("most", [[3, 3, 3], [1, 2, 3], [0, 0, 1]])
def test_capacities_below_the_total_are_a_goal(partition: Backend, most: list[int]) -> None:
    hypergraph = layers(2, 5)
    assert_is_partition(partition(hypergraph, np.array(most)), hypergraph, 3)


@pytest.mark.few(2)
def test_a_vertex_above_all_capacities(partition: Backend) -> None:
    hypergraph = build([100, 1, 1, 1, 1], [[0, 1, 2], [2, 3, 4]])
    assert_is_partition(partition(hypergraph, room(hypergraph, 3)), hypergraph, 3)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [*sorted(BACKENDS), "command"])
@given(
    hypergraph=hypergraphs(max_vertices=12, max_nets=10),
    speeds=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    eps=st.sampled_from([0, 0.03, 0.1, 0.5, 3, 1000]),
    seed=st.integers(0, 2**40),
)
def test_any_hypergraph_gets_a_partition(
    name: str, hypergraph: Hypergraph, speeds: list[int], eps: float, seed: int
) -> None:
    most = capacities(sum(hypergraph.weights.tolist()), speeds, eps)
    parts = PARTITIONERS[name](hypergraph, most, seed=seed)
    assert_is_partition(parts, hypergraph, len(speeds))


def test_malformed_hypergraph_is_refused(partition: Backend) -> None:
    with pytest.raises(HypergraphError, match="pin"):
        partition(build([1, 1, 1], [[0, 3], [0, 1]]), np.array([2, 2]))
    with pytest.raises(HypergraphError, match="weight"):
        partition(build([1, -1, 1], [[0, 1]]), np.array([2, 2]))
    with pytest.raises(HypergraphError, match="no vertices"):
        partition(build([], []), np.array([2, 2]))


def test_bad_arguments_are_refused(partition: Backend) -> None:
    hypergraph = layers(2, 3)
    with pytest.raises(ArgumentError, match=r"capacities are \[4, -1\]"):
        partition(hypergraph, np.array([4, -1]))
    with pytest.raises(ArgumentError, match=r"capacities are \[\]"):
        partition(hypergraph, np.array([], dtype=np.int64))
    with pytest.raises(ArgumentError, match="seed is -1"):
        partition(hypergraph, np.array([4, 4]), seed=-1)
    for limit in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="time limit"):
            partition(hypergraph, np.array([4, 4]), time_limit=limit)


def test_time_limit_ends_the_partitioner(packaged: Backend) -> None:
    hypergraph = layers(20, 60)
    with pytest.raises(BackendError, match=r"within the time limit, 0\.05 s"):
        packaged(hypergraph, room(hypergraph, 16), time_limit=0.05)


@pytest.mark.full
@pytest.mark.long
def test_what_was_found_within_the_time_limit_counts(
    packaged: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two answers and half of a third: the second is the last whole one, and the best."""
    answers = (
        "import array, sys, time; sys.stdin.buffer.read(); "
        "[array.array('i', parts).tofile(sys.stdout.buffer) for parts in ([0] * 6, [1] * 6, [0])]; "
        "sys.stdout.flush(); time.sleep(60)"
    )
    monkeypatch.setattr(isolated, "COMMAND", (sys.executable, "-c", answers))
    hypergraph = layers(2, 3)
    assert packaged(hypergraph, room(hypergraph, 2), time_limit=4).tolist() == [1] * 6


@pytest.mark.few(2)
def test_enough_time_changes_nothing(partition: Backend) -> None:
    hypergraph = layers(3, 5)
    most = room(hypergraph, 2)
    expected = partition(hypergraph, most).tolist()
    assert partition(hypergraph, most, time_limit=600).tolist() == expected


def test_missing_package_names_the_install_command(
    packaged: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install"):
        packaged(layers(2, 3), np.array([4, 4]))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('all well'); exit(3)", "status 3; it said last: nothing"),
        ("import sys; sys.exit('\\x1b[1;31mno weight\\x1b[0m')", "status 1; it said last: no wei"),
        ("raise ValueError('two\\nlines')", "status 1; it said last: lines"),
        ("import os; os.abort()", "ended by SIGABRT"),
        ("pass", "no partition: it ended with status 0"),
        ("print(end='0000')", "returned 4 bytes, expected a multiple of 24"),
        ("print(end='0000' * 6)", "parts 808464432 to 808464432, expected 0 to 1"),
    ],
)
def test_whatever_the_child_does_is_one_error(
    packaged: Backend, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    child = f"import sys; sys.stdin.buffer.read()\n{program}"
    monkeypatch.setattr(isolated, "COMMAND", (sys.executable, "-c", child))
    with pytest.raises(BackendError, match=message) as error:
        packaged(layers(2, 3), np.array([4, 4]))
    assert "\n" not in str(error.value)


def test_partitioner_that_ends_its_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """KaHyPar ends the process with status 255 where its preset is incomplete."""
    monkeypatch.setattr("pathlib.Path.read_text", lambda *args, **kwargs: "mode=direct\n")
    with pytest.raises(BackendError, match=r"kahypar .*status"):
        BACKENDS["kahypar"](layers(2, 3), np.array([4, 4]))


@pytest.mark.few(2)
def test_backend_prints_nothing(partition: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    hypergraph = layers(5, 12)
    partition(hypergraph, room(hypergraph, 4))
    assert capfd.readouterr() == ("", "")


# A shell that runs the tests in the background has them ignore Ctrl-C, which children inherit.
LONG_RUN = textwrap.dedent(
    """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import numpy as np
    from hgpart.hypergraph.hypergraph import Hypergraph
    from hgpart.partition.backends import backend

    n, width = 3000, 60
    nets = [list(range(v, v + width)) for v in range(n - width)]
    hypergraph = Hypergraph(
        weights=np.ones(n, dtype=np.int64),
        costs=np.ones(len(nets), dtype=np.int64),
        pointers=np.arange(len(nets) + 1, dtype=np.int64) * width,
        pins=np.array(nets, dtype=np.int32).ravel(),
        gathers=np.zeros(len(nets), dtype=bool),
        net_layers=np.zeros(len(nets), dtype=np.int32),
    )
    try:
        backend("kahypar")(hypergraph, np.full(64, n // 60))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
)


def start_long_run(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """Start a run that takes very long, as a script; return it and its child's process id."""
    script = tmp_path / "script.py"
    script.write_text(LONG_RUN)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (found := children.read_text().split()):
        assert parent.poll() is None
        time.sleep(0.01)
    child = int(found[0])
    # Its command line is the parent's until it has become another program; the request has been
    # read, and the end with the parent asked for, once KaHyPar is loaded.
    while "kahypar" not in Path(f"/proc/{child}/maps").read_text():
        assert parent.poll() is None
        time.sleep(0.01)
    return parent, child


def wait_for_end(child: int) -> None:
    status = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 30
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the child is still running"
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_interrupt_ends_the_child_and_reaches_the_caller(tmp_path: Path) -> None:
    parent, child = start_long_run(tmp_path)
    parent.send_signal(signal.SIGINT)
    assert parent.communicate(timeout=30)[0] == "interrupted\n"
    wait_for_end(child)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    parent, child = start_long_run(tmp_path)
    parent.kill()
    parent.communicate(timeout=30)
    wait_for_end(child)
