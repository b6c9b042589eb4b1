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
    whole = {name: one for name, one in model.named_parameters() if one.requires_grad}
    learned = {
        part: [nn.Parameter(one.take(whole[one.name]).clone()) for one in held]
        for part, held in pieces.items()
    }
    optimizers = {part: optimizer_of(several) for part, several in learned.items() if several}
    history: dict[int, list[Version]] = {
        part: [[one.detach().clone() for one in several]] for part, several in learned.items()
    }
    begun = {part: begun_with(schedule, part, (holders or {}).get(part, ())) for part in pieces}
    losses = []
    for number, (inputs, targets) in enumerate(batches):
        state = {name: torch.zeros_like(one) for name, one in whole.items()}
        for part, held in pieces.items():
            for one, value in zip(held, history[part][begun[part][number]], strict=True):
                one.put(state[one.name], value)
        for value in state.values():
            value.requires_grad_()
        loss = loss_fn(functional_call(model, state, tuple(inputs)), targets)
        losses.append(loss.detach())
        found = torch.autograd.grad(loss, [*state.values()], allow_unused=True)
        gradients = dict(zip(state, found, strict=True))
        for part, held in pieces.items():
            for one, parameter in zip(held, learned[part], strict=True):
                gradient = gradients[one.name]
                parameter.grad = None if gradient is None else one.take(gradient).clone()
            if part in optimizers:
                optimizers[part].step()
            history[part].append([one.detach().clone() for one in learned[part]])
    return losses, {part: versions[-1] for part, versions in history.items()}


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
    whole = {name: one for name, one in model.named_parameters() if one.requires_grad}
    parts = range(placement.k)
    pieces = {
        part: [held for held, tensor in placement.held(part) if tensor.requires_grad]
        for part in parts
    }
    learned = {
        part: [nn.Parameter(held.take(whole[held.name]).clone()) for held in own]
        for part, own in pieces.items()
    }
    optimizers = {part: optimizer_of(own) for part, own in learned.items() if own}
    history = {part: [[one.detach().clone() for one in own]] for part, own in learned.items()}
    ages = _ages(placement)
    losses = []
    for number, (inputs, targets) in enumerate(batches):
        state = {name: torch.zeros_like(one) for name, one in whole.items()}
        programs = placement.forms.turns[number % len(placement.forms.turns)]
        for part in parts:
            used = [
                held
                for attribute, held in programs.slices[part].items()
                if attribute.split(".")[0] not in ("own", "unread", "unused") and held.name in state
            ]
            seen = {name: torch.zeros_like(one) for name, one in whole.items()}
            for owner in parts if used else ():  # others may begin it when it has ended
                values = history[owner][ages[part][number][owner]]
                for held, value in zip(pieces[owner], values, strict=True):
                    held.put(seen[held.name], value)
            for held in used:
                held.put(state[held.name], held.take(seen[held.name]))
        for value in state.values():
            value.requires_grad_()
        loss = loss_fn(functional_call(model, state, tuple(inputs)), targets)
        losses.append(loss.detach())
        found = torch.autograd.grad(loss, [*state.values()], allow_unused=True)
        gradients = dict(zip(state, found, strict=True))
        for part in parts:
            for held, parameter in zip(pieces[part], learned[part], strict=True):
                gradient = gradients[held.name]
                parameter.grad = None if gradient is None else held.take(gradient).clone()
            if part in optimizers:
                optimizers[part].step()
            history[part].append([one.detach().clone() for one in learned[part]])
    return losses, {part: versions[-1] for part, versions in history.items()}


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
