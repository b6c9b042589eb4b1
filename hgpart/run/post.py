"""Routes + Connection -> Post: one part's messages of a step, over torch.distributed.

And `StatePost`: what goes between parts before and behind a pass, for copies of the model's state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hgpart.errors import RunError
from hgpart.execution.totals import Traffic
from hgpart.execution.transfers import Transfer
from hgpart.placement.shares.copies import Copies, count
from hgpart.placement.shares.exchanges import Exchange, Key
from hgpart.run.connection import Connection
from hgpart.run.routes import Routes
from hgpart.schedules.schedule import Message, Schedule

FIRST_OF_STATE = 2**24  # tags of messages of state: those of a step's are below
STATE, WEIGHTS, GRADIENTS = range(WAYS := 3)  # what travels for copies
AHEAD = 8  # receives that are posted before they are needed; more only takes memory earlier


class Post:
    """The messages of one step; a message is bytes: all that a chunk sends to one part.

    Receives are posted, and messages between two parts depart, in the order of the schedule, as
    NCCL tells messages apart by nothing else. Nobody waits for a message to depart before `finish`:
    gloo's leaves when its receiver has posted the receive. But a part of a stream is not ahead of
    the others by more than in the schedule's order, with all that it has sent.

    Parameters
    ----------
    connection : Connection
    transfers : mapping of int to Transfer
        Those of this part, by number.
    routes : Routes
        Of this part.
    sizes : sequence of int
        Samples of each micro-batch.
    """

    def __init__(
        self,
        connection: Connection,
        transfers: Mapping[int, Transfer],
        routes: Routes,
        sizes: Sequence[int],
    ) -> None:
        self._connection, self._transfers = connection, transfers
        self._routes, self._sizes = routes, sizes
        # Where messages lie while they travel.
        self._place = connection.device if connection.nccl else torch.device("cpu")
        self._to_post = deque(routes.incoming)
        self._posted: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self._arrived: dict[tuple[int, bool, int], tuple[Tensor, ...]] = {}
        self._begun: dict[int, dict[int, list[Tensor]]] = {}
        self._sent: dict[int, tuple[Message, Tensor, dist.Work | None]] = {}
        self._post(AHEAD)

    def wires(self) -> list[MicroBatchWire]:
        """The part's ends, for each micro-batch."""
        return [MicroBatchWire(self, micro_batch) for micro_batch in range(len(self._sizes))]

    def send(
        self, micro_batch: int, backward: bool, transfer: Transfer, tensors: Sequence[Tensor]
    ) -> None:
        """Let tensors depart, when all that travels with them is there."""
        message = self._routes.departing[micro_batch, backward, transfer.number]
        pieces = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        while self._sent and self._oldest().micro_batch <= micro_batch - self._routes.under_way:
            self._settle(self._oldest().number)
        size, wanted = sum(map(len, pieces)), transfer.nbytes(self._sizes[micro_batch])
        if size != wanted:  # the receiver waits for as many
            raise RunError(
                f"{transfer.layer} sends {size} bytes, accepted is {wanted}, as it was placed "
                "(autocast changes types, and every process needs the same batch size)"
            )
        begun = self._begun.setdefault(message.number, {})
        begun[transfer.number] = pieces
        if len(begun) == len(message.transfers):
            del self._begun[message.number]
            self._depart(message, [one for number in message.transfers for one in begun[number]])

    def _depart(self, message: Message, pieces: Sequence[Tensor]) -> None:
        body = (pieces[0] if len(pieces) == 1 else torch.cat([*pieces])).to(self._place)
        target = message.receiver
        group = self._connection.group(message.sender, target)
        call = partial(dist.isend, body, target, group, message.number)
        work = self._connection.guard(call, *self._words(message, target))
        self._sent[message.number] = message, body, work

    def receive(self, micro_batch: int, backward: bool, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what was sent."""
        key = micro_batch, backward, transfer.number
        if key not in self._arrived:
            self._open(self._routes.arriving[key])
        return self._arrived.pop(key)

    def _open(self, message: Message) -> None:
        while message.number not in self._posted:
            self._post(1)
        body, work = self._posted.pop(message.number)
        self._post(AHEAD - len(self._posted))
        self._wait(work, message, message.sender)
        for number in self._routes.settled.get(message.number, ()):
            self._settle(number)
        body, size, at = body.to(self._connection.device), self._sizes[message.micro_batch], 0
        for number in message.transfers:
            found = []
            for tensor in self._transfers[number].tensors:
                piece = body[at : at + tensor.nbytes(size)]
                at += len(piece)
                if piece.storage_offset() % tensor.dtype.itemsize:
                    piece = piece.clone()
                found.append(piece.view(tensor.dtype).view(tensor.shape(size)))
            self._arrived[message.micro_batch, message.backward, number] = tuple(found)

    def finish(self) -> None:
        """Wait until all that was sent has departed."""
        for number in [*self._sent]:
            self._settle(number)

    def _oldest(self) -> Message:
        return next(iter(self._sent.values()))[0]

    def _settle(self, number: int) -> None:
        if number in self._sent:
            message, _, work = self._sent.pop(number)
            self._wait(work, message, message.receiver)

    def _post(self, count: int) -> None:
        for _ in range(min(count, len(self._to_post))):
            message = self._to_post.popleft()
            samples = self._sizes[message.micro_batch]
            size = sum(self._transfers[number].nbytes(samples) for number in message.transfers)
            body = torch.empty(size, dtype=torch.uint8, device=self._place)
            group = self._connection.group(message.sender, message.receiver)
            call = partial(dist.irecv, body, message.sender, group, message.number)
            work = self._connection.guard(call, *self._words(message, message.sender))
            self._posted[message.number] = body, work

    def _wait(self, work: dist.Work | None, message: Message, peer: int) -> None:
        if work is not None:
            self._connection.guard(work.wait, *self._words(message, peer))

    def _words(self, message: Message, peer: int) -> tuple[str, int]:
        layer = self._transfers[message.transfers[0]].layer
        what = f"{'the gradient of ' * message.backward}{layer}"
        return f"{'waited for' if peer == message.sender else 'sent'} {what}", peer


class MicroBatchWire:
    """A part's ends of all its transfers, for one micro-batch of a step: a `Wire`."""

    def __init__(self, post: Post, micro_batch: int) -> None:
        self.post, self._micro_batch = post, micro_batch

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        self.post.send(self._micro_batch, False, transfer, tensors)

    def receive(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what the sender sent."""
        return self.post.receive(self._micro_batch, False, transfer)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let a gradient depart for the sender."""
        self.post.send(self._micro_batch, True, transfer, tensors)

    def receive_gradient(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for the receiver's gradient."""
        return self.post.receive(self._micro_batch, True, transfer)


class StatePost:
    """One part's ends of the exchanges that keep copies of the model's state like it, in one pass.

    Weights depart when the pass begins, and are waited for by the first step that computes with
    them. The gradients of copies depart as soon as no step is left that adds to them, which the
    first step of a schedule finds out; the owner waits for them at the end. So nothing here is
    waited for by what it waits for itself, whatever the schedule.

    Parameters
    ----------
    connection : Connection
    copies : Copies
    sent : Traffic
        What this part sends is added to it.
    times_added : mapping of Schedule to mapping of (int, Key) to int
        By number of an exchange and key of a copy, how often a step adds to its gradient; of the
        schedules by which there has been one, which this one is noted in.
    """

    def __init__(
        self,
        connection: Connection,
        copies: Copies,
        sent: Traffic,
        times_added: MutableMapping[Schedule, Counter[tuple[int, Key]]],
    ) -> None:
        self._connection, self._copies, self.sent = connection, copies, sent
        self._times_added = times_added
        self._place = connection.device if connection.nccl else torch.device("cpu")
        self._coming: dict[tuple[int, int], tuple[Exchange, Tensor, dist.Work | None]] = {}
        self._in_place: set[tuple[int, int]] = set()  # that come to where they belong
        self._going: list[tuple[Exchange, int, Tensor, dist.Work | None]] = []
        self._hooks: list[Any] = []
        self._schedule: Schedule | None = None
        self._added: Counter[tuple[int, Key]] = Counter()
        self._departed: set[int] = set()

    def begin(self, whole: bool) -> None:
        """Begin a pass in the present grad mode, with the whole state or not.

        Raises
        ------
        RunError
            If parameters were changed of which other processes have copies.
        """
        copies, rank = self._copies, self._connection.rank
        learns = torch.is_grad_enabled()
        if whole:
            self._spread(copies.state, STATE)
            for number, one in enumerate(copies.state):
                self._take(one, (STATE, number))
                if one.owner == rank != one.holder:
                    self.sent.uncounted_bytes[rank, one.holder] += copies.nbytes(one)
            copies.note()
        elif copies.changed and not learns:
            raise RunError(
                f"rank {rank} has changed parameters since the last pass, and other ranks have "
                "copies of them: accepted is a change that a training step comes before"
            )
        if learns:
            self._spread(copies.weights, WEIGHTS)
            for one in copies.weights:
                if one.owner == rank:
                    count(one, copies.nbytes(one), self.sent, backward=False)

    def arrive(self, step: nn.Module) -> bool:
        """Let copies that a step computes with be there; whether it had to be waited for."""
        waits = False
        for number in self._copies.of_step(step):
            waits |= (WEIGHTS, number) in self._coming
            self._take(self._copies.weights[number], (WEIGHTS, number))
        return waits

    def begin_step(self, schedule: Schedule) -> None:
        """Expect gradients, and let those of copies depart when they are complete."""
        if self._connection.nccl:  # which knows messages by their order alone
            return
        self._schedule = schedule
        for number, one in enumerate(self._copies.weights):
            if one.owner == self._connection.rank != one.holder:
                self._expect(one, (GRADIENTS, number), one.holder)
            if one.holder == self._connection.rank != one.owner:
                for key in one.copy_keys:
                    hook = partial(self._note, number, key)
                    copy: Any = self._copies.copy(one, key)  # whose hooks have no types
                    if copy.requires_grad:
                        self._hooks.append(copy.register_post_accumulate_grad_hook(hook))

    def _note(self, number: int, key: Key, tensor: Tensor) -> None:
        """Something was added to the gradient of a copy."""
        assert self._schedule is not None
        if number in self._departed:
            raise RunError("a gradient was added to after it had been sent: this is a bug")
        self._added[number, key] += 1
        expected = self._times_added.get(self._schedule)
        one = self._copies.weights[number]
        if expected is not None and all(
            0 < expected[number, each] == self._added[number, each] for each in one.copy_keys
        ):
            self._depart(number)

    def _depart(self, number: int) -> None:
        one = self._copies.weights[number]
        self._departed.add(number)
        self._send(one, (GRADIENTS, number), one.owner, self._copies.gradients(one))
        count(one, self._copies.nbytes(one), self.sent, backward=True)

    def end_step(self) -> None:
        """Let all other gradients of copies depart, and add up those that belong here."""
        copies, rank = self._copies, self._connection.rank
        for hook in self._hooks:
            hook.remove()
        if self._schedule is not None:
            self._times_added.setdefault(self._schedule, self._added)
        for number, one in enumerate(copies.weights):
            if one.owner == rank != one.holder and (GRADIENTS, number) not in self._coming:
                self._expect(one, (GRADIENTS, number), one.holder)
        for number, one in enumerate(copies.weights):
            if one.holder == rank != one.owner and number not in self._departed:
                self._depart(number)
        for number, one in enumerate(copies.weights):
            if one.owner == rank:
                body = self._received((GRADIENTS, number), one.holder)
                copies.add_gradients(one, copies.gradients(one) if body is None else body)
        self.finish()
        copies.clear()

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
                self._expect(one, (way, number), one.owner, memory if here else None)
        for number, one in enumerate(exchanges):
            if one.owner == rank != one.holder:
                self._send(one, (way, number), one.holder, self._copies.values(one))
            elif one.owner == rank:
                self._copies.put(one, self._copies.values(one))

    def _take(self, one: Exchange, name: tuple[int, int]) -> None:
        in_place = name in self._in_place
        body = self._received(name, one.owner)
        if body is not None and not in_place:
            self._copies.put(one, body)

    def _expect(
        self, one: Exchange, name: tuple[int, int], sender: int, memory: Tensor | None = None
    ) -> None:
        body = memory
        if body is None:
            body = torch.empty(self._copies.nbytes(one), dtype=torch.uint8, device=self._place)
        else:
            self._in_place.add(name)
        group = self._connection.group(sender, self._connection.rank)
        call = partial(dist.irecv, body, sender, group, _tag(name))
        self._coming[name] = one, body, self._guarded(call, one, sender, "waited for")

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
