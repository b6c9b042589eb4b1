"""A graph in which tokens or windows are joined with samples -> one in which these lie apart.

Attention within windows (Swin, MaxViT) views maps as windows, and puts these beside the samples of
a batch, in one dimension: what computes within a window then works on each for itself. Linear
layers may be given tokens in the same way. In such a dimension no rows could be divided into bands.
So what computes between the view that joins them and the view that takes them apart again is
computed on dimensions of their own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.operators import channelwise, moving, products
from hgpart.operators.calls import argument, with_arguments
from hgpart.operators.table import operator_of

_ALONG = channelwise.softmax, channelwise.along_one  # rules of operators along one dimension
_TAKING = "slice", "narrow", "select", "unbind", "pieces"  # cuts of what takes parts along one
_ORDERS = torch.channels_last, torch.channels_last_3d  # of memory: of so many dimensions only
_PLACE_BY_PLACE = channelwise.same_place, moving.copied
_BROADCASTING = *_PLACE_BY_PLACE, products.batched_product, products.attention


def keep_apart(graph: fx.Graph) -> None:
    """Compute on samples and what they are joined with in dimensions of their own.

    This is done where they come apart again behind, and there is a rule for all that lies between.
    """
    for node in reversed(graph.nodes):  # those that are joined with yet others come first
        lead = _joined(node)
        if lead and node.users:
            _Region(graph, lead).replace(node)


class _StaysError(Exception):
    """There is no rule for something that computes on joined dimensions."""


@dataclass(frozen=True)
class _Apart:
    """What stands for a node, with the dimensions apart that are joined in it.

    Attributes
    ----------
    place : int
        The first of these dimensions, and the first that they are joined in.
    count : int
        Dimensions that they are joined in: 1, or 2 if only those behind the first are joined.
    """

    node: fx.Node
    place: int
    count: int


class _Region:
    """What computes behind a view that joins dimensions, and what takes its place.

    Parameters
    ----------
    lead : sequence of int or torch.SymInt
        Sizes of the dimensions that are joined. One depends on the batch, usually the first.
    """

    def __init__(self, graph: fx.Graph, lead: Sequence[Any]) -> None:
        self.graph = graph
        self.lead = [*lead]
        self.made: list[fx.Node] = []
        self.apart: dict[fx.Node, _Apart] = {}
        self.ends: dict[fx.Node, fx.Node] = {}

    def replace(self, joining: fx.Node) -> None:
        """Replace all of it; nothing if there is no rule for some of it."""
        views = self._views_met(joining)
        try:
            for node in self.graph.nodes:
                with self.graph.inserting_before(node):
                    if not self.apart.keys().isdisjoint(node.all_input_nodes):
                        self._replace(node)
                    elif node in views:
                        self._view(node, _Apart(node.all_input_nodes[0], 0, 1))
        except _StaysError:
            for node in reversed(self.made):
                self.graph.erase_node(node)
            return
        for node, end in self.ends.items():
            node.replace_all_uses_with(end)
        for node in reversed(self.graph.nodes):
            if node in self.apart or node in self.ends:
                self.graph.erase_node(node)

    def _views_met(self, joining: fx.Node) -> set[fx.Node]:
        """All views that join the same dimensions of what is computed with each other's."""
        lead = [*map(_expression, self.lead)]
        views, seen, waiting = set[fx.Node](), set[fx.Node](), [joining]
        while waiting:
            node = waiting.pop()
            tensors = filter(_is_tensor, pytree.tree_leaves(node.meta.get("val")))
            if node in seen or not any(math.prod(lead) in _sizes(tensor) for tensor in tensors):
                continue
            seen.add(node)
            waiting.extend(node.users)
            if [*map(_expression, _joined(node))] == lead:
                views.add(node)
            else:
                waiting.extend(node.all_input_nodes)
        return views

    def _replace(self, node: fx.Node) -> None:
        """Have something else compute what a node does."""
        if node.op != "call_function" or any(order in node.kwargs.values() for order in _ORDERS):
            raise _StaysError
        known = operator_of(node)
        product = known.product if known.product and known.product.is_matrix else None
        weight = argument(node, product.weight) if product else None
        if node.target is operator.getitem:
            given = self.apart[node.all_input_nodes[0]]
            self._call(node, given, (given.node, node.args[1]), {})
        elif known.rule is moving.viewed:
            self._view(node, self.apart[node.all_input_nodes[0]])
        elif known.cut == "permutation":
            self._permute(node)
        elif known.rule in _ALONG or known.cut in _TAKING:
            self._along(node)
        elif argument(node, "dims") or (weight and weight.meta["val"].dim() == 2):
            self._within(node)
        elif known.rule in _BROADCASTING or product:
            self._place_by_place(node)
        else:
            raise _StaysError

    # -------------------------------------------------------------- kinds of operators

    def _view(self, node: fx.Node, given: _Apart) -> None:
        """A view that leaves dimensions joined, or takes them apart, which is an end."""
        shape, place = _shape(node), given.place
        before = _shape(node.all_input_nodes[0])[:place]
        lead = [*map(_expression, self.lead)]
        joined = [math.prod(lead)], [lead[0], math.prod(lead[1:])]
        count = next(
            (len(sizes) for sizes in joined if shape[place : place + len(sizes)] == sizes), 0
        )
        if shape[:place] != before:
            raise _StaysError
        if shape[place : place + len(lead)] == lead or (not count and shape[:1] == lead[:1]):
            self.ends[node] = self._viewed(node, given.node, node.meta["val"].shape)
        elif count:
            sizes = self._sizes(node.meta["val"], place, count)
            self.apart[node] = _Apart(self._viewed(node, given.node, sizes), place, count)
        else:
            raise _StaysError

    def _permute(self, node: fx.Node) -> None:
        given, rank = self._only_operand(node), node.meta["val"].dim()
        dims = argument(node, "dims")
        if dims is None:
            first, second = argument(node, "dim0"), argument(node, "dim1")
            if first is None or second is None:
                raise _StaysError
            dims = [*range(rank)]
            dims[first], dims[second] = dims[second], dims[first]
        dims = [dim % rank for dim in dims]
        joined = [*range(given.place, given.place + given.count)]
        place = dims.index(given.place)
        if dims[place : place + given.count] != joined:
            raise _StaysError
        order = [now for dim in dims for now in self._dims_of(dim, given)]
        target = torch.ops.aten.permute.default
        now = replace(given, place=place)
        self._call(node, now, (given.node, order), {}, target)

    def _along(self, node: fx.Node) -> None:
        """An operator along one dimension, which may go."""
        given = self._only_operand(node)
        rank = node.all_input_nodes[0].meta["val"].dim()
        dim = argument(node, "dim") % rank
        now = self._dims_of(dim, given)
        if len(now) != 1 or given.place <= dim < given.place + given.count:
            raise _StaysError
        goes = operator_of(node).cut in ("select", "unbind") and dim < given.place
        args, kwargs = self._arguments(node, {"dim": now[0]})
        self._call(node, replace(given, place=given.place - goes), args, kwargs)

    def _within(self, node: fx.Node) -> None:
        """A product with a weight, or statistics, along the last dimensions of an operand."""
        product, dims = operator_of(node).product, argument(node, "dims", 1)
        if product is None and not operator_of(node).takes_statistics:
            raise _StaysError
        operand = argument(node, "operand" if product is None else product.operand)
        others = [other for other in node.all_input_nodes if other is not operand]
        given = self.apart.get(operand)
        if given is None or not self.apart.keys().isdisjoint(others):
            raise _StaysError
        if given.place + given.count > operand.meta["val"].dim() - dims:
            raise _StaysError
        if product is None or product.row_dim == 0:
            self._call(node, given, *self._arguments(node, {}))
            return
        weight, bias = argument(node, product.weight), argument(node, product.bias)
        scales = argument(node, "alpha", 1), argument(node, "beta", 1)
        if scales != (1, 1):
            raise _StaysError
        self._call(node, given, (given.node, weight), {}, torch.ops.aten.matmul.default)
        if bias is not None and bias.meta["val"].dim() == 1:
            made = self.apart[node].node, bias
            self._call(node, given, made, {}, torch.ops.aten.add.Tensor)
        elif bias is not None:
            raise _StaysError

    def _place_by_place(self, node: fx.Node) -> None:
        """An operator whose operands broadcast, those that multiply matrices but for these."""
        rank, target = _first(node.meta["val"]).dim(), node.target
        rule, operands = operator_of(node).rule, node.all_input_nodes
        if not all(isinstance(operand.meta["val"], torch.Tensor) for operand in operands):
            raise _StaysError  # a number that depends on the batch
        ranks = {operand: operand.meta["val"].dim() for operand in operands}
        places = {
            (given.place + rank - ranks[operand], given.count)
            for operand in operands
            if (given := self.apart.get(operand))
        }
        if len(places) != 1:
            raise _StaysError
        ((place, count),) = places
        if rule not in _PLACE_BY_PLACE and place + count > rank - 2:
            raise _StaysError
        if rule is products.attention and {*node.args[:3]} - self.apart.keys():
            raise _StaysError
        if rule is products.batched_product:
            target = torch.ops.aten.matmul.default
            if len(node.args) != 2:
                raise _StaysError
        others = {
            operand: self._broadcast(operand, place + ranks[operand] - rank, count)
            for operand in operands
            if operand not in self.apart
        }
        joined = _Apart(node, place, count)
        self._call(node, joined, *self._arguments(node, {}, others), target)

    def _broadcast(self, operand: fx.Node, place: int, count: int) -> fx.Node:
        """An operand without joined dimensions, so that it meets those that are apart now."""
        first, last = max(place, 0), place + count
        if last <= 0:
            return operand
        sizes = [*operand.meta["val"].shape]
        met = [*map(_expression, sizes[first:last])]
        behind = math.prod(map(_expression, self.lead[1:]))
        if all(size == 1 for size in met):
            now = [1] * len(self.lead)
        elif count == 2 and met[-1] == behind and all(size == 1 for size in met[:-1]):
            now = [1, *self.lead[1:]]
        else:
            raise _StaysError
        return self._viewed(operand, operand, [*sizes[:first], *now, *sizes[last:]])

    # -------------------------------------------------------------- new nodes

    def _only_operand(self, node: fx.Node) -> _Apart:
        if len(node.all_input_nodes) != 1:
            raise _StaysError
        return self.apart[node.all_input_nodes[0]]

    def _dims_of(self, dim: int, given: _Apart) -> range:
        """The dimensions that stand for one of a node."""
        more = len(self.lead) - given.count
        if dim < given.place:
            return range(dim, dim + 1)
        if dim >= given.place + given.count:
            return range(dim + more, dim + more + 1)
        return range(dim, dim + len(self.lead) if dim == given.place else dim)

    def _sizes(self, value: torch.Tensor, place: int, count: int) -> list[Any]:
        return [*value.shape[:place], *self.lead, *value.shape[place + count :]]

    def _viewed(self, node: fx.Node, operand: fx.Node, sizes: Sequence[Any]) -> fx.Node:
        """An operand as a tensor of other sizes, of which one may depend on the batch."""
        if _shape(operand) == [*map(_expression, sizes)]:
            return operand
        given = [size if isinstance(size, int) else -1 for size in sizes]
        if given.count(-1) > 1:
            raise _StaysError
        made = self.graph.call_function(torch.ops.aten.view.default, (operand, given))
        made.meta.update(node.meta, val=node.meta["val"].new_empty(sizes))
        self.made.append(made)
        return made

    def _arguments(
        self, node: fx.Node, changed: Mapping[str, Any], beside: Mapping[fx.Node, fx.Node] = {}
    ) -> tuple[Any, Any]:
        def now(operand: fx.Node) -> fx.Node:
            given = self.apart.get(operand)
            return given.node if given else beside.get(operand, operand)

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), now)
        return with_arguments(node, args, kwargs, changed) if changed else (args, kwargs)

    def _call(
        self, node: fx.Node, like: _Apart, args: Any, kwargs: Any, target: Any = None
    ) -> None:
        """Have a call stand for a node, in whose result dimensions are joined as in another."""
        made = self.graph.create_node("call_function", target or node.target, args, kwargs)

        def value(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            return tensor.new_empty(self._sizes(tensor, like.place, like.count))

        made.meta.update(node.meta, val=pytree.tree_map(value, node.meta["val"]))
        self.made.append(made)
        self.apart[node] = replace(like, node=made)


def _joined(node: fx.Node) -> list[Any]:
    """The sizes of samples and others that a view joins in its first dimension; else empty."""
    if node.op != "call_function" or operator_of(node).rule is not moving.viewed:
        return []
    given, made = node.all_input_nodes[0].meta["val"].shape, node.meta["val"].shape
    sizes = [*map(_expression, given)]
    joined = _expression(made[0]) if made else 0
    if isinstance(joined, int) or not sizes or joined == sizes[0]:
        return []
    for count in range(2, len(sizes)):
        if math.prod(sizes[:count]) == joined:
            return [*given[:count]]
    times = joined / sizes[0]
    return [given[0], int(times)] if times.is_Integer else []


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _first(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = next(filter(_is_tensor, pytree.tree_leaves(value)))
    return tensor


def _sizes(value: torch.Tensor) -> list[Any]:
    """Sizes of a tensor; expressions where they depend on the batch, which can be compared."""
    return [*map(_expression, value.shape)]


def _shape(node: fx.Node) -> list[Any]:
    return _sizes(node.meta["val"])


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr
