"""Mail + Connection -> QueuedMessages: messages that come in any order, by threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from threading import Condition, Thread

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.errors import ArgumentError
from hgpart.execution.weights.copies import Travelling
from hgpart.run.processes.connection import ANNOUNCED, Connection
from hgpart.run.processes.map_types import MapTypes
from hgpart.run.processes.rank_messages import MessageSizes, RankMessages
from hgpart.schedules.dynamic.order import Ready
from hgpart.schedules.mail import Mail
from hgpart.schedules.schedule import Action, Message, Piece

UNDER_WAY = 16  # messages that a part has sent and may not have departed


class QueuedMessages(RankMessages):
    """The messages of a stream whose order nobody knows: the `Channel` of a part.

    A sender announces the number of each message. A thread receives what a sender sends as soon as
    it comes, so that messages always depart. NCCL, which knows no tags, can't carry them.

    Parameters
    ----------
    connection : Connection
        This and what follows is as in `RankMessages`.

    Raises
    ------
    ArgumentError
        Over NCCL.
    """

    def __init__(
        self,
        connection: Connection,
        types: MapTypes,
        mail: Mail,
        samples: Sequence[int],
        sizes: MessageSizes,
        travelling: Travelling | None = None,
        in_place: bool = False,
    ) -> None:
        if connection.nccl:
            raise ArgumentError(
                "a dynamic order over NCCL, which tells messages apart by their order: accepted "
                "are gloo, and the rule async"
            )
        self._news = Condition()
        self._failure: tuple[int, Exception] | None = None  # and its sender
        self._announced: dict[int, tuple[Tensor, dist.Work | None]] = {}
        super().__init__(connection, types, mail, samples, sizes, travelling, in_place)
        self._numbered = {message.number: message for message in mail.incoming}
        for sender, count in Counter(message.sender for message in mail.incoming).items():
            Thread(target=self._listen, args=(sender, count), daemon=True).start()

    def _listen(self, sender: int, count: int) -> None:
        """Receive so many messages of a sender, in the order in which they come."""
        number = torch.zeros(1, dtype=torch.int64)
        try:
            for _ in range(count):
                dist.recv(number, sender, tag=ANNOUNCED)
                message = self._numbered[int(number)]
                body = self._new(self._sizes.of_messages[message.number])
                dist.recv(body, sender, tag=message.number)
                with self._news:
                    self._coming[message.number] = body, _nothing
                    self._news.notify()
        except Exception as error:  # whatever it is, nobody else would hear of it
            with self._news:
                self._failure = sender, error
                self._news.notify()

    def has(self, piece: Piece) -> bool:
        """Whether a piece has arrived."""
        return piece in self._arrived or self._mail.arriving[piece].number in self._coming

    def wait_for(self, find: Ready) -> Sequence[Action]:
        """What `find` finds, now or as soon as something else has arrived.

        Raises
        ------
        RunError
            If another rank is gone, or has not sent anything in time.
        """

        def wait() -> Sequence[Action] | None:
            with self._news:
                while (ready := find()) is None and self._failure is None:
                    self._news.wait()
            return ready

        doing = "waited for what is ready"
        ready = self._connection.guard(wait, doing)
        if ready is None:
            assert self._failure is not None
            sender, error = self._failure
            raise self._connection.lost(error, doing, sender) from error
        return ready

    def opened(self, piece: Piece) -> Message:
        """The message that carries a piece, which has arrived."""
        return self._mail.arriving[piece]

    def came(self, message: Message) -> None:
        """Settle nothing: what its sender has received before is not known."""

    def leaving(self, piece: Piece) -> Message:
        """The message in which a piece departs; of many under way the first is settled."""
        if len(self._sent) > UNDER_WAY:
            self._settle(next(iter(self._sent)))
        return self._mail.departing[piece]

    def _depart(self, message: Message, pieces: Sequence[Tensor]) -> None:
        number = torch.tensor([message.number])
        call = partial(dist.isend, number, message.receiver, tag=ANNOUNCED)
        work = self._connection.guard(call, *self._words(message, message.receiver))
        self._announced[message.number] = number, work
        super()._depart(message, pieces)

    def departed(self, message: Message) -> None:
        """Wait until a message has left."""
        _, work = self._announced.pop(message.number)
        self._wait(work, message, message.receiver)
        super().departed(message)

    def _post_ahead(self) -> None:
        """Post nothing: threads receive."""


def _nothing(body: Tensor) -> None:
    """Wait for nothing: the message is there."""
