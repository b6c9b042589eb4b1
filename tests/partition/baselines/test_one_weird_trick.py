"""Convolutions by slices, then linear layers by filters: who gets what, and what it costs."""

from __future__ import annotations

import pytest
from builtin_graphs import full_size_graph
from sliced_volumes import sliced_volume

from hgpart.errors import ArgumentError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.baselines.one_weird_trick import linear_tail, one_weird_trick
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import flops


@pytest.mark.few(2)
@pytest.mark.parametrize(("k", "slices", "batch"), [(2, 2, 4), (3, 3, 7), (2, 4, 4), (4, 2, 2)])
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_slices_in_front_of_the_tail_and_filters_in_it(
    k: int, slices: int, batch: int, grain: str
) -> None:
    graph = full_size_graph("lenet5")
    modelling = Modelling(grain, batch_size=batch, slices=slices)
    problem = Problem(graph, flops(graph), modelling, k, 0.1)
    tail = linear_tail(graph)
    assert [layer.name for layer, own in zip(graph.layers, tail, strict=True) if own] == [
        *("fc1", "fc2")
    ]

    def part(number: int, at: int, task: int) -> int:
        if not tail[at]:
            return number * k // slices
        tasks = graph.layers[at].tasks
        return next(p for p in range(k) if task < (p + 1) * tasks // k)

    found = evaluate_parts(*one_weird_trick(problem), k)
    assert found.volume == sliced_volume(graph, modelling, part)


@pytest.mark.full
def test_a_model_that_does_not_end_in_linear_layers() -> None:
    graph = full_size_graph("squeezenet1_1")
    problem = Problem(graph, flops(graph), Modelling(slices=2), 2, 0.1)
    with pytest.raises(ArgumentError, match="does not end in linear layers"):
        one_weird_trick(problem)
