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
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.operators import channelwise, moving, products
from hgpart.operators.calls import argument, with_arguments
from hgpart.operators.products import Product
from hgpart.operators.table import has_users_rule, operator_of
from hgpart.tracing.programs.functional import added

_ALONG = channelwise.softmax, channelwise.along_one  # rules of operators along one dimension
_TAKING = "slice", "narrow", "select", "unbind", "pieces"  # cuts of what takes parts along one
_NAMESPACES = "aten", "hgpart"  # of operators that take any number of dimensions
_ORDERS = torch.channels_last, torch.channels_last_3d  # of memory: of so many dimensions only
_PLACE_BY_PLACE = channelwise.same_place, moving.copied


def keep_apart(graph: fx.Graph, of_one: Set[str] = frozenset()) -> None:
    """Compute on samples and what they are joined with in dimensions of their own.

    This is done where they come apart again behind, and there is a rule for all that lies between.
    In a program for any batch its size tells samples; in one for a single sample `of_one` has the
    names of the inputs, and it is divided as the other one is.
    """
    singles = {node for node in graph.nodes if node.name in of_one}
    for node in graph.nodes:
        if not singles.isdisjoint(node.all_input_nodes):
            singles.add(node)
    # Those that are joined with yet others come first; new views are not asked once more.
    joining = [node for node in reversed(graph.nodes) if _joined(node, singles)]
    erased = set[fx.Node]()
    for node in joining:
        lead = [] if node in erased else _joined(node, singles)
        if lead and node.users:
            erased |= _Region(graph, lead, singles).replace(node)


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
    singles : set of fx.Node
        Nodes that are computed from the inputs of a program for a single sample; none if it is for
        any batch. New nodes are added.
    """

    def __init__(self, graph: fx.Graph, lead: Sequence[Any], singles: set[fx.Node]) -> None:
        self.graph = graph
        self.lead = [*lead]
        self.singles = singles
        self.made: list[fx.Node] = []
        self.apart: dict[fx.Node, _Apart] = {}
        self.ends: dict[fx.Node, fx.Node] = {}

    def replace(self, joining: fx.Node) -> set[fx.Node]:
        """Replace all of it; nothing if there is no rule for some of it. Returns what is erased."""
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
            return set()
        for node, end in self.ends.items():
            node.replace_all_uses_with(end)
        replaced = {*self.apart, *self.ends}
        for node in reversed(self.graph.nodes):
            if node in replaced:
                self.graph.erase_node(node)
        return replaced

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
            if [*map(_expression, _joined(node, self.singles))] == lead:
                views.add(node)
            else:
                waiting.extend(node.all_input_nodes)
        return views

    def _replace(self, node: fx.Node) -> None:
        """Have something else compute what a node does."""
        known, target = operator_of(node), node.target
        if target is operator.getitem:
            given = self.apart[node.all_input_nodes[0]]
            self._call(node, given, (given.node, node.args[1]), {})
            return
        is_known = getattr(target, "namespace", "") in _NAMESPACES and not has_users_rule(target)
        if not is_known or any(order in node.kwargs.values() for order in _ORDERS):
            raise _StaysError
        product = known.product
        weight = argument(node, product.weight) if product else None
        if known.rule is moving.viewed:
            self._view(node, self.apart[node.all_input_nodes[0]])
        elif known.cut == "permutation":
            self._permute(node)
        elif known.rule in _ALONG or known.cut in _TAKING:
            self._along(node)
        elif known.takes_statistics:
            given = self._within(node, "operand", argument(node, "dims"))
            self._call(node, given, *self._arguments(node, {}))
        elif product and product.is_matrix and weight and weight.meta["val"].dim() == 2:
            self._multiply(node, product)
        elif known.rule is products.attention:
            self._attend(node)
        elif known.rule is products.batched_product and len(node.args) == 2:
            self._place_by_place(node, torch.ops.aten.matmul.default, of_matrices=True)
        elif product and product.multiplies_maps:
            self._place_by_place(node, target, of_matrices=True)
        elif known.rule in _PLACE_BY_PLACE:
            self._place_by_place(node, target)
        else:
            raise _StaysError

    # -------------------------------------------------------------- kinds of operators

    def _view(self, node: fx.Node, given: _Apart) -> None:
        """A view that leaves dimensions joined, or takes them apart, which is an end."""
        shape, place = _shape(node), given.place
        if shape[:place] != _shape(node.all_input_nodes[0])[:place]:
            raise _StaysError
        lead, behind = [*map(_expression, self.lead)], shape[place:]
        all_joined = behind[:1] == [math.prod(lead)]
        others_joined = behind[:2] == [lead[0], math.prod(lead[1:])]
        samples_alone = place == 0 and behind[:1] == lead[:1]  # and all others in any other form
        if behind[: len(lead)] == lead or (samples_alone and not others_joined):
            self.ends[node] = self._viewed(given.node, node.meta["val"].shape, node)
        elif all_joined or others_joined:
            count = 1 if all_joined else 2
            value = self._value(node.meta["val"], place, count)
            self.apart[node] = _Apart(self._viewed(given.node, value.shape, node), place, count)
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
        self._call(node, replace(given, place=place), (given.node, order), {}, target)

    def _along(self, node: fx.Node) -> None:
        """An operator along one dimension, which may go."""
        given = self._only_operand(node)
        dim = argument(node, "dim") % node.all_input_nodes[0].meta["val"].dim()
        if given.place <= dim < given.place + given.count:
            raise _StaysError
        goes = operator_of(node).cut in ("select", "unbind") and dim < given.place
        args, kwargs = self._arguments(node, {"dim": self._dims_of(dim, given)[0]})
        self._call(node, replace(given, place=given.place - goes), args, kwargs)

    def _within(self, node: fx.Node, operand: str, dims: int | None) -> _Apart:
        """What stands for an operand that an operator works on along its last dimensions.

        No other operand may have joined dimensions.
        """
        value = argument(node, operand)
        given = self.apart.get(value)
        others = [other for other in node.all_input_nodes if other is not value]
        if given is None or dims is None or not self.apart.keys().isdisjoint(others):
            raise _StaysError
        if given.place + given.count > value.meta["val"].dim() - dims:
            raise _StaysError
        return given

    def _multiply(self, node: fx.Node, product: Product) -> None:
        """A product with a matrix along the last dimension."""
        given = self._within(node, product.operand, 1)
        if product.row_dim == 0:
            self._call(node, given, *self._arguments(node, {}))
            return
        weight, bias = argument(node, product.weight), argument(node, product.bias)
        scales = argument(node, "alpha", 1), argument(node, "beta", 1)
        if scales != (1, 1) or (bias is not None and bias.meta["val"].dim() != 1):
            raise _StaysError
        self._call(node, given, (given.node, weight), {}, torch.ops.aten.matmul.default)
        if bias is not None:
            made = self.apart[node].node
            self._call(node, given, (made, bias), {}, torch.ops.aten.add.Tensor)

    def _attend(self, node: fx.Node) -> None:
        """An attention of queries, keys and values that all have samples joined with others."""
        for name in ("query", "key", "value"):
            given = self.apart.get(argument(node, name))
            if given is None or given.place or given.count > 1 or node.meta["val"].dim() != 4:
                raise _StaysError
        target = torch.ops.hgpart.attention_of_stacks.default
        self._place_by_place(node, target, of_matrices=True)

    def _place_by_place(self, node: fx.Node, target: Any, of_matrices: bool = False) -> None:
        """An operator whose operands broadcast, along all dimensions or all but two."""
        operands, rank = node.all_input_nodes, _first(node.meta["val"]).dim()
        if not all(_is_tensor(operand.meta["val"]) for operand in operands):
            raise _StaysError  # a number that depends on the batch
        more = {operand: rank - operand.meta["val"].dim() for operand in operands}
        places = {
            (given.place + more[operand], given.count)
            for operand in operands
            if (given := self.apart.get(operand))
        }
        if len(places) != 1:
            raise _StaysError
        ((place, count),) = places
        lasts = rank - 2 if of_matrices else rank
        if place < 0 or place + count > lasts or (of_matrices and max(more.values()) > lasts):
            raise _StaysError
        others = {
            operand: self._broadcast(operand, place - more[operand], count)
            for operand in operands
            if operand not in self.apart
        }
        args, kwargs = self._arguments(node, {}, others)
        self._call(node, _Apart(node, place, count), args, kwargs, target)

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
        return self._viewed(operand, [*sizes[:first], *now, *sizes[last:]], operand)

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

    def _value(self, value: Any, place: int, count: int) -> Any:
        """The same memory with dimensions apart: random numbers are drawn in its order."""
        if not _is_tensor(value):
            return value
        return value.unflatten(place + count - 1, self.lead[count - 1 :])

    def _viewed(self, operand: fx.Node, sizes: Sequence[Any], like: fx.Node) -> fx.Node:
        """An operand as a tensor of other sizes, of which one may depend on the batch."""
        if _shape(operand) == [*map(_expression, sizes)]:
            return operand
        given = [size if isinstance(size, int) else -1 for size in sizes]
        if given.count(-1) > 1:
            raise _StaysError
        value = like.meta["val"].view(sizes)
        return self._added(torch.ops.aten.view.default, (operand, given), {}, like, value)

    def _arguments(
        self,
        node: fx.Node,
        changed: Mapping[str, Any],
        others: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
    ) -> tuple[Any, Any]:
        """Arguments of a call with those that stand for others, and some that are changed."""

        def now(operand: fx.Node) -> fx.Node:
            given = self.apart.get(operand)
            return given.node if given else others.get(operand, operand)

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), now)
        return with_arguments(node, args, kwargs, changed) if changed else (args, kwargs)

    def _call(
        self, node: fx.Node, like: _Apart, args: Any, kwargs: Any, target: Any = None
    ) -> None:
        """Have a call stand for a node, in whose result dimensions are joined as in another."""
        value = pytree.tree_map(
            lambda value: self._value(value, like.place, like.count), node.meta["val"]
        )
        made = self._added(target or node.target, args, kwargs, node, value)
        self.apart[node] = replace(like, node=made)

    def _added(self, target: Any, args: Any, kwargs: Any, like: fx.Node, value: Any) -> fx.Node:
        made = added(self.graph, (target, args, kwargs), like.meta, value)
        if like in self.singles:
            self.singles.add(made)
        self.made.append(made)
        return made


def _joined(node: fx.Node, singles: Set[fx.Node]) -> list[Any]:
    """The sizes of samples and others that a view joins in its first dimension; else empty.

    They are the first sizes of what is viewed; but if these have another product, as where tokens
    are divided into windows as well, those of samples and of all that is joined with them.
    """
    if node.op != "call_function" or operator_of(node).rule is not moving.viewed:
        return []
    operand = node.all_input_nodes[0]
    given, made = operand.meta["val"].shape, node.meta["val"].shape
    if operand in singles:
        return _joined_with_one([*given], [*made])
    sizes = [*map(_expression, given)]
    joined = _expression(made[0]) if made else 0
    if isinstance(joined, int) or not sizes or joined == sizes[0]:
        return []
    for count in range(2, len(sizes)):
        if math.prod(sizes[:count]) == joined:
            return [*given[:count]]
    times = joined / sizes[0]
    return [given[0], int(times)] if times.is_Integer else []


def _joined_with_one(given: list[int], made: list[int]) -> list[int]:
    """The same of a single sample, whose dimension has size 1 and comes first, or second."""
    if given[:1] == [1] and made[:1] > [1]:
        counts = range(2, len(given))
        count = next((count for count in counts if math.prod(given[:count]) == made[0]), 0)
        return given[:count] or [1, made[0]]
    is_second = given[1:2] == [1] and made[:1] == given[:1] > [1] and made[1:2] != [1]
    return given[:2] if is_second and len(given) > 2 else []


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
