"""A part's weights while several batches are in flight: those that each of them began with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, fx, nn


@dataclass(frozen=True, eq=False)
class Weights:
    """What one batch computes with in a part: leaves of its own, which its gradients gather in.

    Attributes
    ----------
    leaves : mapping of Parameter to Tensor
        They share their memory with the parameters as these were when the batch began.
    of_step : mapping of Module to mapping of str to Tensor
        The same, by the names that steps have them under.
    updates : int
        How many had been done.
    """

    leaves: Mapping[nn.Parameter, Tensor]
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
    """

    def __init__(self, module: fx.GraphModule, update: Callable[[], object], stash: bool) -> None:
        self._update, self._stash = update, stash
        self._names = {
            step: {
                name: parameter
                for name, parameter in step.named_parameters(remove_duplicate=False)
                if parameter.requires_grad
            }
            for step in module.children()
        }
        named = chain.from_iterable(names.values() for names in self._names.values())
        self._parameters = tuple(dict.fromkeys(named))
        self._in_flight: dict[int, Weights] = {}
        self._updates = 0

    @property
    def held(self) -> list[Tensor]:
        """The weights of the batches in flight, and their gradients."""
        leaves = [leaf for one in self._in_flight.values() for leaf in one.leaves.values()]
        return [*leaves, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    def begin(self, batch: int) -> Weights:
        """What a batch is to compute with from now on."""
        # Not by `detach`: autograd would see the next update in what it has saved.
        leaves = {one: one.data.requires_grad_() for one in self._parameters}
        of_step = {
            step: {name: leaves[one] for name, one in names.items()}
            for step, names in self._names.items()
        }
        weights = self._in_flight[batch] = Weights(leaves, of_step, self._updates)
        return weights

    def end(self, batch: int) -> None:
        """Update the parameters by the gradients of a batch, whose weights are let go."""
        gradients = [leaf.grad for leaf in self._in_flight.pop(batch).leaves.values()]
        read = any(one.updates == self._updates for one in self._in_flight.values())
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if self._stash and read:
                parameter.data = parameter.data.clone(memory_format=torch.preserve_format)
            parameter.grad = gradient
        gradients.clear()
        self._update()
        self._updates += 1
        for parameter in self._parameters:
            parameter.grad = None
