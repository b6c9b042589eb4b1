"""Convolutions with padding in words are traced with padding in numbers, and compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hgpart.tracing.traced_model import trace

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("convolution", "pads"),
    [
        (nn.Conv1d(4, 6, 3, padding="same", dilation=2, groups=2), False),
        (nn.Conv2d(4, 6, (4, 3), padding="same", dilation=(1, 2)), True),
        (nn.Conv2d(4, 6, 2, padding="same", bias=False), True),
        (nn.Conv2d(4, 6, 3, stride=2, padding="valid"), False),
        (nn.Conv3d(4, 6, (1, 2, 3), padding="same"), True),
    ],
    ids=["odd", "even rows", "even", "valid", "even columns"],
)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_padding_in_words(convolution, pads):
    model = convolution.double()
    value = torch.randn(2, 4, *[7] * (model.weight.dim() - 2), dtype=torch.float64)
    traced = trace(model, value)
    nodes = traced.graph_module.graph.nodes
    targets = [node.target for node in nodes if node.op == "call_function"]
    assert (aten.constant_pad_nd.default in targets) == pads
    assert all(not isinstance(one, str) for node in nodes for one in node.args)
    state = model.state_dict()
    given = [
        state[traced.parameters[node.name]] if node.name in traced.parameters else value
        for node in nodes
        if node.op == "placeholder"
    ]
    torch.testing.assert_close(traced.graph_module(*given)[0], model(value))
