"""The best cut between layers, against trying all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from builtin_graphs import full_size_graph
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, graph_of, with_capacities
from torch import nn

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import communication_volume
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
    layerwise_within,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work, flops

COARSE = Modelling(batch_size=1)


def loads_of(graph: ChannelGraph, work: Work) -> list[int]:
    pairs = zip(graph.layers, work.per_task.tolist(), strict=True)
    return [each * layer.tasks for layer, each in pairs]


def time_of(loads: list[int], parts: list[int], speeds: list[float]) -> float:
    of_part = [0] * len(speeds)
    for load, part in zip(loads, parts, strict=True):
        of_part[part] += load
    return max(load / speed for load, speed in zip(of_part, speeds, strict=True))


def volume_of(graph: ChannelGraph, work: Work, k: int, parts: list[int]) -> int:
    model = cnn_hypergraph(graph, work, layer_blocks(COARSE.views(graph)), COARSE)
    of_vertices = np.array(parts, dtype=np.int32)[model.vertex_layers]
    return communication_volume(model.hypergraph, of_vertices, k)


def ascending(graph: ChannelGraph, k: int) -> Iterator[list[int]]:
    """Every ascending assignment that keeps tied layers together.

    Parameters that are read as data are where a layer is that they are tied to, or that reads them.
    """
    layers = graph.layers
    homes = {}
    for at, layer in enumerate(layers):
        group = [other for other, one in enumerate(layers) if one.tied_to == layer.tied_to]
        computing = [other for other in group if layers[other].kind != PARAMETER]
        readers = [
            other for other, one in enumerate(layers) if not {*group}.isdisjoint(graph.sources(one))
        ]
        if layer.kind == PARAMETER and (computing or readers):
            homes[at] = (computing or readers)[0]
    others = [at for at in range(len(layers)) if at not in homes]
    for parts in combinations_with_replacement(range(k), len(others)):
        of_layers = dict(zip(others, parts, strict=True))
        cut = [of_layers[homes.get(at, at)] for at in range(len(layers))]
        if all(cut[layer.tied_to] == cut[at] for at, layer in enumerate(layers)):
            yield cut


def every_cut(graph: ChannelGraph, loads: list[int], k: int) -> list[list[int]]:
    """Every ascending assignment that gives each part a load."""
    busy = {at for at, load in enumerate(loads) if load > 0}
    return [cut for cut in ascending(graph, k) if len({cut[at] for at in busy}) == k]


def assert_best(graph: ChannelGraph, work: Work, k: int, speeds: list[float] | None) -> None:
    found = layerwise(Problem(graph, work, COARSE, k, speeds=speeds)).tolist()
    assert_least(graph, work, loads_of(graph, work), found, speeds or [1.0] * k)


def assert_least(
    graph: ChannelGraph, work: Work, loads: list[int], found: list[int], rates: list[float]
) -> None:
    """No other cut has a smaller largest load, nor as small a one and less volume."""
    k = len(rates)
    cuts = every_cut(graph, loads, k)
    if not cuts:
        return
    assert found in cuts
    times = [time_of(loads, cut, rates) for cut in cuts]
    assert time_of(loads, found, rates) == pytest.approx(min(times), rel=1e-9)
    as_fast = [
        cut for cut, time in zip(cuts, times, strict=True) if time <= min(times) * (1 + 1e-12)
    ]
    volumes = [volume_of(graph, work, k, cut) for cut in as_fast]
    assert volume_of(graph, work, k, found) == min(volumes)


def loads_of_parts(loads: list[int], parts: list[int], k: int) -> list[int]:
    return [
        sum(load for load, of in zip(loads, parts, strict=True) if of == part) for part in range(k)
    ]


@given(channel_graphs(max_layers=5), st.lists(st.integers(0, 400), min_size=1, max_size=3))
def test_no_cut_that_has_room_has_less_volume(
    graph_and_work: tuple[ChannelGraph, Work], room: list[int]
) -> None:
    graph, work = graph_and_work
    k, loads = len(room), loads_of(graph, work)
    with_room = [
        cut
        for cut in ascending(graph, k)
        if all(map(int.__le__, loads_of_parts(loads, cut, k), room))
    ]
    found = layerwise_within(with_capacities(graph, work, COARSE, np.array(room)))
    if not with_room:
        assert found is None
        return
    assert found is not None
    assert found.tolist() in with_room
    volumes = [volume_of(graph, work, k, parts) for parts in with_room]
    assert volume_of(graph, work, k, found.tolist()) == min(volumes)


def test_within_eps_a_cut_may_leave_a_device_idle() -> None:
    """Least volume, not least load: all on one device where eps allows it."""
    graph, work = chain([2, 2, 2], [10, 10, 10], [1, 1, 1])
    assert evaluate_layerwise(graph, work, COARSE, 2, eps=1.0).volume == 0
    assert evaluate_layerwise(graph, work, COARSE, 2).volume > 0


@given(channel_graphs(max_layers=5), st.integers(1, 4))
def test_no_cut_is_better(graph_and_work: tuple[ChannelGraph, Work], k: int) -> None:
    assert_best(*graph_and_work, k, None)


@given(
    channel_graphs(max_layers=4), st.lists(st.sampled_from([0.5, 1, 2, 3]), min_size=2, max_size=3)
)
def test_no_cut_is_better_on_unequal_devices(
    graph_and_work: tuple[ChannelGraph, Work], speeds: list[float]
) -> None:
    assert_best(*graph_and_work, len(speeds), speeds)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "residual", "grouped", "tied", "branches"])
def test_no_cut_of_a_traced_model_is_better(name: str, k: int) -> None:
    graph = graph_of(name)
    assert_best(graph, flops(graph), k, None)


def test_equal_loads_are_cut_where_least_travels() -> None:
    graph, work = chain([4, 4, 4, 4], [0, 8, 8, 0], [9, 1, 5, 3])
    # Input and first layer have no work: 9 x 4 travel behind it, 1 x 4 behind the second layer.
    assert layerwise(Problem(graph, work, COARSE, 2)).tolist() == [0, 0, 0, 1, 1, 1]


def test_more_parts_than_layers_that_compute_leaves_parts_empty() -> None:
    graph, work = chain([4, 4], [8, 4], [1, 1])
    assert layerwise(Problem(graph, work, COARSE, 5)).max() == 1
    assert evaluate_layerwise(graph, work, COARSE, 5).loads.tolist() == [8, 4, 0, 0, 0]


def test_no_work_at_all_stays_together() -> None:
    graph = graph_of("pooling")
    assert layerwise(Problem(graph, flops(graph), COARSE, 2)).tolist() == [0, 0, 0]
    assert evaluate_layerwise(graph, flops(graph), COARSE, 2).volume == 0


def test_tied_layers_are_never_parted() -> None:
    graph = graph_of("tied")
    for k in (1, 2, 3):
        parts = layerwise(Problem(graph, flops(graph), COARSE, k))
        for at, layer in enumerate(graph.layers):
            assert parts[at] == parts[layer.tied_to]


class Repeated(nn.Module):
    """Three convolutions and a parameter, which the first or the last two read as data."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.scale = nn.Parameter(torch.randn(1, 1, 4, 4))
        self.ends = ends

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.first(image) if self.ends else self.first(image) * self.scale
        maps = self.last(self.middle(first)) * self.scale
        sorted_maps: torch.Tensor = (maps + self.scale).flatten(1).sort(1)[0] * self.scale.sum()
        return sorted_maps


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("cut", [layerwise, layerwise_by_count, layerwise_by_parameters])
def test_a_parameter_that_is_read_as_data_forbids_no_cut(
    cut: Callable[[Problem], Int64], ends: bool
) -> None:
    """It stands before all layers; tied to one at the end, it kept all of them together."""
    graph = channel_graph(trace(Repeated(ends), torch.randn(2, 4, 4, 4)))
    held = next(at for at, layer in enumerate(graph.layers) if layer.kind == PARAMETER)
    tied = [at for at, layer in enumerate(graph.layers) if layer.tied_to == held and at != held]
    names = [layer.name for layer in graph.layers]
    parts = cut(Problem(graph, flops(graph), COARSE, 3)).tolist()
    assert [parts[names.index(name)] for name in ("first", "middle", "last")] == [0, 1, 2]
    assert tied
    assert {parts[at] for at in (held, *tied)} == {2}


