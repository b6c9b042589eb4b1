"""Small models whose single tasks, for each slice of the batch, are in parts at random."""

from __future__ import annotations

import placements
import torch
from placed_models import model_of

from hgpart import Modelling, Placement, place
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace

SAMPLES = 6


def sliced(name: str, slices: int, k: int, seed: int, grain: str = "coarse") -> Placement:
    """In training, by a plan for batches of `SAMPLES`."""
    model, inputs = model_of(name)
    inputs = tuple(torch.zeros(SAMPLES, *one.shape[1:], dtype=one.dtype) for one in inputs)
    traced = trace(model, inputs)
    modelling = Modelling(grain=grain, batch_size=SAMPLES, slices=slices)
    graph = channel_graph(traced)
    split = placements.of_single_tasks(traced, graph, modelling, k, seed)
    return place(model, split).train()
