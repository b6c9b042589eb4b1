"""Stages of replicas are the cheapest of all cuts into stages that are within their room."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from partitioned_models import graph_of

from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.baselines.stages import replicated_stages, run_costs
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import flops


def every_way(problem: Problem, model: CnnHypergraph) -> Iterator[np.ndarray]:
    """All cuts of the layers into stages, and all numbers of parts for each of them."""
    layers, slices = model.slice_vertices, problem.modelling.slices
    for stages in range(1, problem.k + 1):
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            for parts in itertools.product(range(1, problem.k + 1), repeat=stages):
                if sum(parts) > problem.k:
                    continue
                stage_of = np.searchsorted(cuts, np.arange(layers), "right")
                first = np.cumsum([0, *parts])[stage_of]
                ends = np.cumsum(parts)
                turns = [
                    dealt(slices, problem.rates[end - count : end])
                    for end, count in zip(ends, parts, strict=True)
                ]
                turn = np.array(turns).T[:, stage_of]
                yield (first + turn).astype(np.int32).ravel()


@pytest.mark.parametrize("speeds", [None, (1.0, 2.0, 0.5)])
@pytest.mark.parametrize("batch_size", [6, 600])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", ["plain", "residual"])
def test_none_of_all_cuts_into_stages_sends_less(
    name: str, k: int, batch_size: int, speeds: tuple[float, ...] | None
) -> None:
    graph = graph_of(name)
    modelling = Modelling(batch_size=batch_size, slices=6)
    own = None if speeds is None else speeds[:k]
    problem = Problem(graph, flops(graph), modelling, k, 0.3, own)
    room = float((problem.capacities / problem.rates).min())
    found = replicated_stages(problem, room, run_costs(problem))
    assert found is not None
    model, parts = found
    evaluation = evaluate_parts(model, parts, k)
    assert (evaluation.loads <= room * np.array(problem.rates)).all()
    volumes = [
        one.volume
        for one in (evaluate_parts(model, way, k) for way in every_way(problem, model))
        if (one.loads <= room * np.array(problem.rates)).all()
    ]
    assert evaluation.volume == min(volumes)
