"""Orders + seconds -> TimedStep: the jobs and messages of a step, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.prediction.jobs import TimedStep
from hgpart.prediction.sketching.chunks import Chunks
from hgpart.schedules.schedule import Direction
from hgpart.sequences import Sequences

DIRECTIONS = Direction.FORWARD, Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS
NOTHING = np.zeros(0, dtype=np.int64)
# Those of a backward pass, by whether it is in halves.
BACK = {False: (Direction.BACKWARD,), True: (Direction.MAPS, Direction.WEIGHTS)}


class Tables(NamedTuple):
    """What chunks and messages of a step take.

    Attributes
    ----------
    chunks : (Chunks, Chunks)
        Those of forward and of backward passes.
    samples : sequence of float
        Samples of each micro-batch.
    seconds : callable
        Function from a direction and a micro-batch to the seconds of each chunk, and the fraction
        of these that is memory-bound.
    travel : callable
        Function from senders, receivers and bytes of messages, and whether others travel the other
        way, to their seconds.
    late : float64 array, shape (k,)
        Seconds of each part at the end of the step.
    handling : float
        Seconds of computing that a byte costs both ends of a message.
    """

    chunks: tuple[Chunks, Chunks]
    samples: Sequence[float]
    seconds: Callable[[Direction, int], tuple[Float64, Float64]]
    travel: Callable[[Int64, Int64, Float64, bool], Float64]
    late: Float64
    handling: float


def actions_of(direction: int, batch: int, chunks: Int64) -> Int64:
    """Chunks of a direction as actions: direction, micro-batch, chunk; shape (chunks, 3)."""
    return np.stack([np.full(len(chunks), direction), np.full(len(chunks), batch), chunks], axis=1)


def timed(tables: Tables, orders: Sequence[Int64]) -> TimedStep:
    """The step in which each part does its actions in these orders.

    Parameters
    ----------
    orders : sequence of int64 arrays, shape (actions, 3)
        For each part its actions: number of the direction in `DIRECTIONS`, micro-batch, chunk.
    """
    (forward, backward), late = tables.chunks, tables.late
    # What a part has left to do at its end is an action without a chunk.
    ends = [np.full((int(seconds > 0), 3), -1) for seconds in late]
    by_part = [*map(np.concatenate, zip(orders, ends, strict=True))]
    direction, micro_batch, chunk = np.concatenate(by_part).T
    seconds, bound = np.zeros(len(chunk)), np.zeros(len(chunk))
    seconds[direction < 0] = late[late > 0]
    for number, of in enumerate(DIRECTIONS):
        for batch in range(len(tables.samples)):
            some = (direction == number) & (micro_batch == batch)
            if some.any():
                both = tables.seconds(of, batch)
                seconds[some], bound[some] = (table[chunk[some]] for table in both)
    node = chunk + np.where(direction == 0, 0, len(forward.awaits))
    moves_nothing = (direction < 0) | (direction == DIRECTIONS.index(Direction.WEIGHTS))
    node[moves_nothing] = len(forward.awaits) + len(backward.awaits)
    first = np.maximum(micro_batch, 0) * (len(forward.senders) + len(backward.senders))

    def numbers(there: Sequences, back: Sequences) -> Sequences:
        nothing = Sequences(np.zeros(2, np.int64), NOTHING)
        shifted = back.shifted(len(forward.senders))
        every = Sequences.joined([there, shifted, nothing]).take(node)
        return Sequences(every.pointers, every.values + first[every.owners])

    return _step(
        tables,
        np.cumsum([0, *map(len, by_part)], dtype=np.int64),
        (seconds, bound),
        numbers(forward.awaits, backward.awaits),
        numbers(forward.sends, backward.sends),
    )


@dataclass(eq=False)
class Jobs:
    """Jobs under construction, one after another."""

    count: int = 0
    _columns: tuple[list[Float64], list[Float64]] = field(default_factory=lambda: ([], []))
    _lists: tuple[tuple[list[Int64], list[Int64]], ...] = field(
        default_factory=lambda: (([], []), ([], []))
    )

    def add(
        self,
        seconds: float,
        memory_bound: float = 0.0,
        awaits: Int64 = NOTHING,
        sends: Int64 = NOTHING,
    ) -> None:
        """Add a job."""
        self.count += 1
        for column, value in zip(self._columns, (seconds, memory_bound), strict=True):
            column.append(np.array([value]))
        for (lengths, values), own in zip(self._lists, (awaits, sends), strict=True):
            lengths.append(np.array([len(own)]))
            values.append(own)

    def add_each(
        self, seconds: Float64, awaits: Int64 | None = None, sends: Int64 | None = None
    ) -> None:
        """Add a job for each of some messages, which it awaits or sends.

        Those that follow each other and take no time are one job.
        """
        if not len(seconds):
            return
        begins = np.ones(len(seconds), dtype=np.bool_)
        begins[1:] = (seconds[1:] > 0) | (seconds[:-1] > 0)
        starts = np.flatnonzero(begins)
        lengths = np.diff(np.append(starts, len(seconds)))
        self.count += len(starts)
        for column, values in zip(
            self._columns, (seconds[starts], np.zeros(len(starts))), strict=True
        ):
            column.append(values)
        for (counts, numbers), own in zip(self._lists, (awaits, sends), strict=True):
            counts.append(np.zeros_like(lengths) if own is None else lengths)
            numbers.append(NOTHING if own is None else own)

    @property
    def seconds(self) -> tuple[Float64, Float64]:
        """Seconds of all jobs, and the fraction of these that is memory-bound."""
        seconds, bound = (np.concatenate([np.zeros(0), *column]) for column in self._columns)
        return seconds, bound

    @property
    def messages(self) -> tuple[Sequences, Sequences]:
        """The messages that each job awaits, and those that it sends."""
        awaits, sends = (
            Sequences(
                np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
                np.concatenate([NOTHING, *numbers]),
            )
            for lengths, numbers in self._lists
        )
        return awaits, sends


def timed_by_jobs(
    tables: Tables, pointers: Int64, jobs: Jobs, more: tuple[Int64, Int64, Float64]
) -> TimedStep:
    """The step of given jobs, with further messages: their senders, receivers and bytes."""
    return _step(tables, pointers, jobs.seconds, *jobs.messages, more)


def messages_of(tables: Tables) -> tuple[Int64, Int64, Float64]:
    """Senders, receivers and bytes of the messages, micro-batch by micro-batch, forward first."""
    senders, receivers, nbytes = (
        np.concatenate([getattr(chunks, name) for chunks in tables.chunks])
        for name in ("senders", "receivers", "nbytes")
    )
    count = len(tables.samples)
    every = [nbytes * samples for samples in tables.samples]
    return np.tile(senders, count), np.tile(receivers, count), np.concatenate(every)


def _step(
    tables: Tables,
    pointers: Int64,
    seconds: tuple[Float64, Float64],
    awaits: Sequences,
    sends: Sequences,
    more: tuple[Int64, Int64, Float64] | None = None,
) -> TimedStep:
    ends = messages_of(tables)
    if more is not None:
        ends = tuple(map(np.concatenate, zip(ends, more, strict=True)))  # type: ignore[assignment]
    one_way = tables.travel(*ends, False)
    both_ways = tables.travel(*ends, True)
    senders, receivers, nbytes = ends
    return TimedStep(
        pointers,
        *seconds,
        awaits.pointers,
        awaits.values.astype(np.int32),
        sends.pointers,
        sends.values.astype(np.int32),
        senders.astype(np.int32),
        receivers.astype(np.int32),
        one_way,
        both_ways,
        tables.handling * nbytes,
    )
