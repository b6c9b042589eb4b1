"""A partitioner of the user's is called as ours are, and what it returns is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partitioned_models import graph_of

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition import partition_graph
from hgpart.partition.backends import load_backend
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.work.figures import flops

FILE = """
import numpy as np
from beside import KIND

def in_turn(hypergraph, capacities, *, seed=0, time_limit=None):
    return np.arange(hypergraph.vertices) % len(capacities)

def failing(hypergraph, capacities, **options):
    raise KeyError("the licence\\nserver")

number = 3
"""


def divided(backend: Any, **options: Any) -> Any:
    graph = graph_of("plain")
    return partition_graph(graph, flops(graph), 2, 0.5, backend=backend, **options)


def test_a_function_is_called_and_what_it_finds_improved() -> None:
    seen: list[Any] = []

    def in_turn(
        hypergraph: Hypergraph,
        capacities: Int64,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Int32:
        seen.append((len(capacities), seed, time_limit))
        return np.arange(hypergraph.vertices, dtype=np.int32) % len(capacities)

    found = divided(in_turn, seed=5, time_limit=60.0)
    ((k, seed, left),) = seen
    assert (k, seed) == (2, 5)
    assert 0 < left <= 60
    assert found.feasible
    assert found.backend == f"{__name__}:in_turn"
    assert found.evaluation.volume >= divided("exact").evaluation.volume


def test_nothing_is_asked_where_one_part_has_all() -> None:
    graph = graph_of("plain")
    assert partition_graph(graph, flops(graph), 1, 0, backend=lambda *_, **__: None).feasible


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("KIND = 'neighbour'")
    return tmp_path / "mine.py"


def test_a_function_of_a_file(file: Path) -> None:
    found = divided(load_backend(f"{file}:in_turn"))
    assert found.backend == f"{file}:in_turn"
    assert found.feasible


def writes(hypergraph: Hypergraph, capacities: Int64, **_: Any) -> Int32:
    hypergraph.weights[0] = 0
    return np.zeros(hypergraph.vertices, dtype=np.int32)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda h, c, **_: None, "returned a NoneType, expected"),
        (lambda h, c, **_: [0, 1], r"returned an array of shape \(2,\) and type int64, expected"),
        (lambda h, c, **_: [[0], [0, 1]], "returned a list, expected"),
        (lambda h, c, **_: np.zeros(h.vertices), "and type float64, expected"),
        (lambda h, c, **_: np.full(h.vertices, 2), "returned parts 2 to 2, expected 0 to 1"),
        (lambda h, c, **_: np.full(h.vertices, -1), "returned parts -1 to -1, expected 0 to 1"),
        (lambda h: 0, r"test_user_backend.*TypeError: .*"),
        (writes, r"test_user_backend\.py:\d+: ValueError: assignment destination is read-only"),
    ],
)
def test_what_is_no_partition_is_one_line(function: Any, message: str) -> None:
    with pytest.raises(BackendError, match=message) as raised:
        divided(function)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failing", r"mine\.py:9: KeyError: 'the licence\\nserver'"),
        ("number", r"unknown backend 'number'; .*mine\.py has no such function"),
        ("in_trun", "unknown backend 'in_trun'; nearest: in_turn"),
    ],
)
def test_a_file_is_named_for_what_it_raises(file: Path, name: str, message: str) -> None:
    with pytest.raises(BackendError, match=message) as raised:
        divided(load_backend(f"{file}:{name}"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("spec", ["mine", "nowhere.py:cut", "no_such_package:cut", ":cut"])
def test_what_names_no_function_is_refused(spec: str) -> None:
    with pytest.raises(BackendError, match=r"write path/file\.py:backend"):
        load_backend(spec)


def test_only_the_native_solver_knows_memory() -> None:
    with pytest.raises(ArgumentError, match="takes no memory limit: native does"):
        divided(writes, memory=MemoryLimits((10**9, 10**9)))
    known = r"^backend 'patoh': accepted are .*exact, command:PROGRAM or a function"
    with pytest.raises(ArgumentError, match=known):
        divided("patoh")
