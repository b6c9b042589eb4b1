"""Annealing: the best that a chain has met is returned, and what is no model is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from banded_graphs import BATCH, graph_of, random_parts
from corrupted_records import corrupted
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioned_models import GraphMaker, chain, channel_graphs, modellings, read

from hgpart.errors import HypergraphError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.partition.native.annealing import Cooling, Found, anneal
from hgpart.partition.native.goal import Goal, LayersOfTypes, goal_of
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import (
    LARGEST,
    VOLUME,
    Objective,
    over_links,
    step_time,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import Division, blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.work.figures import Work, flops

TIME = step_time([[0.0, 1e-3], [1e-3, 0.0]], seconds=1.0, micro_batches=3)  # of two parts


def random_division(found: Symmetry, k: int, seed: int) -> Division:
    """Two rows of each class where it has two units, their vertices anywhere."""
    random = np.random.default_rng(seed)
    sizes = [np.array([1, units - 1] if units > 1 else [1]) for units in found.class_units.tolist()]
    shapes = [
        [len(sizes[number]) for number in numbers if number >= 0]
        for numbers in found.type_classes.tolist()
    ]
    return Division(sizes, [random.integers(0, k, shape).astype(np.int32) for shape in shapes])


def goal_near(found: Symmetry, k: int, objective: Objective, slack: float) -> Goal:
    units = np.append(found.class_units, 1)[found.type_classes].prod(axis=1)
    total = int(found.type_weights @ units)
    room = np.full(k, int(total * slack) // k)
    return goal_of(room, objective, of_layers=LayersOfTypes(found.type_layers, total))


def assert_no_step_makes_it_worse(
    found: Symmetry, goal: Goal, start: Division, seed: int, price: float
) -> None:
    """Of one seed, a chain of n steps begins as one of n + 1 does: it has met all states but one.

    Up to 1024 steps, for which the temperature stays.
    """
    chains = [(start, Cooling(seed, steps, 0.1, 1e-4, price, 8)) for steps in range(120)]
    ranks = [one.rank for one in anneal(found, goal, chains, threads=1)[0]]
    assert all(after <= before for before, after in pairwise(ranks))


@pytest.mark.parametrize("price", [0.1, 4.0])
@pytest.mark.parametrize("objective", [VOLUME, LARGEST, TIME], ids=str)
def test_a_step_that_saves_by_overloading_a_part_does_not_lose_the_best(
    objective: Objective, price: float
) -> None:
    """The best was kept only where a step raised the energy, and this one lowers it."""
    graph, work = chain([24, 24, 24], [24 * 7, 24 * 11, 24 * 13], [5, 3, 1])
    found = symmetry_of(Problem(graph, work, Modelling(input_vertex=False, output_vertex=False), 1))
    for seed in range(5):
        start = random_division(found, 2, seed)
        goal = goal_near(found, 2, objective, 1.1)
        assert_no_step_makes_it_worse(found, goal, start, seed, price)


@settings(max_examples=30)
@given(
    channel_graphs(),
    modellings,
    st.integers(2, 4),
    st.sampled_from([VOLUME, LARGEST]),
    st.sampled_from([1.0, 1.2, 2.0]),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.1, 4.0]),
)
def test_a_chain_returns_the_best_that_it_has_met(
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    objective: Objective,
    slack: float,
    seed: int,
    price: float,
) -> None:
    found = symmetry_of(Problem(*graph_and_work, modelling, 1))
    start = random_division(found, k, seed)
    assert_no_step_makes_it_worse(found, goal_near(found, k, objective, slack), start, seed, price)


# ------------------------------------------------------------------ what is refused


def model() -> Symmetry:
    """Units of several tasks, cells, partial sums, and readers of all maps."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=3)
    maps = maker.add("dense", 6, (read(image, partial=True),), weights=18)
    maps = maker.add("depthwise", 6, (read(maps, groups=6),))
    maps = maker.add("dense", 4, (read(maps, partial=True),), weights=24)
    maker.add("dense", 3, (read(maps),))
    work = Work(np.array([0, 3, 1, 6, 4]), "MAC", 1, "test")
    modelling = Modelling(grain="fine", batch_size=1)
    return symmetry_of(Problem(maker.graph(), work, modelling, 1, memory=MemoryLimits((0,), 1)))


