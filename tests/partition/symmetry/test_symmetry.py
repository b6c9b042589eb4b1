"""Classes of units: what the native solver counts is what hgpart's metrics count."""

from __future__ import annotations

import numpy as np
import placements
import pytest
from hypothesis import given
from hypothesis import strategies as st
from normed_maps import SAMPLES, Norm, images, normed, norms
from partitioned_models import channel_graphs, modellings

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import work_of_layers
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.native.annealing import Cooling, anneal
from hgpart.partition.native.goal import LayersOfTypes, goal_of
from hgpart.partition.problem.memory import MemoryLimits, part_memory
from hgpart.partition.problem.objectives import (
    LARGEST,
    VOLUME,
    Objective,
    over_links,
    step_time,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.work.figures import Work, flops


def objective_of(name: str, k: int, seed: int) -> Objective:
    if name in ("links", "time"):
        costs = np.random.default_rng(seed).integers(0, 9, (k, k))
        costs[-1, 0] = costs[0, -1] = 9
        if name == "time":
            speeds = None if seed % 2 else [2.0 ** (part % 3) for part in range(k)]
            return step_time(1e-3 * costs, 10.0, 1 + seed % 3, speeds)
        return over_links(costs.tolist())
    return {"volume": VOLUME, "largest": LARGEST}[name]


def plain_seconds(
    objective: Objective,
    layers: np.ndarray,
    weights: np.ndarray,
    parts: np.ndarray,
    traffic: np.ndarray,
) -> float:
    """By the formula, one vertex and one pair of parts after the other."""
    k = len(traffic)
    assert objective.links is not None
    links = [0.0] * k
    for sender in range(k):
        for receiver in range(k):
            seconds = float(objective.links[sender, receiver] * traffic[sender, receiver])
            links[sender] += seconds
            links[receiver] += seconds
    of_layer: dict[int, list[float]] = {}
    busy = [*links]
    for layer, weight, part in zip(layers.tolist(), weights.tolist(), parts.tolist(), strict=True):
        seconds = objective.seconds * weight / max(1, weights.sum())
        if objective.speeds is not None:
            seconds /= objective.speeds[part]
        of_layer.setdefault(layer, [0.0] * k)[part] += seconds
        busy[part] += seconds
    path = sum(max(own) for own in of_layer.values()) + max(links)
    many = objective.micro_batches
    return ((many - 1) * max(busy) + path) / many


@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.integers(1, 6),
    st.integers(0, 9),
    st.sampled_from([0, 20, 500]),
    st.sampled_from(["volume", "largest", "links", "time"]),
    st.sampled_from([None, 0, 3]),
)
def test_costs_loads_and_memory_are_those_of_the_metrics(
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    seed: int,
    steps: int,
    name: str,
    copies: int | None,
) -> None:
    check_costs(*graph_and_work, modelling, k, seed, steps, name, copies)


@given(
    norms(),
    st.sampled_from(["coarse", "fine"]),
    st.integers(1, 3),
    st.integers(2, 5),
    st.integers(0, 9),
    st.sampled_from([0, 20, 500]),
    st.sampled_from(["volume", "largest", "links", "time"]),
    st.sampled_from([None, 3]),
)
def test_costs_of_norms_over_channels(
    norm: Norm,
    grain: str,
    slices: int,
    k: int,
    seed: int,
    steps: int,
    name: str,
    copies: int | None,
) -> None:
    _, graph = placements.traced_model(normed(norm), [images()])
    modelling = Modelling(grain=grain, batch_size=SAMPLES, slices=slices)
    check_costs(graph, flops(graph), modelling, k, seed, steps, name, copies)


def check_costs(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    k: int,
    seed: int,
    steps: int,
    name: str,
    copies: int | None,
) -> None:
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    if model.hypergraph.vertices == 0:
        return
    parts = np.random.default_rng(seed).integers(0, k, model.hypergraph.vertices).astype(np.int32)
    objective = objective_of(name, k, seed)
    memory = None
    if copies is not None:
        needed = part_memory(model, parts, k, copies)
        memory = MemoryLimits((int(needed.mean() * 0.9),) * k, copies)
    problem = Problem(graph, work, modelling, k, memory=memory)
    found = symmetry_of(problem)
    start = division_of(found, model, parts)
    total = int(model.hypergraph.weights.sum())
    room = np.full(k, total // k + 1, dtype=np.int64)
    of_layers = LayersOfTypes(found.type_layers, problem.total)
    goal = goal_of(room, objective, memory, of_layers=of_layers)
    best = anneal(found, goal, [(start, Cooling(seed, steps, 0.1, 1e-4, 2.0, 8))], threads=1)[0][0]

    blocks, block_parts = blocks_of(problem, found, best.division)
    evaluation = evaluate(blocks.hypergraph, block_parts, k)
    assert evaluation.loads.sum() == total
    if name == "links":
        assert (goal.links.reshape(k, k) * evaluation.traffic).sum() == best.cost
        if k > 1:
            step = objective.links.max() / goal.links.max()
            assert objective.value(evaluation.traffic) == pytest.approx(best.cost * step, rel=1e-4)
    elif name == "time":
        seconds = plain_seconds(
            objective, blocks.vertex_layers, blocks.weights, block_parts, evaluation.traffic
        )
        assert best.cost * 1e-9 == pytest.approx(seconds, rel=1e-4, abs=1e-8)
        of_layers = work_of_layers(blocks, block_parts, k)
        assert objective.value(evaluation.traffic, of_layers) == pytest.approx(seconds)
    else:
        assert objective.value(evaluation.traffic) == best.cost
    excess = np.maximum(evaluation.loads - room, 0).sum() / room.sum()
    if memory is None:
        assert best.excess == pytest.approx(excess)
        return
    needed = part_memory(blocks, block_parts, k, memory.copies)
    above = np.maximum(needed - memory.bytes, 0).sum() / max(1, sum(memory.bytes))
    if copies == 0:
        assert best.excess == pytest.approx(excess + above)
    else:  # a unit's share of parameters is rounded up
        assert best.excess >= excess + above - 1e-12
