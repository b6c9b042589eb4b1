"""What differs between two partitions, against looking at each task and each way to renumber."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_graphs import partitioned_graphs
from torch import nn

import hgpart
from hgpart.errors import PlanError
from hgpart.explanation.common_blocks import on_common_blocks
from hgpart.explanation.differing import difference, matched
from hgpart.hypergraph.blocks import full_vertices
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated

Partitioned = tuple[ChannelGraph, Partition]


def another(partition: Partition, seed: int) -> Partition:
    """A partition of the same vertices in other blocks: some tasks are elsewhere."""
    generator = np.random.default_rng(seed)
    every = full_parts(partition.model, partition.parts)
    assert len(every) == partition.modelling.slices * full_vertices(partition.model.views)
    other = np.where(
        generator.random(len(every)) < 0.3, generator.integers(0, partition.k, len(every)), every
    )
    problem = partition.problem
    model, parts = blocks_of_parts(
        problem.graph, problem.work, problem.modelling, other.astype(np.int32)
    )
    return evaluated(problem, model, parts, seed=0, backend="test", start="test", bound=0)


@given(partitioned_graphs(), st.integers(0, 2**16))
def test_blocks_that_both_keep_whole_say_the_same_of_each(drawn: Partitioned, seed: int) -> None:
    first = drawn[1]
    second = another(first, seed)
    common, of_first, of_second = on_common_blocks(first, second)
    for partition, parts in ((first, of_first), (second, of_second)):
        every = full_parts(partition.model, partition.parts)
        assert full_parts(common, parts).tolist() == every.tolist()


@given(partitioned_graphs(), st.integers(0, 2**16))
def test_what_lies_elsewhere_is_the_work_of_tasks_that_do(drawn: Partitioned, seed: int) -> None:
    first = drawn[1]
    second = another(first, seed)
    compared = difference(first, second)
    renumbered = np.array(compared.devices, dtype=np.int32)
    common, of_first, of_second = on_common_blocks(first, second)
    differs = of_first != renumbered[of_second]
    total = max(1, int(common.weights.sum()))
    assert compared.elsewhere == pytest.approx(int(common.weights[differs].sum()) / total)
    moved = {
        common.views[at].layer.name
        for at in common.vertex_layers[differs].tolist()
        if common.weights[common.vertex_layers == at].sum() == 0
    }
    moved |= {
        common.views[at].layer.name
        for at in common.vertex_layers[differs & (common.weights > 0)].tolist()
    }
    assert {layer.name for layer in compared.layers if layer.elsewhere} == moved
    # no other numbers of the devices leave more in place
    kept = [
        int(common.weights[of_first == np.array(numbers)[of_second]].sum())
        for numbers in permutations(range(first.k))
    ]
    assert int(common.weights[~differs].sum()) >= max(kept) - 1e-6 * total


@given(partitioned_graphs(), st.integers(0, 2**16))
def test_differences_of_bytes_add_up_and_a_layer_alone_is_counted(
    drawn: Partitioned, seed: int
) -> None:
    first = drawn[1]
    second = another(first, seed)
    compared = difference(first, second)
    changes = sum(layer.sent_after - layer.sent_before for layer in compared.layers)
    assert changes == second.evaluation.volume - first.evaluation.volume
    common, of_first, of_second = on_common_blocks(first, second)
    renumbered = np.array(compared.devices, dtype=np.int32)[of_second]
    at_name = {view.layer.name: view.first for view in common.views}
    for layer in compared.layers:
        own = common.vertex_layers == at_name[layer.name]
        alone = np.where(own, renumbered, of_first).astype(np.int32)
        every = full_parts(common, alone)
        problem = first.problem
        model, parts = blocks_of_parts(problem.graph, problem.work, problem.modelling, every)
        anew = evaluated(problem, model, parts, seed=0, backend="", start="", bound=0)
        if layer.elsewhere:
            assert layer.alone_bytes == anew.evaluation.volume - first.evaluation.volume


@given(partitioned_graphs())
def test_renumbered_devices_are_no_difference(drawn: Partitioned) -> None:
    first = drawn[1]
    numbers = np.roll(np.arange(first.k, dtype=np.int32), 1)
    second = evaluated(
        first.problem, first.model, numbers[first.parts], seed=0, backend="", start="", bound=0
    )
    compared = difference(first, second)
    assert compared.elsewhere == pytest.approx(0)
    assert [layer.name for layer in compared.layers if layer.work > 1e-9] == []


def test_devices_that_differ_keep_their_numbers() -> None:
    model, example = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 9, 9)
    pair = [
        hgpart.partitioned_as(model, example, {"0": first, "1": 1 - first}, speeds=[1.0, 2.0])
        for first in (0, 1)
    ]
    compared = hgpart.diff(*pair)
    assert (compared.devices, compared.elsewhere) == ((0, 1), 1.0)
    assert compared.step_before is not None and compared.step_after is not None


def test_a_single_layer_that_moves_changes_all_that_changes() -> None:
    model, example = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 9, 9)
    places = {"0": 0, "1": 1}, {"0": [0] * 6 + [1] * 2, "1": 1}
    before, after = (hgpart.partitioned_as(model, example, own, k=2, eps=1.0) for own in places)
    compared = hgpart.diff(before, after)
    assert (compared.devices, compared.is_renumbered) == ((0, 1), False)
    (layer,) = (layer for layer in compared.layers if layer.elsewhere)
    assert (layer.name, layer.elsewhere) == ("0", 0.25)
    assert layer.weight_bytes == compared.weight_bytes == 2 * (3 * 3 * 3 + 1) * 4
    volumes = [divided.partition.evaluation.volume for divided in (before, after)]
    assert layer.alone_bytes == volumes[1] - volumes[0]
    assert compared.step_before is not None and compared.step_after is not None
    assert compared.step_before.scheduling == compared.step_after.scheduling
    change = compared.step_after.seconds - compared.step_before.seconds
    assert layer.alone_seconds == pytest.approx(change)


def test_plans_with_other_vertices_say_what_is_elsewhere_at_least() -> None:
    model, example = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 9, 9)
    whole = hgpart.partitioned_as(model, example, {"0": 0, "1": 1})
    slices = hgpart.partition_model(model, example, 2, modelling=Modelling(slices=2), effort=0)
    compared = hgpart.diff(whole, slices)
    assert compared.is_least
    assert compared.weight_bytes is None
    (line,) = compared.not_compared
    assert line.startswith("slices=1 and 2: ")
    three = hgpart.partitioned_as(model, example, {"0": [0, 0, 0, 0, 2, 2, 2, 2], "1": 1})
    compared = hgpart.diff(whole, three)
    assert compared.devices == (0, 1, 2)
    work = [layer.elsewhere for layer in compared.layers if layer.name == "0"]
    assert work == [0.5]


def test_plans_of_two_models_are_refused() -> None:
    example = torch.zeros(2, 3, 9, 9)
    pair = [
        hgpart.partitioned_as(nn.Sequential(nn.Conv2d(3, width, 3)), example, {"0": 0}, k=2)
        for width in (4, 8)
    ]
    with pytest.raises(
        PlanError,
        match=r"the first plan is for a model with fingerprint .* accepted are two plans of one",
    ):
        hgpart.diff(*pair)


def test_a_matching_has_most_in_common() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        work = generator.random((4, 4))
        best = max(
            sum(work[device, own] for own, device in enumerate(numbers))
            for numbers in permutations(range(4))
        )
        devices = matched(work, np.zeros((4, 4)))
        assert sum(work[device, own] for own, device in enumerate(devices)) == pytest.approx(best)
    assert matched(np.eye(3)[:, :2], np.zeros((3, 2))) == (0, 1)
    assert matched(np.zeros((1, 3)), np.zeros((1, 3))) == (0, 1, 2)
