"""What other places cost, against making each move and counting every net."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_graphs import partitioned_graphs
from torch import nn

import hgpart
from hgpart.errors import ArgumentError
from hgpart.explanation import explaining
from hgpart.explanation.explaining import explained
from hgpart.explanation.moves import Moves
from hgpart.explanation.share_nets import ShareNets
from hgpart.explanation.steps import FINE, Steps
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.given_parts import partition_of_parts
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.constraints import constraints
from hgpart.partition.problem.memory import MemoryLimits, part_memory
from hgpart.partition.problem.objectives import LARGEST

Partitioned = tuple[ChannelGraph, Partition]


def volume(partition: Partition, parts: np.ndarray) -> int:
    """Bytes that travel, net by net: a net's cost for each part of its pins but one."""
    nets = partition.model.hypergraph
    in_all = 0
    for net, cost in enumerate(nets.costs.tolist()):
        pins = nets.pins[nets.pointers[net] : nets.pointers[net + 1]]
        in_all += cost * (len({int(parts[pin]) for pin in pins}) - 1)
    return in_all


def moved(partition: Partition, layer: int, source: int | None, target: int) -> np.ndarray:
    parts = partition.parts.copy()
    for vertex, own in enumerate(partition.model.vertex_layers.tolist()):
        if own == layer and source in (None, parts[vertex]):
            parts[vertex] = target
    return parts


def all_moves(partition: Partition, layer: int) -> list[tuple[int | None, int]]:
    """Every other place of a layer: whole, or what one part has of it."""
    own = partition.parts[partition.model.vertex_layers == layer].tolist()
    sources = [None, *sorted(set(own))]
    pairs = [(source, target) for source in sources for target in range(partition.k)]
    return [
        (source, target)
        for source, target in pairs
        if (moved(partition, layer, source, target) != partition.parts).any()
    ]


def loads(partition: Partition, parts: np.ndarray) -> list[int]:
    held = [0] * partition.k
    for weight, part in zip(partition.model.weights.tolist(), parts.tolist(), strict=True):
        held[part] += weight
    return held


@given(partitioned_graphs())
def test_changes_of_all_moves_are_those_of_making_them(drawn: Partitioned) -> None:
    _, partition = drawn
    nets = ShareNets.of(partition)
    before = volume(partition, partition.parts)
    for layer in set(partition.model.vertex_layers.tolist()):
        whole, shares = nets.changes(layer)
        for source, target in all_moves(partition, layer):
            after = moved(partition, layer, source, target)
            known = whole[target] if source is None else shares[source, target]
            assert known == volume(partition, after) - before
            traffic = nets.traffic_of(layer, source, target)
            assert traffic.sum() == volume(partition, after)


@given(partitioned_graphs())
def test_bytes_of_layers_and_of_nets_add_up_to_the_volume(drawn: Partitioned) -> None:
    _, partition = drawn
    nets = ShareNets.of(partition)
    in_all = volume(partition, partition.parts)
    assert nets.sent_by().sum() == in_all
    assert sum(paid.nbytes for paid in nets.payments()) == in_all
    explanation = explained(partition)
    assert sum(layer.sent_bytes for layer in explanation.layers) == in_all


@given(partitioned_graphs())
def test_a_layer_gets_what_other_layers_send_to_its_parts(drawn: Partitioned) -> None:
    _, partition = drawn
    model, parts, nets = partition.model, partition.parts, partition.model.hypergraph
    shares = ShareNets.of(partition)
    for layer in set(model.vertex_layers.tolist()):
        received = 0
        for net in range(nets.nets):
            root, *others = nets.pins[nets.pointers[net] : nets.pointers[net + 1]].tolist()
            if model.vertex_layers[root] != layer:
                own = {int(parts[pin]) for pin in others if model.vertex_layers[pin] == layer}
                received += int(nets.costs[net]) * len(own - {int(parts[root])})
        assert shares.received_by(layer) == received


