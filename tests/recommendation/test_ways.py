"""Recommended ways are what their plans come to when they are simulated anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from recommended import machine, network, recommended, times_of, traced_network
from torch import nn
from toy_times import in_proportion

from hgpart.errors import ArgumentError, HgpartError, InfeasibleError
from hgpart.layers.channel_graph import PARAMETER
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.baselines.spatial import heights_of
from hgpart.placement import place
from hgpart.prediction.predict import predict
from hgpart.prediction.sketching.estimate import estimate
from hgpart.recommendation import ways as module
from hgpart.recommendation.orders import orders
from hgpart.recommendation.ranking import GOALS, Recommendation
from hgpart.recommendation.simulating import Simulations
from hgpart.recommendation.trials import trials
from hgpart.run.scheduling import schedule, wanted_schedule
from hgpart.tracing.traced_model import trace

SLOW = Link.of(latency=1.0, bandwidth=1.0)


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    """Three divisions of each number of devices, and four micro-batches at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:4])
        patch.setattr(
            module, "orders", lambda *asked, **how: [orders(*asked, **how)[at] for at in (0, -1)]
        )
        yield


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommended(machine(2))


def figures(recommendation: Recommendation) -> list[Any]:
    return [
        (one.trial, one.scheduling, one.simulated_seconds, one.needed_bytes)
        for one in recommendation.ranked
    ]


@pytest.mark.full
@pytest.mark.long
def test_seconds_are_those_of_the_plans(found: Recommendation) -> None:
    again = []
    for one in found.ranked:
        placement = place(network(), one.plan, ["meta"] * one.plan.partition.k)
        order = one.scheduling
        made = schedule(placement, order.rule, order.micro_batches, batch_size=8)
        times = in_proportion(placement.programs.blueprint.graph)
        foretold = predict(placement, made, found.machine, times, 8)
        again.append(foretold.period + foretold.update_seconds)
    assert [one.simulated_seconds for one in found.ranked] == pytest.approx(again)
    assert again == sorted(again)
    assert found.one_device in found.ranked
    assert found.speed_up(found.best) == found.one_device.seconds / again[0]


def test_the_same_asked_again_is_the_same(found: Recommendation) -> None:
    assert figures(recommended(machine(2))) == figures(found)


