"""A graph that was kept is the graph that was found."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import hgpart
from hgpart.layers.cache.kept_layers import graph_of, plain_layers
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.zoo import load_model

MODELS = [
    "lenet5",
    "timm:vit_tiny_patch16_224",
    "shufflenet_v2_x1_0",
    "googlenet",
    pytest.param("densenet121", marks=pytest.mark.long),
    "efficientnet_b0",
    pytest.param("timm:swin_tiny_patch4_window7_224", marks=pytest.mark.long),
    pytest.param("timm:mobilevit_xxs", marks=pytest.mark.long),
    pytest.param("timm:tf_efficientnet_cc_b0_4e", marks=pytest.mark.long),
]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_that_is_read_is_the_one_that_was_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HGPART_TRACES", "off")  # another test may have kept it
    model, shape = load_model(name, device="meta")
    graph = channel_graph(trace(model, example_inputs(model, shape)))
    facts = json.loads(json.dumps(plain_layers(graph)))
    asked: list[Any] = []
    read = graph_of(facts, lambda restored: (asked.append(restored), graph.layer_rows)[1])
    assert read.fingerprint == graph.fingerprint
    assert repr(read.layers) == repr(graph.layers)
    assert read.mixing == graph.mixing
    for tensors, others in ((read.ids, graph.ids), (read.rows, graph.rows)):
        assert list(tensors) == list(others)
        for each, tensor in others.items():
            assert torch.equal(tensors[each], tensor)
            assert tensors[each].dtype == tensor.dtype
            expanded = [tensors[each].stride(dim) == 0 for dim in range(tensor.dim())]
            assert expanded == [tensor.stride(dim) == 0 for dim in range(tensor.dim())]
    assert not asked
    assert read.layer_rows is graph.layer_rows
    assert asked == [read]
    sent = pickle.loads(pickle.dumps(read))  # to other processes
    assert all(torch.equal(sent.ids[each], tensor) for each, tensor in graph.ids.items())
    assert np.array_equal(hgpart.flops(sent).per_task, hgpart.flops(graph).per_task)