@given(partitioned_graphs(), st.floats(0, 2))
def test_the_best_other_place_is_the_cheapest_within_eps(drawn: Partitioned, eps: float) -> None:
    _, partition = drawn
    partition = replace(partition, problem=replace(partition.problem, eps=eps))
    total, now = sum(loads(partition, partition.parts)), loads(partition, partition.parts)
    most = [max(load, int((1 + eps) * total / partition.k + 1e-9)) for load in now]
    for layer in explained(partition).layers:
        at = layer.index
        values = []
        for source, target in all_moves(partition, at):
            parts = moved(partition, at, source, target)
            held = loads(partition, parts)
            is_within = all(load <= limit for load, limit in zip(held, most, strict=True))
            values.append((volume(partition, parts), is_within, parts.tolist()))
        allowed = [value for value, is_within, _ in values if is_within]
        if not allowed:
            assert layer.best is None
        else:
            assert layer.best is not None
            assert layer.best.volume == min(allowed)
            assert layer.best.partition.parts.tolist() in [parts for *_, parts in values]
        cheapest = min((value for value, *_ in values), default=None)
        before = partition.evaluation.volume
        if cheapest is None:
            assert layer.hold.move is None
        elif cheapest > before:
            assert layer.hold.why == "neighbours"
        else:
            assert layer.hold.why == ("nothing" if cheapest in allowed else "balance")
        assert layer.hold.move is None or layer.hold.move.volume == cheapest


@given(partitioned_graphs())
def test_all_figures_of_a_move_are_those_of_the_partition_with_it(drawn: Partitioned) -> None:
    _, partition = drawn
    for layer in explained(partition).layers:
        for move in (layer.best, layer.hold.move):
            if move is None:
                continue
            parts = moved(partition, layer.index, move.source, move.target)
            anew = evaluated(
                partition.problem, partition.model, parts, seed=0, backend="", start="", bound=0
            )
            assert move.volume == anew.evaluation.volume == volume(partition, parts)
            assert move.imbalance == anew.evaluation.imbalance
            assert move.partition.evaluation.loads.tolist() == loads(partition, parts)
            needed = part_memory(partition.model, parts, partition.k, 4.0)
            assert move.memory_bytes.tolist() == needed.tolist()
        grown = sum(item.nbytes for item in layer.hold.growth)
        assert layer.hold.move is None or grown >= layer.hold.move.more_bytes


def test_another_objective_ranks_the_places() -> None:
    partition = cut()[1].partition
    problem = replace(partition.problem, objective=LARGEST, eps=3.0)
    own = replace(partition, problem=problem)
    moves = Moves(own)
    for at in range(len(own.model.views)):
        for place in moves.places(at):
            made = moves.move(place)
            assert made.more_value == place.value
            assert made.partition.objective_value == place.value + own.objective_value


def test_a_place_without_memory_is_not_allowed() -> None:
    partition = cut()[1].partition
    needed = part_memory(partition.model, partition.parts, 3, 4.0)
    limits = MemoryLimits((int(needed[0]), int(needed[1]), 10**9))
    own = partition_of_parts(
        replace(partition.problem, eps=9.0, memory=limits), {"0": 0, "2": 1, "4": 2}
    )
    layer = explained(own, "2").layers[0]
    assert layer.best is not None and layer.best.target == 2
    assert (layer.best.memory_bytes <= limits.bytes).all()
    tight = replace(limits, bytes=tuple(map(int, needed)))
    shut = partition_of_parts(replace(own.problem, memory=tight), {"0": 0, "2": 1, "4": 2})
    layer = explained(shut, "2").layers[0]
    assert layer.best is None
    assert layer.hold.move is not None and layer.hold.move.over_memory > 0
    assert layer.hold.why == "memory"


def test_a_place_that_a_constraint_forbids_is_not_allowed() -> None:
    partition = cut({"0": 0, "2": 1, "4": 0})[1].partition
    places = {"0": 0, "2": 1, "4": 0}
    free = partition_of_parts(partition.problem, places)
    cheapest = explained(free, "2").layers[0].hold.move
    assert cheapest is not None and cheapest.target == 0 and cheapest.more_bytes < 0
    pinned = partition_of_parts(replace(free.problem, constraints=constraints(["2=1"])), places)
    layer = explained(pinned, "2").layers[0]
    assert layer.best is None
    assert layer.hold.why == "constraints"
    assert layer.hold.move is not None and layer.hold.move.broken == ("pin 2=1",)
    # What the partition breaks already holds nothing.
    broken = partition_of_parts(replace(free.problem, constraints=constraints(["2=0"])), places)
    assert explained(broken, "2").layers[0].hold.why == explained(free, "2").layers[0].hold.why