@given(channel_graphs(max_layers=5), st.integers(1, 4))
def test_no_cut_balances_parameters_better(
    graph_and_work: tuple[ChannelGraph, Work], k: int
) -> None:
    graph, work = graph_and_work
    found = layerwise_by_parameters(Problem(graph, work, COARSE, k)).tolist()
    parameters = [layer.parameters for layer in graph.layers]
    assert_least(graph, work, parameters, found, [1.0] * k)


def test_parameters_and_work_ask_for_different_cuts() -> None:
    graph, work = chain([2, 2, 4], [90, 8, 4], [1, 1, 1])
    assert [layer.parameters for layer in graph.layers] == [0, 2, 2, 4, 0]
    assert layerwise(Problem(graph, work, COARSE, 2)).tolist() == [0, 0, 1, 1, 1]
    assert layerwise_by_parameters(Problem(graph, work, COARSE, 2)).tolist() == [0, 0, 0, 1, 1]


@given(channel_graphs(max_layers=6), st.integers(1, 4))
def test_equal_counts_differ_by_a_layer_at_most(
    graph_and_work: tuple[ChannelGraph, Work], k: int
) -> None:
    """Parameters that are read as data lie with the layers that read them, wherever they stand."""
    graph, work = graph_and_work
    parts = layerwise_by_count(Problem(graph, work, COARSE, k))
    assert len(parts) == len(graph.layers)
    computes = np.array([layer.kind != PARAMETER for layer in graph.layers])
    busy, parts = work.per_task[computes] > 0, parts[computes]
    assert (np.diff(parts) >= 0).all()
    counts = np.bincount(parts[busy], minlength=k)
    if busy.sum() >= k:
        assert counts.max() - counts.min() <= 1
    for at in np.flatnonzero(~busy[1:]) + 1:
        assert parts[at] == parts[at - 1]


