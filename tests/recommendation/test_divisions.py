"""The ways to divide: each is what its name says, for each number of devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recommended import network

from hgpart.bench.plans import Subject
from hgpart.errors import HgpartError
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.layering import channel_graph
from hgpart.machines.named import named_machine
from hgpart.recommendation.divisions import divisions
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops


@pytest.fixture(scope="module")
def subject() -> Subject:
    traced = trace(network(), (torch.zeros(2, 3, 8, 8),))
    graph = channel_graph(traced)
    return Subject("toy", (3, 8, 8), traced, graph, flops(graph), 8, 4, 0.0, 0, effort=0)


def test_names_and_numbers_of_devices() -> None:
    found = divisions(6)
    assert len({one.text for one in found}) == len(found)
    assert {one.k for one in found} == {6, 3, 1}
    assert [one.k for one in found if one.name.startswith("2 replicas")] == [6]
    assert len(divisions(1)) == 1


@pytest.mark.full
@pytest.mark.parametrize("division", divisions(4), ids=lambda one: one.text)
def test_each_is_a_partition_into_its_devices(division, subject: Subject) -> None:
    try:
        found = division.partition(subject, named_machine("10gbe:4"))
    except HgpartError as error:
        assert "\n" not in str(error)
        return
    assert found.k == division.k
    assert set(found.parts.tolist()) == set(range(division.k))
    work = part_shares(found.model, found.parts, division.k).layer_work
    if division.name == "data parallel":
        assert (work == work[:, :1]).all()
    if division.name == "every layer in equal shares":
        assert np.ptp(work[:-2], axis=1).max() <= work.sum(axis=1).max() / 4
    if division.name == "cut between layers":
        assert (np.count_nonzero(work, axis=1) <= 1).all()


def test_data_parallel_needs_a_sample_for_each_device(subject: Subject) -> None:
    one = divisions(16)[1]
    assert one.name == "data parallel"
    with pytest.raises(HgpartError, match="16"):
        one.partition(subject, named_machine("10gbe:16"))
