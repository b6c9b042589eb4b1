"""Small models whose single tasks, for each slice of the batch, are in parts at random."""

from __future__ import annotations

from functools import cache

import placements
import torch
from placed_models import model_of

from hgpart import Modelling, Placement, place
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, trace

SAMPLES = 6


def sliced(name: str, slices: int, k: int, seed: int, grain: str = "coarse") -> Placement:
    """In training, by a plan for batches of `SAMPLES`."""
    traced, graph = _traced(name)
    modelling = Modelling(grain=grain, batch_size=SAMPLES, slices=slices)
    split = placements.of_single_tasks(traced, graph, modelling, k, seed)
    return place(model_of(name)[0], split).train()


@cache
def _traced(name: str) -> tuple[TracedModel, ChannelGraph]:
    model, inputs = model_of(name)
    traced = trace(model, [torch.zeros(SAMPLES, *one.shape[1:], dtype=one.dtype) for one in inputs])
    return traced, channel_graph(traced)
