"""The built-in models, traced on small images, once for all tests that ask: in one process."""

from __future__ import annotations

from functools import cache

import pytest

from hgpart.graph import ChannelGraph
from hgpart.layering import channel_graph
from hgpart.tracing import TracedModel, example_inputs, trace
from hgpart.zoo import load_model

# The smallest images that a model can take, and others whose last maps hold more than one pixel.
IMAGES = {
    "lenet5": (1, 32, 32),
    "alexnet": (3, 64, 64),
    "inception_v3": (3, 107, 107),
    "inception_resnet_v2": (3, 107, 107),
    "unet": (3, 32, 32),
}


in_one_process = pytest.mark.xdist_group("built-in models")


@cache
def builtin_graph(name: str) -> tuple[TracedModel, ChannelGraph]:
    """Trace on the CPU, so that operators can run, but with weights that nobody touches."""
    model, _ = load_model(name, device="meta")
    model = model.to_empty(device="cpu")
    traced = trace(model, example_inputs(model, IMAGES.get(name, (3, 64, 64))))
    return traced, channel_graph(traced)
