"""The ways to divide: each is what its name says, for each number of devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recommended import network

from hgpart.errors import HgpartError
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.machines.named import named_machine
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.recommendation.trials import trials
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops


@pytest.fixture(scope="module")
def problem() -> Problem:
    traced = trace(network(), (torch.zeros(2, 3, 8, 8),))
    graph = channel_graph(traced)
    return Problem(graph, flops(graph), Modelling(batch_size=8), 4)


def test_names_and_numbers_of_devices() -> None:
    found = trials(6)
    assert len({one.text for one in found}) == len(found)
    assert {one.k for one in found} == {6, 3, 1}
    assert [one.k for one in found if one.name == "hybrid-2"] == [6]
    assert len(trials(1)) == 1


def test_rows_are_divided_where_there_are_any() -> None:
    names = [one.name for one in trials(2, (4, 8, 16))]
    assert [name for name in names if name.startswith("spatial")] == [
        "spatial",
        "spatial-8",
        "spatial-16",
        "spatial-data",
    ]
    assert {"rows-then-filters-8", "rows-then-filters-16", "tiled"} < {*names}
    assert not any(one.way.bands for one in trials(2))


def test_heads_are_divided_where_there_are_any() -> None:
    assert "tensor-parallel" in [one.name for one in trials(2, has_heads=True)]
    assert "tensor-parallel" not in [one.name for one in trials(2)]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("division", trials(4, (4, 6), has_heads=True), ids=lambda one: one.text)
def test_each_is_a_partition_into_its_devices(division, problem: Problem) -> None:
    try:
        found = division.partition(problem, Search(effort=0), named_machine("10gbe:4"))
    except HgpartError as error:
        assert "\n" not in str(error)
        return
    assert found.k == division.k
    assert set(found.parts.tolist()) == set(range(division.k))
    work = part_shares(found.model, found.parts, division.k).layer_work
    if division.name == "data-parallel":
        assert (work == work[:, :1]).all()
    if division.name == "horizontal":
        assert np.ptp(work[:-2], axis=1).max() <= work.sum(axis=1).max() / 4
    if division.name == "layerwise":
        assert (np.count_nonzero(work, axis=1) <= 1).all()


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("division", trials(4, (4, 6), has_heads=True), ids=lambda one: one.text)
def test_each_divides_among_devices_that_differ(division, problem: Problem) -> None:
    devices = tuple(Device("board", speed=speed) for speed in (1.0, 1.0, 2.0, 4.0))
    boards = Machine("boards", devices, (4,), Link.of(latency=1e-6, bandwidth=1e9))
    try:
        found = division.partition(problem, Search(effort=0), boards)
    except HgpartError as error:
        assert "speeds" not in str(error)
        return
    speeds = boards.of_fastest(division.k).speeds
    assert found.problem.speeds == speeds
    if division.name == "data-parallel":
        assert found.modelling.slices == (8 if division.k == 4 else 3)
        assert found.evaluation.loads.argmax() == division.k - 1


def test_data_parallel_needs_a_sample_for_each_device(problem: Problem) -> None:
    one = trials(16)[1]
    assert one.name == "data-parallel"
    with pytest.raises(HgpartError, match="16"):
        one.partition(problem, Search(), named_machine("10gbe:16"))
