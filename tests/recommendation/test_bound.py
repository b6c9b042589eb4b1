"""No way is simulated faster than the bound, whatever layers take; by hand it is what it says."""

from __future__ import annotations

import numpy as np
import pytest
from recommended import machine, recommended, traced_network
from toy_times import in_proportion

from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.baselines.spatial import heights_of
from hgpart.recommendation import ways as module
from hgpart.recommendation.bound import least_seconds
from hgpart.recommendation.ranking import Recommendation
from hgpart.recommendation.trials import trials
from hgpart.timing.rising import rising
from hgpart.work.layer_times import WHOLE_STEP, LayerTimes, Pass, ShareTimes

FAST = Link.of(latency=0.0, bandwidth=1e15)


def any_times(seed: int) -> LayerTimes:
    """Random seconds that rise with tasks and samples, by no law."""
    draw, layers = np.random.default_rng(seed), list[ShareTimes | None]()
    for layer in traced_network()[2].layers:
        counts = tuple(sorted({1, -(-layer.tasks // 2), layer.tasks}))
        tables = {which: rising(draw.uniform(1e-3, 1.0, (len(counts), 3))) for which in Pass}
        tables[Pass.UPDATE] = tables[Pass.UPDATE][:, :1]
        made = {which: tuple(map(tuple, table.tolist())) for which, table in tables.items()}
        layers.append(ShareTimes(counts, made) if layer.operators else None)
    return LayerTimes((1, 3, 8), tuple(layers), "drawn")


def ranked(on: Machine, times: LayerTimes) -> Recommendation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:6])
        model, traced, graph = traced_network()
        return module.rank_ways(model, traced, graph, times, on, batch_size=8, time_limit=1e5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.few(1)
def test_no_way_is_simulated_faster(seed: int) -> None:
    times, on = any_times(seed), machine(2, FAST)
    least = least_seconds(times, traced_network()[2], on, 8)
    assert 0 < least <= min(way.simulated_seconds for way in ranked(on, times).ranked)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.few(1)
def test_no_bands_of_a_sample_are_simulated_faster(seed: int) -> None:
    """A sample in bands took less than the bound, which knew shares of filters alone."""
    times, on = any_times(seed), machine(2, FAST)
    model, traced, graph = traced_network()
    with pytest.MonkeyPatch.context() as patch:
        of_rows = trials(2, heights_of(graph))
        named = [trial for trial in of_rows if trial.way.name in ("single", "spatial")]
        patch.setattr(module, "trials", lambda k, *_, **__: named)
        found = module.rank_ways(
            model, traced, graph, times, on, batch_size=1, time_limit=1e5, goal="latency"
        )
    least = least_seconds(times, graph, on, 1, training=False)
    assert len(found.ranked) == 2
    assert 0 < least <= min(way.simulated_seconds for way in found.ranked)


def test_work_over_speeds_and_the_slow_down_of_a_node() -> None:
    graph = traced_network()[2]
    times = in_proportion(graph)
    whole = sum(
        times.seconds(at, which, 1.0, 8)
        for at, known in enumerate(times.layers)
        if known is not None
        for which in WHOLE_STEP
    )
    alone = least_seconds(times, graph, machine(1), 8)
    assert alone == pytest.approx(whole, rel=0.2)  # nobody needs the gradient of the input
    assert alone <= whole
    devices = (Device("a"), Device("a"), Device("b", speed=2.0))
    assert least_seconds(times, graph, Machine("m", devices, (3,), FAST), 8) == pytest.approx(
        alone / 4
    )
    slowed = Machine("m", (Device("a"),) * 2, (2,), FAST, together=(1.0, 1.25))
    assert least_seconds(times, graph, slowed, 8) == pytest.approx(alone / 1.6)


def test_many_devices_wait_for_the_path_of_a_sample() -> None:
    graph = traced_network()[2]
    times = in_proportion(graph)
    bounds = [least_seconds(times, graph, machine(k), 8) for k in (2, 4096, 8192)]
    assert bounds[1] < bounds[0]
    assert bounds[1] == bounds[2]  # each layer has its filters and rows to be divided, and no more


def test_a_batch_that_cant_be_divided_takes_longer() -> None:
    graph = traced_network()[2]
    times, on = in_proportion(graph), machine(64)
    divided, whole = (
        least_seconds(times, graph, on, 8, divides_batch=divides) for divides in (True, False)
    )
    assert whole > divided


def test_a_recommendation_has_it() -> None:
    found = recommended(machine(2), time_limit=0)
    assert 0 < found.least_seconds <= found.best.simulated_seconds
