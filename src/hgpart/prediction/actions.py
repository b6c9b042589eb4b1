"""Schedule + CostModel -> Planned: the actions of all parts as jobs, and their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from hgpart.prediction.jobs import Span, Spans, TimedJob, TimedMessage, TimedStep
from hgpart.schedules.costs import CostModel
from hgpart.schedules.schedule import Action, Direction, Piece, Schedule


@dataclass(frozen=True, eq=False)
class Planned:
    """A schedule as it is simulated.

    Attributes
    ----------
    jobs : sequence of sequence of TimedJob
        Jobs of each part.
    places : sequence of int
        For each action, the place of its job among the jobs of its part.
    """

    jobs: Sequence[Sequence[TimedJob]]
    messages: Sequence[TimedMessage]
    order: Sequence[Action]
    places: Sequence[int]

    @cached_property
    def step(self) -> TimedStep:
        """Jobs and messages as arrays."""
        return TimedStep.of(self.jobs, self.messages)

    def times(self, spans: Spans) -> list[Span]:
        """Seconds at which each action of the order begins and ends."""
        return [
            spans.jobs[action.part][place]
            for action, place in zip(self.order, self.places, strict=True)
        ]


def jobs_of(
    schedule: Schedule,
    costs: CostModel,
    job: Callable[[Action], TimedJob] | None = None,
    late: Mapping[int, TimedJob] = MappingProxyType({}),
) -> Planned:
    """Find what each action of a schedule takes, waits for and sends.

    Parameters
    ----------
    job : callable, optional
        Gives the job of an action. Default: the seconds of the cost model, none of them
        memory-bound.
    late : mapping of int to TimedJob
        What each part still has to compute after its actions; it does so before it adds up
        gradients of copies.
    """
    jobs: list[list[TimedJob]] = [[] for _ in range(schedule.k)]
    messages: list[TimedMessage] = []
    numbers: dict[tuple[int, Piece], int] = {}  # messages, by the part and what arrives there
    places, left = [], dict(late)
    for action in schedule.order:
        part, chunk = action.part, schedule.chunk(action)
        if action.direction is Direction.COLLECT and part in left:
            jobs[part].append(left.pop(part))
        awaits = dict.fromkeys(numbers[part, piece] for piece in schedule.awaits(action))
        sends = []
        for receiver, pieces in schedule.sends(action).items():
            numbers.update(((receiver, piece), len(messages)) for piece in pieces)
            sends.append(len(messages))
            one_way, both_ways = (
                costs.travel(action, chunk, receiver, both_ways=both) for both in (False, True)
            )
            handling = costs.handling(action, chunk, receiver)
            messages.append(TimedMessage(part, receiver, one_way, both_ways, handling))
        done = TimedJob(costs.action(action, chunk)) if job is None else job(action)
        places.append(len(jobs[part]))
        jobs[part].append(done._replace(awaits=tuple(awaits), sends=tuple(sends)))
    for part, last in left.items():
        jobs[part].append(last)
    return Planned(jobs, messages, schedule.order, places)
