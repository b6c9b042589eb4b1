"""Many replicas by one of them: as all of them placed, but for what hides behind computing."""

from __future__ import annotations

import pytest
from toy_times import in_proportion

from hgpart import load_model
from hgpart.errors import ArgumentError
from hgpart.files import load_machine
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.recommendation import trials as ways
from hgpart.recommendation import ways as search
from hgpart.recommendation.replicas import MANY, exchange_seconds, partition_of_one
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import flops

SHAPE = 1, 32, 32


@pytest.fixture(scope="module")
def lenet():
    model = load_model("lenet5", device="meta")[0].train()
    traced = trace(model, example_inputs(model, SHAPE))
    return model, traced, channel_graph(traced)


def found(lenet, monkeypatch, devices: int, batch_size: int, names: str):
    """Of the ways with certain names, and one device."""
    model, traced, graph = lenet
    wanted = [
        one
        for one in ways.trials(devices)
        if one.k == 1 or (one.k == devices and one.name in names.split(","))
    ]
    monkeypatch.setattr(search, "trials", lambda devices, heights, has_heads: wanted)
    times = in_proportion(graph)
    machine = load_machine("10gbe", devices)
    return search.rank_ways(
        *(model, traced, graph, times, machine), batch_size=batch_size, time_limit=1e4
    )


@pytest.mark.full
@pytest.mark.long
def test_one_of_many_is_as_all_of_them_placed(lenet, monkeypatch) -> None:
    names = "data-parallel,hybrid-2"
    whole = found(lenet, monkeypatch, 4, 16, names)
    monkeypatch.setattr(ways, "MANY", 2)
    alone = found(lenet, monkeypatch, 4, 16, names)
    of_four = {one.trial.text: one for one in whole.ranked}
    same = [one for one in alone.ranked if one.trial.replicas > 1]
    assert len(same) == 2
    for one in same:
        placed = of_four[one.trial.text]
        assert placed.plan.partition.parts.tolist() == one.plan.partition.parts.tolist()
        assert one.sent_bytes == pytest.approx(placed.sent_bytes, rel=0.01)
        # Nothing of the exchange is hidden behind computing.
        assert one.simulated_seconds >= 0.9 * placed.simulated_seconds
        # So another number of micro-batches may be the best.
        assert one.computing_seconds <= 1.05 * placed.computing_seconds


def test_exchange_is_by_the_links_of_each_pair() -> None:
    inside, between = Link.of(latency=0.0, bandwidth=1e6), Link.of(latency=0.25, bandwidth=1e6)
    machine = Machine("m", (Device("GPU"),) * 8, (4, 4), inside, between)
    # Device 0 is with 1 to 3, and exchanges with 2 inside, 4 and 6 between.
    wanted = 2 * (0.5 + 2 * (0.25 + 0.5))
    assert exchange_seconds([2_000_000, 0], 4, machine) == pytest.approx(wanted)
    assert exchange_seconds([2_000_000], 1, machine) == 0


def test_replicas_have_as_many_samples_each(lenet) -> None:
    _, _, graph = lenet
    problem = Problem(graph, flops(graph), Modelling(batch_size=130), 64, 0.1)
    with pytest.raises(ArgumentError, match="130 samples for 64 replicas: accepted are as many"):
        partition_of_one(problem, 64, Search())


def test_many_devices_are_replicas_of_few() -> None:
    many = 8 * MANY
    texts = [(one.text, one.replicas) for one in ways.trials(many) if one.k == many]
    assert texts == [
        (f"data-parallel on {many} devices", many),
        *(
            (f"hybrid-{count} on {many} devices", count)
            for count in (many // 2, many // 4, many // 8)
        ),
    ]
    assert {one.replicas for one in ways.trials(MANY)} == {1}


@pytest.mark.full
@pytest.mark.long
def test_a_thousand_devices(lenet, monkeypatch) -> None:
    one = found(lenet, monkeypatch, 1024, 2048, "data-parallel,hybrid-128")
    assert [note.startswith("Of more than 32 devices one replica") for note in one.notes] == [True]
    of_many = [each for each in one.ranked if each.trial.k == 1024]
    assert [each.plan.partition.k for each in of_many] == [1024] * 2
    assert all(len(each.prediction.busy) == each.trial.k / each.trial.replicas for each in of_many)
