"""A part's runs -> the bytes that it holds for what is still to do.

Values that later instructions read, what autograd graphs keep, and gradients of maps that are
not used yet are counted, each memory once. Not counted are what is in slower memory, parameters,
buffers and their gradients (also those of a batch in flight), and messages under way: what arrives
counts from its arrival on, in memory of its own. It is counted at the ends of actions and after a
stretch has been recomputed: what an operator takes while it works is no part of it.
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
from hgpart.execution.offloading.graphs import inspected
from hgpart.execution.transport import Channel
from hgpart.execution.weights.gradients import WeightGradient, WeightProduct
from hgpart.schedules.schedule import Piece


class PartAtWork(Protocol):
    """A part whose memory can be counted."""

    @property
    def held(self) -> list[Any]:
        """Tensors and graphs that count, in any structure."""

    @property
    def weights(self) -> list[Tensor]:
        """Tensors that do not count, though graphs hold them: see `of_weights`."""


Kept = Graph | WeightGradient | WeightProduct
Known = WeakKeyDictionary[Kept, dict[int, int]]

_wanted: ContextVar[bool] = ContextVar("memory_counted", default=False)


@contextmanager
def memory_counted() -> Iterator[None]:
    """Let steps count what each part holds; they take longer, with equal results."""
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_memory_counted() -> bool:
    """Whether steps that run now are to count what they hold."""
    return _wanted.get()


class CopyingChannel:
    """Gives each piece that arrives memory of its own: all pieces of a message share one."""

    def __init__(self, channel: Channel) -> None:
        self.send, self.settle, self.stop = channel.send, channel.settle, channel.stop
        self._channel = channel

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Wait for a piece and copy it."""
        return [tensor.clone() for tensor in self._channel.receive(piece)]


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of inputs and masks, as micro-batches have only slices of them."""
    return {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def storages(structure: Any, known: Known | None = None) -> dict[int, int]:
    """Bytes of each memory that tensors and graphs in any structure hold, by its address.

    Those of graphs are remembered in `known`, as graphs that have offloaded nothing do not change.
    """
    held: dict[int, int] = {}
    for leaf in pytree.tree_leaves(structure):
        if isinstance(leaf, Tensor):
            storage = leaf.untyped_storage()
            held[storage._cdata] = storage.nbytes()
        elif isinstance(leaf, Kept):
            inside = None if known is None else known.get(leaf)
            if inside is None:
                with inspected() as offloaded:
                    inside = storages([*_inside(leaf)])
                if known is not None and not offloaded:
                    known[leaf] = inside
            held.update(inside)
    return held


def _inside(kept: Kept) -> Iterator[Tensor]:
    """Tensors that it keeps."""
    if isinstance(kept, Graph):
        yield from kept_by_graph(edge for _, edge in kept.heads)
    elif isinstance(kept, WeightGradient):
        yield from kept_by_graph(kept.edges)
        yield from kept.gradients
    else:
        yield from (kept.inputs, kept.gradients)


def of_weights(module: nn.Module) -> list[Tensor]:
    """Parameters, buffers and their gradients."""
    tensors = [*module.parameters(), *module.buffers()]
    return [*tensors, *(tensor.grad for tensor in tensors if tensor.grad is not None)]


class Counter:
    """Counts the bytes that a part holds at different times."""

    def __init__(self) -> None:
        self._known: Known = WeakKeyDictionary()

    def __call__(self, part: PartAtWork) -> int:
        """Bytes that the part holds now."""
        held, weights = storages(part.held, self._known), storages(part.weights)
        return sum(held[address] for address in held.keys() - weights.keys())


def kept_by_graph(edges: Iterable[GradientEdge]) -> Iterator[Tensor]:
    """Tensors that nodes of a graph keep for backward, and leaves that gradients end in."""
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
        yield from (leaf for leaf in pytree.tree_leaves(kept) if isinstance(leaf, Tensor))
