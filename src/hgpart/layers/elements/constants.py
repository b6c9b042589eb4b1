"""Facts about a constant: integer values, rows of parameters, where its elements come from."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.layers.elements.element_owners import narrowed
from hgpart.operators.calls import has_gradients
from hgpart.operators.effects import Call, Channels, Constant, Reindex, SameIndex, constants_of
from hgpart.operators.ids import core
from hgpart.operators.table import effect_of, operator_of
from hgpart.tracing.traced_nodes import all_tensors, concrete, described, holds_tensors, is_tensor


def integers(value: torch.Tensor | None) -> torch.Tensor | None:
    """A tensor if it holds integers, like an index; else None."""
    return value.detach().cpu() if value is not None and _is_exact(value) else None


def with_origins(call: Call) -> list[Constant]:
    """The operands of a call that are made from parameters."""
    return [constant for constant in constants_of(call) if constant.origins]


def constant_of(call: Call, known: Any = None) -> Any:
    """The result of an operator on constants: a `Constant`, a list of them, or a number.

    `known` are the results' values, if they were computed before.
    """
    node = call.node
    sources = [] if operator_of(node).makes else with_origins(call)
    made = Constant(
        shape=call.shape,
        origins=frozenset(name for source in sources for name in source.origins),
        computed=not operator_of(node).moves_only or any(source.computed for source in sources),
        moves=(*(m for source in sources for m in source.moves), described(node)),
    )
    value = node.meta["val"]
    integer = values_of(call, known)
    if isinstance(value, torch.Tensor):
        (rows,) = rows_of(call, sources, [call.shape])
        return replace(made, rows=rows, value=integer[0])
    if isinstance(value, (list, tuple)):
        shapes = [concrete(part.shape) if is_tensor(part) else () for part in value]
        all_rows, values = rows_of(call, sources, shapes), iter(integer)
        return [
            replace(
                made,
                shape=shapes[at],
                moves=(*made.moves, str(at)),
                rows=all_rows[at],
                value=next(values),
            )
            if is_tensor(part)
            else part
            for at, part in enumerate(value)
        ]
    return value


def values_of(call: Call, known: Any = None) -> list[torch.Tensor | None]:
    """The values of an operator's results; None for results that are no integers or not known.

    They are `known`, or are computed if the values of all operands are known.
    """
    results = all_tensors(call.node.meta["val"])
    if known is None and not any(map(_is_exact, results)):
        return [None] * len(results)
    values = _computed(call) if known is None else known
    return [None] * len(results) if values is None else [*map(integers, all_tensors(values))]


def _is_exact(value: torch.Tensor) -> bool:
    return not has_gradients(value.dtype)


def _computed(call: Call) -> Any:
    target = call.node.target
    tags = getattr(target, "tags", None)
    if tags is None or torch.Tag.nondeterministic_seeded in tags:
        return None

    def plain(item: Any) -> Any:
        return item.value if isinstance(item, Constant) else item

    if any(constant.value is None for constant in constants_of(call)):
        return None
    kwargs = {name: value for name, value in call.kwargs.items() if name != "device"}
    args, kwargs = pytree.tree_map(plain, (call.args, kwargs))
    return target(*args, **kwargs)  # type: ignore[operator]


def rows_of(
    call: Call, sources: Sequence[Constant], shapes: Sequence[tuple[int, ...]]
) -> list[torch.Tensor | None]:
    """Rows of parameters that the elements of each result are made of, by the channel rules."""
    if not sources or any(source.rows is None for source in sources):
        return [None] * len(shapes)

    def by_row(item: Any) -> Any:
        known = isinstance(item, Constant) and item.rows is not None
        return Channels(item.rows) if known else item

    args, kwargs = pytree.tree_map(by_row, (call.args, call.kwargs))
    effect = effect_of(Call(call.node, args, kwargs, call.shape))
    rows: Sequence[torch.Tensor] = []
    if isinstance(effect, Reindex):
        rows = effect.ids if isinstance(effect.ids, tuple) else [effect.ids]
    elif isinstance(effect, SameIndex):
        cut, _ = narrowed([ids.expand(call.shape) for ids in effect.operands])
        if all(torch.equal(ids, cut[0]) for ids in cut):
            rows = [effect.operands[0].expand(call.shape)] * len(shapes)
    rows = [*rows, *[torch.empty(0)] * (len(shapes) - len(rows))]
    return [
        ids if tuple(ids.shape) == shape else None for ids, shape in zip(rows, shapes, strict=True)
    ]


def of_rows(rows: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether each element of a constant is made of one row of parameters."""
    return rows is not None and bool((core(rows) >= 0).all())


@dataclass(frozen=True, eq=False)
class MovedElements:
    """A constant that is parameters and buffers whose elements were only moved.

    Attributes
    ----------
    origins : tuple of fx.Node
        The parameters and buffers that it consists of.
    sizes : tuple of int
        Number of elements of each.
    numbers : int64 tensor
        For each place of the constant, the number of its element, counted through all origins.
    """

    origins: tuple[fx.Node, ...]
    sizes: tuple[int, ...]
    numbers: torch.Tensor

    def first(self, origin: fx.Node) -> int:
        """Number of an origin's first element."""
        return sum(self.sizes[: self.origins.index(origin)])


def moved_elements(node: fx.Node) -> MovedElements | None:
    """Where the elements of a constant come from; None if anything is computed on the way."""
    sources, waiting = set[fx.Node](), [node]
    while waiting:
        source = waiting.pop()
        passed = source.op == "placeholder" or source.target is operator.getitem
        if not (passed or operator_of(source).moves_only):
            return None
        if source not in sources:
            sources.add(source)
            waiting.extend(operand for operand in source.all_input_nodes if holds_tensors(operand))
    values: dict[fx.Node, Any] = {}
    origins, sizes = [], [0]

    def value_of(operand: fx.Node) -> Any:
        return values[operand] if operand in values else concrete((operand.meta["val"],))[0]

    for source in node.graph.nodes:
        if source in sources and source.op == "placeholder":
            shape = concrete(source.meta["val"].shape)
            first = sum(sizes)
            origins.append(source)
            sizes.append(math.prod(shape))
            values[source] = torch.arange(first, first + sizes[-1]).reshape(shape)
        elif source in sources:
            args, kwargs = fx.map_arg((source.args, dict(source.kwargs)), value_of)
            values[source] = source.target(*args, **kwargs)
    return MovedElements(tuple(origins), tuple(sizes[1:]), values[node])
