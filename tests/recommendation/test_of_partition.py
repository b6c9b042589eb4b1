"""A partition's schedule is the fastest of those that nobody has to ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recommended import machine, times_of, traced_network
from torch import nn
from toy_times import in_proportion

import hgpart
from hgpart.machines.machine import Link
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement import place
from hgpart.plan import Plan
from hgpart.prediction.predict import predict
from hgpart.recommendation.of_partition import simulated_step
from hgpart.run.scheduling import schedule

SLOW = Link.of(latency=1e-9, bandwidth=1e3)


def divided(name: str, batch_size: int = 16) -> hgpart.Partition:
    graph = traced_network()[2]
    problem = Problem(graph, hgpart.flops(graph), hgpart.Modelling(batch_size=batch_size), 2, 0.9)
    return way_named(name).partition(problem, Search())


def test_its_seconds_are_those_of_the_plan_that_is_placed() -> None:
    model, traced, _ = traced_network()
    partition, on, times = divided("layerwise"), machine(2), times_of(1e4)
    found = simulated_step(model, traced, partition, on, times, "toys")
    assert found.micro_batches > 1  # as parts would take turns
    placed = place(model, Plan(partition, "toy", (3, 8, 8)), ["meta"] * 2)
    seconds = {}
    for count in (1, 2, 4, 8):
        made = schedule(placed, "greedy", count, batch_size=16)
        foretold = predict(placed, made, on, times, 16)
        seconds[count] = foretold.period + foretold.update_seconds
    assert found.seconds == pytest.approx(seconds[found.micro_batches], rel=0.01)
    assert found.seconds <= min(seconds.values()) / 0.9
    assert (found.faster, found.assumed) == ("data-parallel", "toys")
    assert found.faster_seconds is not None
    assert found.faster_seconds < found.seconds


def test_memory_limits_change_nothing_but_what_fits() -> None:
    """They were of two devices where one was simulated, so nothing was."""
    model, traced, _ = traced_network()
    free = divided("layerwise")
    without = simulated_step(model, traced, free, machine(2), times_of(1e4), "")
    assert without.faster == "data-parallel"
    for most in (10**9, 1):
        problem = replace(free.problem, memory=MemoryLimits((most, most)))
        limited = way_named("layerwise").partition(problem, Search())
        found = simulated_step(model, traced, limited, machine(2), times_of(1e4), "")
        assert (found.seconds, found.one_device) == (without.seconds, without.one_device)
        assert found.faster == (without.faster if most > 1 else None)


def test_nothing_is_faster_than_the_fastest() -> None:
    model, traced, _ = traced_network()
    found = simulated_step(model, traced, divided("data-parallel"), machine(2), times_of(), "toys")
    assert found.faster is None
    slow = simulated_step(model, traced, divided("data-parallel"), machine(2, SLOW), times_of(), "")
    assert slow.seconds > slow.one_device


def test_norms_have_eight_samples_to_take_their_statistics_from() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)),
        nn.Flatten(),
        nn.Linear(512, 4),
    )
    traced = hgpart.trace(model, hgpart.example_inputs(model, (3, 8, 8)))
    graph = hgpart.channel_graph(traced)
    problem = Problem(graph, hgpart.flops(graph), hgpart.Modelling(batch_size=64), 2, 0.9)
    partition = way_named("layerwise").partition(problem, Search())

    found = simulated_step(
        model, traced, partition, machine(2), in_proportion(graph, scale=1e4), ""
    )
    assert 2 <= found.micro_batches <= 8
    assert found.for_norms == 64 // found.micro_batches >= 8
