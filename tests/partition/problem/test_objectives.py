"""What traffic costs, by each objective."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import ArgumentError
from hgpart.partition.problem.objectives import LARGEST, VOLUME, objective_named, over_links


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
    with pytest.raises(ArgumentError, match="objective 'cut': accepted are volume, largest"):
        objective_named("cut")
