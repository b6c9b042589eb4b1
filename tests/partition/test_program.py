"""Programs of the user's partition files, like PaToH and hMETIS, which nobody may pass on.

Stand-ins are called and answer as their manuals say. `test_backends` has a real partitioner.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import graph_of

from hgpart.cli import run
from hgpart.errors import ArgumentError, BackendError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume
from hgpart.partition import partition_graph
from hgpart.partition.backends import backend, backend_name, load_backend
from hgpart.partition.external.program import eps_of_equal_parts, ubfactor
from hgpart.work.figures import flops

# patoh FILE K [PARAMETER=VALUE ...]: the heaviest cell first, to the part with least. PaToH writes
# the parts with blanks between them.
PATOH = """
import sys
from pathlib import Path
path, k, *parameters = sys.argv[1:]
lines = Path(path).read_text().splitlines()
base, cells, nets, pins, scheme = map(int, lines[0].split())
weights = [int(number) for number in lines[1 + nets].split()]
assert (base, scheme, len(weights)) == (0, 3, cells)
assert sum(len(line.split()) - 1 for line in lines[1 : 1 + nets]) == pins
loads, parts = [0] * int(k), [0] * cells
for cell in sorted(range(cells), key=lambda cell: -weights[cell]):
    parts[cell] = loads.index(min(loads))
    loads[parts[cell]] += weights[cell]
Path(f"{path}.part.{k}").write_text(" ".join(map(str, parts)))
"""

# shmetis FILE K UBFACTOR: runs of vertices of equal weight. hMETIS writes a line for each vertex.
SHMETIS = """
import sys
from pathlib import Path
path, k, factor = sys.argv[1:]
lines = Path(path).read_text().splitlines()
nets, vertices, scheme = lines[0].split()
weights = [int(line) for line in lines[1 + int(nets) :]]
assert scheme == "11" and len(weights) == int(vertices) and 1 <= int(factor) <= 49
before, parts = 0, []
for weight in weights:
    parts.append(min(int(k) - 1, before * int(k) // sum(weights)))
    before += weight
Path(f"{path}.part.{k}").write_text("".join(f"{part}\\n" for part in parts))
"""

Program = Callable[[str, str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Make a program of some Python; it returns the command line that runs it."""

    def make(code: str, words: str = "{graph}", name: str = "program") -> str:
        file = tmp_path / name
        file.write_text(f"#!{sys.executable} -IS\n{code}")
        file.chmod(0o755)
        return f"command:{file} {words}"

    return make


def small() -> Hypergraph:
    """Six vertices; of its nets one has a single pin, and one costs nothing."""
    return Hypergraph(
        weights=np.array([4, 2, 2, 6, 8, 2]),
        costs=np.array([20, 9, 30, 0, 10]),
        pointers=np.array([0, 2, 3, 6, 8, 10]),
        pins=np.array([0, 1, 4, 3, 2, 1, 0, 5, 4, 5], dtype=np.int32),
        gathers=np.zeros(5, dtype=np.bool_),
        net_layers=np.zeros(5, dtype=np.int32),
    )


ROOM = np.array([14, 14])
COPIED = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[-1]); "
WRITES = "open(sys.argv[1] + '.part.2', 'w').write('0 0 1 1 0 1'); "


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        ("PaToH-3.2", "{graph}", "0 6 3 7 3\n2 0 1\n3 3 2 1\n1 4 5\n2 1 1 3 4 1\n"),
        ("shmetis", "{graph}", "3 6 11\n2 1 2\n3 4 3 2\n1 5 6\n2\n1\n1\n3\n4\n1\n"),
        ("patoh", "{hmetis}", "3 6 11\n2 1 2\n3 4 3 2\n1 5 6\n2\n1\n1\n3\n4\n1\n"),
        ("mine", "{graph} /opt/PaToH.sh", "0 6 3 7 3\n2 0 1\n3 3 2 1\n1 4 5\n2 1 1 3 4 1\n"),
        ("mine", "{patoh}", "0 6 3 7 3\n2 0 1\n3 3 2 1\n1 4 5\n2 1 1 3 4 1\n"),
    ],
)
def test_the_file_is_in_the_format_that_is_asked_for(
    program: Program, tmp_path: Path, name: str, words: str, text: str
) -> None:
    """Weights 4 2 2 6 8 2 are 2 1 1 3 4 1 of twice the unit, costs 20 30 10 are 2 3 1."""
    copy = tmp_path / "copy"
    divide = load_backend(program(COPIED + WRITES, f"{words} {copy}", name))
    assert divide(small(), ROOM).tolist() == [0, 0, 1, 1, 0, 1]
    assert copy.read_text() == text