@pytest.mark.full
def test_what_does_not_fit_recomputes_what_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits then, in more seconds than without a limit, and its plan says what it recomputes."""
    monkeypatch.setattr(
        module,
        "trials",
        lambda k, *_, **__: [way for way in trials(k) if way.name in ("single", "data-parallel")],
    )
    monkeypatch.setattr(module, "orders", lambda *asked, **how: orders(*asked, **how)[:1])
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16 * 16, 4))
    traced = trace(model, (torch.zeros(2, 3, 16, 16),))
    graph = channel_graph(traced)
    asked = (model, traced, graph, in_proportion(graph), machine(2))
    free = module.rank_ways(*asked, batch_size=8, time_limit=1e5).best
    assert free.k == 2
    limit = round(0.9 * (free.largest_bytes or 0))
    limited = module.rank_ways(*asked, batch_size=8, time_limit=1e5, memory=limit).best
    assert all(0 < (size or 0) <= limit for size in limited.needed_bytes)
    assert limited.trial == free.trial
    assert limited.simulated_seconds > free.simulated_seconds
    recompute = limited.plan.scheduling and limited.plan.scheduling.recompute
    assert isinstance(recompute, tuple)
    assert all(recompute)
    placement = place(model, limited.plan, ["meta"] * 2)
    made = wanted_schedule(placement, limited.scheduling, True, batch_size=8)
    assert [outline.dropped for outline in made.outlines] == [*recompute]


@pytest.mark.full
@pytest.mark.long
def test_what_has_no_memory_is_dropped_and_said_so(found: Recommendation) -> None:
    known = sorted(one.largest_bytes or 0 for one in found.ranked)
    limit = known[len(known) // 2]
    less = recommended(machine(2, memory=limit))
    assert all((one.largest_bytes or 0) <= limit for one in less.ranked)
    texts = [one.trial.text for one in less.ranked]
    for one in found.ranked:
        assert (one.trial.text in texts) != any(
            "needs" in other.why and other.what == one.trial.text for other in less.dropped
        )
    assert figures(recommended(machine(2), memory=limit)) == figures(less)
    with pytest.raises(InfeasibleError, match=r"the one that needs least, .* of 10 bytes"):
        recommended(machine(2), memory=10)


def test_over_slow_links_one_device_is_best() -> None:
    found = recommended(machine(2, SLOW))
    assert not found.is_split
    assert found.best.plan.partition.k == 1


def test_hours_can_be_divided_too(found: Recommendation) -> None:
    slow = recommended(machine(2), scale=1e7)
    assert slow.one_device.seconds > 1000
    assert len(slow.ranked) == len(found.ranked)


def test_without_time_one_device_is_simulated() -> None:
    found = recommended(machine(2), time_limit=0)
    assert [one.trial.k for one in found.ranked] == [1]
    assert found.left_out > 0


@pytest.mark.parametrize("simulated", [0, 4])
def test_ctrl_c_leaves_the_best_by_then(monkeypatch: pytest.MonkeyPatch, simulated: int) -> None:
    done: list[Any] = []

    def few(*asked: Any) -> Any:
        if len(done) == simulated:
            raise KeyboardInterrupt
        done.append(asked)
        return estimate(*asked)

    monkeypatch.setattr("hgpart.recommendation.simulating.estimate", few)
    if simulated == 0:
        with pytest.raises(KeyboardInterrupt):
            recommended(machine(2))
        return
    found = recommended(machine(2))
    assert (found.interrupted, found.simulated, len(found.ranked)) == (True, 3, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("goal", GOALS)
def test_ways_are_in_the_order_of_the_goal(goal: str) -> None:
    found = recommended(machine(2), goal=goal)
    figures = [one.largest_bytes if goal == "memory" else one.seconds for one in found.ranked]
    assert len(figures) > 1
    assert figures == sorted(figures)
    assert goal == "throughput" or not any(one.scheduling.is_stream for one in found.ranked)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("goal", GOALS)
def test_all_schedules_there_are(monkeypatch: pytest.MonkeyPatch, goal: str) -> None:
    monkeypatch.setattr(module, "orders", orders)
    every = recommended(machine(2), goal=goal)
    assert every.left_out == 0
    assert every.simulated > 4
    values = [one.value(goal) for one in every.ranked]
    assert values == sorted(values)


@pytest.mark.full
@pytest.mark.long
def test_all_ways_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = heights_of(traced_network()[2])
    monkeypatch.setattr(module, "trials", trials)
    every = recommended(machine(4))
    assert every.left_out == 0
    said = {one.trial.text for one in every.ranked} | {one.what for one in every.dropped}
    assert said == {one.text for one in trials(4, heights)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 3}, "3 devices of a machine of 2: accepted are 1 to 2"),
        ({"batch_size": 0}, "batch size 0: accepted is 1 or more"),
        ({"goal": "x"}, "goal 'x'"),
        ({"memory": 0}, "memory 0: accepted is 1 byte or more"),
        ({"time_limit": -1}, "time limit -1"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_is_wrong_is_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as error:
        recommended(machine(2), **options)
    assert isinstance(error.value, HgpartError)
    assert "\n" not in str(error.value)


def differing(*speeds: float, memory: tuple[int | None, ...] = (None, None)) -> Machine:
    own = zip(speeds, memory, strict=True)
    devices = tuple(Device("toy", size, speed=speed) for speed, size in own)
    return replace(machine(len(speeds)), devices=devices)


@pytest.mark.full
@pytest.mark.long
def test_devices_get_samples_by_speed_and_one_device_is_the_fastest(found: Recommendation) -> None:
    # Layers that take so long that sending is nothing.
    slow = {"scale": 1e4}
    differ, alike = recommended(differing(0.5, 1.5), **slow), recommended(machine(2), **slow)
    ways = {one.trial.name: one for one in differ.ranked}
    assert differ.one_device.seconds == pytest.approx(alike.one_device.seconds / 1.5, rel=1e-3)
    replicas = ways["data-parallel"]
    assert replicas.plan.partition.modelling.slices == 4
    assert replicas.seconds == pytest.approx(alike.one_device.seconds / 2, rel=1e-2)
    assert replicas.plan.partition.feasible
    assert differ.notes == ("Devices differ in speed: ways for fewer take the first of 1, 0",)
    # Equal speeds are as good as none, whatever they are.
    assert figures(recommended(differing(1.0, 1.0))) == figures(found)
    kinds = replace(machine(2), devices=(Device("slow"), Device("fast")))
    times = {"slow": times_of(scale=1e4), "fast": times_of(scale=1e4 / 3)}
    measured = recommended(kinds, times=times)
    assert measured.one_device.seconds == pytest.approx(alike.one_device.seconds / 3, rel=1e-3)


@pytest.mark.full
def test_memory_is_that_of_the_device_that_is_used(found: Recommendation) -> None:
    least = found.one_device.largest_bytes
    assert least is not None
    fits = recommended(differing(1.0, 2.0, memory=(1, least)))
    assert [one.trial.text for one in fits.ranked] == ["single"]
    with pytest.raises(InfeasibleError):
        recommended(differing(2.0, 1.0, memory=(1, least)))


def test_what_is_not_known_to_fit_is_not_recommended(
    found: Recommendation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When time was up, the fastest was recommended, whatever memory it might need."""
    needed = found.one_device.largest_bytes
    assert needed is not None
    tight = machine(2, memory=2 * needed - 1)
    monkeypatch.setattr(Simulations, "_is_late", lambda simulations: len(simulations.best) == 3)
    late = recommended(tight, scale=1e3)
    assert late.best.largest_bytes is not None
    assert late.left_out > 0
    monkeypatch.undo()
    assert recommended(tight, scale=1e3, time_limit=1e5).best.trial.k == 2


