"""Some filters, and some channels of some filters, are slices of the whole product."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from cut_steps import load, loaded
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgpart.layers.layering import channel_graph
from hgpart.placement.cutting import products
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.products import filters, product_of
from hgpart.placement.cutting.step_graph import Source, SourcePiece
from hgpart.placement.cutting.steps import PartialSum, finishing_step, partial_step
from hgpart.placement.shares.ownership import Rectangle
from hgpart.tracing.traced_model import trace


class Matrix(nn.Module):
    """A product with a matrix, written in one of the ways that there are."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.randn((20, 6) if way == "mm of t" else (6, 20)))
        self.bias = nn.Parameter(torch.randn(20))

    def forward(self, features):
        if self.way == "mm":
            return torch.mm(features, self.weight)
        if self.way == "mm of t":
            return torch.mm(features, self.weight.t())
        if self.way == "matmul":
            return features @ self.weight
        return torch.addmm(self.bias, features, self.weight, beta=0.5, alpha=2)


MAPS, FEATURES = (6, 5, 5), (6,)
PRODUCTS = {
    "conv1d": (lambda: nn.Conv1d(6, 20, 3), (6, 5)),
    "conv2d": (lambda: nn.Conv2d(6, 20, 3, padding=1), MAPS),
    "no bias": (lambda: nn.Conv2d(6, 20, 3, stride=2, bias=False), MAPS),
    "grouped": (lambda: nn.Conv2d(6, 20, 3, groups=2), MAPS),
    "transposed": (lambda: nn.ConvTranspose2d(6, 20, 3, stride=2), MAPS),
    "grouped transposed": (lambda: nn.ConvTranspose2d(6, 20, 3, groups=2), MAPS),
    "linear": (lambda: nn.Linear(6, 20), FEATURES),
    "linear of maps": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(150, 20)), MAPS),
    "mm": (lambda: Matrix("mm"), FEATURES),
    "mm of t": (lambda: Matrix("mm of t"), FEATURES),
    "matmul": (lambda: Matrix("matmul"), FEATURES),
    "addmm": (lambda: Matrix("addmm"), FEATURES),
}


@cache
def built(name: str):
    torch.manual_seed(0)
    make, shape = PRODUCTS[name]
    model = make().double()
    traced = trace(model, torch.zeros(2, *shape, dtype=torch.float64))
    return model, NodeFacts(traced, channel_graph(traced)), torch.randn(3, *shape).double()


def begin(facts: NodeFacts, tasks: np.ndarray) -> CutGraph:
    nodes = {node.name: node for node in facts.traced.graph_module.graph.nodes}
    image = nodes[facts.traced.inputs[0]]
    layout = ChannelLayout(facts.shape(image), (), np.zeros(0, np.int64))
    (at,) = [at for at, layer in enumerate(facts.graph.layers) if layer.tasks == 20]
    return CutGraph(
        facts, at, tasks, {image: Source(layout, (SourcePiece("image", np.arange(6)),))}, {}
    )


def head_of(step: CutGraph):
    nodes = step.traced.graph_module.graph.nodes
    return next(node for node in nodes if node.name == step.layer.operators[0])


def call(module, names, **operands):
    return module(*(operands[name] for name in names))


some_tasks = st.sets(st.integers(0, 19), min_size=1).map(lambda tasks: np.array(sorted(tasks)))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PRODUCTS)
@given(tasks=some_tasks)
def test_filters_are_those_of_the_whole(name, tasks):
    model, facts, image = built(name)
    step = begin(facts, tasks)
    head = head_of(step)
    product = product_of(step, head)
    step.fx_graph.output(filters(step, head, product, step.layer.reads[0], None))
    module = loaded(step, model)
    found = call(module, step.placeholders, image=image, batch_size=3)
    torch.testing.assert_close(found, model(image)[:, tasks])
    held = sum(one.numel() for one in module.parameters())
    assert held * 20 == len(tasks) * step.layer.parameters  # and no other parameters


@st.composite
def divided_cells(draw: st.DrawFn, groups: int, parts: int = 3) -> list[list[Rectangle]]:
    """For each part the cells that it has; every task's positions are divided at random."""
    seed = draw(st.integers(0, 2**16))
    patterns = draw(st.sampled_from([1, 3, 20]))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, parts, (patterns, 6))[rng.integers(0, patterns, 20)]
    group = np.arange(20) * groups // 20
    same = group[:, None] == (np.arange(6) * groups // 6)[None, :]
    found = []
    for part in range(parts):
        rows = {}
        for task, held in enumerate((drawn == part) & same):
            if held.any():
                rows.setdefault(held.tobytes(), (held, []))[1].append(task)
        found.append(
            [Rectangle(np.array(tasks), np.flatnonzero(held)) for held, tasks in rows.values()]
        )
    return found


@pytest.mark.parametrize("name", PRODUCTS)
@given(data=st.data(), most=st.sampled_from([0, products.MOST_RECTANGLES]))
def test_partial_sums_are_products_of_some_channels_and_add_up(name, data, most):
    model, facts, image = built(name)
    step = begin(facts, np.arange(20))
    read = step.layer.reads[0]
    nothing = model(torch.zeros_like(image))  # the bias
    sums, pieces = {}, []
    for part, rectangles in enumerate(data.draw(divided_cells(read.groups))):
        if not rectangles:
            continue
        tasks = np.sort(np.concatenate([one.tasks for one in rectangles]))
        with pytest.MonkeyPatch.context() as patch:  # 0: all as one product, zeros between
            patch.setattr(products, "MOST_RECTANGLES", most)
            made = partial_step(begin(facts, tasks), read, rectangles)
        load(made.module, made.slices, model)
        found = call(made.module, made.operands, image=image, batch_size=3)
        for one in rectangles:
            kept = torch.zeros_like(image)
            kept[:, one.positions] = image[:, one.positions]
            wanted = (model(kept) - nothing)[:, one.tasks]
            torch.testing.assert_close(found[:, np.searchsorted(tasks, one.tasks)], wanted)
        cells = sum(len(one.tasks) * len(one.positions) for one in rectangles)
        held = sum(one.numel() for one in made.module.parameters())
        assert held * 20 * 6 // read.groups == cells * step.layer.weights
        sums[f"sums_{part}"] = found
        pieces.append(PartialSum(f"sums_{part}", tasks, None))
    total = finishing_step(step, [head_of(step)], {}, pieces)
    load(total.module, total.slices, model)
    found = call(total.module, total.operands, batch_size=3, **sums)
    torch.testing.assert_close(found, model(image))
