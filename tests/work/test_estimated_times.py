"""Seconds in proportion to work: of a step they add up to what was measured, or to a rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recommended import traced_network

from hgpart.work.estimated_times import RATE, READING, estimated_times
from hgpart.work.figures import flops, measured
from hgpart.work.layer_times import Pass, step_seconds


def read_seconds(layers: Any) -> float:
    """Of all weights, once."""
    return sum(4 * own.elements for layer in layers for own in layer.own_parameters) / READING


def test_measured_seconds_are_those_of_the_step() -> None:
    graph = traced_network()[2]
    seconds = [0.5 * at * bool(layer.operators) for at, layer in enumerate(graph.layers)]
    times = estimated_times(measured(graph, seconds, "by hand"), graph, 8)
    assert step_seconds(times, 8) == pytest.approx(sum(seconds))
    fixed = 3 * read_seconds(graph.layers)
    assert step_seconds(times, 2) == pytest.approx(fixed + (sum(seconds) - fixed) / 4)


def test_multiply_accumulates_take_three_passes_at_a_rate_and_each_reads_weights() -> None:
    graph = traced_network()[2]
    times = estimated_times(flops(graph), graph, 8)
    whole = int(np.dot(flops(graph).per_task, [layer.tasks for layer in graph.layers]))
    fixed = 3 * read_seconds(graph.layers)
    assert step_seconds(times, 5) == pytest.approx(fixed + 3 * 5 * whole / RATE)
    at = next(at for at, layer in enumerate(graph.layers) if layer.macs)
    half = times.seconds(at, Pass.FORWARD, 0.5, 4)
    assert half == pytest.approx(times.seconds(at, Pass.FORWARD, 1.0, 4) / 2)
