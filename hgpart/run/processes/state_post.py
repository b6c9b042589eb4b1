"""Copies + Connection -> StatePost: what one part sends of the model's state, and is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hgpart.execution.totals import Traffic
from hgpart.placement.shares.copies import Copies, count
from hgpart.placement.shares.exchanges import Exchange
from hgpart.run.processes.connection import Connection

FIRST_OF_STATE = 2**24  # tags of messages of state: those of a step's are below
STATE, BESIDE, FIXED, WEIGHTS, GRADIENTS = range(WAYS := 5)  # what travels for copies


class StatePost:
    """One part's ends of the exchanges that keep copies of the model's state like it, in one pass.

    Weights depart when the pass begins, and are waited for by the first step that computes with
    them. The gradients of copies depart as soon as no step is left that adds to them, which is
    known before the backward pass; the owner adds them up at the end, in the order in which they
    come about. So nothing here is waited for by what it waits for itself, whatever the schedule.
    Over NCCL, which knows messages by their order alone, gradients depart at the end.

    Parameters
    ----------
    connection : Connection
    copies : Copies
    sent : Traffic
        What this part sends is added to it.
    """

    def __init__(self, connection: Connection, copies: Copies, sent: Traffic) -> None:
        self._connection, self._copies, self.sent = connection, copies, sent
        self._place = connection.device if connection.nccl else torch.device("cpu")
        self._coming: dict[tuple[int, int], tuple[Exchange, Tensor, dist.Work | None]] = {}
        self._in_place: set[tuple[int, int]] = set()  # that come to all where they belong
        self._going: list[tuple[Exchange, int, Tensor, dist.Work | None]] = []
        self._left: Counter[int] = Counter()  # by number, steps that add to copies
        self._departed: set[int] = set()

    def begin(self, whole: bool) -> None:
        """Begin a pass in the present grad mode, with the whole state or not.

        What any process has changed since is brought up to date: before learning what does not
        learn, as weights come with each such pass; else all.
        """
        copies, rank = self._copies, self._connection.rank
        learns = torch.is_grad_enabled()
        if learns and whole:
            self._bring(copies.beside, BESIDE)
            copies.note_fixed()
        elif learns and copies.fixed and self._is_so_on_any(copies.fixed_changed):
            self._bring(copies.fixed, FIXED)
            copies.note_fixed()
        elif not learns and (whole or (copies.state and self._is_so_on_any(copies.changed))):
            self._bring(copies.state, STATE)
            copies.note()
        if learns:
            self._spread(copies.weights, WEIGHTS)
            for one in copies.weights:
                if one.owner == rank:
                    count(one, copies.nbytes(one), self.sent, backward=False)

    def _is_so_on_any(self, here: bool) -> bool:
        return any(changed for (changed,) in self._connection.numbers([here]))

    def _bring(self, exchanges: Sequence[Exchange], way: int) -> None:
        """Let copies be there that no step waits for."""
        self._spread(exchanges, way)
        rank = self._connection.rank
        for number, one in enumerate(exchanges):
            self._take(one, (way, number))
            if one.owner == rank != one.holder:
                self.sent.uncounted_bytes[rank, one.holder] += self._copies.nbytes(one)

    def arrive(self, step: nn.Module) -> bool:
        """Let copies that a step computes with be there; whether it had to be waited for."""
        waits = False
        for number in self._copies.of_step(step):
            waits |= (WEIGHTS, number) in self._coming
            self._take(self._copies.weights[number], (WEIGHTS, number))
        return waits

    def begin_backward(self, uses: Mapping[nn.Module, int]) -> None:
        """Expect gradients; those of copies depart when steps have been used so often."""
        if self._connection.nccl:
            return
        for step, times in uses.items():
            for number in self._copies.of_step(step):
                self._left[number] += times
        for number in self._copies.backward:
            self._expect_gradient(number)

    def used(self, step: nn.Module, complete: Callable[[Collection[Tensor]], None]) -> None:
        """A step has added to the gradients of what it computes with, or left that to `complete`.

        Which is told of tensors whose gradients are to be complete.
        """
        for number in self._copies.of_step(step) if self._left else ():
            self._left[number] -= 1
            one = self._copies.weights[number]
            if not self._left[number] and one.owner != one.holder:
                complete([self._copies.copy(one, key) for key in one.copy_keys])
                self._depart(number)

    def _depart(self, number: int) -> None:
        one = self._copies.weights[number]
        self._departed.add(number)
        self._send(one, (GRADIENTS, number), one.owner, self._copies.gradients(one))
        count(one, self._copies.nbytes(one), self.sent, backward=True)

    def end_backward(self) -> None:
        """Let all other gradients of copies depart, and add up those that belong here."""
        copies, rank = self._copies, self._connection.rank
        for number in copies.backward:
            self._expect_gradient(number)
        for number in copies.backward:
            one = copies.weights[number]
            if one.holder == rank != one.owner and number not in self._departed:
                self._depart(number)
        for number in copies.backward:
            one = copies.weights[number]
            if one.owner == one.holder == rank:
                copies.hand_over(one)
            elif one.owner == rank:
                body = self._received((GRADIENTS, number), one.holder)
                assert body is not None
                copies.add_gradients(one, body)
        self.finish()
        copies.clear()

    def _expect_gradient(self, number: int) -> None:
        """Let a gradient that belongs here arrive where it did in other passes."""
        one, buffers = self._copies.weights[number], self._copies.buffers
        if one.owner == self._connection.rank != one.holder:
            name = GRADIENTS, number
            if name not in self._coming:
                self._expect(one, name, one.holder, buffers.get(number))
                buffers[number] = self._coming[name][1]

    def finish(self) -> None:
        """Take in what no step has waited for, and wait until all that was sent has departed."""
        for way, number in [*self._coming]:
            if way == WEIGHTS:
                self._take(self._copies.weights[number], (way, number))
        for one, receiver, _, work in self._going:
            if work is not None:
                self._guarded(work.wait, one, receiver, "sent")
        self._going.clear()

    def _spread(self, exchanges: Sequence[Exchange], way: int) -> None:
        rank = self._connection.rank
        for number, one in enumerate(exchanges):
            if one.holder == rank != one.owner:
                memory = self._copies.memory(one)
                here = memory is not None and memory.device == self._place
                if here and sum(len(each.copies) for each in one.elements) == 1:
                    self._in_place.add((way, number))
                self._expect(one, (way, number), one.owner, memory if here else None)
        for number, one in enumerate(exchanges):
            if one.owner == rank != one.holder:
                self._send(one, (way, number), one.holder, self._copies.values(one))
            elif one.owner == rank:
                self._copies.put(one, self._copies.values(one), if_other=True)

    def _take(self, one: Exchange, name: tuple[int, int]) -> None:
        body = self._received(name, one.owner)
        if body is not None and name not in self._in_place:
            self._copies.put(one, body)

    def _expect(
        self, one: Exchange, name: tuple[int, int], sender: int, memory: Tensor | None
    ) -> None:
        """Post a receive, of bytes into some memory if there is some."""
        if memory is None:
            memory = torch.empty(self._copies.nbytes(one), dtype=torch.uint8, device=self._place)
        group = self._connection.group(sender, self._connection.rank)
        call = partial(dist.irecv, memory, sender, group, _tag(name))
        self._coming[name] = one, memory, self._guarded(call, one, sender, "waited for")

    def _received(self, name: tuple[int, int], sender: int) -> Tensor | None:
        """What has come, if it was expected."""
        if name not in self._coming:
            return None
        one, body, work = self._coming.pop(name)
        if work is not None:
            self._guarded(work.wait, one, sender, "waited for")
        return body.to(self._connection.device)

    def _send(self, one: Exchange, name: tuple[int, int], receiver: int, body: Tensor) -> None:
        body = body.to(self._place)
        group = self._connection.group(self._connection.rank, receiver)
        call = partial(dist.isend, body, receiver, group, _tag(name))
        self._going.append((one, receiver, body, self._guarded(call, one, receiver, "sent")))

    def _guarded(self, call: Callable[[], Any], one: Exchange, peer: int, doing: str) -> Any:
        return self._connection.guard(call, f"{doing} weights of {one.layer}", peer)


def _tag(name: tuple[int, int]) -> int:
    way, number = name
    return FIRST_OF_STATE + number * WAYS + way
