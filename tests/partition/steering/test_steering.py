"""Partitions of random constraints keep to them, by whoever divides; contradictions are named."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hgpart
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.partition_files import full_parts
from hgpart.partition.partition import Partition
from hgpart.partition.problem.constraints import Constraints, constraints
from hgpart.partition.problem.layer_constraints import LayerConstraints
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.steering import feasible
from hgpart.partition.steering.checking import broken
from hgpart.partition.ways.catalogue import way_named

LAYERS = {"input": 1, "conv1": 6, "conv2": 16, "conv3": 120, "fc1": 84, "fc2": 10, "output": 1}


@pytest.fixture(scope="module")
def lenet() -> tuple[hgpart.ChannelGraph, hgpart.Work]:
    module, shape = hgpart.load_model("lenet5", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(module, hgpart.example_inputs(module, shape)))
    return graph, hgpart.flops(graph)


def devices_of_filters(partition: Partition) -> dict[str, np.ndarray]:
    """The device of each filter of each layer, coarse-grain: by slice and band, and filter."""
    parts = full_parts(partition.model, partition.parts)
    modelling, devices = partition.modelling, dict[str, list[np.ndarray]]()
    at = 0
    for _, band in product(range(modelling.slices), range(modelling.bands)):
        for view in partition.model.views:
            if band < view.bands:
                own = devices.setdefault(view.layer.name, [])
                own.append(parts[at : at + view.layer.tasks])
                at += view.layer.tasks
    assert at == len(parts)
    return {name: np.array(own) for name, own in devices.items()}


def assert_kept(partition: Partition, demands: Constraints) -> None:
    """Filter by filter, of layers that are named in full."""
    devices = devices_of_filters(partition)
    for pin in demands.pins:
        assert set(devices[pin.layers][:, pin.first : pin.end].ravel()) <= set(pin.devices)
    for several in demands.together:
        assert len({device for name in several for device in devices[name].ravel()}) == 1
    for name in demands.no_split:
        assert len(set(devices[name].ravel())) == 1
    for first, second in demands.apart:
        assert not set(devices[first].ravel()) & set(devices[second].ravel())
    assert partition.broken == ()


PINS = st.lists(
    st.tuples(
        st.sampled_from(sorted(LAYERS)), st.sets(st.integers(0, 2), min_size=1), st.booleans()
    ),
    max_size=4,
)
PAIRS = st.lists(st.lists(st.sampled_from(sorted(LAYERS)), min_size=2, max_size=2, unique=True))


@st.composite
def demands(draw: st.DrawFn) -> Constraints:
    texts = []
    for name, devices, half in draw(PINS):
        end = LAYERS[name] // 2
        filters = f"[{end // 2}:{end}]" if half and end > 1 else ""
        texts.append(f"{name}{filters}={','.join(map(str, sorted(devices)))}")
    together, apart = ([",".join(pair) for pair in draw(PAIRS)[:most]] for most in (1, 2))
    alone = draw(st.lists(st.sampled_from(["conv1", "fc1", "fc2"]), max_size=1))
    return constraints(texts, together, apart, alone)


SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"slices": 2},
    {"bands": 2},
    {"backend": "kahypar"},
    {"backend": "exact", "time_limit": 5},
)


@settings(max_examples=8, deadline=None)
@given(demands(), st.sampled_from(SEARCHES))
def test_random_constraints_are_kept_or_refused(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
    demands: Constraints,
    search: dict[str, Any],
) -> None:
    try:
        partition = hgpart.partition_graph(
            *lenet, 3, 1.5, constraints=demands, effort=0.02, **search
        )
    except InfeasibleError as error:
        assert any(name in str(error) for name, _ in demands.each())
        return
    assert partition.feasible
    assert_kept(partition, demands)


@pytest.mark.parametrize("backend", ["native", "kahypar", "mtkahypar"])
def test_pins_of_layers_ranges_and_groups(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work], backend: str
) -> None:
    wanted = constraints(
        ["conv1[0:3]=1", "conv3=0,2", "input=1", "output=2"], ["fc1,fc2"], ["conv2,fc1"]
    )
    partition = hgpart.partition_graph(
        *lenet, 3, 0.3, constraints=wanted, backend=backend, effort=0.05
    )
    assert_kept(partition, wanted)


def test_exact_finds_the_same_volume_for_mirrored_pins(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    """Though equal parts are put in an order where constraints don't tell them apart."""
    volumes = {
        hgpart.partition_graph(
            *lenet, 2, 0.2, backend="exact", constraints={"pin": [f"conv1={a}", f"fc2={a}"]}
        ).evaluation.volume
        for a in (0, 1)
    }
    assert len(volumes) == 1