MODEL = model()
START = random_division(MODEL, 3, 0)
SCHEDULE = Cooling(0, 50, 0.1, 1e-4, 1.0, 4)
GOAL = goal_near(MODEL, 3, VOLUME, 1.2)
LINKS = over_links([[0, 1, 5], [1, 0, 5], [5, 5, 0]])
GOALS = [
    GOAL,
    goal_near(MODEL, 3, LARGEST, 1.2),
    goal_near(MODEL, 3, LINKS, 1.2),
    goal_near(MODEL, 3, replace(TIME, links=LINKS.links), 1.2),
    goal_of(GOAL.capacities, VOLUME, MemoryLimits((90,) * 3, 1)),
]


def run(
    found: Symmetry = MODEL,
    goal: Goal = GOAL,
    start: Division = START,
    schedule: Cooling = SCHEDULE,
) -> Found:
    return anneal(found, goal, [(start, schedule)], seconds=0.0, threads=1)[0][0]


def test_corrupted_records_are_refused_or_annealed() -> None:
    """Nothing was checked: 44 of 400 ended the process."""
    random, refused, trials = np.random.default_rng(0), 0, 1000
    for trial in range(trials):
        given: list[Any] = [MODEL, GOALS[trial % len(GOALS)], START, SCHEDULE]
        at = int(random.choice(4, p=[0.6, 0.15, 0.15, 0.1]))
        given[at] = corrupted(given[at], random)
        try:
            run(*given)
        except HypergraphError as error:
            refused += 1
            assert "\n" not in str(error)
    assert trials // 3 < refused < trials


def entry(values: np.ndarray, at: int, value: int) -> np.ndarray:
    changed = values.copy()
    changed.flat[at] = value
    return changed


MOST = 2**63 - 1
READ_BY_ALL = int((MODEL.net_sets == 1).argmax())
BAD_MODELS: list[tuple[dict[str, Any], str]] = [
    (
        {"tiles": MODEL.tiles[:0]},
        "tiles has length 0, expected some for each of 0 slices and 1 ban",
    ),
    ({"tiles": MODEL.tiles.ravel()}, "tiles has 1 dimensions, expected 3: slices, bands and types"),
    (
        {"tiles": entry(MODEL.tiles, 1, 0)},
        "tiles[1] is 0, expected -1 or a type that is no tile be",
    ),
    ({"tiles": entry(MODEL.tiles, 1, -1)}, "tiles[1] is -1, expected each type, somewhere"),
    ({"class_units": entry(MODEL.class_units, 1, 0)}, "class_units[1] is 0, expected 1 or more"),
    (
        {"type_weights": MODEL.type_weights[:0]},
        "type_weights has length 0, expected 1 or more",
    ),
    (
        {"type_weights": entry(MODEL.type_weights, 2, -1)},
        "type_weights[2] is -1, expected 0 or more",
    ),
    ({"type_weights": entry(MODEL.type_weights, 2, MOST)}, "total weight is more than 92233"),
    ({"type_memory": MODEL.type_memory[1:]}, "type_memory has length 8, expected 9, one per type"),
    ({"type_memory": entry(MODEL.type_memory, 2, MOST)}, "total memory is more than 92233"),
    (
        {"type_classes": entry(MODEL.type_classes, 0, -1)},
        "type_classes[0] is -1, expected 0 or more and less than 4",
    ),
    (
        {"type_classes": entry(MODEL.type_classes, 1, 4)},
        "type_classes[1] is 4, expected -1 or more and less than 4",
    ),
    ({"set_pointers": MODEL.set_pointers[:1]}, "set_pointers has length 1, expected 2 or more"),
    (
        {"set_pointers": entry(MODEL.set_pointers, 1, 1)},
        "set_pointers[1] is 1, expected 0: the first set is empty",
    ),
    (
        {"set_types": entry(MODEL.set_types, 0, 9)},
        "set_types[0] is 9, expected 0 or more and less than 9",
    ),
    ({"net_sets": entry(MODEL.net_sets, 0, -1)}, "net_sets[0] is -1, expected 0 or more and less"),
    ({"net_costs": MODEL.net_costs[1:]}, "net_costs has length 5, expected 6, one per net"),
    (
        {"net_crossings": entry(MODEL.net_crossings, 0, 4)},
        "net_crossings[0] is 4, expected -1 or more and less than 4",
    ),
    (
        {"net_crossings": entry(MODEL.net_crossings, 0, 1)},
        "net_pins[0] is 0, expected a pin of classes 0 and 1, its net's",
    ),
    (
        {"net_crossings": entry(MODEL.net_crossings, READ_BY_ALL, 1)},
        f"net_sets[{READ_BY_ALL}] is 1, expected 0: nets of pairs of units have no set",
    ),
    ({"net_keeps": MODEL.net_keeps[1:]}, "net_keeps has length 5, expected 6, one per net"),
    ({"net_memory": MODEL.net_memory[1:]}, "net_memory has length 5, expected 6, one per net"),
    ({"net_memory": entry(MODEL.net_memory, 2, -1)}, "net_memory[2] is -1, expected 0 or more"),
    ({"net_memory": entry(MODEL.net_memory, 2, MOST)}, "total memory is more than 92233"),
    (
        {"net_costs": entry(MODEL.net_costs, 0, MOST)},
        "volume where all nets are in all parts is more than 92233",
    ),
    (
        {"net_pointers": entry(MODEL.net_pointers, 1, 0)},
        "net_pointers[1] is 0, expected more than 0: each net has at least a root",
    ),
    ({"net_pins": entry(MODEL.net_pins, 1, 18)}, "net_pins[1] is 18, expected 0 or more and less"),
    (
        {"net_pins": entry(MODEL.net_pins, 1, 2)},
        "net_pins[1] is 2, expected a pin of class 0, its net's",
    ),
    (
        {"net_pins": entry(MODEL.net_pins, 0, int(MODEL.net_pins[1]))},
        "expected a root, of a type of one class",
    ),
]


