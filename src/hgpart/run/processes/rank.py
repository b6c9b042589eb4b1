"""Connection -> Rank: one part in this process, of several processes, as a `Transport`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from hgpart.execution.program import PartProgram
from hgpart.execution.transport import Executor
from hgpart.execution.weights.copies import Travelling
from hgpart.run.processes.connection import Connection
from hgpart.run.processes.post import Post
from hgpart.schedules.mail import mail
from hgpart.schedules.schedule import Schedule


class Rank:
    """The part of this process, which is that of its rank.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection) -> None:
        self.parts: Sequence[int] = (connection.rank,)
        self._connection = connection

    def device(self, part: int) -> torch.device:
        """Where the part is."""
        return self._connection.device

    def gather(self, value: Any) -> list[Any]:
        """What each process has; all call it."""
        return self._connection.gather(value)

    def so_on_any(self, here: Sequence[bool]) -> Sequence[bool]:
        """Whether each of some things is so in any process; all call it."""
        return [any(each) for each in zip(*self._connection.numbers(here), strict=True)]

    def add_later(self, value: float, parts: Collection[int]) -> Callable[[], float]:
        """What the only one of them has, of which alone others hear, or what all have."""
        if len(parts) == 1:
            return self._connection.share_later(value, *parts)
        return self._connection.add_later(value)

    def open(
        self,
        schedule: Schedule,
        programs: Mapping[int, PartProgram],
        sizes: Sequence[int],
        travelling: Travelling | None,
    ) -> Post:
        """Post what comes first."""
        (part,) = self.parts
        return Post(
            *(self._connection, programs[part].transfers, mail(schedule, part), sizes),
            travelling=travelling,
            in_place=schedule.in_flight is None,
        )

    def batches(self, source: Iterator[Any], under_way: int) -> OwnBatches:
        """Messages alone keep it from running ahead."""
        return OwnBatches(source)

    def executor(self) -> Executor:
        """The job is done here and now."""
        return _do

    def close(self) -> None:
        """Nothing: passes start no threads, and the process group is the caller's."""


class OwnBatches:
    """The batches of a stream, for one part."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def of(self, part: int) -> Iterator[Any]:
        """All of them."""
        return self._source

    def end(self, part: int) -> None:
        """Nobody waits for it."""

    def stop(self) -> None:
        """Nobody waits for it."""


def _do(jobs: Sequence[Callable[[], Any]], stop: Callable[[], object]) -> Sequence[Any]:
    return [job() for job in jobs]