def test_words_are_filled_in_and_no_shell_sees_them(program: Program, tmp_path: Path) -> None:
    told = tmp_path / "told"
    divide = load_backend(
        program(
            f"import sys; open({str(told)!r}, 'w').write('|'.join(sys.argv[2:])); " + WRITES,
            "{graph} IB={eps} {k},{k} UB={ubfactor} SD={seed} 'a; b' $HOME '{ print }'",
        )
    )
    divide(small(), ROOM, seed=2**31 + 5)
    assert told.read_text() == "IB=0.166666667|2,2|UB=8|SD=5|a; b|$HOME|{ print }"


@pytest.mark.parametrize(
    "written",
    ["sys.argv[1] + '.part.2'", "sys.argv[1] + '.part2.epsilon0.1.seed0.KaHyPar'", "sys.argv[2]"],
    ids=["as PaToH and hMETIS", "as KaHyPar", "{output}"],
)
def test_where_parts_are_written(program: Program, written: str) -> None:
    code = f"import sys; open({written}, 'w').write('1\\n0\\n' * 3)"
    words = "{graph} {output}" if "argv[2]" in written else "{graph}"
    assert load_backend(program(code, words))(small(), ROOM).tolist() == [1, 0] * 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('no memory\\n')\nsys.exit(3)", "it ended with status 3; it said last: no memory"),
        ("import os; os.abort()", "it was ended by SIGABRT; it said last: nothing"),
        ("", r"it wrote 0 files graph\.hmetis\.part\*, expected graph\.hmetis\.part\.2 or what"),
        ("write('0 0 1 1 0')", r"graph\.hmetis\.part\.2, line 1: .*after 5 of 6 parts"),
        ("write('0 0 1 1 0 1 1')", "'1' after the last of 6 parts"),
        ("write('0 0 1 1 0 2')", "part '2'; accepted: parts from 0 to 1"),
        ("write('0 0 1 1 0 -1')", "-1"),
        ("write('<html>')", "<html>"),
        ("write('0 0 1 1 0 1', '.part3'); write('0', '.part4')", "it wrote 2 files"),
    ],
)
def test_whatever_a_program_does_is_one_line(program: Program, code: str, message: str) -> None:
    begin = "import sys\ndef write(text, end='.part.2'): open(sys.argv[1] + end, 'w').write(text)\n"
    with pytest.raises(BackendError, match=message) as raised:
        load_backend(program(begin + code))(small(), ROOM)
    assert "\n" not in str(raised.value)
    assert "/hgpart-" not in str(raised.value)  # a folder that is gone


def test_what_is_no_program_after_all_is_one_line(program: Program) -> None:
    spec = program("")
    Path(spec.split()[0].removeprefix("command:")).write_bytes(b"\x7fELF")
    with pytest.raises(BackendError, match=r"status 1; it said last: .*format error"):
        load_backend(spec)(small(), ROOM)


@pytest.mark.full
@pytest.mark.long
def test_the_time_limit_ends_a_program_and_what_it_started(
    program: Program, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"pathlib.Path({str(started)!r}).write_text(str(subprocess.Popen(['sleep', '99']).pid))\n"
        "time.sleep(99)"
    )
    with pytest.raises(BackendError, match=r"no partition within the time limit, 5 s"):
        load_backend(program(code))(small(), ROOM, time_limit=5)
    status = Path(f"/proc/{started.read_text()}/stat")
    deadline = time.monotonic() + 30
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "what the program started is still running"
        time.sleep(0.01)


