"""A small model whose ways are simulated in a moment, and records of ways by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from toy_times import in_proportion

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.ways.way import Way
from hgpart.prediction.predict import Prediction
from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.recommendation.trials import Trial
from hgpart.recommendation.ways import rank_ways
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.layer_times import LayerTimes

LINK = Link.of(latency=1e-6, bandwidth=1e9)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 6)
    )


def machine(k: int, link: Link = LINK, memory: int | None = None) -> Machine:
    return Machine("toys", (Device("toy", memory),) * k, (k,), link)


@cache
def traced_network() -> tuple[nn.Module, TracedModel, ChannelGraph]:
    model = network()
    traced = trace(model, (torch.zeros(2, 3, 8, 8),))
    return model, traced, channel_graph(traced)


def recommended(on: Machine, scale: float = 1.0, **options: Any) -> Recommendation:
    """Of the small model, whose layers take what they multiply, or some times as long."""
    model, traced, graph = traced_network()
    # All ways are simulated, however busy the machine is.
    options = {"batch_size": 8, "seed": 1, "time_limit": 1e5, **options}
    times = options.pop("times", None) or times_of(scale)
    return rank_ways(model, traced, graph, times, on, **options)


def times_of(scale: float = 1.0) -> LayerTimes:
    """Of the small model, whose layers take what they multiply, or some times as long."""
    return in_proportion(traced_network()[2], scale=scale)


def by_hand(
    name: str,
    seconds: float,
    update: float = 0.0,
    needed: tuple[int | None, ...] = (0,),
    measured: float | None = None,
) -> Ranked:
    """A way with these figures; of a plan that nobody looks at."""
    schedule = Schedule("sequential", 1, (), ())
    none = np.zeros((1, 1), np.int64)
    prediction = Prediction(
        seconds, seconds, 1, schedule, (), np.array([0.0]), update, needed, needed, none[0], none
    )
    trial = Trial(Way(name, "by hand", lambda problem, search: None), 1)
    nothing: Any = None
    return Ranked(trial, nothing, prediction, needed, 0.0, measured)
