"""A part's weights while several batches are in flight: those that each of them began with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn


class SharedWeights(Protocol):
    """What a part has in common with others: copies of their weights, and they of its own.

    Attributes
    ----------
    tensors : sequence of Tensor
        The copies, each once.
    versions : sequence of int
        By batch, how many updates its weights have in all parts that compute with them.
    spans : list
        To which it adds when it has waited.
    """

    tensors: Sequence[Tensor]
    versions: Sequence[int]
    spans: list[Any]

    def arrive(self, batch: int, *, apart: bool) -> None:
        """Let copies be what a batch is to compute with; `apart` from what they were."""

    def depart(self, leaves: Mapping[Tensor, Tensor]) -> None:
        """Send the gradients of copies, which are those of leaves."""

    def collect(self, leaves: Mapping[Tensor, Tensor]) -> None:
        """Add the gradients of all copies of the part's weights to theirs."""

    def spread(self) -> None:
        """Send the weights, which are new."""


@dataclass(frozen=True, eq=False)
class Weights:
    """What one batch computes with in a part: leaves of its own, which its gradients gather in.

    Attributes
    ----------
    leaves : mapping of Tensor to Tensor
        They share their memory with parameters, and copies of others', as these were when the batch
        began.
    of_step : mapping of Module to mapping of str to Tensor
        The same, by the names that steps have them under.
    updates : int
        How many had been done.
    """

    leaves: Mapping[Tensor, Tensor]
    of_step: Mapping[nn.Module, Mapping[str, Tensor]]
    updates: int


class Versions:
    """The weights of the batches in flight in a part, and its updates.

    Parameters of several steps are one, frozen ones are nobody's own, and buffers have no versions:
    statistics are updated batch by batch, in their order.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Of the part.
    update : callable
        Changes the part's parameters by their `grad`, as an optimizer's step does.
    stash : bool
        Whether batches in flight keep the weights that they began with. If not, an update changes
        these under them, so that the gradients of a batch, whose forward pass was with others, are
        those of no weights at all.
    shared : SharedWeights, optional
        Then batches may begin with older weights than the newest, as those of other parts do.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        update: Callable[[], object],
        stash: bool,
        shared: SharedWeights | None = None,
    ) -> None:
        self._update, self._stash, self._shared = update, stash, shared
        copies = () if shared is None else shared.tensors
        known = {id(one) for one in copies}
        self._names = {
            step: {
                name: one
                for name, one in chain(
                    step.named_parameters(remove_duplicate=False),
                    step.named_buffers(remove_duplicate=False),
                )
                if id(one) in known or (isinstance(one, nn.Parameter) and one.requires_grad)
            }
            for step in module.children()
        }
        named = chain.from_iterable(names.values() for names in self._names.values())
        self._copies = tuple(copies)
        self._parameters = tuple(
            one for one in dict.fromkeys(named) if isinstance(one, nn.Parameter)
        )
        self._in_flight: dict[int, Weights] = {}
        self._kept: dict[int, Mapping[Tensor, Tensor]] = {}  # older ones that batches begin with
        self._updates, self._next = 0, 0

    @property
    def held(self) -> list[Tensor]:
        """The weights of the batches in flight, and their gradients."""
        leaves = [leaf for one in self._in_flight.values() for leaf in one.leaves.values()]
        return [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def note_waiting(self, spans: list[Any]) -> None:
        """Let it be known there when others were waited for."""
        if self._shared is not None:
            self._shared.spans = spans

    def arrive(self, batch: int) -> None:
        """Wait for what a batch is to compute with of other parts."""
        if self._shared is not None:
            self._shared.arrive(batch, apart=bool(self._in_flight))

    def begin(self, batch: int) -> Weights:
        """What a batch is to compute with from now on."""
        updates = self._updates if self._shared is None else self._shared.versions[batch]
        kept = self._kept.get(updates, {})
        # Not by `detach`: autograd would see the next update in what it has saved.
        leaves: dict[Tensor, Tensor] = {
            one: kept.get(one, one).data.requires_grad_()
            for one in (*self._parameters, *self._copies)
        }
        of_step = {
            step: {name: leaves[one] for name, one in names.items()}
            for step, names in self._names.items()
        }
        self._next = batch + 1
        self._kept = {number: one for number, one in self._kept.items() if self._is_due(number)}
        weights = self._in_flight[batch] = Weights(leaves, of_step, updates)
        return weights

    def _is_due(self, updates: int) -> bool:
        """Whether a batch may yet begin with the weights of so many updates."""
        if self._shared is None or self._next == len(self._shared.versions):
            return False
        return self._shared.versions[self._next] <= updates

    def depart(self, batch: int) -> None:
        """Let others have what the gradients of a batch, which are complete, are to them."""
        if self._shared is not None:
            self._shared.depart(self._in_flight[batch].leaves)

    def collect(self, batch: int) -> None:
        """Give the parameters the gradients of a batch, whose weights are let go."""
        leaves = self._in_flight.pop(batch).leaves
        for parameter in self._parameters:
            parameter.grad = leaves[parameter].grad
        if self._shared is not None:
            self._shared.collect(leaves)

    def end(self) -> None:
        """Update the parameters by these gradients."""
        due = self._is_due(self._updates)
        read = due or any(one.updates == self._updates for one in self._in_flight.values())
        if self._stash and due:
            self._kept[self._updates] = {one: one.data for one in self._parameters}
        if self._stash and read:
            for parameter in self._parameters:
                parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
        self._update()
        self._updates += 1
        for parameter in self._parameters:
            parameter.grad = None
        if self._shared is not None:
            self._shared.spread()
