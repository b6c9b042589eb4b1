"""Some rows of an operator's result, computed from those that they read, are those of the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import cut_steps
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional

from hgpart.layers.layering import channel_graph
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.row_cuts import row_cut
from hgpart.placement.cutting.step_graph import Source, SourcePiece
from hgpart.placement.cutting.steps import finishing_step
from hgpart.tracing.traced_model import trace
from hgpart.tracing.traced_nodes import results_read

HEIGHT, WIDTH, CHANNELS = 13, 6, 4
KERNELS, STRIDES, DILATIONS = (1, 2, 3, 5, 7), (1, 2, 3, 4), (1, 2, 3)


class Values(fx.Interpreter):
    """Runs a traced graph and keeps what its nodes make."""

    def run_node(self, node: fx.Node) -> object:
        value = super().run_node(node)
        self.kept = {**getattr(self, "kept", {}), node: value}
        return value


class Rows:
    """A model in a row, and steps that compute some rows of its last layer."""

    def __init__(self, model: nn.Module) -> None:
        torch.manual_seed(0)
        self.model = model.double().eval()
        image = torch.randn(2, CHANNELS, HEIGHT, WIDTH, dtype=torch.float64)
        traced = trace(self.model, image)
        graph = channel_graph(traced)
        self.facts = NodeFacts(traced, graph)
        self.at = max(at for at, layer in enumerate(graph.layers) if layer.operators)
        self.layer, self.rows = graph.layers[self.at], graph.layer_rows[self.at]
        nodes = {node.name: node for node in traced.graph_module.graph.nodes}
        state = dict(self.model.state_dict())
        names = {**traced.parameters, **traced.buffers}
        given = [
            state[names[node.name]] if node.name in names else image
            for node in nodes.values()
            if node.op == "placeholder"
        ]
        values = Values(traced.graph_module)
        values.run(*given)
        self.results = results_read(nodes[self.layer.operators[-1]], traced.results)
        self.operators = [nodes[name] for name in self.layer.operators]
        (self.source,) = (reads.source for reads in self.rows.reads)
        before = graph.layers[self.source].operators
        self.given = nodes[before[-1] if before else traced.inputs[0]]
        self.whole, self.result = values.kept[self.given], values.kept[self.results[0]]

    def check(self, first: int, last: int) -> None:
        """Assert that a tile of all tasks and these rows is right, and its gradient is there.

        It is given exactly the rows that its windows meet.
        """
        (reads,) = self.rows.reads
        windows = reads.windows.reads
        read = np.unique(windows.values[windows.pointers[first] : windows.pointers[last]])
        channels = np.arange(self.facts.graph.layers[self.source].channels)
        layout = self.facts.layout(self.source, self.given)
        pieces = (SourcePiece("piece", channels, read),) if len(read) else ()
        tasks, rows = np.arange(self.layer.tasks), np.arange(first, last)
        sources = {self.given: Source(layout, pieces, 2)}
        step = CutGraph(self.facts, self.at, tasks, sources, {}, rows=rows)
        made = finishing_step(step, self.results, {})
        cut_steps.load(made.module, made.slices, self.model)
        piece = self.whole[:, :, read].clone().requires_grad_()
        operands = {"piece": piece, "batch_size": len(self.whole)}
        found = made.module(*(operands[name] for name in made.operands))
        torch.testing.assert_close(found, self.result[:, :, first:last])
        if "piece" in made.operands:
            found.sum().backward()
            assert piece.grad is not None

    def check_some(self) -> None:
        height = self.rows.height
        assert height is not None
        cuts = sorted({0, 1, height // 3, height // 2, height - 1, height})
        for first, last in product(cuts, cuts):
            if first < last:
                self.check(first, last)

    def is_cut(self) -> bool:
        """Whether each operator is called on some rows only."""
        step = CutGraph(self.facts, self.at, np.arange(1), {}, {}, rows=np.arange(1))
        return all(
            row_cut(step, node, np.arange(2)) is not None
            for node in self.operators
            if node in self.facts.operator_rows
        )


def fits(make: Callable[[], nn.Module]) -> Rows | None:
    """Rows of a model, if it makes at least two of this image."""
    try:
        height = make()(torch.zeros(1, CHANNELS, HEIGHT, WIDTH)).shape[2]
    except RuntimeError:
        return None
    return Rows(make()) if height > 1 else None


@st.composite
def sliding(draw: st.DrawFn) -> nn.Module:
    """A convolution, a transposed one, or pooling."""
    kernel, stride = draw(st.sampled_from(KERNELS)), draw(st.sampled_from(STRIDES))
    dilation, tall = draw(st.sampled_from(DILATIONS)), draw(st.integers(0, 7))
    kind = draw(st.sampled_from(["conv", "transposed", "max", "average"]))
    ceil = draw(st.booleans())
    if kind == "conv":
        groups, mode = (
            draw(st.sampled_from([1, 2, CHANNELS])),
            draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        )
        tall = tall if mode == "zeros" else min(tall, WIDTH - 1)
        return nn.Conv2d(
            CHANNELS, 4, (kernel, 1), stride, (tall, 0), dilation, groups, padding_mode=mode
        )
    if kind == "transposed":
        more = draw(st.integers(0, max(stride, dilation) - 1))
        groups = draw(st.sampled_from([1, 2]))
        return nn.ConvTranspose2d(
            CHANNELS, 4, kernel, stride, tall % 3, (more, 0), groups, dilation=dilation
        )
    padding = tall % (kernel // 2 + 1)
    if kind == "max":
        return nn.MaxPool2d((kernel, 2), stride, (padding, 0), (dilation, 1), ceil_mode=ceil)
    counts = draw(st.booleans())
    return nn.AvgPool2d((kernel, 2), stride, (padding, 0), ceil, counts)


@given(sliding())
def test_windows_that_slide(model):
    rows = fits(lambda: model)
    if rows is not None:
        rows.check_some()


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_stride_and_dilation(kernel, mode):
    for stride, dilation in product(STRIDES, DILATIONS):
        for padding in {0, kernel // 2, dilation * (kernel - 1) // 2}:
            rows = fits(
                lambda size=(kernel, 1), pads=(padding, 0), step=stride, apart=dilation: nn.Conv2d(
                    CHANNELS, 2, size, step, pads, apart, padding_mode=mode
                )
            )
            if rows is not None:
                rows.check_some()


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, image: Tensor) -> Tensor:
        return self.function(image)


OTHERS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "conv, norm, silu and pool": (
        lambda: nn.Sequential(
            nn.Conv2d(CHANNELS, 3, 3, padding=1), nn.BatchNorm2d(3), nn.SiLU(), nn.MaxPool2d(3, 2)
        ),
        True,
    ),
    "one filter": (lambda: nn.Sequential(nn.Conv2d(CHANNELS, 1, 3), nn.ReLU()), True),
    "same, of an even kernel": (lambda: nn.Conv2d(CHANNELS, 2, 4, padding="same"), True),
    "a frame": (lambda: nn.Sequential(nn.ConstantPad2d((1, 0, 2, -1), 1.5), nn.Conv2d(4, 2, 3)), 1),
    "adaptive, evenly": (lambda: nn.AdaptiveAvgPool2d((HEIGHT, 2)), True),
    "adaptive, unevenly": (lambda: nn.AdaptiveAvgPool2d((5, 2)), True),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2d((5, 2)), True),
    "nearest": (lambda: nn.Upsample(scale_factor=2), True),
    "bilinear": (lambda: nn.Upsample(scale_factor=3, mode="bilinear"), True),
    "bicubic": (lambda: nn.Upsample(size=(2 * HEIGHT, 7), mode="bicubic"), True),
    "corners aligned": (
        lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        True,
    ),
    "by a fraction": (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), True),
    "fewer rows": (lambda: nn.Upsample(size=(6, 6), mode="bilinear"), True),
    "rows that are not read": (lambda: nn.Upsample(size=(4, 9), mode="nearest"), True),
    "bicubic by a fraction": (lambda: nn.Upsample(scale_factor=1.7, mode="bicubic"), True),
    "smoothed": (
        lambda: Calls(
            lambda image: functional.interpolate(
                image, size=(5, 4), mode="bilinear", antialias=True
            )
        ),
        True,
    ),
    "a constant with rows": (
        lambda: Calls(lambda image: image * torch.arange(HEIGHT).reshape(-1, 1)),
        True,
    ),
    "causal attention": (
        lambda: Calls(
            lambda image: functional.scaled_dot_product_attention(
                image[..., :3], image[..., 3:], image[..., 2:5], is_causal=True
            )
        ),
        True,
    ),
    "fewer dimensions": (
        lambda: Calls(lambda image: functional.max_pool1d(image.sum(3), 3, 2)),
        True,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows(name):
    make, is_cut = OTHERS[name]
    rows = Rows(make())
    rows.check_some()
    assert rows.is_cut() == bool(is_cut)
