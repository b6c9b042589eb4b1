"""Dimensions that are joined with samples: tokens flattened for a product, and windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention_blocks import OF_WINDOWS, SIDE, WIDTH
from torch import Tensor, nn

from hgpart import channel_graph
from hgpart.tracing.arguments import arguments_of
from hgpart.tracing.traced_model import trace, trace_call

TOKENS, FEATURES, MADE = 5, 4, 6
aten = torch.ops.aten


class OfTokens(nn.Module):
    """A weight for each layout, a bias, and a function of these and of the tokens."""

    def __init__(self, function: Callable[[OfTokens, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(FEATURES, MADE))
        self.turned = nn.Parameter(torch.randn(MADE, FEATURES))
        self.bias = nn.Parameter(torch.randn(MADE))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.function(self, tokens)


def flat(tokens: Tensor) -> Tensor:
    return tokens.reshape(-1, tokens.shape[-1])


def apart(made: Tensor) -> Tensor:
    return made.view(-1, TOKENS, MADE)


APART = {
    "addmm": lambda own, x: apart(torch.addmm(own.bias, flat(x), own.weight)),
    "mm": lambda own, x: apart(torch.mm(flat(x), own.weight)),
    "matmul": lambda own, x: apart(flat(x) @ own.weight),
    "linear": lambda own, x: apart(nn.functional.linear(flat(x), own.turned, own.bias)),
    "without a bias": lambda own, x: apart(nn.functional.linear(flat(x), own.turned)),
    "heads behind": lambda own, x: torch.mm(flat(x), own.weight).view(-1, TOKENS, 2, 3).flatten(2),
    "heads before": lambda own, x: apart(
        torch.mm(x.view(-1, TOKENS, 2, 2).flatten(0, 1).flatten(1), own.weight)
    ),
    "a view of all samples": lambda own, x: torch.mm(x.flatten(0, 1), own.weight).unflatten(
        0, (-1, TOKENS)
    ),
}
FLAT = {
    "other tokens": lambda own, x: torch.mm(flat(x), own.weight).view(-1, MADE),
    "read in both forms": lambda own, x: (
        lambda made: apart(made) * made.sum(1).view(-1, TOKENS, 1)
    )(torch.mm(flat(x), own.weight)),
    "scaled": lambda own, x: apart(torch.addmm(own.bias, flat(x), own.weight, alpha=2)),
    "divided features": lambda own, x: torch.mm(x.view(-1, FEATURES // 2), own.weight[:2]),
}


def ranks(own: nn.Module, tokens: Tensor) -> list[int]:
    """The number of dimensions of each product, having checked what the traced model computes."""
    traced = trace(own, tokens)
    products = aten.addmm.default, aten.mm.default, aten.matmul.default, aten.linear.default
    nodes = [node for node in traced.graph_module.graph.nodes if node.target in products]
    torch.testing.assert_close(
        traced.graph_module(
            *(own.get_parameter(name) for name in traced.parameters.values()), tokens
        )[0],
        own(tokens),
    )
    return [node.meta["val"].dim() for node in nodes]


@pytest.mark.parametrize("name", APART)
def test_products_of_flattened_tokens_are_computed_token_by_token(name: str) -> None:
    """Samples and tokens in one dimension ended the bands of tokens of Hugging Face's GPT-2."""
    assert ranks(OfTokens(APART[name]), torch.randn(3, TOKENS, FEATURES)) == [3]


@pytest.mark.parametrize("name", FLAT)
def test_other_products_stay_as_they_are(name: str) -> None:
    assert ranks(OfTokens(FLAT[name]), torch.randn(3, TOKENS, FEATURES)) == [2]


# Heads that lie beside windows and samples are not told from these where there is one sample.
@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name in OF_WINDOWS if name != "batches"])
def test_a_single_sample_is_computed_on_as_any_batch_is(name: str) -> None:
    """A plan is for any batch, and is traced again for a single sample."""
    model, image = OF_WINDOWS[name]().eval(), torch.randn(1, 3, 2 * SIDE, 2 * SIDE)
    several = trace(model, torch.cat([image, image]))
    assert several.batch_sizes.are_all
    single = trace_call(model, arguments_of(model, image), any_batch=False)
    assert single.batch_sizes.fixed == 1
    alone, layers = (channel_graph(traced).layers for traced in (single, several))
    assert [(layer.name, layer.tasks) for layer in alone] == [
        (layer.name, layer.tasks) for layer in layers
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OF_WINDOWS)
def test_rows_of_windows_have_bands(name: str) -> None:
    """Windows lay beside samples in one dimension, which has no rows."""
    graph = channel_graph(trace(OF_WINDOWS[name](), torch.randn(3, 3, 2 * SIDE, 2 * SIDE)))
    heights = {
        layer.name: rows.height for layer, rows in zip(graph.layers, graph.layer_rows, strict=True)
    }
    assert heights["patches"] == SIDE
    assert heights["joint"] == SIDE // WIDTH
    assert all(heights[layer.name] for layer in graph.layers if layer.operators)
