"""What traffic costs, by each objective."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import ArgumentError
from hgpart.partition.problem.checks import check_request
from hgpart.partition.problem.objectives import (
    LARGEST,
    VOLUME,
    objective_named,
    over_links,
    step_time,
)


@given(st.integers(1, 5).flatmap(lambda k: st.tuples(*[st.integers(0, 99)] * (2 * k * k))))
def test_values_and_their_least_ones(numbers: tuple[int, ...]) -> None:
    k = int((len(numbers) // 2) ** 0.5)
    traffic, links = np.array(numbers).reshape(2, k, k)
    np.fill_diagonal(traffic, 0)
    volume = sum(int(traffic[s, r]) for s in range(k) for r in range(k))
    exchanged = [
        sum(int(traffic[p, other] + traffic[other, p]) for other in range(k)) for p in range(k)
    ]
    objectives = {VOLUME: volume, LARGEST: max(exchanged)}
    if k > 1 and links[~np.eye(k, dtype=bool)].any():
        paid = sum(int(traffic[s, r] * links[s, r]) for s in range(k) for r in range(k) if s != r)
        objectives[over_links(links.tolist())] = paid
    for objective, value in objectives.items():
        assert objective.value(traffic) == value
        assert objective.least(volume, k) <= value


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ([[0, 1]], "not a square"),
        ([[0, 1], [1]], "not a square"),
        ([["a"]], "not a square"),
        ([[0, -1], [1, 0]], r"not a number from 0 to 1e\+09"),
        ([[0, float("nan")], [1, 0]], r"not a number from 0 to 1e\+09"),
        ([[1, 0], [0, 1]], "all link costs are 0"),
    ],
)
def test_costs_that_are_none_are_refused(costs: list[list[float]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        over_links(costs)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="objective 'cut': accepted are volume and largest"):
        objective_named("cut")


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 1000), st.integers(0, 99))
def test_no_step_is_faster_than_its_least(k: int, layers: int, many: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    traffic, links = random.integers(0, 99, (k, k)), random.random((k, k))
    np.fill_diagonal(traffic, 0)
    work = random.integers(0, 9, (layers, k))
    speeds = None if seed % 2 else random.uniform(0.1, 9, k).tolist()
    objective = step_time(links, 5.0 * bool(work.any()), many, speeds)
    least = objective.least(int(traffic.sum()), k)
    assert least <= objective.value(traffic, work) * (1 + 1e-9)


def test_layers_in_a_row_are_gpipe_s_and_replicas_as_fast_as_they_compute() -> None:
    k, nothing = 4, np.zeros((4, 4), dtype=np.int64)
    links = 1.0 - np.eye(k)
    row, replicas = 4 * np.eye(k, dtype=np.int64), np.ones((k, k), dtype=np.int64)
    for many in (1, 2, 8):
        objective = step_time(links, seconds=8.0, micro_batches=many)
        assert objective.value(nothing, row) == pytest.approx(8 * (1 + (k - 1) / many) / k)
        assert objective.value(nothing, replicas) == pytest.approx(8 / k)


def test_a_fast_device_takes_less_for_its_work() -> None:
    nothing, row = np.zeros((2, 2), dtype=np.int64), np.eye(2, dtype=np.int64)
    objective = step_time(1.0 - np.eye(2), seconds=8.0, micro_batches=1, speeds=[1.0, 4.0])
    assert objective.value(nothing, row) == pytest.approx(4 + 1)
    check_request(2, 0.1, [1.0, 4.0], objective)
    with pytest.raises(ArgumentError, match=r"than its machine's: accepted are 1.0, 4.0"):
        check_request(2, 0.1, [4.0, 1.0], objective)


@pytest.mark.parametrize(
    ("links", "seconds", "many", "message"),
    [
        ([[0, 1]], 1.0, 1, "not a square"),
        ([[0, 1], [1, 0]], float("nan"), 1, "a step of nan s of work: accepted is 0 or more"),
        ([[0, 1], [1, 0]], -1.0, 1, "a step of -1.0 s of work"),
        ([[0, 1], [1, 0]], 1.0, 0, "0 micro-batches: accepted are 1 to 1000000"),
    ],
)
def test_times_that_are_none_are_refused(
    links: list[list[float]], seconds: float, many: int, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        step_time(links, seconds, many)


def test_time_is_of_work_too() -> None:
    with pytest.raises(ArgumentError, match="no work of layers: objective 'time'"):
        step_time([[0, 1], [1, 0]], 1.0, 2).value(np.zeros((2, 2), dtype=np.int64))
