"""The search over tiles is exact in its figures, and no worse than what it begins with."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from banded_graphs import graph_of as rows_of
from banded_graphs import modellings as tilings
from banded_graphs import random_parts
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import GraphMaker, channel_graphs, graph_of, modellings, read

from hgpart.hypergraph.blocks import layer_blocks, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, ChannelGraph
from hgpart.partition import partition_graph
from hgpart.partition.baselines.by_slices import data_parallel, in_every_slice
from hgpart.partition.baselines.stages import replicated_stages, run_costs
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.native import tiled
from hgpart.partition.native.annealing import Cooling, anneal
from hgpart.partition.native.goal import goal_of
from hgpart.partition.native.search import native_partition
from hgpart.partition.native.tiled import WHOLE_EFFORT
from hgpart.partition.problem.memory import MemoryLimits, part_memory
from hgpart.partition.problem.objectives import LARGEST, VOLUME, Objective, over_links
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.symmetry.divisions import blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.work.figures import Work, flops


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    slices = draw(st.integers(2, 4))
    modelling = draw(modellings)
    modelling = replace(modelling, batch_size=slices + draw(st.integers(0, 2)), slices=slices)
    return Problem(*draw(channel_graphs()), modelling, draw(st.integers(2, 4)), 0.5)


def kept_bytes(problem: Problem, model: CnnHypergraph, parts: np.ndarray, copies: int) -> list[int]:
    """What each part keeps, by the definition: vertex by vertex, slice by slice.

    Parameters once for all slices, those that it reads of others', too, and in each slice the maps
    that it makes and those that it gets.
    """
    data: dict[int, tuple[list[int], set[int]]] = {}  # by vertex: its parts, and those of readers
    kept, modelling = [0] * problem.k, model.modelling
    holders: dict[int, set[int]] = {}
    by_slice = parts.reshape(modelling.slices, -1)
    for samples, own in zip(modelling.samples, by_slice.tolist(), strict=True):
        one = cnn_hypergraph(
            problem.graph, problem.work, model.blocks, modelling.of_samples(samples)
        )
        for vertex, part in enumerate(own):
            holders.setdefault(vertex, set()).add(part)
        for at, vertices in enumerate(one.task_vertices):
            for vertex in vertices.tolist():
                kept[own[vertex]] += one.views[at].map_bytes
        nets = one.hypergraph
        for net, cost in enumerate(nets.costs.tolist()):
            pins = nets.pins[nets.pointers[net] : nets.pointers[net + 1]].tolist()
            at = int(nets.net_layers[net])
            if at < len(one.views) and one.views[at].layer.kind == PARAMETER:
                homes, readers = data.setdefault(pins[0], ([], set()))
                homes.append(own[pins[0]])
                readers.update(own[pin] for pin in pins)
                continue
            for part in {own[pin] for pin in pins} - {own[pins[0]]}:
                kept[part] += cost
    for vertex, (homes, readers) in data.items() if modelling.training else ():
        for view, vertices in zip(model.views, model.task_vertices, strict=True):
            if view.layer.kind == PARAMETER and vertex in vertices.tolist():
                for part in readers - {homes[0]}:
                    kept[part] += sum(count * size for count, size in view.parameters)
    for vertex, where in holders.items():
        at, row = int(model.vertex_layers[vertex]), int(model.vertex_rows[vertex])
        first, end = model.blocks.rows[at][row : row + 2].tolist()
        for view in model.views:
            if view.first == at:
                each = sum(count // view.layer.tasks * size for count, size in view.parameters)
                for part in where:
                    kept[part] += copies * each * (end - first)
    return kept


@given(
    problems(),
    st.randoms(use_true_random=False),
    st.sampled_from([VOLUME, LARGEST, None]),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)
def test_what_annealing_counts_is_what_the_metrics_count(
    problem: Problem,
    random: Random,
    objective: Objective | None,
    copies: int | None,
    training: bool,
) -> None:
    k = problem.k
    if objective is None:
        costs = [[0 if to == at else random.randrange(1, 9) for to in range(k)] for at in range(k)]
        costs[0][1] = 2**20  # the largest is as many steps as there are: costs stay what they are
        objective = over_links(costs)
    limits = None
    if copies is not None:
        limits = MemoryLimits(tuple(random.randrange(1, 2000) for _ in range(k)), copies)
    norms = random.choice(["slice", "batch"])
    modelling = replace(problem.modelling, training=training, norms=norms)
    problem = replace(problem, modelling=modelling, objective=objective, memory=limits)
    model = problem.hypergraph(single_blocks(problem.graph, problem.modelling))
    parts = np.array([random.randrange(k) for _ in range(model.vertices)], dtype=np.int32)
    found = symmetry_of(problem)
    start = division_of(found, model, parts)
    chains = [(start, Cooling(random.randrange(99), 300, 1e-2, 1e-4, 4.0, 16))]
    goal = goal_of(problem.capacities, objective, limits, 2**40)
    (one,), _ = anneal(found, goal, chains)
    last, last_parts = blocks_of(problem, found, one.division)
    again = evaluate_parts(last, last_parts, k)
    assert objective.value(again.traffic) == one.cost
    over = np.maximum(again.loads - problem.capacities, 0).sum()
    excess = over / max(1, problem.capacities.sum())
    if limits is not None:
        assert copies is not None
        needed = part_memory(last, last_parts, k, copies)
        if modelling.grain == "coarse":
            assert needed.tolist() == kept_bytes(problem, last, last_parts, copies)
        excess += np.maximum(needed - limits.bytes, 0).sum() / sum(limits.bytes)
    assert one.excess == pytest.approx(excess)
    if modelling.grain == "coarse":
        back = evaluate_parts(*blocks_of(problem, found, start), problem.k)
        assert (back.traffic == evaluate_parts(model, parts, problem.k).traffic).all()


def kept_in_tiles(problem: Problem, model: CnnHypergraph, parts: np.ndarray) -> list[int]:
    """What each part keeps: parameters once for all tiles, rows that it makes, and that it gets."""
    kept, copies = [0] * problem.k, problem.copies
    holders: dict[tuple[int, int], set[int]] = {}
    of_samples = [
        model.modelling.of_samples(samples).views(model.graph)
        for samples in model.modelling.samples
    ]
    for vertex, part in enumerate(parts.tolist()):
        number, place = divmod(vertex, model.slice_vertices)
        at, row = int(model.vertex_layers[vertex]), int(model.vertex_rows[vertex])
        view, band = of_samples[number][at], int(model.vertex_bands[place])
        tasks = model.blocks.rows[at][row + 1] - model.blocks.rows[at][row]
        is_cell = int(model.vertex_columns[vertex]) >= 0
        if not is_cell:
            rows = view.row_cuts[band + 1] - view.row_cuts[band]
            kept[part] += int(tasks) * view.map_bytes // view.height * rows
        if view.total is None:
            holders.setdefault((at, row), set()).add(part)
    nets = model.map_nets.written_out(model.weights)
    for net, cost in enumerate(nets.costs.tolist()):
        own = parts[nets.pins[nets.pointers[net] : nets.pointers[net + 1]]].tolist()
        for part in {*own} - {own[0]}:
            kept[own[0] if nets.gathers[net] else part] += cost
    for (at, row), held in holders.items():
        view, tasks = model.views[at], np.diff(model.blocks.rows[at])[row]
        for part in held:
            each = sum(count // view.layer.tasks * size for count, size in view.parameters)
            kept[part] += round(copies * each * tasks)
    return kept


@given(
    st.integers(0, 20),
    tilings(("coarse", "fine")),
    st.integers(0, 2**20),
    st.sampled_from([VOLUME, LARGEST]),
    st.sampled_from([None, 1, 3]),
)
def test_what_annealing_counts_is_what_tiles_send_and_keep(
    seed: int, modelling: Modelling, random: int, objective: Objective, copies: int | None
) -> None:
    graph, k = rows_of(seed), 3
    limits = None if copies is None else MemoryLimits((9000, 12000, 400), copies)
    problem = Problem(graph, flops(graph), modelling, k, 0.4, objective=objective, memory=limits)
    model = problem.hypergraph(single_blocks(graph, modelling))
    parts = random_parts(model, random)
    found = symmetry_of(problem)
    start = division_of(found, model, parts)
    chains = [(start, Cooling(random, 300, 1e-2, 1e-4, 4.0, 16))]
    (one,), _ = anneal(found, goal_of(problem.capacities, objective, limits, 2**40), chains)
    last, last_parts = blocks_of(problem, found, one.division)
    again = evaluate_parts(last, last_parts, k)
    assert objective.value(again.traffic) == one.cost
    excess = np.maximum(again.loads - problem.capacities, 0).sum() / problem.capacities.sum()
    if limits is not None:
        needed = part_memory(last, last_parts, k, copies or 0)
        if modelling.grain == "coarse":
            assert needed.tolist() == kept_in_tiles(problem, last, last_parts)
        excess += np.maximum(needed - limits.bytes, 0).sum() / sum(limits.bytes)
    assert one.excess == pytest.approx(excess)
    before = evaluate_parts(model, parts, k)
    back = evaluate_parts(*blocks_of(problem, found, start), k)
    assert (back.traffic == before.traffic).all()
    assert back.loads.tolist() == before.loads.tolist()


@given(problems(), st.sampled_from(["coarse", "fine"]), st.randoms(use_true_random=False))
def test_no_partition_within_the_capacities_is_below_the_bound(
    problem: Problem, grain: str, random: Random
) -> None:
    """By any rule, and by slices, by filters and by channels of filters alone."""
    problem = problem.at_grain(grain)
    model, bound = problem.hypergraph(layer_blocks(problem.views)), lower_bound(problem)
    finer = problem.hypergraph(single_blocks(problem.graph, problem.modelling))
    for blocks in (model, finer):
        slices = np.arange(blocks.vertices) // blocks.slice_vertices
        numbers = (slices, blocks.vertex_rows, blocks.vertex_columns, blocks.vertex_layers)
        for _ in range(10):
            few = random.sample(range(problem.k), random.randrange(1, problem.k + 1))
            parts = np.array([random.choice(few) for _ in range(blocks.vertices)], dtype=np.int32)
            if random.random() < 0.7:
                by = random.choice(numbers)
                by = by - by.min()
                parts = np.array(few, dtype=np.int32)[by * len(few) // (int(by.max()) + 1)]
            found = evaluate_parts(blocks, parts, problem.k)
            if (found.loads <= problem.capacities).all():
                assert found.volume >= bound


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_no_worse_than_the_model_whole_or_by_slices(grain: str) -> None:
    graph = graph_of("residual")
    modelling = Modelling(grain=grain, batch_size=8, slices=4)
    arguments = graph, flops(graph), 4, 0.3
    found = partition_graph(*arguments, modelling=modelling, effort=0.02)
    assert found.feasible
    whole = partition_graph(*arguments, modelling=replace(modelling, slices=1), effort=0.02)
    problem = Problem(graph, flops(graph), modelling, 4, 0.3)
    ways = [
        data_parallel(problem),
        replicated_stages(problem, problem.capacities.min(), run_costs(problem)),
    ]
    volumes = [evaluate_parts(*way, 4).volume for way in ways if way is not None]
    if grain == "coarse":
        volumes.append(whole.evaluation.volume)
    else:
        by_filters = replace(modelling, grain="coarse")
        coarse = partition_graph(*arguments, modelling=by_filters, effort=0.02)
        volumes.append(coarse.evaluation.volume)
    assert found.lower_bound <= found.evaluation.volume <= min(volumes)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("objective", "speeds"),
    [
        (LARGEST, None),
        (over_links([[0, 1, 9], [1, 0, 9], [9, 9, 0]]), None),
        (VOLUME, (1.0, 2.0, 1.0)),
        (LARGEST, (1.0, 2.0, 1.0)),
    ],
    ids=str,
)
def test_no_worse_by_any_objective(objective: Objective, speeds: tuple[float, ...] | None) -> None:
    graph = graph_of("residual")
    modelling = Modelling(batch_size=8, slices=4)
    given: dict[str, Any] = {"objective": objective, "speeds": speeds}
    found = partition_graph(graph, flops(graph), 3, 0.3, modelling=modelling, effort=0.02, **given)
    assert found.feasible
    problem = Problem(graph, flops(graph), modelling, 3, 0.3, speeds, objective)
    alone = Problem(graph, flops(graph), replace(modelling, slices=1), 3, 0.3, speeds, objective)
    whole = native_partition(alone, Search(0, WHOLE_EFFORT * 0.02), 0)
    room = float(problem.capacities.min())
    ways = [
        data_parallel(problem),
        replicated_stages(problem, room, run_costs(problem)),
        in_every_slice(problem, whole.model, whole.parts),
    ]
    values = []
    for way in ways:
        if way is not None:
            evaluation = evaluate_parts(*way, 3)
            if (evaluation.loads <= problem.capacities).all():
                values.append(objective.value(evaluation.traffic))
    assert values
    assert objective.value(found.evaluation.traffic) <= min(values)


@given(channel_graphs(), modellings, st.integers(1, 4))
def test_stages_are_within_their_room(
    worked: tuple[ChannelGraph, Work], modelling: Modelling, slices: int
) -> None:
    problem = Problem(*worked, replace(modelling, batch_size=4, slices=slices), 3, 0.2)
    room = float(problem.capacities.min())
    stages = replicated_stages(problem, room, run_costs(problem))
    if stages is not None:
        found = evaluate_parts(*stages, 3)
        assert found.loads.max() <= room * (1 + 1e-9)
    model = cnn_hypergraph(*worked, layer_blocks(problem.views), problem.modelling)
    alone = replicated_stages(problem, float(problem.total), run_costs(problem))
    assert alone is not None
    assert len(alone[1]) == model.vertices
    assert evaluate_parts(*alone, 3).volume == 0


def test_copies_of_a_model_that_a_part_has_no_room_for_are_not_chosen() -> None:
    """Data parallelism sends least, but keeps all parameters in both parts."""
    maker = GraphMaker()
    maps = maker.add(INPUT, 1, channels=3, elements=64)
    for _ in range(3):
        maps = maker.add("dense", 8, (read(maps, partial=True),), elements=64, weights=800)
    maker.add(OUTPUT, 1, (read(maps),), channels=0)
    graph = maker.graph()
    modelling = Modelling(batch_size=8, slices=2)
    work = Work(np.array([0, 100, 100, 100, 0]), "MAC", 1, "test")
    problem = Problem(graph, work, modelling, 2, 0.05)
    copied = data_parallel(problem)
    needed = part_memory(*copied, 2, 100)
    arguments = {"modelling": modelling, "effort": 0.02}
    free = partition_graph(graph, work, 2, 0.05, **arguments)
    assert free.evaluation.volume == evaluate_parts(*copied, 2).volume
    limits = MemoryLimits((int(needed.min()) * 3 // 4,) * 2, 100)
    found = partition_graph(graph, work, 2, 0.05, memory=limits, **arguments)
    assert found.feasible
    assert found.memory_bytes.max() <= limits.bytes[0] < needed.min()
    assert found.evaluation.volume > free.evaluation.volume


@pytest.mark.few(1)
@pytest.mark.parametrize("without", ["ROUNDS", "COUNT_ROUNDS"])
def test_counts_and_slices_each_find_more_than_is_known(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of the ways that are known sends 104,448 bytes."""
    monkeypatch.setattr(tiled, without, ())
    graph, modelling = graph_of("plain"), Modelling(batch_size=32, slices=16)
    found = partition_graph(graph, flops(graph), 3, 0.1, modelling=modelling, effort=0.05)
    assert found.feasible
    assert found.evaluation.volume < 50_000


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (rows_of(0), {"bands": 3}),
        (rows_of(0), {"bands": 3, "slices": 2, "objective": LARGEST}),
        (rows_of(0), {"bands": "auto", "slices": "auto"}),
        (graph_of("residual"), {"slices": 4, "modelling": Modelling(grain="fine", batch_size=8)}),
    ],
    ids=["bands", "bands and slices", "auto", "fine"],
)
def test_progress_is_all_at_the_end_alone(graph: ChannelGraph, options: dict[str, Any]) -> None:
    """It stood at 100 % as soon as as many rounds were over as there are without tiles."""
    told: list[float] = []
    partition_graph(
        graph,
        flops(graph),
        3,
        0.5,
        effort=0.02,
        on_progress=lambda done, volume: told.append(done),
        **{"modelling": Modelling(batch_size=4), **options},
    )
    assert told == sorted(told)
    assert told[-1] == 1
    assert told.index(1) >= len(told) - 2  # the last round, and the end
