"""A step's autograd graph -> the gradients of what it read and, separately, of its weights.

Other parts wait for gradients of maps; gradients of weights can be computed later. They begin
where weights meet maps: what lies between these places and the step's results is gone through once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

SEVERAL = 16  # so that this many micro-batches keep no more for a product than its weights take
ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class WeightProduct:
    """The gradient of a large matrix that maps are multiplied by, for any number of samples.

    Attributes
    ----------
    weight : Tensor
        Matrix of outputs x inputs.
    inputs : Tensor
        Matrix of samples x inputs.
    gradients : Tensor
        Matrix of samples x outputs.
    """

    weight: Tensor
    bias: Tensor | None
    inputs: Tensor
    gradients: Tensor


@dataclass(frozen=True, eq=False)
class WeightGradient:
    """What is left to do for some weights when the gradients of maps are known.

    Attributes
    ----------
    edges : sequence of GradientEdge
        Where these weights meet maps in the graph.
    gradients : sequence of Tensor
        Gradients of these edges.
    meets : bool
        Whether there are no other weights behind the edges, and these weights only once.
    """

    edges: Sequence[GradientEdge]
    gradients: Sequence[Tensor]
    weights: Sequence[Tensor]
    meets: bool = True

    def add(self) -> None:
        """Add to the gradients of the weights."""
        torch.autograd.backward(self.edges, self.gradients, inputs=self.weights)

    def product(self) -> WeightProduct | None:
        """The same as a matrix product, if it is one and worth keeping until all samples are there.

        It is worth keeping if the matrix is large compared to the operands of the product.
        """
        node: Any = self.edges[0].node  # has attributes that are not in its type
        if not self.meets or len(self.edges) != 1:
            return None
        if node.name() == "AddmmBackward0" and node._saved_alpha == node._saved_beta == 1:
            (bias, _), _, (transposed, _) = node.next_functions
            inputs = "_saved_mat1"
        elif node.name() == "MmBackward0":
            bias, (transposed, _) = None, node.next_functions[1]
            inputs = "_saved_self"
        else:
            return None
        if transposed is None or transposed.name() != "TBackward0":
            return None
        weight, added = _weight(transposed.next_functions[0][0]), _weight(bias)
        if weight is None or weight.is_complex():
            return None
        if bias is not None and (added is None or added.shape != weight.shape[:1]):
            return None
        # Without the graph behind it, which would be kept as long as the operand.
        read, gradient = getattr(node, inputs).detach(), self.gradients[0]
        if weight.nbytes < SEVERAL * (read.nbytes + gradient.nbytes):
            return None
        return WeightProduct(weight, added, read, gradient)


def add_products(products: Sequence[WeightProduct]) -> None:
    """Add the gradient of one matrix over all samples, by one product."""
    first = products[0]
    gradients = torch.cat([product.gradients for product in products])
    inputs = torch.cat([product.inputs for product in products])
    torch.autograd.backward([first.weight], [gradients.T @ inputs])
    if first.bias is not None:
        torch.autograd.backward([first.bias], [gradients.sum(0)])


def map_gradients(
    heads: Sequence[GradientEdge], gradients: Sequence[Tensor], operands: Sequence[GradientEdge]
) -> tuple[Sequence[Tensor | None], list[WeightGradient]]:
    """Find the gradients of a graph's operands; and what is left to do for all leaves.

    Vectors that maps are multiplied with, such as a norm's, get their gradients now: they take a
    pass over all maps of the norm, which the gradients of these maps need anyway.

    Parameters
    ----------
    heads : sequence of GradientEdge
        Edges where the graph begins.
    gradients : sequence of Tensor
        Gradients of these edges.
    operands : sequence of GradientEdge
        Edges where the graph ends in maps.

    Returns
    -------
    sequence of Tensor or None, and list of WeightGradient
        The gradient of each operand, None for one that no head depends on.
    """
    meetings = _meetings(heads, {operand.node for operand in operands})
    weights = [weight for meeting in meetings for weight in meeting.weights]
    distinct = [*{id(weight): weight for weight in weights}.values()]
    apart = len(distinct) == len(weights)  # else some weight meets maps in several places
    now = [meeting for meeting in meetings if meeting.is_vectors] if apart else []
    later = [meeting for meeting in meetings if not meeting.is_vectors] if apart else []
    vectors = [vector for meeting in now for vector in meeting.weights]
    edges = [edge for meeting in later for edge in meeting.edges]
    wanted: list[Any] = [*operands, *vectors, *edges]  # the stubs allow only one type at a time
    results: Sequence[Tensor | None] = ()
    if wanted:
        keep = bool(later) or not apart
        results = torch.autograd.grad(
            heads, wanted, gradients, retain_graph=keep, allow_unused=True
        )
    count = len(operands)
    for vector, gradient in zip(vectors, results[count:], strict=False):
        if gradient is not None:
            torch.autograd.backward([vector], [gradient])
    if not apart:
        return results[:count], [WeightGradient(heads, gradients, distinct, meets=False)]
    return results[:count], [*_left(later, iter(results[count + len(vectors) :]))]


@dataclass(frozen=True, eq=False)
class _Meeting:
    """A place where weights meet maps; see `WeightGradient`."""

    edges: Sequence[GradientEdge]
    weights: Sequence[Tensor]
    meets: bool

    @property
    def is_vectors(self) -> bool:
        """Whether its weights are vectors without hooks, which torch would call twice."""
        vectors = (weight.dim() < 2 and not weight._backward_hooks for weight in self.weights)
        return self.meets and all(vectors)


def _left(
    meetings: Sequence[_Meeting], gradients: Iterator[Tensor | None]
) -> Iterator[WeightGradient]:
    for meeting in meetings:
        pairs = [
            (edge, gradient) for edge in meeting.edges if (gradient := next(gradients)) is not None
        ]
        if pairs:
            edges, known = zip(*pairs, strict=True)
            yield WeightGradient(edges, known, meeting.weights, meeting.meets)


def _meetings(heads: Sequence[GradientEdge], maps: set[Node]) -> list[_Meeting]:
    """Nodes with both maps and weights behind them, and heads with only weights behind them.

    The graph ends in the nodes of `maps`.
    """
    order = _behind_first(heads, maps)
    has_map: dict[Node, bool] = {}
    weights: dict[Node, dict[int, Tensor]] = {}  # behind a node without maps
    own: dict[Node, dict[int, Tensor]] = {}  # that meet maps in a node
    for node in order:
        following = [] if node in maps else _following(node)
        leaf = getattr(node, "variable", None) if node.name() == ACCUMULATES else None
        has_map[node] = node in maps or any(has_map[behind] for behind in following)
        some = {id(leaf): leaf} if leaf is not None and node not in maps else {}
        for successor in following:
            some.update(weights[successor])
        weights[node], own[node] = ({}, some) if has_map[node] else (some, {})
    uses: dict[Node, dict[int, GradientEdge]] = {}
    for edge in heads:
        uses.setdefault(edge.node, {})[edge.output_nr] = edge
        own[edge.node] = own[edge.node] or weights[edge.node]
    for node in order:
        for behind, number in node.next_functions:
            if behind is not None and own.get(behind):
                uses.setdefault(behind, {})[number] = GradientEdge(behind, number)
    return [
        _Meeting([*uses[node].values()], [*own[node].values()], has_map[node])
        for node in order
        if own[node]
    ]


def _following(node: Node) -> list[Node]:
    return [behind for behind, _ in node.next_functions if behind is not None]


def _behind_first(heads: Sequence[GradientEdge], ends: set[Node]) -> list[Node]:
    """All nodes of a graph up to its ends, each after those that follow it in backward."""
    order: list[Node] = []
    seen: set[Node] = set()
    todo = [(edge.node, False) for edge in reversed(heads)]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            if node not in ends:
                todo += [(behind, False) for behind in _following(node)]
    return order


def _weight(node: Node | None) -> Tensor | None:
    """The leaf that a node accumulates for, if it is one that does."""
    leaf = getattr(node, "variable", None) if node is not None else None
    return leaf if isinstance(leaf, Tensor) else None
