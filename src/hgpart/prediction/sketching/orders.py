"""Sketch + a rule -> orders: the actions of each part in a step in micro-batches.

They are those that `hgpart.schedules.make_schedule` orders by rough costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np

from hgpart import _native
from hgpart.arrays import Bool, Float64, Int32, Int64
from hgpart.partition import Partition
from hgpart.placement.ordering.ordered import rough_costs
from hgpart.prediction.sketching.chunks import Chunks
from hgpart.prediction.sketching.sketch import Sketch
from hgpart.prediction.sketching.step import BACK, DIRECTIONS, actions_of
from hgpart.schedules.costs import PASSES, Costs
from hgpart.schedules.schedule import Direction
from hgpart.sequences import sums_of

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
MAPS, WEIGHTS = Direction.MAPS, Direction.WEIGHTS


@dataclass(frozen=True, eq=False)
class ActionGraph:
    """The actions of a micro-batch and what each needs, for `hgpart._native.list_schedule`.

    Attributes
    ----------
    parts, classes, chunks : int32 arrays, shape (actions,)
        Among a part's ready actions the one of the lowest class runs first, of these the one of the
        first micro-batch, and then of the lowest chunk.
    seconds : float64 array, shape (actions,)
    begins : bool array, shape (actions,)
        Whether a part begins a micro-batch with it.
    pointers, followers : int64 and int32 arrays
        ``followers[pointers[a]:pointers[a + 1]]`` need action a.
    travels : float64 array
        Seconds of a message to each follower.
    alive : int64 array, shape (k,)
        Micro-batches that each part may have begun and not ended.
    """

    parts: Int32
    seconds: Float64
    classes: Int32
    chunks: Int32
    begins: Bool
    pointers: Int64
    followers: Int32
    travels: Float64
    alive: Int64


@dataclass(frozen=True, eq=False)
class Ordering:
    """Orders of a sketch's actions by rough costs."""

    drawn: Sketch
    chunks: tuple[Chunks, Chunks]
    work: tuple[Float64, Float64]
    costs: Costs
    micro_batches: int
    backward: bool = True

    @classmethod
    def of(
        cls,
        drawn: Sketch,
        chunks: tuple[Chunks, Chunks],
        partition: Partition,
        batch_size: int,
        micro_batches: int,
        backward: bool,
    ) -> Ordering:
        """With the costs by which `hgpart.schedule` orders; with `backward` passes, or none."""
        samples = batch_size / micro_batches
        costs = rough_costs(partition, partition.problem.work, samples)
        there, back = (
            sums_of(own.pieces.owners, drawn.work[own.pieces.values], len(own.pieces))
            for own in chunks
        )
        return cls(drawn, chunks, (there, back), costs, micro_batches, backward)

    def by_rule(self, rule: str) -> list[Int64]:
        """For each part its actions, as `timed` takes them."""
        if rule == "greedy" and self.backward:
            whole, halved = self._listed(halves=False), self._listed(halves=True)
            return min(whole, halved, key=lambda listed: listed.end).orders
        if rule in ("greedy", "zero-bubble"):
            return self._listed(halves=self.backward).orders
        return [self._in_turn(rule, part) for part in range(self.drawn.k)]

    def _in_turn(self, rule: str, part: int) -> Int64:
        """A part's order by a rule that goes through whole passes."""
        there, back = (
            np.arange(*own.part_pointers[part : part + 2], dtype=np.int64) for own in self.chunks
        )
        every = [
            (direction, batch, own)
            for batch in range(self.micro_batches)
            for direction, own in ((0, there), (1, back))[: 1 + self.backward]
        ]
        if rule == "gpipe":
            every.sort(key=lambda item: item[:2])
        elif rule == "1f1b":
            ahead = self._depths[part] - 1
            every.sort(key=lambda item: (item[1] - (0 if item[0] else ahead), *item[:2]))
        return np.concatenate([actions_of(*item) for item in every])

    @cached_property
    def _depths(self) -> list[int]:
        """See `Needs.depths`."""
        forward = self.chunks[0]
        parts = nx.DiGraph()
        parts.add_nodes_from(range(self.drawn.k))
        ends = np.unique(np.stack([forward.senders, forward.receivers], axis=1), axis=0)
        parts.add_edges_from(ends.tolist())
        stages = nx.condensation(parts)
        depth: dict[int, int] = {}
        for stage in reversed(list(nx.topological_sort(stages))):
            behind = (depth[successor] for successor in stages.successors(stage))
            depth[stage] = 1 + max(behind, default=0)
        return [depth[stages.graph["mapping"][part]] for part in range(self.drawn.k)]

    # -------------------------------------------------------------- list schedules

    def _seconds(self, direction: Direction) -> Float64:
        """Rough seconds of the chunks of a direction; see `Costs.action`."""
        at = 0 if direction is FORWARD else 1
        steps = self.chunks[at].pieces.lengths
        work = PASSES[direction] * self.work[at]
        seconds: Float64 = self.costs.samples * self.costs.work * work + self.costs.step * steps
        if (speeds := self.costs.speeds) is not None:
            seconds /= np.repeat(np.array(speeds), np.diff(self.chunks[at].part_pointers))
        return seconds

    def _listed(self, halves: bool) -> _PartOrders:
        """Orders by which part begins what when; see `list_schedule`."""
        graph, directions = self._graph(halves, self._in_flight), self._directions(halves)
        numbers, begins = _native.list_schedule(graph, self.micro_batches)
        batch, action = np.divmod(numbers, len(graph.parts))
        counts = np.cumsum([len(self.work[at > 0]) for at in range(len(directions))])
        at = np.searchsorted(counts, action, "right")
        places = np.array([DIRECTIONS.index(direction) for direction in directions])
        rows = np.stack([places[at], batch, action - np.append(0, counts)[at]], axis=1)
        parts = graph.parts[action]
        order = np.argsort(parts, kind="stable")
        ends = np.searchsorted(parts[order], np.arange(1, self.drawn.k))
        last = float((begins + np.tile(graph.seconds, self.micro_batches)).max())
        return _PartOrders(np.split(rows[order], ends), last)

    def _directions(self, halves: bool) -> Sequence[Direction]:
        return (FORWARD, *(BACK[halves] if self.backward else ()))

    def _graph(self, halves: bool, alive: Int64) -> ActionGraph:
        passes = self.chunks[: 1 + self.backward]
        (forward, *back), count = passes, [len(own.pieces) for own in passes]
        edges = [_messages(own, first) for own, first in zip(passes, (0, count[0]), strict=False)]
        sizes = [own.nbytes for own in passes]
        travels = [
            self.costs.message + self.costs.samples * self.costs.byte * nbytes[own]
            for nbytes, (_, _, own) in zip(sizes, edges, strict=True)
        ]
        pairs = [own[:2] for own in edges]
        pairs += [_chain(own, first) for own, first in zip(passes, (0, count[0]), strict=False)]
        for own in back:  # it begins when forward has ended
            last, first = forward.part_pointers[1:] - 1, own.part_pointers[:-1] + count[0]
            pairs.append((last, first))
        of = [np.repeat(np.arange(self.drawn.k), np.diff(own.part_pointers)) for own in passes]
        classes = [np.full(own, 1 - number) for number, own in enumerate(count)]
        chunks = [np.arange(own) for own in count]
        if halves:
            of.append(of[1])
            classes.append(np.full(count[1], 2))
            chunks.append(chunks[1])
            maps = np.arange(count[1]) + count[0]
            pairs += [(maps, maps + count[1]), _chain(back[0], sum(count))]
        sources, followers = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
        travel = np.zeros(len(sources))
        travel[: sum(map(len, travels))] = np.concatenate(travels)
        order = np.argsort(sources, kind="stable")
        parts = np.concatenate(of)
        begins = np.zeros(len(parts), dtype=np.bool_)
        begins[forward.part_pointers[:-1]] = True
        seconds = [self._seconds(direction) for direction in self._directions(halves)]
        return ActionGraph(
            parts=parts.astype(np.int32),
            seconds=np.concatenate(seconds),
            classes=np.concatenate(classes).astype(np.int32),
            chunks=np.concatenate(chunks).astype(np.int32),
            begins=begins,
            pointers=np.searchsorted(sources[order], np.arange(len(parts) + 1)).astype(np.int64),
            followers=followers[order].astype(np.int32),
            travels=travel[order],
            alive=alive,
        )

    @cached_property
    def _in_flight(self) -> Int64:
        """See `Needs.in_flight`."""
        graph = self._graph(False, np.ones(self.drawn.k, dtype=np.int64))
        _, begins = _native.list_schedule(graph, 1)
        forward, last_pass = (self.chunks[at].part_pointers for at in (0, int(self.backward)))
        ends = begins + graph.seconds
        last = last_pass[1:] - 1 + (len(self.work[0]) if self.backward else 0)
        taken = ends[last] - begins[forward[:-1]]
        slowest = sums_of(graph.parts.astype(np.int64), graph.seconds, self.drawn.k).max() or 1.0
        return np.array([1 + max(1, math.ceil(own / slowest)) for own in taken.tolist()])


class _PartOrders(NamedTuple):
    """Orders of all parts, and when the last action ends."""

    orders: list[Int64]
    end: float


def _messages(chunks: Chunks, first: int) -> tuple[Int64, Int64, Int64]:
    """For each chunk that awaits a message: the one that sends it, itself, and the message."""
    sender = np.empty(len(chunks.senders), dtype=np.int64)
    sender[chunks.sends.values] = chunks.sends.owners
    messages = chunks.awaits.values
    return first + sender[messages], first + chunks.awaits.owners, messages


def _chain(chunks: Chunks, first: int) -> tuple[Int64, Int64]:
    """Chunks of a part that follow each other."""
    every = np.arange(len(chunks.pieces) - 1)
    every = every[~np.isin(every + 1, chunks.part_pointers)]
    return first + every, first + every + 1