def test_no_row_has_unknown_memory_where_that_may_not_do(found: Recommendation) -> None:
    """Such a way was run, and recommended if it was fastest."""
    needed = found.one_device.largest_bytes
    assert needed is not None
    tight = recommended(machine(2, memory=2 * needed - 1), scale=1e3)
    assert all(one.largest_bytes is not None for one in tight.ranked)
    plenty = recommended(machine(2, memory=2 * needed), scale=1e3)
    assert any(one.largest_bytes is None for one in plenty.ranked)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("goal", GOALS)
def test_no_row_is_a_search_for_seconds_that_another_one_beats(
    monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    """Where a known way was the same as such a search, neither had a row."""
    monkeypatch.setattr(module, "trials", trials)
    found = recommended(machine(2), scale=1e2, goal=goal)
    rows = {one.trial.text: one.seconds for one in found.ranked}
    fastest = min(rows.values())
    assert all(rows[text] == fastest for text in rows if text.startswith("least-time"))
    why = {dropped.what: dropped.why for dropped in found.dropped}
    same = "the same as "
    for text in (text for text in why if why[text].startswith(same)):
        while why.get(text, "").startswith(same):
            text = why[text].removeprefix(same)
        alone = why.get(text) == "one device would do all work"
        assert text in rows or text.startswith("least-time") or alone


class WithToken(nn.Module):
    """Its tasks read a parameter, which estimates of slices do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(16, 8, 3)
        self.token = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.first(images)
        return self.last(torch.cat([maps, self.token.expand(maps.shape)], 1)).mean((2, 3))


def test_what_cant_be_sketched_is_placed() -> None:
    """Ways in slices of such a model were dropped."""
    model = WithToken()
    traced = trace(model, (torch.zeros(2, 3, 8, 8),))
    graph = channel_graph(traced)
    assert any(layer.kind == PARAMETER for layer in graph.layers)
    times = in_proportion(graph, scale=1e3)
    found = module.rank_ways(model, traced, graph, times, machine(2), batch_size=8, time_limit=1e5)
    (way,) = [one for one in found.ranked if one.trial.name == "data-parallel"]
    assert way.largest_bytes is not None


class BesideTheMean(nn.Module):
    """Its samples depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.first(images)
        return (maps - maps.mean(0)).mean((2, 3))


def test_micro_batches_of_a_batch_that_cant_be_divided_are_refused() -> None:
    """One device was recommended, as no way of several was tried."""
    model = BesideTheMean()
    traced = trace(model, (torch.zeros(4, 3, 8, 8),))
    graph = channel_graph(traced)
    facts = model, traced, graph, in_proportion(graph, scale=1e3), machine(2)
    with pytest.raises(ArgumentError, match=r"2 micro-batches: .*: accepted is 1"):
        module.rank_ways(*facts, batch_size=8, micro_batches=2)