@pytest.mark.parametrize(("arrays", "message"), BAD_MODELS)
def test_what_is_not_a_model_is_named(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(HypergraphError) as raised:
        run(replace(MODEL, **arrays))
    assert message in str(raised.value)


def test_nets_of_a_set_gather_all_or_none() -> None:
    net, other = int(np.flatnonzero(MODEL.net_sets)[0]), int(np.flatnonzero(MODEL.net_sets == 0)[0])
    sets = entry(MODEL.net_sets, other, int(MODEL.net_sets[net]))
    with pytest.raises(HypergraphError, match="like other nets of its set"):
        run(replace(MODEL, net_sets=sets, net_gathers=entry(MODEL.net_gathers, net, 1)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"capacities": GOAL.capacities[:0]}, "k is 0, expected 1 to 16777216"),
        (
            {"capacities": entry(GOAL.capacities, 1, -1)},
            "capacities[1] is -1, expected 0 or more",
        ),
        (
            {"memory": GOAL.capacities[:2]},
            "memory has length 2, expected 3, one per part, or none",
        ),
        ({"objective": 4}, "objective is 4, expected 0, 1, 2 or 3"),
        ({"objective": 2}, "links has length 0, expected 9, one per pair of parts"),
        ({"objective": "volume"}, "objective is 'volume', expected 0, 1, 2 or 3"),
        ({"links": np.full(9, MOST)}, "cost of the links where all nets are in all parts is more"),
    ],
)
def test_what_is_not_a_goal_is_named(changed: dict[str, Any], message: str) -> None:
    goal = GOALS[1] if "links" in changed else GOAL
    with pytest.raises(HypergraphError) as raised:
        run(goal=replace(goal, **changed))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": -1}, "chains[0].steps is -1, expected 0 or more"),
        ({"steps": 0.5}, "steps is 0.5, expected a whole number"),
        ({"hottest": math.nan}, "chains[0].hottest is nan, expected more than 0"),
        ({"coldest": 0.0}, "chains[0].coldest is 0.000000, expected more than 0"),
        ({"price": -1.0}, "chains[0].price is -1.000000, expected 0 or more"),
        ({"seed": -1}, "seed is -1, expected 0 to 2^64 - 1"),
    ],
)
def test_what_is_not_a_schedule_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(HypergraphError) as raised:
        run(schedule=replace(SCHEDULE, **changed))
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("sizes", "parts", "message"),
    [
        ({0: []}, {}, "sum of chains[0].sizes[0] is 0, expected 1, the units of the class"),
        ({1: [0, 6]}, {}, "chains[0].sizes[1][0] is 0, expected 1 or more"),
        ({1: [1, 6]}, {}, "sum of chains[0].sizes[1] is 7, expected 6, the units of the class"),
        ({1: [1, MOST]}, {}, "number of units is more than 9223372036854775807, the most"),
        ({}, {1: [0]}, "chains[0].parts[1] has length 1, expected 2, one per row, or pair of rows"),
        ({}, {1: [0, 3]}, "chains[0].parts[1][1] is 3, expected 0 or more and less than 3"),
    ],
)
def test_what_is_not_a_start_is_named(
    sizes: dict[int, list[int]], parts: dict[int, list[int]], message: str
) -> None:
    start = Division(
        [np.array(sizes.get(at, own), np.int64) for at, own in enumerate(START.sizes)],
        [np.array(parts.get(at, own), np.int32) for at, own in enumerate(START.parts)],
    )
    with pytest.raises(HypergraphError) as raised:
        run(start=start)
    assert message in str(raised.value)


