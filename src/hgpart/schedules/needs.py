"""Outlines -> what each action needs: the graph that all rules use."""

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
    """The actions of a step or of a stream of batches, and what each action needs.

    An action needs the one before it in its pass, and the same action of the micro-batch before: so
    statistics are updated, and a layer's gradients added up, in one order. Layers that share their
    weights add to the same gradients from several chunks; their order is the rule's.

    In a stream a part's update needs the gradients of all copies of its weights, and copies may be
    as old as the weights themselves.

    Attributes
    ----------
    backward : bool
        Whether there are backward passes.
    halves : bool
        Whether backward passes are in two halves, for maps and for weights.
    limit : int or None
        `Schedule.in_flight`: if given, each part ends each batch with an update.
    """

    outlines: Sequence[Outline]
    micro_batches: int
    costs: CostModel
    backward: bool = True
    halves: bool = False
    limit: int | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that occur."""
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
        """All actions, in no particular order."""
        for part in range(len(self.outlines)):
            for direction in self.directions:
                for micro_batch in range(self.micro_batches):
                    for chunk in range(len(self.chunks(part, direction))):
                        yield Action(part, direction, micro_batch, chunk)

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The parts that have copies of each part's weights."""
        parts = range(len(self.outlines))
        owners = [dict(outline.owners) for outline in self.outlines]
        return tuple(tuple(holder for holder in parts if part in owners[holder]) for part in parts)

    @cached_property
    def senders(self) -> dict[tuple[bool, int], tuple[int, int]]:
        """Sending part and chunk, by whether a gradient is sent and the number of the transfer."""
        return {
            (direction is not FORWARD, sent.transfer): (part, number)
            for part in range(len(self.outlines))
            for direction in (FORWARD, BACKWARD)
            for number, chunk in enumerate(self.chunks(part, direction))
            for sent in chunk.sends
        }

    def before(self, action: Action) -> Iterator[Action]:
        """The actions that an action needs."""
        part, direction, micro_batch, at, _ = action
        if direction is WEIGHTS:
            yield Action(part, MAPS, micro_batch, at)
            if at:  # one order for layers that share their weights
                yield Action(part, WEIGHTS, micro_batch, at - 1)
        elif direction is UPDATE:
            for holder in (part, *self.holders[part]):
                last = len(self.outlines[holder].backward) - 1
                yield Action(holder, WEIGHTS if self.halves else BACKWARD, micro_batch, last)
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
        """Place in one order of all that a micro-batch needs, by part, direction and chunk."""
        alone = replace(self, micro_batches=1)
        graph = {action: tuple(alone.before(action)) for action in alone.actions()}
        order = TopologicalSorter(graph).static_order()
        return {
            (part, direction, chunk): at for at, (part, direction, _, chunk, _) in enumerate(order)
        }

    def rank(self, action: Action) -> int:
        """The place of an action among the actions of its micro-batch."""
        return self.ranks[action.part, action.direction, action.chunk]

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Micro-batches that each part must have begun so that the busiest part never waits.

        By Little's law: as many as end in the time that one of them spends in the part, from its
        begin to its end there; and one more, as they do not come evenly.
        """
        alone = replace(self, micro_batches=1, halves=False)
        order = sorted(alone.actions(), key=alone.rank)
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
        """The number of pipeline stages from each part to the end, its own included.

        A stage is a set of parts that send maps to each other in a circle.
        """
        import networkx as nx

        parts = nx.DiGraph()
        parts.add_nodes_from(range(len(self.outlines)))
        for part, outline in enumerate(self.outlines):
            receivers = {sent.receiver for chunk in outline.forward for sent in chunk.sends}
            parts.add_edges_from((part, receiver) for receiver in receivers)
        stages = nx.condensation(parts)
        depth: dict[int, int] = {}
        for stage in reversed(list(nx.topological_sort(stages))):
            behind = (depth[successor] for successor in stages.successors(stage))
            depth[stage] = 1 + max(behind, default=0)
        of_part = stages.graph["mapping"]
        return tuple(depth[of_part[part]] for part in range(len(self.outlines)))
