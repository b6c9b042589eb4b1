"""Asynchronous training, as plain as can be: all weights that were, the whole model on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from hgpart.execution.records.events import Doing, Event
from hgpart.schedules.schedule import Action, Direction, Schedule

Version = list[torch.Tensor]  # of the pieces of a part


def begun_with(schedule: Schedule, part: int, holders: Collection[int] = ()) -> list[int]:
    """How many updates of a part its weights have in each batch, by what is done in which order.

    Where others hold copies of them, as many as in the first that begins the batch.
    """
    found, updates = [], 0
    for action in schedule.order:
        if action.part == part:
            updates += action.direction is Direction.UPDATE
        elif action.part not in holders:
            continue
        if action.direction is Direction.FORWARD and action.chunk == 0:
            assert action.micro_batch <= len(found)
            if action.micro_batch == len(found):
                found.append(updates)
    return found


def ended(events: Iterable[Event]) -> tuple[Action, ...]:
    """What was computed, in the order in which it ended."""
    done = [(event.end, event.action) for event in events if event.doing is Doing.RUN]
    done = [(end, action) for end, action in done if not action.is_of_weights]
    return tuple(action for _, action in sorted(done, key=itemgetter(0)))


class _Parts:
    """The learned parameters as parts hold them, an optimizer for each part, and all versions.

    Attributes
    ----------
    history : dict of int to list of Version
        The values that each part has had, the newest last.
    losses : list of Tensor
        Of the batches so far.
    """

    def __init__(
        self,
        model: nn.Module,
        pieces: Mapping[int, Sequence[Any]],
        loss_fn: Callable[[Any, Any], torch.Tensor],
        optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self._model, self._pieces, self._loss_fn = model, pieces, loss_fn
        named = model.named_parameters()
        self._whole = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._learned = {
            part: [nn.Parameter(held.take(self._whole[held.name]).clone()) for held in own]
            for part, own in pieces.items()
        }
        self._optimizers = {part: optimizer_of(own) for part, own in self._learned.items() if own}
        self.history: dict[int, list[Version]] = {part: [self._version(part)] for part in pieces}
        self.losses: list[torch.Tensor] = []

    def _version(self, part: int) -> Version:
        return [parameter.detach().clone() for parameter in self._learned[part]]

    def zeros(self) -> dict[str, torch.Tensor]:
        """A tensor for each parameter of the whole model, to put values into."""
        return {name: torch.zeros_like(parameter) for name, parameter in self._whole.items()}

    def put(self, state: Mapping[str, torch.Tensor], owner: int, updates: int) -> None:
        """Put a part's values after so many updates where they belong."""
        for held, value in zip(self._pieces[owner], self.history[owner][updates], strict=True):
            held.put(state[held.name], value)

    def learn(self, state: dict[str, torch.Tensor], inputs: Sequence[Any], targets: Any) -> None:
        """One pass of the whole model on these values, then an update of every part's own."""
        for value in state.values():
            value.requires_grad_()
        loss = self._loss_fn(functional_call(self._model, state, tuple(inputs)), targets)
        self.losses.append(loss.detach())
        taken = torch.autograd.grad(loss, [*state.values()], allow_unused=True)
        gradients = dict(zip(state, taken, strict=True))
        for part, own in self._pieces.items():
            for held, parameter in zip(own, self._learned[part], strict=True):
                gradient = gradients[held.name]
                parameter.grad = None if gradient is None else held.take(gradient).clone()
            if part in self._optimizers:
                self._optimizers[part].step()
            self.history[part].append(self._version(part))

    @property
    def last(self) -> dict[int, Version]:
        """The newest values of each part."""
        return {part: versions[-1] for part, versions in self.history.items()}


def stale_training(
    model: nn.Module,
    pieces: Mapping[int, Sequence[Any]],
    schedule: Schedule,
    batches: Sequence[tuple[Sequence[torch.Tensor], Any]],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    holders: Mapping[int, Collection[int]] | None = None,
) -> tuple[list[torch.Tensor], dict[int, Version]]:
    """Losses, and the last weights.

    Each batch is one pass of the whole model, forward and backward, on the weights that its forward
    pass has in each part; each part has an optimizer. Buffers are updated batch by batch.

    Parameters
    ----------
    model : Module
    pieces : mapping of int to sequence of Slice
        What each part holds of the parameters that are learned.
    schedule, batches, loss_fn, optimizer_of
    holders : mapping of int to collection of int, optional
        Which parts have copies of what a part holds.
    """
    parts = _Parts(model, pieces, loss_fn, optimizer_of)
    begun = {part: begun_with(schedule, part, (holders or {}).get(part, ())) for part in pieces}
    for number, (inputs, targets) in enumerate(batches):
        state = parts.zeros()
        for part in pieces:
            parts.put(state, part, begun[part][number])
        parts.learn(state, inputs, targets)
    return parts.losses, parts.last


def training_in_turns(
    model: nn.Module,
    placement: Any,
    batches: Sequence[tuple[Sequence[torch.Tensor], Any]],
    loss_fn: Callable[[Any, Any], torch.Tensor],
    optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> tuple[list[torch.Tensor], dict[int, Version]]:
    """The same where batches take turns, by what the placement's last stream has done.

    A part computes with its own weights as they were when it began the batch, and with the values
    of others' that had come by then.
    """
    pieces = {
        part: [held for held, tensor in placement.held(part) if tensor.requires_grad]
        for part in range(placement.k)
    }
    parts = _Parts(model, pieces, loss_fn, optimizer_of)
    ages = _ages(placement)
    for number, (inputs, targets) in enumerate(batches):
        state = parts.zeros()
        programs = placement.forms.turns[number % len(placement.forms.turns)]
        for part in pieces:
            used = [
                held
                for attribute, held in programs.slices[part].items()
                if attribute.split(".")[0] not in ("own", "unread", "unused") and held.name in state
            ]
            seen = parts.zeros()
            for owner in pieces if used else ():  # others may begin it when it has ended
                parts.put(seen, owner, ages[part][number][owner])
            for held in used:
                held.put(state[held.name], held.take(seen[held.name]))
        parts.learn(state, inputs, targets)
    return parts.losses, parts.last


def _ages(placement: Any) -> list[list[list[int]]]:
    """For each part and batch, the updates that it knew of each owner when it began the batch."""
    weights = placement.copies.in_turns(lambda here: [here]).weights
    ages: list[list[list[int]]] = []
    for part, events in enumerate(placement.runtime.last.by_part):
        now, begun = [0] * placement.k, list[list[int]]()
        for action in (event.action for event in events if event.doing is Doing.RUN):
            if action.direction is Direction.UPDATE:
                now[part] += 1
            elif action.direction is Direction.GATHER:
                owner = weights[action.chunk].owner
                if owner != part:
                    now[owner] = action.micro_batch
            elif action.direction is Direction.FORWARD and action.chunk == 0:
                begun.append([*now])
        ages.append(begun)
    return ages