def cut(parts: dict[str, int] | None = None) -> tuple[nn.Module, hgpart.PartitionedModel]:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    )
    example = torch.zeros(2, 3, 16, 16)
    parts = parts or {"0": 0, "2": 1, "4": 2}
    return model, hgpart.partitioned_as(model, example, parts, eps=1.5)


def test_the_bottleneck_is_what_computes_longest_and_its_relief_makes_the_step_shorter() -> None:
    _, result = cut({"0": 0, "2": 1, "4": 1})
    explanation = hgpart.explain(result)
    step, bottleneck = explanation.step, explanation.bottleneck
    assert step is not None
    assert bottleneck.part == int(np.argmax(step.busy)) == 1
    if bottleneck.relief is not None:
        assert bottleneck.relief.seconds is not None and bottleneck.relief.seconds < step.seconds
        assert bottleneck.relief.is_allowed
    by_load = hgpart.explain(result.partition).bottleneck
    assert by_load.part == 1
    assert by_load.relief is not None
    assert max(by_load.relief.partition.evaluation.loads) < max(result.partition.evaluation.loads)


def test_no_other_move_off_the_bottleneck_makes_the_step_shorter() -> None:
    _, result = cut({"0": 0, "2": 1, "4": 1})
    partition = result.partition
    names = frozenset(result.traced.parameters.values())
    steps = Steps.of(result.traced, partition, names)
    now = steps.of_partition(partition)
    steps = steps.fixed(now.scheduling)
    bottleneck = explained(partition, steps=steps).bottleneck
    most = np.maximum(partition.problem.capacities, partition.evaluation.loads)
    seconds = [now.seconds]
    for layer in set(partition.model.vertex_layers.tolist()):
        for source, target in all_moves(partition, layer):
            parts = moved(partition, layer, source, target)
            held = np.array(loads(partition, parts))
            if held[bottleneck.part] < partition.evaluation.loads[bottleneck.part]:
                anew = evaluated(
                    partition.problem, partition.model, parts, seed=0, backend="", start="", bound=0
                )
                if (held <= most).all():
                    seconds.append(steps.of_partition(anew).seconds)
    relieved = now.seconds if bottleneck.relief is None else bottleneck.relief.seconds
    assert relieved == pytest.approx(min(seconds), rel=2e-3)
    assert len(seconds) > 1


def test_moves_that_memory_forbids_take_no_place_among_those_that_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {"0": 0, "2": 1, "4": 1}
    result = hgpart.partitioned_as(cut()[0], torch.zeros(2, 3, 16, 16), places, k=3, eps=9.0)
    partition = result.partition
    steps = Steps.of(result.traced, partition, frozenset(result.traced.parameters.values()))
    monkeypatch.setattr(explaining, "TRIED", 1)
    needed = part_memory(partition.model, partition.parts, 3, 4.0).tolist()
    for full in (0, 2):  # to one of these goes the move that promises most
        limits = [10**9] * 3
        limits[full] = needed[full]
        problem = replace(partition.problem, memory=MemoryLimits(tuple(limits)))
        bottleneck = explained(partition_of_parts(problem, places), steps=steps).bottleneck
        assert bottleneck.tried == 1 < bottleneck.possible


def test_a_fine_grain_plan_has_no_seconds_and_says_why() -> None:
    model, _ = cut()
    example = torch.zeros(2, 3, 16, 16)
    result = hgpart.partition_model(model, example, 2, modelling=Modelling(grain="fine"), effort=0)
    explanation = hgpart.explain(result)
    assert (explanation.step, explanation.no_seconds) == (None, FINE)


def test_layers_are_named_or_match_a_pattern() -> None:
    _, result = cut()
    assert [layer.name for layer in hgpart.explain(result.partition, "[02]").layers] == ["0", "2"]
    with pytest.raises(ArgumentError, match="explain: there is no layer 'conv'; accepted are "):
        hgpart.explain(result.partition, "conv")


def test_a_module_is_explained_by_its_layers() -> None:
    block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
    model, example = nn.Sequential(nn.Conv2d(3, 8, 3), block), torch.zeros(2, 3, 16, 16)
    result = hgpart.partitioned_as(model, example, {"0": 0, "1.0": 1, "1.1": 0})
    layers = hgpart.explain(result.partition, "1").layers
    assert [layer.name for layer in layers] == ["1.0", "1.1"]
