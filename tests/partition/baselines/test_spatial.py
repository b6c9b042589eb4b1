"""Rows of the maps dealt out, beside a search that starts from that."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hgpart
from hgpart.errors import ArgumentError
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import work_of_layers
from hgpart.partition.baselines.spatial import heights_of, spatial
from hgpart.partition.native import tiled
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import partition_graph
from hgpart.partition.ways.catalogue import way_named
from hgpart.plan import Plan, load_plan, restore, save_plan

INFERENCE = Modelling(batch_size=4, training=False)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(128, 4))


@cache
def graph() -> hgpart.ChannelGraph:
    return hgpart.channel_graph(hgpart.trace(network(), (torch.randn(4, 3, 16, 16),)))


def problem(k: int, bands: int = 1, **options: object) -> Problem:
    modelling = replace(INFERENCE, bands=bands, **options)
    return Problem(graph(), hgpart.flops(graph()), modelling, k, 0.1)


def test_borders_travel_by_hand() -> None:
    """Two rows of 16 floats for each border, channel and sample; the head has what it reads."""
    model, parts = spatial(problem(2, 2))
    evaluation = hgpart.evaluate(model.hypergraph, parts, 2)
    row = 4 * 16 * 4
    images, first = 2 * 3 * row, 2 * 8 * row
    pooled = 8 * 4 * 4 * 4 * 4
    result = 2 * 4 * 4
    # Both halves of the pooled maps are read by both halves of the head.
    assert evaluation.volume == images + first + pooled + result


def test_no_part_is_idle_where_a_layer_has_fewer_rows_than_parts() -> None:
    """Four rows in bands of their own, and the filters of each on two parts that follow."""
    model, parts = spatial(problem(8, 8))
    low = np.array([view.bands == 4 for view in model.views])[model.vertex_layers]
    for band in range(4):
        assert {*parts[low & (model.vertex_bands == band)]} == {2 * band, 2 * band + 1}
    pairs = {*zip(model.vertex_rows[low].tolist(), (parts[low] % 2).tolist(), strict=True)}
    assert pairs == {(row, row // 4) for row in range(8)}


def searched(own: Problem, backend: str = "native") -> hgpart.Partition:
    return partition_graph(
        own.graph, own.work, own.k, own.eps, modelling=own.modelling, backend=backend, effort=0.05
    )


def test_a_search_is_no_worse_than_the_ways_within_eps() -> None:
    own = replace(problem(2, 4), eps=0.3)
    found = searched(own)
    assert found.feasible
    assert found.lower_bound == 0  # none is known
    for name in ("spatial", "rows-then-filters", "coarse"):
        named = way_named(name).partition(own, Search())
        assert named.feasible
        assert found.evaluation.volume <= named.evaluation.volume


@pytest.mark.parametrize("backend", ["kahypar", "mtkahypar"])
def test_other_partitioners_take_tiles_as_they_are(backend: str) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    found = searched(problem(4, 4), backend)
    assert found.feasible
    assert found.modelling.bands == 4
    assert hgpart.evaluate(found.model.hypergraph, found.parts, 4).volume == found.evaluation.volume


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_leaves_the_best_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "rows_then_filters", interrupted)
    found = searched(replace(problem(2, 4), eps=0.3))
    assert found.interrupted
    assert found.feasible


def test_ctrl_c_in_the_search_without_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of all bands but the first were whatever was in memory."""
    whole = tiled.native_partition
    ended = lambda *asked: replace(whole(*asked), interrupted=True)  # noqa: E731
    monkeypatch.setattr(tiled, "native_partition", ended)
    found = searched(replace(problem(2, 4), eps=0.3))
    assert found.interrupted
    assert found.feasible


def test_any_bands_are_never_worse_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    own = replace(problem(2), eps=0.3)
    asked = own.graph, own.work, own.k, own.eps
    flat = partition_graph(*asked, modelling=own.modelling, effort=0.05)
    found = partition_graph(*asked, modelling=own.modelling, bands="auto", effort=0.05)
    assert found.modelling.bands > 1
    assert found.evaluation.volume < flat.evaluation.volume
    monkeypatch.setattr("hgpart.partition.stages.promising_bands", interrupted)
    found = partition_graph(*asked, modelling=own.modelling, bands="auto", effort=0.05)
    assert found.interrupted
    assert found.evaluation.volume == flat.evaluation.volume


def test_ways_have_bands_and_slices_of_their_own() -> None:
    own = problem(4)
    modellings = {
        name: way_named(name).partition(own, Search()).modelling
        for name in ("spatial", "spatial-data", "rows-then-filters", "data-parallel")
    }
    assert {name: (each.slices, each.bands) for name, each in modellings.items()} == {
        "spatial": (1, 4),
        "spatial-data": (2, 2),
        "rows-then-filters": (1, 4),
        "data-parallel": (4, 1),
    }
    with pytest.raises(ArgumentError, match="2 devices for slices of 4 samples and bands"):
        way_named("spatial-data").partition(problem(2), Search())
    alone = way_named("rows-then-filters").partition(problem(1), Search())
    assert alone.evaluation.volume == 0
    unequal = replace(own, k=2, speeds=(3, 1))
    loads = way_named("spatial").partition(unequal, Search()).evaluation.loads
    assert loads[0] / loads[1] == pytest.approx(3, rel=0.2)


def test_a_plan_is_kept_and_run(tmp_path: Path) -> None:
    found = way_named("spatial").partition(problem(2), Search())
    save_plan(Plan(found, "net", (3, 16, 16)), tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert plan.modelling.bands == 2
    assert restore(plan, graph()).evaluation.volume == found.evaluation.volume
    images, model = torch.randn(4, 3, 16, 16), network().eval()
    with torch.no_grad():
        placed = hgpart.place(model, plan)
        torch.testing.assert_close(placed(images), model(images))
    assert placed.runtime.last.traffic.forward_bytes.sum() == found.evaluation.volume
    with pytest.raises(ArgumentError, match=r"bands of rows \(2\) with backend 'exact'"):
        partition_graph(
            graph(), found.problem.work, 2, 0.1, modelling=found.modelling, backend="exact"
        )


def test_low_maps_lie_on_one_part() -> None:
    """Of heights 16 and 4: down to 4 all rows are dealt out, but the head has none."""
    assert heights_of(graph()) == (4, 16)
    with pytest.raises(ArgumentError, match="no map has 17 rows: accepted are 2 to 16"):
        way_named("spatial-17").partition(problem(2), Search())
    for rows, banded in ((4, {16, 4}), (16, {16})):
        found = way_named(f"spatial-{rows}").partition(problem(2), Search())
        work = work_of_layers(found.model, found.parts, 2)
        for view, own in zip(found.model.views, work.tolist(), strict=True):
            if sum(own):
                assert (min(own) > 0) == (view.cell_cuts[-1] in banded), view.layer.name
    by_filters = way_named("rows-then-filters-16").partition(problem(2), Search())
    assert by_filters.evaluation.imbalance == 0
    assert by_filters.modelling.bands == 2
    unequal = replace(problem(2), speeds=(1, 3))
    found = way_named("spatial-16").partition(unequal, Search())
    assert work_of_layers(found.model, found.parts, 2)[-2].tolist()[0] == 0  # the faster one has it


@pytest.mark.full
def test_a_search_over_tiles_is_a_way() -> None:
    own = replace(problem(2), eps=0.3)
    found = way_named("tiled").partition(own, Search(effort=0.05))
    assert found.feasible
    assert found.evaluation.volume <= way_named("sliced").partition(own, Search()).evaluation.volume
