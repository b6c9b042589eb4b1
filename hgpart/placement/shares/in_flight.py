"""Copies + staleness -> CopiesInFlight: the copies of one part in a stream, batch by batch.

A batch computes with the same values of a weight in all parts: those that its owner has when the
first of them begins it, by the order of the schedule. Gradients of copies depart behind the last
chunk of a batch's backward pass, the owner waits for them in front of its update, and new weights
depart behind it; they are waited for by the first batch that is to begin with them. So all that is
waited for stands before in the one order, and each copy's weights and gradients travel once for
each batch: weights in front of the first, and behind all but the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import torch
from torch import Tensor

from hgpart.errors import PlanError
from hgpart.execution.events import Doing, Span
from hgpart.execution.totals import Traffic
from hgpart.execution.transfers import Transfer, Wire
from hgpart.placement.shares.copies import Copies, count
from hgpart.placement.shares.exchanges import Exchange
from hgpart.schedules.schedule import Schedule


class CopiesInFlight:
    """What a part has in common with others in a stream: `SharedWeights`.

    Parameters
    ----------
    copies : Copies
        Which are like what they are of when the first batch begins.
    part : int
    schedule : Schedule
        Of the stream.
    wire : Wire
        The part's ends of the exchanges, by their numbers, in which one batch follows the other.
    sent : Traffic
        What the part sends is added to it.

    Raises
    ------
    PlanError
        If the schedule is of parts that have other copies.
    """

    def __init__(
        self, copies: Copies, part: int, schedule: Schedule, wire: Wire, sent: Traffic
    ) -> None:
        self._copies, self._part, self._wire, self.sent = copies, part, wire, sent
        self._begins = [
            [batch - stale for batch, stale in enumerate(of_part)] for of_part in schedule.staleness
        ]
        self.versions: Sequence[int] = self._begins[part]
        self._own: dict[int, deque[Tensor]] = {}  # new weights for copies of this part's own
        self._there = [0] * schedule.k  # of each part, updates whose weights are in the copies
        self._updates = 0
        self.spans: list[Span] = []
        found = [(number, one) for number, one in enumerate(copies.weights)]
        self._held = [(number, one) for number, one in found if one.holder == part]
        self._owned = [(number, one) for number, one in found if one.owner == part]
        keys = {key: one for _, one in self._held for key in one.copy_keys}
        self.tensors: Sequence[Tensor] = [copies.copy(one, key) for key, one in keys.items()]
        owners = {one.owner for _, one in self._held} - {part}
        if owners != {*dict(schedule.outlines[part].owners)}:
            raise PlanError(
                f"the {schedule.rule} schedule is of parts that share other weights than part "
                f"{part} does: accepted is one that was made for this placement"
            )

    def arrive(self, batch: int, *, apart: bool) -> None:
        """Put weights into copies, as many updates of them as the batch is to begin with."""
        wanted = [begins[batch] for begins in self._begins]
        new: dict[int, Tensor] = {}  # the last that has come, of each
        for number, one in self._held:
            for _ in range(self._there[one.owner], wanted[one.owner]):
                new[number] = self._received(number, one)
        self._there = wanted
        copies = {
            id(copy): copy for number in new for copy in self._of(self._copies.weights[number])
        }
        for copy in copies.values() if apart else ():  # batches in flight go on with what it was
            copy.data = copy.data.clone(memory_format=torch.preserve_format)
        for number, body in new.items():
            self._copies.put(self._copies.weights[number], body)

    def depart(self, leaves: Mapping[Tensor, Tensor]) -> None:
        """Send the gradients of copies of what others have."""
        self._let_have(leaves)
        for number in self._copies.backward:
            one = self._copies.weights[number]
            if one.holder == self._part != one.owner:
                body = self._copies.gradients(one)
                self._wire.send_gradient(_transfer(number, one), [body])
                count(one, len(body), self.sent, backward=True)
        self._let_have({})

    def collect(self, leaves: Mapping[Tensor, Tensor]) -> None:
        """Add up the gradients of what belongs to the part, in the order of a step."""
        self._let_have(leaves)
        for number in self._copies.backward:
            one = self._copies.weights[number]
            if one.owner == one.holder == self._part:
                self._copies.hand_over(one)
            elif one.owner == self._part:
                body = self._waited(self._wire.receive_gradient, _transfer(number, one))
                self._copies.add_gradients(one, body)
        self._let_have({})

    def spread(self) -> None:
        """Send new weights, but those behind the last batch, which the next pass begins with."""
        self._updates += 1
        if self._updates == len(self.versions):
            return
        for number, one in self._owned:
            body = self._copies.values(one).clone()  # the next update changes what it is of
            if one.holder == self._part:
                self._own.setdefault(number, deque()).append(body)
            else:
                self._wire.send(_transfer(number, one), [body])
                count(one, len(body), self.sent, backward=False)

    def finish(self) -> None:
        """Receive what no batch has begun with."""
        for number, one in self._held:
            if one.owner != self._part:
                for _ in range(self._there[one.owner], len(self.versions) - 1):
                    self._received(number, one)

    def _received(self, number: int, one: Exchange) -> Tensor:
        if one.owner == self._part:
            return self._own[number].popleft()
        return self._waited(self._wire.receive, _transfer(number, one))

    def _waited(
        self, receive: Callable[[Transfer], Sequence[Tensor]], transfer: Transfer
    ) -> Tensor:
        begin = perf_counter_ns()
        (body,) = receive(transfer)
        self.spans.append((Doing.WAIT, begin, perf_counter_ns()))
        return body

    def _of(self, one: Exchange) -> list[Tensor]:
        return [self._copies.copy(one, key) for key in one.copy_keys]

    def _let_have(self, leaves: Mapping[Tensor, Tensor]) -> None:
        """Give copies the gradients of leaves, or none."""
        for copy in self.tensors:
            copy.grad = leaves[copy].grad if copy in leaves else None


def _transfer(number: int, one: Exchange) -> Transfer:
    return Transfer(number, one.layer, False, one.owner, one.holder, (), True)
