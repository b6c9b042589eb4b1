"""Seconds in proportion to work: of a step they add up to what was measured, or to a rate."""

from __future__ import annotations

import numpy as np
import pytest
from recommended import traced_network

from hgpart.work.estimated_times import RATE, estimated_times
from hgpart.work.figures import flops, measured
from hgpart.work.layer_times import Pass, step_seconds


def test_measured_seconds_are_those_of_the_step() -> None:
    graph = traced_network()[2]
    seconds = [0.5 * at * bool(layer.operators) for at, layer in enumerate(graph.layers)]
    times = estimated_times(measured(graph, seconds, "by hand"), graph, 8)
    assert step_seconds(times, 8) == pytest.approx(sum(seconds))
    assert step_seconds(times, 2) == pytest.approx(sum(seconds) / 4)


def test_multiply_accumulates_take_three_passes_at_a_rate() -> None:
    graph = traced_network()[2]
    times = estimated_times(flops(graph), graph, 8)
    whole = int(np.dot(flops(graph).per_task, [layer.tasks for layer in graph.layers]))
    assert step_seconds(times, 5) == pytest.approx(3 * 5 * whole / RATE)
    at = next(at for at, layer in enumerate(graph.layers) if layer.macs)
    half = times.seconds(at, Pass.FORWARD, 0.5, 4)
    assert half == pytest.approx(times.seconds(at, Pass.FORWARD, 1.0, 4) / 2)