def test_fine_grain_cells_follow_their_filter(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    wanted = constraints(["conv2[0:8]=1", "fc1=0"], no_split=["conv1"])
    modelling = hgpart.Modelling(grain="fine")
    partition = hgpart.partition_graph(
        *lenet, 2, 0.5, modelling=modelling, constraints=wanted, effort=0.05
    )
    assert partition.broken == ()
    model = partition.model
    for name, devices, end in (("conv2", {1}, 8), ("fc1", {0}, 84)):
        at = next(view.at for view in model.views if view.layer.name == name)
        own = model.vertex_layers == at
        first = model.blocks.rows[at][model.vertex_rows]
        assert set(partition.parts[own & (first < end)].tolist()) == devices


@pytest.mark.parametrize(
    "wanted, named",
    [
        ({"pin": ["conv1=0", "conv1=1", "fc1=0"]}, "pin conv1=0; pin conv1=1;"),
        ({"pin": ["fc2=0", "fc1=0"], "apart": ["fc1,fc2"]}, "pin fc2=0; pin fc1=0; apart fc1,fc2"),
        ({"together": ["fc1,fc2"], "apart": ["fc1,fc2"]}, "together fc1,fc2; apart fc1,fc2"),
        ({"apart": ["fc1,fc2,conv1"]}, "apart fc1,fc2,conv1"),
    ],
)
def test_contradictions_name_the_least_that_must_give_way(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work], wanted: Mapping[str, list[str]], named: str
) -> None:
    with pytest.raises(InfeasibleError, match="contradict each other") as raised:
        hgpart.partition_graph(*lenet, 2, 0.1, constraints=wanted)
    assert named in str(raised.value)
    assert ("pin fc1=0" in named) or "pin fc1=0" not in str(raised.value)


