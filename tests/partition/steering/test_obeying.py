"""Divisions that are mended and annealed keep to constraints, and cost what their blocks do."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hgpart
from hgpart.hypergraph.building import evaluate_parts
from hgpart.partition.baselines.by_slices import in_every_slice
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.native.annealing import Cooling, anneal
from hgpart.partition.native.goal import goal_of
from hgpart.partition.problem.constraints import NONE, constraints
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.start import moved_bytes, start_of
from hgpart.partition.steering.checking import broken
from hgpart.partition.steering.obeying import Obeying
from hgpart.partition.symmetry.divisions import blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of

WANTED = constraints(["conv1[2:5]=1", "conv3=0,2", "input=0"], ["fc1,output"], ["conv2,fc2"])


@pytest.fixture(scope="module")
def lenet() -> tuple[hgpart.ChannelGraph, hgpart.Work]:
    module, shape = hgpart.load_model("lenet5", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(module, hgpart.example_inputs(module, shape)))
    return graph, hgpart.flops(graph)


@pytest.mark.parametrize("grain, slices", [("coarse", 1), ("fine", 1), ("coarse", 3)])
def test_annealed_divisions_keep_to_constraints_and_cost_their_volume(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work], grain: str, slices: int
) -> None:
    modelling = hgpart.Modelling(grain=grain, slices=slices, batch_size=6)
    problem = Problem(*lenet, modelling, 3, 0.5, constraints=WANTED)
    symmetry, obeying = symmetry_of(problem), Obeying(problem)
    blocks = incremental(problem.in_slices(1))
    start = division_of(symmetry, *in_every_slice(problem, *blocks))
    mended = obeying.division(symmetry, start)
    assert broken(*blocks_of(problem, symmetry, start), WANTED)
    assert not broken(*blocks_of(problem, symmetry, mended), WANTED)
    chains = [(mended, Cooling(seed, 3000, 0.1, 1e-4, 4.0, 8)) for seed in range(3)]
    results, _ = anneal(symmetry, goal_of(problem.capacities), chains, math.inf)
    for result in results:
        model, parts = blocks_of(problem, symmetry, result.division)
        assert not broken(model, parts, WANTED)
        assert evaluate_parts(model, parts, 3).volume == result.cost


def test_a_price_counts_what_moves(lenet: tuple[hgpart.ChannelGraph, hgpart.Work]) -> None:
    problem = Problem(*lenet, hgpart.Modelling(), 3, 0.5)
    model, parts = incremental(problem)
    start = start_of(model, parts, 3, 3).at_price(2.0)
    problem = Problem(*lenet, hgpart.Modelling(), 3, 0.5, start=start)
    symmetry = symmetry_of(problem)
    chains = [
        (division_of(symmetry, model, parts), Cooling(seed, 2000, 0.1, 1e-3, 4.0, 8))
        for seed in range(3)
    ]
    results, _ = anneal(symmetry, goal_of(problem.capacities), chains, math.inf)
    for result in results:
        own_model, own_parts = blocks_of(problem, symmetry, result.division)
        volume = evaluate_parts(own_model, own_parts, 3).volume
        assert result.cost == volume + 2 * moved_bytes(start, own_model, own_parts, 3)


def test_blocks_move_to_where_they_may_lie_while_others_do(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    """Whatever vertices move at once, as `may_lie` has it, constraints stay kept."""
    problem = Problem(*lenet, hgpart.Modelling(), 3, 0.5, constraints=WANTED)
    obeying = Obeying(problem)
    model, parts = obeying.blocks(*incremental(problem))
    allowed = obeying.may_lie(model, parts)
    assert allowed is not None
    draw = np.random.default_rng(0)
    for _ in range(20):
        moved = np.array([draw.choice(np.flatnonzero(own)) for own in allowed], dtype=np.int32)
        assert not broken(model, moved, WANTED)
    free = Obeying(Problem(*lenet, hgpart.Modelling(), 3, 0.5, constraints=NONE))
    assert free.may_lie(model, parts) is None


def test_layers_apart_in_a_chain_are_mended_where_no_single_one_can_leave(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    """On two devices each of them has both neighbours: all of them must move at once."""
    wanted = constraints(["fc2=0"], apart=["conv1,conv2", "conv2,conv3", "conv3,fc1", "fc1,fc2"])
    problem = Problem(*lenet, hgpart.Modelling(), 2, 0.5, constraints=wanted)
    model, parts = Obeying(problem).blocks(*incremental(problem))
    assert not broken(model, parts, wanted)
