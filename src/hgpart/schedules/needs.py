"""Outlines -> what each action needs: the graph that every rule goes by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter

from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Chunk, Outline
from hgpart.schedules.schedule import UPDATING, Action, Direction
from hgpart.schedules.simulation import times

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD
MAPS, WEIGHTS, UPDATE = Direction.MAPS, Direction.WEIGHTS, Direction.UPDATE


@dataclass(frozen=True, eq=False)
class Needs:
    """The actions of a step or of a stream of batches, and what each of them needs.

    An action needs the one before it in its pass, and the same of the micro-batch before: so
    statistics are updated, and a layer's gradients added up, in one order. Layers that share their
    weights add to the same gradients from several chunks, whose order is the rule's.

    In a stream a part's update needs the gradients of the copies that others have of its weights;
    and copies may be as old as weights may.

    Attributes
    ----------
    outlines : sequence of Outline
    micro_batches : int
    costs : CostModel
    backward : bool
        Whether there are backward passes.
    halves : bool
        Whether they are in two halves, for maps and for weights.
    limit : int or None
        `Schedule.in_flight`: with a number, each part ends each batch with an update.
    """

    outlines: Sequence[Outline]
    micro_batches: int
    costs: CostModel
    backward: bool = True
    halves: bool = False
    limit: int | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What is done."""
        if not self.backward:
            return (FORWARD,)
        passes = (FORWARD, MAPS, WEIGHTS) if self.halves else (FORWARD, BACKWARD)
        return passes if self.limit is None else (*passes, UPDATE)

    def chunks(self, part: int, direction: Direction) -> tuple[Chunk, ...]:
        """A part's chunks in a direction."""
        if direction is UPDATE:
            return (UPDATING,)
        outline = self.outlines[part]
        return outline.forward if direction is FORWARD else outline.backward

    def actions(self) -> Iterator[Action]:
        """All of them, in no order that would serve."""
        for part in range(len(self.outlines)):
            for direction in self.directions:
                for micro_batch in range(self.micro_batches):
                    for chunk in range(len(self.chunks(part, direction))):
                        yield Action(part, direction, micro_batch, chunk)

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Of each part, those that have copies of its weights."""
        parts = range(len(self.outlines))
        owners = [dict(outline.owners) for outline in self.outlines]
        return tuple(tuple(one for one in parts if part in owners[one]) for part in parts)

    @cached_property
    def senders(self) -> dict[tuple[bool, int], tuple[int, int]]:
        """By whether it is a gradient, and transfer: part and chunk that send it."""
        return {
            (direction is not FORWARD, sent.transfer): (part, at)
            for part in range(len(self.outlines))
            for direction in (FORWARD, BACKWARD)
            for at, chunk in enumerate(self.chunks(part, direction))
            for sent in chunk.sends
        }

    def before(self, action: Action) -> Iterator[Action]:
        """What an action needs."""
        part, direction, micro_batch, at, _ = action
        if direction is WEIGHTS:
            yield Action(part, MAPS, micro_batch, at)
            if at:  # one order for layers that share their weights
                yield Action(part, WEIGHTS, micro_batch, at - 1)
        elif direction is UPDATE:
            for one in (part, *self.holders[part]):
                last = len(self.outlines[one].backward) - 1
                yield Action(one, WEIGHTS if self.halves else BACKWARD, micro_batch, last)
        else:
            for transfer in self.chunks(part, direction)[at].awaits:
                sender, chunk = self.senders[direction is not FORWARD, transfer]
                yield Action(sender, direction, micro_batch, chunk)
            if at:
                yield Action(part, direction, micro_batch, at - 1)
            elif direction is not FORWARD:
                last = len(self.outlines[part].forward) - 1
                yield Action(part, FORWARD, micro_batch, last)
            elif micro_batch and self.outlines[part].serial:
                last = len(self.outlines[part].forward) - 1
                yield Action(part, FORWARD, micro_batch - 1, last)
            if direction is FORWARD and at == 0 and 0 < (self.limit or 0) <= micro_batch:
                for owner, _ in self.outlines[part].owners:
                    yield Action(owner, UPDATE, micro_batch - (self.limit or 0), 0)
        if micro_batch:
            yield Action(part, direction, micro_batch - 1, at)

    @cached_property
    def ranks(self) -> dict[tuple[int, Direction, int], int]:
        """By part, direction and chunk: a place in one order of all that a micro-batch needs."""
        one = replace(self, micro_batches=1)
        graph = {action: tuple(one.before(action)) for action in one.actions()}
        order = TopologicalSorter(graph).static_order()
        return {(part, way, chunk): at for at, (part, way, _, chunk, _) in enumerate(order)}

    def rank(self, action: Action) -> int:
        """The place of an action among those of its micro-batch."""
        return self.ranks[action.part, action.direction, action.chunk]

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """How many micro-batches each part has to have begun so that the busiest need not wait.

        By Little's law: as many as end in the time that one of them takes from its begin in the
        part to its end there; and one more, as they do not come evenly.
        """
        one = replace(self, micro_batches=1, halves=False)
        order = sorted(one.actions(), key=one.rank)
        begin, end = dict[int, float](), dict[int, float]()
        busy = [0.0] * len(self.outlines)
        when = times(self.outlines, order, self.costs)
        for action, (first, last) in zip(order, when, strict=True):
            begin.setdefault(action.part, first)
            end[action.part] = last
            busy[action.part] += last - first
        slowest = max(busy) or 1.0
        taken = (end[part] - begin[part] for part in range(len(self.outlines)))
        return tuple(1 + max(1, math.ceil(seconds / slowest)) for seconds in taken)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many stages of a pipeline there are from each part on, its own among them.

        A stage is all parts that send maps to each other in a circle.
        """
        import networkx as nx

        parts = nx.DiGraph()
        parts.add_nodes_from(range(len(self.outlines)))
        for part, outline in enumerate(self.outlines):
            receivers = {sent.receiver for chunk in outline.forward for sent in chunk.sends}
            parts.add_edges_from((part, receiver) for receiver in receivers)
        stages = nx.condensation(parts)
        found: dict[int, int] = {}
        for stage in reversed(list(nx.topological_sort(stages))):
            behind = (found[other] for other in stages.successors(stage))
            found[stage] = 1 + max(behind, default=0)
        of_part = stages.graph["mapping"]
        return tuple(found[of_part[part]] for part in range(len(self.outlines)))
