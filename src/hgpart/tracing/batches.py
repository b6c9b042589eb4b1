"""Size in a traced graph -> its value for any batch; program -> the batch sizes that it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import PlacementError

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
LEAST = 2  # smallest batch of a trace for any batch: torch.export treats one sample specially
SHOWN = 512  # the largest batch size that a message considers


@dataclass(frozen=True, eq=False)
class BatchSizes:
    """The batch sizes for which a model computes what its traced graph does.

    A model may branch on its batch size, as in ``if x.shape[0] > 8``; a trace holds one branch.

    Attributes
    ----------
    conditions : tuple of sympy expressions
        Conditions on sizes that torch.export found; all their symbols stand for the batch size.
    fixed : int or None
        The only batch size, if the graph was traced for one.
    """

    conditions: tuple[Any, ...] = ()
    fixed: int | None = None
    _known: dict[int, bool] = field(default_factory=dict)

    def __contains__(self, batch_size: int) -> bool:
        """Whether the graph fits a batch size; it fits one sample only if traced for just that."""
        if self.fixed is not None:
            return batch_size == self.fixed
        if batch_size not in self._known:
            self._known[batch_size] = batch_size >= LEAST and all(
                _holds(condition, batch_size) for condition in self.conditions
            )
        return self._known[batch_size]

    @property
    def are_all(self) -> bool:
        """Whether the graph fits every batch size from two samples on."""
        return self.fixed is None and not self.conditions

    def check(self, samples: int) -> None:
        """Raise a PlacementError unless the graph fits a batch of `samples`.

        A single sample passes unless the graph was traced for one batch size: it may be a slice.
        """
        is_one = samples == 1 and self.fixed is None
        if not is_one and samples not in self:
            raise PlacementError(f"a batch of {samples}: accepted are {self}")

    def __str__(self) -> str:
        """The sizes in the words of a message.

        >>> import sympy
        >>> batch = sympy.Symbol("s77", integer=True)
        >>> str(BatchSizes((batch > 4,))), str(BatchSizes((batch <= 8,)))
        ('5 or more', '2 to 8')
        >>> str(BatchSizes((sympy.Eq(batch % 4, 0),))), str(BatchSizes(fixed=8))
        ('4, 8, 12 and so on', '8')
        """
        if self.fixed is not None:
            return str(self.fixed)
        accepted = [size for size in range(1, SHOWN + 1) if size in self]
        if not accepted:
            return f"more than {SHOWN}"
        starts = [size for size in accepted if size - 1 not in accepted]
        ends = [size for size in accepted if size + 1 not in accepted]
        runs = [_run(first, last) for first, last in zip(starts, ends, strict=True)]
        return f"{', '.join(runs[:3])} and so on" if len(runs) > 3 else ", ".join(runs)


def _run(first: int, last: int) -> str:
    if last >= SHOWN:
        return f"{first} or more"
    return f"{first} to {last}" if last > first else str(first)


def _holds(condition: Any, batch_size: int) -> bool:
    symbols = dict.fromkeys(condition.free_symbols, batch_size)
    try:
        return bool(condition.subs(symbols))
    except ZeroDivisionError:  # a size is divided by one that is 0 here
        return False


def batch_sizes_of(program: torch.export.ExportedProgram, batch_size: int) -> BatchSizes:
    """The batch sizes that a program fits, if exported for any batch or for `batch_size` only."""
    sizes = _sizes_of_batch(program)
    if not sizes:
        return BatchSizes(fixed=batch_size)
    symbols = _symbols_of(sizes)
    # The program's own `range_constraints` lack conditions such as divisibility.
    guards = [guard.expr for guard in sizes[0].node.shape_env.guards]
    return BatchSizes(
        tuple(dict.fromkeys(guard for guard in guards if guard.free_symbols <= symbols))
    )


def _sizes_of_batch(program: torch.export.ExportedProgram) -> list[Any]:
    """The symbolic sizes of inputs."""
    return [
        size
        for node in program.graph.find_nodes(op="placeholder")
        if isinstance(node.meta["val"], torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt) and size.node.expr.free_symbols
    ]


def _symbols_of(sizes: Sequence[Any]) -> set[Any]:
    return {symbol for size in sizes for symbol in size.node.expr.free_symbols}


def at_batch(value: Any, batch_size: int) -> Any:
    """A traced size, or a number computed from sizes, for a batch of `batch_size` samples."""
    for symbolic, number in (
        (torch.SymInt, int),
        (torch.SymFloat, float),
        (torch.SymBool, bool),
    ):
        if isinstance(value, symbolic):
            expression = value.node.expr
            return number(expression.subs(dict.fromkeys(expression.free_symbols, batch_size)))
    return value


def evenly(size: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> tuple[int, int] | None:
    """(a, b) for a size that grows with the batch as a * batch + b; else None.

    None is the answer for the size of a product over all pairs of samples, or half of a batch.

    >>> evenly(7)
    (0, 7)
    """
    if not isinstance(size, SYMBOLIC):
        return 0, size
    expression: Any = size.node.expr
    symbols = expression.free_symbols
    if expression in symbols:
        return 1, 0
    if not symbols:
        return 0, at_batch(size, LEAST)
    if not isinstance(size, torch.SymInt):
        return None
    batch = next(iter(symbols))
    grows = expression.subs(dict.fromkeys(symbols, batch)).expand()
    per_sample, fixed = grows.coeff(batch, 1), grows.coeff(batch, 0)
    even = grows == per_sample * batch + fixed and per_sample.is_Integer and fixed.is_Integer
    return (int(per_sample), int(fixed)) if even else None


def elements_of_shape(shape: Sequence[int | torch.SymInt]) -> tuple[int, int] | None:
    """Like `evenly`, for the number of elements of a tensor."""
    per_sample, fixed = 0, 1
    for size in shape:
        grows = evenly(size)
        if grows is None or (per_sample and grows[0]):
            return None
        per_sample, fixed = per_sample * grows[1] + fixed * grows[0], fixed * grows[1]
    return per_sample, fixed


def grows_evenly(program: torch.export.ExportedProgram) -> bool:
    """Whether all sizes, and all numbers in calls, grow evenly with the batch."""
    batch = _symbols_of(_sizes_of_batch(program))
    sizes = (size for node in program.graph.nodes for size in _sizes_in(node))
    return all(
        evenly(size) is not None
        for size in sizes
        if isinstance(size, SYMBOLIC) and not batch.isdisjoint(_symbols_of([size]))
    )


def _sizes_in(node: fx.Node) -> Iterator[Any]:
    """The sizes of a node's results, and the numbers in its arguments."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            yield from value.shape
    if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
        for leaf in pytree.tree_leaves((node.args, node.kwargs)):
            yield leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf


def shape_said(shape: Sequence[Any]) -> str:
    """A shape in the words of a message; the batch size is the word "batch".

    >>> shape_said((2, 3))
    '2x3'
    """
    return "x".join(map(size_said, shape)) or "no dimensions"


def size_said(size: Any) -> str:
    """A size, or a number computed from sizes, in the words of a message."""
    if not isinstance(size, SYMBOLIC):
        return repr(size)
    expression = size.node.expr
    return str(expression.subs(dict.fromkeys(expression.free_symbols, "batch")))
