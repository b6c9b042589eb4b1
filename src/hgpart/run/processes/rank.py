"""Connection -> Rank: the part of this process, among several processes, as a `Transport`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from hgpart.execution.program import PartProgram
from hgpart.execution.transport import Executor
from hgpart.execution.weights.copies import Travelling
from hgpart.run.processes.connection import Connection
from hgpart.run.processes.map_types import MapTypes
from hgpart.run.processes.queued_messages import QueuedMessages
from hgpart.run.processes.rank_messages import MessageSizes, RankMessages
from hgpart.schedules.mail import Mail, mail
from hgpart.schedules.schedule import Schedule


class Rank:
    """The part of this process, whose number is the rank."""

    def __init__(self, connection: Connection) -> None:
        self.parts: Sequence[int] = (connection.rank,)
        self._connection = connection
        self._types: WeakKeyDictionary[PartProgram, dict[torch.dtype | None, MapTypes]]
        self._types = WeakKeyDictionary()
        self._sizes: WeakKeyDictionary[Mail, dict[object, MessageSizes]] = WeakKeyDictionary()

    def device(self, part: int) -> torch.device:
        """The device of the part."""
        return self._connection.device

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes; all processes call it."""
        return self._connection.gather(value)

    def so_on_any(self, here: Sequence[bool]) -> Sequence[bool]:
        """Whether each entry is true in any process; all processes call it."""
        return [any(entries) for entries in zip(*self._connection.numbers(here), strict=True)]

    def add_later(self, value: float, parts: Collection[int]) -> Callable[[], float]:
        """The number of the only part that has one, shared with all; or the sum over all parts."""
        if len(parts) == 1:
            return self._connection.share_later(value, *parts)
        return self._connection.add_later(value)

    def open(
        self,
        schedule: Schedule,
        programs: Mapping[int, PartProgram],
        sizes: Sequence[int],
        travelling: Travelling | None,
        autocast: torch.dtype | None = None,
    ) -> RankMessages:
        """Begin to receive what comes first."""
        (part,) = self.parts
        types = self._types.setdefault(programs[part], {})
        if autocast not in types:
            types[autocast] = MapTypes(programs[part].transfers, are_known=autocast is None)
        is_step, own = schedule.in_flight is None, mail(schedule, part)
        # Weights that travel are those of the schedule, which has been lowered with them.
        known = self._sizes.setdefault(own, {})
        key = types[autocast], types[autocast].are_known, tuple(sizes)
        if key not in known:
            # In a stream several batches are under way, for which lanes have no room.
            lanes = self._connection.lanes if is_step else {}
            known[key] = MessageSizes.of(own, types[autocast], sizes, travelling, lanes)
        messages = QueuedMessages if schedule.is_dynamic else RankMessages
        return messages(
            self._connection,
            types[autocast],
            own,
            sizes,
            known[key],
            travelling=travelling,
            in_place=is_step,
        )

    def batches(self, source: Iterator[Any], under_way: int) -> OwnBatches:
        """The batches for this part: only messages keep it from running ahead."""
        return OwnBatches(source)

    def executor(self) -> Executor:
        """Runs jobs here and now."""
        return _do

    def close(self) -> None:
        """Nothing: passes start no threads, and the process group is the caller's."""


class OwnBatches:
    """The batches of a stream, for one part."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def of(self, part: int) -> Iterator[Any]:
        """All batches."""
        return self._source

    def end(self, part: int) -> None:
        """Do nothing: nobody waits for the end."""

    def stop(self) -> None:
        """Do nothing: nobody waits for the end."""


def _do(jobs: Sequence[Callable[[], Any]], stop: Callable[[], object]) -> Sequence[Any]:
    # A cast that is remembered would belong to the graphs of several micro-batches.
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return [job() for job in jobs]
    finally:
        torch.set_autocast_cache_enabled(before)
