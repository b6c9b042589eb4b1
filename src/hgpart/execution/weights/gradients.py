"""A step's autograd graph -> the gradients of what it read, and apart from them its weights'.

Gradients of maps are what others wait for; those of weights can wait. They begin where weights meet
maps: what lies between there and the step's results is gone through once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

SEVERAL = 16  # micro-batches together keep no more for a product than its weights take
ACCUMULATES = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class Product:
    """The gradient of a large matrix that samples are multiplied by: it may be of many of them.

    Attributes
    ----------
    weight : Tensor
        Outputs x inputs.
    bias : Tensor or None
    inputs : Tensor
        Samples x inputs.
    gradients : Tensor
        Samples x outputs.
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
        Where these weights meet maps.
    gradients : sequence of Tensor
        Of these edges.
    weights : sequence of Tensor
    meets : bool
        Whether no other weights, and none of these again, are behind the edges.
    """

    edges: Sequence[GradientEdge]
    gradients: Sequence[Tensor]
    weights: Sequence[Tensor]
    meets: bool = True

    def add(self) -> None:
        """Add to the gradients of the weights."""
        torch.autograd.backward(self.edges, self.gradients, inputs=self.weights)

    def product(self) -> Product | None:
        """The same as a matrix product, if it is one and the matrix is large beside what it takes.

        What it takes is kept until all samples are there.
        """
        node: Any = self.edges[0].node  # torch's own has attributes that its type has not
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
        # Without the graph behind it, which would be kept as long.
        read, gradient = getattr(node, inputs).detach(), self.gradients[0]
        if weight.nbytes < SEVERAL * (read.nbytes + gradient.nbytes):
            return None
        return Product(weight, added, read, gradient)


def add_products(products: Sequence[Product]) -> None:
    """Add up the gradients of one matrix over all samples, by one product."""
    first = products[0]
    gradients = torch.cat([one.gradients for one in products])
    torch.autograd.backward(
        [first.weight], [gradients.T @ torch.cat([one.inputs for one in products])]
    )
    if first.bias is not None:
        torch.autograd.backward([first.bias], [gradients.sum(0)])


def add_map_gradients(
    heads: Sequence[GradientEdge], gradients: Sequence[Tensor], leaves: Sequence[Tensor]
) -> list[WeightGradient]:
    """Add to the gradients of leaves; return what is left to do for all other leaves.

    Vectors that maps are multiplied with, as a norm's, get theirs now: a norm goes through all of
    its maps for them, and does so for the gradients of maps anyway.

    Parameters
    ----------
    heads : sequence of GradientEdge
        Where the graph begins.
    gradients : sequence of Tensor
        Of these.
    leaves : sequence of Tensor
        Its leaves that are maps.
    """
    meetings = _meetings(heads, {id(leaf) for leaf in leaves})
    weights = [weight for one in meetings for weight in one.weights]
    distinct = [*{id(one): one for one in weights}.values()]
    apart = len(distinct) == len(weights)  # else some weight meets maps in several places
    later = [one for one in meetings if not one.is_vectors] if apart else []
    vectors = [each for one in meetings if one.is_vectors for each in one.weights] if apart else []
    asked = [edge for one in later for edge in one.edges]
    wanted: list[Any] = [*leaves, *vectors, *asked]  # the stubs know of one kind at a time
    found: Sequence[Tensor | None] = ()
    if wanted:
        kept = bool(later) or not apart
        found = torch.autograd.grad(heads, wanted, gradients, retain_graph=kept, allow_unused=True)
    for leaf, gradient in zip(leaves, found, strict=False):
        leaf.grad = gradient
    for vector, gradient in zip(vectors, found[len(leaves) :], strict=False):
        if gradient is not None:
            torch.autograd.backward([vector], [gradient])
    if not apart:
        return [WeightGradient(heads, gradients, distinct, meets=False)]
    return [*_left(later, iter(found[len(leaves) + len(vectors) :]))]


@dataclass(frozen=True, eq=False)
class _Meeting:
    """See `WeightGradient`."""

    edges: Sequence[GradientEdge]
    weights: Sequence[Tensor]
    meets: bool

    @property
    def is_vectors(self) -> bool:
        """Whether the weights are vectors, whose hooks torch would call twice if they had some."""
        return self.meets and all(one.dim() < 2 and not one._backward_hooks for one in self.weights)


def _left(
    meetings: Sequence[_Meeting], gradients: Iterator[Tensor | None]
) -> Iterator[WeightGradient]:
    for one in meetings:
        pairs = [(edge, given) for edge in one.edges if (given := next(gradients)) is not None]
        if pairs:
            edges, known = zip(*pairs, strict=True)
            yield WeightGradient(edges, known, one.weights, one.meets)


def _meetings(heads: Sequence[GradientEdge], maps: set[int]) -> list[_Meeting]:
    """The nodes that have maps and weights behind them, and weights that no map is before."""
    order = _behind_first(heads)
    has_map: dict[Node, bool] = {}
    weights: dict[Node, dict[int, Tensor]] = {}  # behind a node without maps
    own: dict[Node, dict[int, Tensor]] = {}  # that meet maps in a node
    for node in order:
        following = [behind for behind, _ in node.next_functions if behind is not None]
        leaf = getattr(node, "variable", None) if node.name() == ACCUMULATES else None
        has_map[node] = id(leaf) in maps or any(has_map[one] for one in following)
        some = {id(leaf): leaf} if leaf is not None and id(leaf) not in maps else {}
        for one in following:
            some.update(weights[one])
        weights[node], own[node] = ({}, some) if has_map[node] else (some, {})
    uses: dict[Node, dict[int, GradientEdge]] = {}
    for edge in heads:
        uses.setdefault(edge.node, {})[edge.output_nr] = edge
        own[edge.node] = own[edge.node] or weights[edge.node]
    for node in order:
        for behind, number in node.next_functions:
            if behind is not None and own[behind]:
                uses.setdefault(behind, {})[number] = GradientEdge(behind, number)
    return [
        _Meeting([*uses[node].values()], [*own[node].values()], has_map[node])
        for node in order
        if own[node]
    ]


def _behind_first(heads: Sequence[GradientEdge]) -> list[Node]:
    """All nodes of a graph, each after those that it goes on to."""
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
            todo += [(behind, False) for behind, _ in node.next_functions if behind is not None]
    return order


def _weight(node: Node | None) -> Tensor | None:
    """The leaf that a node accumulates for."""
    found = getattr(node, "variable", None) if node is not None else None
    return found if isinstance(found, Tensor) else None