def test_a_mistaken_number_of_rows_allocates_nothing() -> None:
    units = entry(MODEL.class_units, 1, 2**40)
    start = Division([START.sizes[0], np.array([1, 2**40 - 1]), *START.sizes[2:]], START.parts)
    run(replace(MODEL, class_units=units), start=start)
    with pytest.raises(HypergraphError, match="number of rows is 1099511627"):
        run(
            replace(MODEL, class_units=units),
            start=start,
            schedule=replace(SCHEDULE, most_rows=2**40),
        )


@pytest.mark.few(2)
@pytest.mark.parametrize("goal", GOALS[:3])
def test_costs_and_weights_of_nearly_64_bits_are_annealed_like_small_ones(goal: Goal) -> None:
    """Powers of two change no rounding, so that each step is the same; twice as much is refused."""
    small = run(goal=goal)

    def scaled(costs: int, weights: int) -> Found:
        return run(
            replace(
                MODEL, net_costs=MODEL.net_costs * costs, type_weights=MODEL.type_weights * weights
            ),
            replace(goal, capacities=goal.capacities * weights),
        )

    def largest(name: str) -> int:
        factor = 1
        while True:
            try:
                scaled(**{"costs": 1, "weights": 1, name: 2 * factor})
            except HypergraphError as error:
                assert "is more than 9223372036854775807" in str(error)
                return factor
            factor *= 2

    costs, weights = largest("costs"), largest("weights")
    assert weights * int(GOAL.capacities.sum()) > 2**61
    found = scaled(costs, weights)
    assert found.rank == (small.excess, small.cost * costs)


def test_a_net_may_have_more_pins_in_a_part_than_16_bits_count() -> None:
    """66 cells of each of 1000 rows, all in part 0; the root is in part 1, so that it is cut once.

    Ten types more, of which each row has its own ten parts, keep the rows apart.
    """
    rows, cells, bits = 1000, 66, 10
    one, other = np.array([[0, -1]]), np.array([[1, -1]])
    found = replace(
        MODEL,
        class_units=np.array([1, rows]),
        type_weights=np.zeros(1 + cells + bits, dtype=np.int64),
        type_memory=np.zeros(1 + cells + bits, dtype=np.int64),
        type_classes=np.concatenate([one, [[0, 1]] * cells, other.repeat(bits, 0)]).astype(
            np.int32
        ),
        set_pointers=np.array([0, 0]),
        type_layers=np.zeros(1 + cells + bits, dtype=np.int32),
        set_types=np.zeros(0, dtype=np.int32),
        net_classes=np.zeros(1, dtype=np.int32),
        net_crossings=np.full(1, -1, dtype=np.int32),
        net_sets=np.zeros(1, dtype=np.int32),
        net_costs=np.array([7]),
        net_gathers=np.zeros(1, dtype=bool),
        net_keeps=np.ones(1, dtype=bool),
        net_memory=np.zeros(1, dtype=np.int64),
        net_pointers=np.array([0, 1 + cells]),
        net_pins=2 * np.arange(1 + cells, dtype=np.int32),
        tiles=np.arange(1 + cells + bits, dtype=np.int32).reshape(1, 1, -1),
    )
    binary = [np.arange(rows, dtype=np.int32) >> bit & 1 for bit in range(bits)]
    start = Division(
        [np.ones(1, dtype=np.int64), np.ones(rows, dtype=np.int64)],
        [np.ones(1, np.int32), *[np.zeros((1, rows), np.int32)] * cells, *binary],
    )
    assert run(found, goal_of(np.zeros(2, np.int64)), start, replace(SCHEDULE, steps=0)).cost == 7


def test_clusters_of_tiles_move_and_are_counted_right() -> None:
    """There are clusters only where rows have bands, and each seed has its own."""
    graph, modelling = graph_of(0), Modelling(batch_size=BATCH, slices=2, bands=4)
    problem = Problem(graph, flops(graph), modelling, 3, 0.4)
    found = symmetry_of(problem)
    model = problem.hypergraph(single_blocks(graph, modelling))
    start = division_of(found, model, random_parts(model, 0))
    chains = [(start, Cooling(seed, 3000, 3e-2, 1e-4, 4.0, 4)) for seed in range(4)]
    results, _ = anneal(found, goal_of(problem.capacities), chains)
    before = evaluate_parts(model, random_parts(model, 0), 3).volume
    for one in results:
        assert evaluate_parts(*blocks_of(problem, found, one.division), 3).volume == one.cost
        assert one.cost < before
    assert len({one.cost for one in results}) > 1  # seeds have clusters of their own
