"""How many bands are tried, and which number is taken where there is no time to try them."""

from __future__ import annotations

from typing import Any

import pytest
from banded_graphs import graph_of

from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import number_of_bands
from hgpart.partition.native.tiled import tiled_partition
from hgpart.partition.number_of_bands import numbers_for, promising_bands
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.work.figures import flops


@pytest.mark.parametrize(
    ("limit", "tries"),
    [pytest.param(None, True, marks=pytest.mark.full), (1e-3, False), (3600.0, True)],
)
def test_numbers_are_tried_as_far_as_there_is_time_for_all(
    limit: float | None, tries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, tried = graph_of(0), []

    def noted(problem: Problem, *given: Any) -> Any:
        tried.append(problem.modelling.bands)
        return tiled_partition(problem, *given)

    monkeypatch.setattr(number_of_bands, "tiled_partition", noted)
    problem = Problem(graph, flops(graph), Modelling(batch_size=1, training=False), 2, 0.5)
    numbers = numbers_for(problem)
    assert len(numbers) == 3
    chosen = promising_bands(problem, Search(0, 0.01, limit))
    assert tried == (list(numbers) if tries else [])
    assert chosen in (numbers if tries else numbers[1:2])
