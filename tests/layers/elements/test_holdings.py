"""Which task holds which element of a parameter, against a look at every element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from hgpart.layers.elements.constants import moved_elements
from hgpart.layers.elements.holdings import NOBODY, Use, agree, count_needed
from hgpart.operators.effects import Constant

aten = torch.ops.aten

SHAPES = {"p": (2, 3, 2), "q": (4, 3)}


class Graph:
    """A torch.fx graph in which parameters are moved about, and what it makes of some values."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.made: dict[fx.Node, torch.Tensor] = {}
        for name, shape in SHAPES.items():
            self._add(self.graph.placeholder(name), torch.rand(shape))

    def _add(self, node: fx.Node, value: torch.Tensor) -> fx.Node:
        node.meta["val"] = self.made[node] = value
        return node

    def call(self, operator: Any, *args: Any) -> fx.Node:
        values = fx.map_arg(args, lambda node: self.made[node])
        return self._add(self.graph.call_function(operator, args), operator(*values))

    @property
    def parameters(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]


@st.composite
def moves(draw: st.DrawFn) -> tuple[Graph, fx.Node]:
    """A constant that consists of elements of one parameter, or of two, each once at most."""
    graph = Graph()
    node = graph.parameters[0]
    if draw(st.booleans()):  # of both
        flat = [graph.call(aten.reshape.default, one, [12]) for one in graph.parameters]
        node = graph.call(aten.stack.default, flat, draw(st.sampled_from([0, 1])))
    for _ in range(draw(st.integers(0, 4))):
        shape = graph.made[node].shape
        dim = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(["flip", "transpose", "slice", "flatten"]))
        if kind == "flip":
            node = graph.call(aten.flip.default, node, [dim])
        elif kind == "transpose":
            node = graph.call(aten.transpose.int, node, dim, 0)
        elif kind == "slice":
            node = graph.call(aten.slice.Tensor, node, dim, draw(st.integers(0, shape[dim] - 1)))
        else:
            node = graph.call(aten.reshape.default, node, [-1])
    return graph, node


def use_of(graph: Graph, node: fx.Node, tasks: torch.Tensor | None = None) -> Use:
    origins = frozenset(one.name for one in graph.parameters)
    constant = Constant(tuple(graph.made[node].shape), origins, moves=(node.name,))
    return Use(constant, node, "operator", tasks)


@given(moves())
def test_moved_elements_are_where_they_are_said_to_be(case):
    graph, node = case
    moved = moved_elements(node)
    assert moved is not None
    values = torch.cat([graph.made[one].flatten() for one in moved.origins])
    assert torch.equal(values[moved.numbers], graph.made[node])
    assert moved_elements(graph.call(aten.mul.Tensor, node, 2)) is None


@given(moves(), st.data())
def test_holders(case, data):
    graph, node = case
    made = graph.made[node]
    dim = data.draw(st.integers(0, made.dim() - 1))
    count = made.shape[dim]
    view = [count if at == dim else 1 for at in range(made.dim())]
    tasks = torch.tensor(data.draw(st.permutations(range(count))), dtype=torch.int32).reshape(view)
    use = use_of(graph, node, tasks)
    for origin in moved_elements(node).origins:
        values = graph.made[origin].flatten()
        expected = np.full(len(values), NOBODY)
        for at, task in np.ndenumerate(tasks.expand(made.shape).numpy()):
            expected[(values == made[at]).numpy()] = task
        found = use.holders(origin, SHAPES[origin.name])
        np.testing.assert_array_equal(found, expected)
        needed = count_needed([use], origin, SHAPES[origin.name])
        assert needed == (expected != NOBODY).sum()


def test_rows_that_are_computed():
    graph = Graph()
    doubled = graph.call(aten.mul.Tensor, graph.parameters[1], 2)
    rows = torch.tensor([1, 3, 0], dtype=torch.int32)
    shape = SHAPES["q"]

    def use(tasks: list[int]) -> Use:
        constant = Constant((3,), frozenset({"q"}), computed=True, rows=rows)
        return Use(constant, doubled, "operator", torch.tensor(tasks, dtype=torch.int32))

    q = graph.parameters[1]
    assert use([5, 6, 7]).holders(q, shape).reshape(shape)[:, 0].tolist() == [7, 5, NOBODY, 6]
    assert count_needed([use([0, 1, 2])], q, shape) == 9
    assert agree([use([0, 1, 2]), use([0, 1, 2])], q, shape)
    assert not agree([use([0, 1, 2]), use([0, 2, 1])], q, shape)


def test_uses_agree_where_no_element_is_of_two_tasks():
    graph = Graph()
    q, shape = graph.parameters[1], SHAPES["q"]
    low = graph.call(aten.slice.Tensor, q, 0, 0, 3)
    high = graph.call(aten.slice.Tensor, q, 0, 2, 4)
    rows = torch.arange(4, dtype=torch.int32)[:, None]
    assert agree([use_of(graph, low, rows[:3]), use_of(graph, high, rows[2:])], q, shape)
    assert not agree([use_of(graph, low, rows[:3]), use_of(graph, high, rows[:2])], q, shape)
    assert not agree([use_of(graph, low, rows[:3]), use_of(graph, high, None)], q, shape)
    assert count_needed([use_of(graph, low), use_of(graph, high)], q, shape) == 12
    assert count_needed([use_of(graph, high)], q, shape) == 6