@pytest.mark.few(1)
@pytest.mark.parametrize(("k", "printed"), [(2, 24.5), (4, 85.75), (16, 273.578125)])
def test_vgg16_as_in_the_thesis(k: int, printed: float) -> None:
    """Thesis table 5.2 prints 24.5, 85.7 and 273.5: 2^20 elements at batch 32, cut off."""
    graph = full_size_graph("vgg16")
    modelling = Modelling(batch_size=32, bytes_per_element=1)
    assert evaluate_layerwise(graph, flops(graph), modelling, k).volume / 2**20 == printed


@pytest.mark.parametrize("k", [2, 3])
def test_slices_do_not_change_what_a_cut_costs(k: int) -> None:
    """Loads were of one slice, beside the room for all of them: any cut was within eps."""
    graph = graph_of("plain")
    work = flops(graph)
    whole, sliced = (
        Problem(graph, work, Modelling(batch_size=8, slices=slices), k, 0.5) for slices in (1, 3)
    )
    assert layerwise(sliced).tolist() == layerwise(whole).tolist()
    one, other = layerwise_within(whole), layerwise_within(sliced)
    assert (one is None) == (other is None)
    assert one is None or other is None or one.tolist() == other.tolist()
    found, expected = (
        evaluate_layerwise(graph, work, problem.modelling, k, eps=0.5)
        for problem in (sliced, whole)
    )
    assert (found.loads == 8 * expected.loads).all()
    assert (found.traffic == expected.traffic).all()
    assert (found.messages == expected.messages).all()
