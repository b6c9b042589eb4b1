"""Schedule + CostModel -> Planned: the actions of all parts as jobs, their messages as journeys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hgpart.prediction.jobs import Job, Journey, Span, Spans
from hgpart.schedules.costs import CostModel
from hgpart.schedules.schedule import Action, Direction, Piece, Schedule


@dataclass(frozen=True, eq=False)
class Planned:
    """What is to be simulated of a schedule.

    Attributes
    ----------
    jobs : sequence of sequence of Job
        Of each part.
    journeys : sequence of Journey
    order : sequence of Action
    places : sequence of int
        Where the job of each action stands among the jobs of its part.
    """

    jobs: Sequence[Sequence[Job]]
    journeys: Sequence[Journey]
    order: Sequence[Action]
    places: Sequence[int]

    def times(self, spans: Spans) -> list[Span]:
        """Seconds at which each action of the order begins and ends."""
        return [
            spans.jobs[action.part][place]
            for action, place in zip(self.order, self.places, strict=True)
        ]


def jobs_of(
    schedule: Schedule,
    costs: CostModel,
    job: Callable[[Action], Job] | None = None,
    late: Mapping[int, Job] = MappingProxyType({}),
) -> Planned:
    """Find what each action of a schedule takes, awaits and sends.

    Parameters
    ----------
    schedule : Schedule
    costs : CostModel
    job : callable, optional
        Says what an action takes, and how much of that is memory-bound. When left out, the seconds
        are the cost model's, and none of them is.
    late : mapping of int to Job
        What each part has still to compute behind its actions: it does so before it adds up
        gradients of copies.
    """
    jobs: list[list[Job]] = [[] for _ in range(schedule.k)]
    journeys: list[Journey] = []
    numbers: dict[tuple[int, Piece], int] = {}  # by what arrives where
    places, left = [], dict(late)
    for action in schedule.order:
        part, chunk = action.part, schedule.chunk(action)
        if action.direction is Direction.COLLECT and part in left:
            jobs[part].append(left.pop(part))
        awaits = dict.fromkeys(numbers[part, piece] for piece in schedule.awaits(action))
        sends = []
        for receiver, pieces in schedule.sends(action).items():
            numbers.update(((receiver, piece), len(journeys)) for piece in pieces)
            sends.append(len(journeys))
            one_way, both_ways = (
                costs.travel(action, chunk, receiver, both_ways=both) for both in (False, True)
            )
            handling = costs.handling(action, chunk, receiver)
            journeys.append(Journey(part, receiver, one_way, both_ways, handling))
        done = Job(costs.action(action, chunk)) if job is None else job(action)
        places.append(len(jobs[part]))
        jobs[part].append(done._replace(awaits=tuple(awaits), sends=tuple(sends)))
    for part, behind in left.items():
        jobs[part].append(behind)
    return Planned(jobs, journeys, schedule.order, places)