def test_the_time_limit_ends_a_program(program: Program) -> None:
    with pytest.raises(BackendError, match=r"no partition within the time limit, 0\.3 s"):
        load_backend(program("import time; time.sleep(99)"))(small(), ROOM, time_limit=0.3)


@pytest.mark.full
@pytest.mark.long
def test_parts_that_are_there_when_time_is_up_count(program: Program) -> None:
    divide = load_backend(program("import sys, time; " + WRITES + "time.sleep(99)"))
    assert divide(small(), ROOM, time_limit=5).tolist() == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("command:", "names no file: accepted is a program and one of {graph}"),
        ("command:sh {k}", "names no file"),
        ("command:sh {patoh} {hmetis}", "names {patoh} and {hmetis}: accepted is"),
        (
            "command:sh {graph} {parts}",
            r"has {parts}: accepted are {graph}, {patoh}, {hmetis}, {k}",
        ),
        ("command:sh {graph} 'a", "is no command line: No closing quotation"),
    ],
)
def test_a_command_line_is_checked(spec: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        backend(spec)


@pytest.mark.parametrize("command", ["partition", "verify"])
def test_a_missing_program_is_named_before_the_model_is_loaded(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--k", "2", "--backend", "command:no-such-patoh {graph} {k}"]
    assert run([command, "nowhere.py:net", *options]) == BackendError.exit_status
    assert "error: there is no program 'no-such-patoh': accepted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("patoh", PATOH, "{graph} {k} UM=O IB={eps} SD={seed}"),
        ("shmetis", SHMETIS, "{graph} {k} {ubfactor}"),
    ],
)
@pytest.mark.parametrize("speeds", [None, [1, 1, 2]], ids=["equal", "unequal"])
def test_a_model_is_partitioned_within_eps_whatever_the_program_finds(
    program: Program, name: str, code: str, words: str, speeds: list[int] | None
) -> None:
    """Both stand-ins divide equally, so hgpart moves what is too much where devices differ."""
    graph, k, spec = graph_of("plain"), 3, program(code, words, name)
    found = partition_graph(graph, flops(graph), k, 0.1, backend=spec, speeds=speeds)
    assert found.feasible
    assert found.backend == spec == backend_name(spec)
    own = found.model.hypergraph
    assert found.evaluation.volume == communication_volume(own, found.parts, k)
    shares = np.array(speeds or [1] * k) / sum(speeds or [1] * k)
    assert (found.evaluation.loads <= 1.1 * own.weights.sum() * shares + 1e-6).all()


@given(st.integers(1, 2**30), st.integers(2, 200), st.data())
def test_eps_allows_the_capacity_and_no_unit_more(total: int, k: int, data: st.DataObject) -> None:
    """A part may have ``floor((1 + eps) total / k)``, by programs that say eps as PaToH does."""
    room = data.draw(st.integers(-(-total // k), max(2 * total // k, -(-total // k))))
    eps = eps_of_equal_parts(np.array([total]), np.full(k, room, dtype=np.int32))
    told = Fraction(f"{eps:.9f}")
    assert math.floor((1 + told) * total / k) == room


@given(st.floats(0, 3), st.integers(2, 128))
def test_ubfactor_keeps_eps_where_it_can(eps: float, k: int) -> None:
    """hMETIS's worst case is `levels` bisections of which each gives one half as much as it may."""
    factor, levels = ubfactor(eps, k), (k - 1).bit_length()
    assert 1 <= factor <= 49
    if factor > 1:
        assert (1 + factor / 50) ** levels <= 1 + eps + 1e-3
    if factor < 49:
        assert (1 + (factor + 1) / 50) ** levels > 1 + eps - 1e-9
