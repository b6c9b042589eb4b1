"""No count of tasks or of pins limits a partition, its plan, its tables or its placement."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from partitioned_models import chain
from torch import nn

from hgpart import _native, place
from hgpart.compare.outcomes import Outcome, outcome_of
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.nets import Nets
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.native.layer_shares import layer_shares
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.ways.catalogue import partition_by, ways
from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
from hgpart.placement.accounting import account, disagreements
from hgpart.plan import Plan, load_plan, restore, save_plan
from hgpart.report.partition.columns import as_json
from hgpart.report.partition.record import Report
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work, flops

WIDTH = 13_000  # of two layers, so that the full hypergraph has more pins than can be written out
FEW = 5_000_000


@pytest.fixture(autouse=True)
def few_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here writes out the pins of a full hypergraph."""
    write = Nets.written_out

    def written_out(nets: Nets, weights: np.ndarray) -> Any:
        assert nets.sizes().sum() <= FEW
        return write(nets, weights)

    monkeypatch.setattr(Nets, "written_out", written_out)


def wide() -> tuple[ChannelGraph, Work]:
    return chain([WIDTH, WIDTH, 4], [10 * WIDTH, 20 * WIDTH, 8 * WIDTH], [4, 2, 1])


def kept(found: Partition, graph: ChannelGraph, work: Work, path: Path) -> Partition:
    """What a plan file holds of a partition."""
    save_plan(Plan(found, "wide", (3, 8, 8)), path)
    return restore(load_plan(path), graph)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("backend", ["native", "kahypar"])
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_partition_and_its_plan(grain: str, backend: str, tmp_path: Path) -> None:
    """One of the native solver's starts, tasks in order, once had a vertex for each task."""
    graph, work = wide()
    modelling = Modelling(grain=grain)
    found = partition_graph(graph, work, 3, 0.1, modelling=modelling, backend=backend, effort=0.001)
    assert found.feasible
    again = kept(found, graph, work, tmp_path / "plan.json")
    assert again.evaluation.volume == found.evaluation.volume
    assert evaluate_layerwise(graph, work, modelling, 3).volume > 0


def test_more_nets_than_refinement_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses more than 2^29 counts of a net and a part: then nothing is moved."""
    monkeypatch.setattr("hgpart.partition.improving.MAX_REFINED_COUNTS", 0)
    monkeypatch.setattr(_native, "refine", None)
    graph, work = chain([8, 8, 4], [80, 160, 64], [4, 2, 1])
    found = partition_graph(graph, work, 3, 0.5, modelling=Modelling(), backend="kahypar")
    assert found.evaluation.volume > 0


def test_the_tables_of_a_random_partition(tmp_path: Path) -> None:
    graph, work = wide()
    problem = Problem(graph, work, Modelling(), 3, 0.1)
    model, parts = random_parts(problem, seed=0)
    found = evaluated(problem, model, parts, seed=0, backend="random", start="random")
    again = kept(found, graph, work, tmp_path / "plan.json")
    layerwise = evaluate_layerwise(graph, work, Modelling(), 3)
    report = Report(again, "wide", (3, 8, 8), layerwise, {"total": 1.0})
    figures = json.loads(as_json(report))
    rows = [len(cuts) - 1 for cuts in model.blocks.rows]
    assert figures["vertices"] == sum(rows)
    # A chain of layers: a net for each block, with all blocks of the next layer.
    assert figures["pins"] == sum(one * (1 + other) for one, other in pairwise(rows))


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize(
    "name", [name for name in ways() if name not in ("coarse", "fine", "sliced")]
)
def test_each_way_of_splitting(name: str) -> None:
    graph, work = wide()
    problem = Problem(graph, work, Modelling(), 4 if name == "hybrid" else 3, 0.1)
    found = outcome_of(ways()[name], problem, 0)
    if name == "one-weird-trick":  # nothing at its end is called linear
        assert not isinstance(found, Outcome)
        return
    assert isinstance(found, Outcome), found


def test_a_random_placement() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3000), nn.Linear(3000, 3000), nn.Linear(3000, 2))
    traced = trace(model, torch.zeros(2, 2, device="meta"))
    graph = channel_graph(traced)
    work = flops(graph)
    found = partition_by("random", graph, work, 2, modelling=Modelling(batch_size=2))
    assert int(found.model.nets.sizes().sum()) > 10**6
    placed = place(model, PartitionedModel(traced, found, found.evaluation, {}))
    assert placed.programs.expected(2).volume == found.evaluation.volume
    assert disagreements(account(placed, 2), placed) == ()


def test_only_what_writes_all_pins_is_limited() -> None:
    graph, _ = wide()
    with pytest.raises(ArgumentError, match=r"169\d{6} pins: accepted are up to 150000000"):
        single_blocks(graph, Modelling())


# ------------------------------------------------------------------ no loops over tasks


def calls(run: Callable[[], object]) -> int:
    """Calls of functions, of Python's and of C's, while something runs."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def stages(width: int, modelling: Modelling) -> dict[str, Callable[[], object]]:
    graph, work = chain([width, width, width], [9 * width] * 3, [1, 1, 1])
    model, parts = incremental(Problem(graph, work, modelling, 3))
    found = symmetry_of(Problem(graph, work, modelling, 1))
    division = division_of(found, model, parts)
    room = np.full(3, 10 * width)
    single, random = random_parts(Problem(graph, work, modelling, 3), seed=0)
    return {
        "classes": lambda: symmetry_of(Problem(graph, work, modelling, 1)),
        "bound": lambda: lower_bound(Problem(graph, work, modelling, 3, 0.1)),
        "shares": lambda: layer_shares(Problem(graph, work, modelling, 3), room * 1.0),
        "in order": lambda: incremental(Problem(graph, work, modelling, 3)),
        "nets": lambda: cnn_hypergraph(graph, work, model.blocks, modelling).nets,
        "metrics": lambda: evaluate_parts(model, parts, 3),
        "metrics of single tasks": lambda: evaluate_parts(single, random, 3),
        "division": lambda: division_of(found, model, parts),
        "blocks": lambda: blocks_of(Problem(graph, work, modelling, 1), found, division),
    }


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_no_stage_loops_over_tasks(grain: str) -> None:
    """Finding classes had loops over tasks: minutes for a layer of a million."""
    few, many = stages(100, Modelling(grain=grain)), stages(1000, Modelling(grain=grain))
    for name, run in few.items():
        run(), many[name]()  # what they cache need not count
        assert calls(many[name]) < 1.2 * calls(run) + 50, name
