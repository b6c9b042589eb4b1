"""A part's weights while several batches are in flight: those that each of them began with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, fx, nn

from hgpart.execution.weights.copies import Leaves


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

    leaves: Leaves
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
    copies : sequence of Tensor
        Of other parts' weights, each once: batches have the same values of them as those parts.
    begins : sequence of int, optional
        Where there are copies, by batch, how many updates its weights have. They may be older than
        the newest, as those of other parts are.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        update: Callable[[], object],
        stash: bool,
        copies: Sequence[Tensor] = (),
        begins: Sequence[int] | None = None,
    ) -> None:
        self._update, self._stash, self._begins = update, stash, begins
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
        self._collected: Leaves = {}  # of the batch whose update is next
        self._updates, self._next = 0, 0

    @property
    def held(self) -> list[Tensor]:
        """The weights of the batches in flight, and their gradients."""
        leaves = [leaf for one in self._in_flight.values() for leaf in one.leaves.values()]
        return [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def let_go(self, copies: Iterable[Tensor]) -> None:
        """Let batches in flight go on with what copies were, as these get other values."""
        for copy in copies:
            leaves = (one.leaves[copy] for one in self._in_flight.values())
            if any(leaf.data_ptr() == copy.data_ptr() for leaf in leaves):
                copy.data = copy.data.clone(memory_format=torch.preserve_format)

    def begin(self, batch: int) -> Weights:
        """What a batch is to compute with from now on."""
        updates = self._updates if self._begins is None else self._begins[batch]
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
        if self._begins is None or self._next == len(self._begins):
            return False
        return self._begins[self._next] <= updates

    def leaves(self, batch: int) -> Leaves:
        """What a batch in flight computes with, whose gradients are complete."""
        return self._in_flight[batch].leaves

    def collect(self, batch: int) -> Leaves:
        """Give the parameters the gradients of a batch, if they have not got them yet.

        Its weights are let go; what it has computed with is returned until the update.
        """
        if batch in self._in_flight:
            self._collected = self._in_flight.pop(batch).leaves
            for parameter in self._parameters:
                parameter.grad = self._collected[parameter].grad
        return self._collected

    def end(self) -> None:
        """Update the parameters by these gradients."""
        self._collected = {}
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