def test_a_pin_that_eps_has_no_room_for_says_the_smallest_eps(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    graph, work = lenet
    wanted = {"pin": ["conv*=0", "fc1=1"]}
    with pytest.raises(InfeasibleError, match=r"with pin conv\*=0; the smallest eps") as raised:
        hgpart.partition_graph(graph, work, 2, 0.1, constraints=wanted)
    loads = work.per_task * np.array([layer.tasks for layer in graph.layers])
    pinned = sum(
        load for load, layer in zip(loads, graph.layers, strict=True) if "conv" in layer.name
    )
    least = 2 * pinned / loads.sum() - 1
    said = float(str(raised.value).split("room for is ")[1].split(",")[0])
    assert least <= said <= least + 0.01
    assert hgpart.partition_graph(graph, work, 2, said, constraints=wanted).feasible


def test_pins_that_memory_has_no_room_for_name_the_least_that_must_give_way(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    wanted = {"pin": ["conv3=0", "fc1=0", "fc2=1"]}

    def within(limit: int) -> Partition:
        memory = MemoryLimits((limit, 2**40), in_flight=2)
        return hgpart.partition_graph(*lenet, 2, 9, memory=memory, constraints=wanted, effort=0)

    needed = within(2**40).memory_bytes
    assert needed is not None
    own = {layer.name: layer for layer in lenet[0].layers}
    kept = maps = 0
    for name in ("conv3", "fc1"):
        kept += sum(item.elements * item.element_bytes for item in own[name].own_parameters)
        maps += 4 * 32 * own[name].tasks  # of one number a filter
    least = 6 * kept + 2 * maps
    assert least < needed[0]
    said = r"can't be met for k=2 with pin conv3=0; pin fc1=0: .* one of these must give way$"
    with pytest.raises(InfeasibleError, match=said):
        within(least - 1)
    with pytest.raises(InfeasibleError, match="no partition within the memory limits was found"):
        within(least)  # without what is received
    assert within(int(needed[0])).feasible


@pytest.mark.parametrize(
    "text, why",
    [
        ("conv9=0", "there is no layer 'conv9'; .*did you mean conv"),
        ("conv1=2", "for k=2: accepted are devices 0 to 1"),
        ("conv1[0:7]=0", "conv1 has 6 filters"),
        ("conv1=", "accepted are devices as in"),
        ("conv1=2-1", "accepted are devices as in"),
        ("conv1", "accepted is LAYER=DEVICES"),
        ("conv1[3:3]=0", "accepted are filters as in"),
    ],
)
def test_what_there_is_not_is_refused(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work], text: str, why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        hgpart.partition_graph(*lenet, 2, 0.1, constraints={"pin": [text]})


def test_a_rule_that_breaks_a_constraint_is_refused_by_name(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    graph, work = lenet
    wanted = constraints(["conv1=0", "fc2=0"])
    problem = Problem(graph, work, hgpart.Modelling(), 2, 0.1, constraints=wanted)
    with pytest.raises(InfeasibleError, match="layerwise does not keep to pin fc2=0"):
        way_named("layerwise").partition(problem, Search())


@pytest.mark.parametrize("speeds", [None, [1.0, 2.0, 1.0]])
def test_a_rule_numbers_equal_devices_as_pins_have_them(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work], speeds: list[float] | None
) -> None:
    """Device 1 is another one where it is faster."""
    graph, work = lenet
    asked = graph, work, hgpart.Modelling(), 3, 0.1, speeds
    free = way_named("layerwise").partition(Problem(*asked), Search())
    wanted = constraints(["fc2=0", "conv1=1,2"])
    if speeds is not None:
        pinned = constraints(["conv1=1", "fc2=0"])
        with pytest.raises(InfeasibleError, match="layerwise does not keep to pin conv1=1"):
            way_named("layerwise").partition(Problem(*asked, constraints=pinned), Search())
    own = way_named("layerwise").partition(Problem(*asked, constraints=wanted), Search())
    assert_kept(own, wanted)
    assert own.evaluation.volume == free.evaluation.volume
    assert own.feasible == free.feasible


def test_a_partition_of_others_says_what_it_breaks(
    lenet: tuple[hgpart.ChannelGraph, hgpart.Work],
) -> None:
    partition = hgpart.partition_graph(*lenet, 2, 0.1, effort=0.05)
    for parts in (partition.parts, 1 - partition.parts):
        names = broken(partition.model, parts, constraints(["input=0", "input=1"]))
        assert len(names) == 1


def test_exact_and_native_find_the_least_volume_with_constraints() -> None:
    """Beside all partitions of a small model that keep to them, one by one."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten()
    )
    graph = hgpart.channel_graph(hgpart.trace(model, torch.zeros(2, 1, 6, 6)))
    work = hgpart.flops(graph)
    wanted = constraints(["0[1:3]=1"], apart=["output,0"])
    full = hgpart.cnn_hypergraph(
        graph, work, single_blocks(graph, hgpart.Modelling()), hgpart.Modelling()
    )
    names = [view.layer.name for view in full.views for _ in range(view.layer.tasks)]
    least = None
    for parts in product(range(2), repeat=full.vertices):
        of_first = [part for part, name in zip(parts, names, strict=True) if name == "0"]
        of_result = [part for part, name in zip(parts, names, strict=True) if name == "output"]
        if of_first[1:] != [1, 1] or set(of_first) & set(of_result):
            continue
        evaluation = hgpart.evaluate(full.hypergraph, np.array(parts, dtype=np.int32), 2)
        if evaluation.imbalance <= 0.5:
            least = min(evaluation.volume, evaluation.volume if least is None else least)
    for backend in ("exact", "native"):
        partition = hgpart.partition_graph(graph, work, 2, 0.5, backend=backend, constraints=wanted)
        assert partition.broken == ()
        assert partition.evaluation.volume == least


def test_layers_that_lie_whole_may_be_more_than_python_nests_calls() -> None:
    count, k = 1100, 3
    groups = np.arange(count, dtype=np.int32)
    rules = LayerConstraints(k, {}, {}, groups, ())
    anywhere = frozenset(range(k))
    pieces = [feasible._Piece(frozenset([at]), 0, anywhere, 1, 0, True) for at in range(count)]
    room = np.full(k, -(-count // k))
    devices = feasible._devices(pieces, rules, room, count)
    assert devices is not None
    assert np.bincount([*devices.values()]).max() == room[0]
