"""Size in a traced graph -> the size for any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hgpart.tracing.traced_model import TracedModel


def at_batch(value: Any, batch_size: int) -> Any:
    """Return a traced size, or a number computed from sizes, for `batch_size` samples."""
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
    """How a size grows with the batch: a per sample and b besides, of a * batch + b.

    None where it grows in another way, as the size of a product over all pairs of samples.

    >>> evenly(7)
    (0, 7)
    """
    low, high, higher = (at_batch(size, batch) for batch in (2, 3, 7))
    each = high - low
    fixed = low - 2 * each
    return (each, fixed) if higher == 7 * each + fixed else None


def elements_of_shape(shape: Sequence[int | torch.SymInt]) -> tuple[int, int] | None:
    """The same of the number of elements of a tensor."""
    each, fixed = 0, 1
    for size in shape:
        grows = evenly(size)
        if grows is None or (each and grows[0]):
            return None
        each, fixed = each * grows[1] + fixed * grows[0], fixed * grows[1]
    return each, fixed


def has_dynamic_batch(traced: TracedModel) -> bool:
    """Whether a traced model takes batches of any size, and not only of that of its example."""
    shapes = [
        node.meta["val"].shape
        for node in traced.graph_module.graph.nodes
        if node.name in traced.inputs
    ]
    return any(at_batch(size, 2) != at_batch(size, 3) for shape in shapes for size in shape)
