"""A part's weights while several batches are in flight: each keeps those that it began with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, fx, nn

from hgpart.execution.weights.copies import Leaves


@dataclass(frozen=True, eq=False)
class BatchWeights:
    """The weights of one batch in a part: leaves of its own, where its gradients add up.

    Attributes
    ----------
    leaves : mapping of Tensor to Tensor
        Leaves that share the memory of parameters, and of copies of other parts' parameters, as
        they were when the batch began.
    of_step : mapping of Module to mapping of str to Tensor
        The same leaves, by step and by their name in the step.
    updates : int
        Number of updates that these weights have had.
    """

    leaves: Leaves
    of_step: Mapping[nn.Module, Mapping[str, Tensor]]
    updates: int


class Versions:
    """The weights of the batches in flight in a part, and its updates.

    Parameters of several steps are one. Frozen parameters and buffers have no versions:
    statistics are updated batch by batch, in order.

    Parameters
    ----------
    modules : sequence of torch.fx.GraphModule
        The part's module; several where batches take turns.
    update : callable
        Function that changes the part's parameters by their `grad`, like an optimizer's step.
    stash : bool
        Whether batches in flight keep the weights that they began with. If not, an update changes
        their weights, so that a batch's gradients mix the weights of its forward pass and newer
        ones.
    copies : sequence of Tensor
        Copies of other parts' weights, each once; a batch has the same values of them in all parts.
    begins : sequence of int, optional
        Number of updates that the weights of each batch have, where there are copies. They may be
        older than the newest weights, like those of other parts.
    """

    def __init__(
        self,
        modules: Sequence[fx.GraphModule],
        update: Callable[[], object],
        stash: bool,
        copies: Sequence[Tensor] = (),
        begins: Sequence[int] | None = None,
    ) -> None:
        self._update, self._stash, self._begins = update, stash, begins
        known = {id(copy) for copy in copies}
        self._names = {
            step: {
                name: tensor
                for name, tensor in chain(
                    step.named_parameters(remove_duplicate=False),
                    step.named_buffers(remove_duplicate=False),
                )
                if id(tensor) in known
                or (isinstance(tensor, nn.Parameter) and tensor.requires_grad)
            }
            for step in chain.from_iterable(module.children() for module in modules)
        }
        named = chain.from_iterable(names.values() for names in self._names.values())
        self._copies = tuple(copies)
        tensors = dict.fromkeys(named)
        self._parameters = tuple(item for item in tensors if isinstance(item, nn.Parameter))
        self._in_flight: dict[int, BatchWeights] = {}
        self._kept: dict[int, Mapping[Tensor, Tensor]] = {}  # older weights for later batches
        self._collected: Leaves = {}  # weights of the batch whose update is next
        self._updates, self._next = 0, 0

    @property
    def held(self) -> list[Tensor]:
        """The weights of the batches in flight, and their gradients."""
        leaves = self.leaves_in_flight
        return [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    @property
    def leaves_in_flight(self) -> list[Tensor]:
        """The weights of the batches in flight."""
        batches = self._in_flight.values()
        return [leaf for weights in batches for leaf in weights.leaves.values()]

    def let_go(self, copies: Iterable[Tensor]) -> None:
        """Let batches in flight keep the values of these copies, which are about to change."""
        for copy in copies:
            leaves = (weights.leaves[copy] for weights in self._in_flight.values())
            if any(leaf.data_ptr() == copy.data_ptr() for leaf in leaves):
                copy.data = copy.data.clone(memory_format=torch.preserve_format)

    def begin(self, batch: int) -> BatchWeights:
        """The weights of a batch that begins now."""
        updates = self._updates if self._begins is None else self._begins[batch]
        kept = self._kept.get(updates, {})
        # Not by `detach`: autograd would notice the next update of what it has saved.
        leaves: dict[Tensor, Tensor] = {
            tensor: kept.get(tensor, tensor).data.requires_grad_()
            for tensor in (*self._parameters, *self._copies)
        }
        of_step = {
            step: {name: leaves[tensor] for name, tensor in names.items()}
            for step, names in self._names.items()
        }
        self._next = batch + 1
        self._kept = {number: old for number, old in self._kept.items() if self._is_due(number)}
        self._in_flight[batch] = BatchWeights(leaves, of_step, updates)
        return self._in_flight[batch]

    def _is_due(self, updates: int) -> bool:
        """Whether a later batch may still begin with the weights after so many updates."""
        if self._begins is None or self._next == len(self._begins):
            return False
        return self._begins[self._next] <= updates

    def leaves(self, batch: int) -> Leaves:
        """The weights of a batch in flight, whose gradients are complete."""
        return self._in_flight[batch].leaves

    def collect(self, batch: int) -> Leaves:
        """Give the parameters the gradients of a batch, unless they have them already.

        The batch is no longer in flight; its weights are returned, and kept until the update.
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
        read = due or any(weights.updates == self._updates for weights in self._in_flight.values())
        if self._stash and due:
            self._kept[self._updates] = {weight: weight.data for weight in self._parameters}
        if self._stash and read:
            for parameter in self._parameters:
                parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
        self._update()
        self._updates += 1
        for parameter in self._parameters:
            parameter.grad = None
