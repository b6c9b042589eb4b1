"""A part's runs -> the bytes that it holds for what it has still to do.

Counted are values that later instructions read, what autograd's graphs keep, and gradients of maps
that nobody has used yet, each memory once. Parameters, buffers and their gradients are not, be they
those of a batch in flight, nor messages on their way: what arrives counts from its arrival on, in
memory of its own. Moments are the ends of actions, and those at which a chunk has been computed
again: what an operator takes while it works is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.utils import _pytree as pytree

from hgpart.execution.instructions import Graph
from hgpart.execution.transport import Wires
from hgpart.execution.weights.gradients import Product, WeightGradient
from hgpart.schedules.schedule import Piece


class Holder(Protocol):
    """A part at work."""

    @property
    def held(self) -> list[Any]:
        """Tensors and gradient edges, in any structure."""

    @property
    def weights(self) -> list[Tensor]:
        """What does not count, though graphs hold it: see `of_weights`."""


Kept = Graph | WeightGradient | Product
Known = WeakKeyDictionary[Kept, dict[int, int]]

_wanted: ContextVar[bool] = ContextVar("memory_counted", default=False)


@contextmanager
def memory_counted() -> Iterator[None]:
    """Let steps count what each part holds; they take longer, with the same results."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_memory_counted() -> bool:
    """Whether the caller's steps are to count what they hold."""
    return _wanted.get()


class CopyingWires:
    """Gives what arrives memory of its own: a message has one for all that travels in it."""

    def __init__(self, wires: Wires) -> None:
        self.send, self.settle, self.stop = wires.send, wires.settle, wires.stop
        self._wires = wires

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for what was sent."""
        return [tensor.clone() for tensor in self._wires.receive(piece)]


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for inputs and masks, which micro-batches have slices of."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def storages(found: Any, known: Known | None = None) -> dict[int, int]:
    """The memory that tensors, and graphs, in any structure hold: where it is -> bytes.

    What graphs hold is kept in `known`, as they do not change.
    """
    held: dict[int, int] = {}
    for leaf in pytree.tree_leaves(found):
        if isinstance(leaf, Tensor):
            storage = leaf.untyped_storage()
            held[storage._cdata] = storage.nbytes()
        elif isinstance(leaf, Kept):
            inside = None if known is None else known.get(leaf)
            if inside is None:
                inside = storages([*_inside(leaf)])
            if known is not None:
                known[leaf] = inside
            held.update(inside)
    return held


def _inside(kept: Kept) -> Iterator[Tensor]:
    """Its tensors."""
    if isinstance(kept, Graph):
        yield from kept_by_graph(edge for _, edge in kept.heads)
        yield from (leaf for _, leaf in kept.leaves)
    elif isinstance(kept, WeightGradient):
        yield from kept_by_graph(kept.edges)
        yield from kept.gradients
    else:
        yield from (kept.inputs, kept.gradients)


def of_weights(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers and their gradients."""
    tensors = [*module.parameters(), *module.buffers()]
    return [*tensors, *(one.grad for one in tensors if one.grad is not None)]


class Counter:
    """Counts what a part holds, from time to time."""

    def __init__(self) -> None:
        self._known: Known = WeakKeyDictionary()

    def __call__(self, holder: Holder) -> int:
        """Bytes that it holds now."""
        held, others = storages(holder.held, self._known), storages(holder.weights)
        return sum(held[at] for at in held.keys() - others.keys())


def kept_by_graph(edges: Iterable[GradientEdge]) -> Iterator[Tensor]:
    """What nodes keep for their backward, and the leaves that gradients end in."""
    waiting = [edge.node for edge in edges]
    seen = set[Any]()
    while waiting:
        node: Any = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting += (following for following, _ in node.next_functions if following is not None)
        if hasattr(node, "variable"):
            yield node.variable
        names = [name for name in dir(node) if name.startswith("_saved_")]
        kept = [getattr(node, name) for name in names]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            kept += node.saved_tensors
        yield from (one for one in pytree.tree_leaves(kept) if isinstance(one, Tensor))
