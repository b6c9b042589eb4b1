"""Schedule + CostModel -> Planned: the actions of all parts as jobs, their messages as journeys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hgpart.prediction.jobs import Job, Journey, Span, Spans
from hgpart.prediction.weights import NONE, SharedWeights
from hgpart.schedules.costs import CostModel
from hgpart.schedules.schedule import Action, Direction, Schedule


@dataclass(frozen=True, eq=False)
class Planned:
    """What is to be simulated of a schedule.

    Attributes
    ----------
    jobs : sequence of sequence of Job
        Of each part.
    journeys : sequence of Journey
    order : sequence of Action
    places : sequence of range
        Of each action, the places of its jobs among its part's.
    """

    jobs: Sequence[Sequence[Job]]
    journeys: Sequence[Journey]
    order: Sequence[Action]
    places: Sequence[range]

    def times(self, spans: Spans) -> list[Span]:
        """Seconds at which each action of the order begins and ends."""
        found = []
        for action, places in zip(self.order, self.places, strict=True):
            jobs = spans.jobs[action.part]
            found.append(Span(jobs[places[0]].begin, jobs[places[-1]].end))
        return found


def jobs_of(schedule: Schedule, costs: CostModel, weights: SharedWeights = NONE) -> Planned:
    """Find what each action of a schedule takes, awaits and sends.

    Parameters
    ----------
    schedule : Schedule
    costs : CostModel
    weights : SharedWeights
        What travels besides.
    """
    parts = range(schedule.k)
    jobs = [[*weights.first.get(part, ())] for part in parts]
    journeys = [*weights.journeys]
    numbers: dict[tuple[int, bool, int, int], int] = {}  # by what arrives where
    places = []
    for action in schedule.order:
        part, direction, micro_batch, _ = action
        chunk, backward = schedule.chunk(action), direction is not Direction.FORWARD
        awaits, sends = dict[int, None](), list[int]()
        if direction is not Direction.WEIGHTS:
            for transfer in chunk.awaits:
                awaits[numbers[part, backward, micro_batch, transfer]] = None
            for receiver, transfers in chunk.messages.items():
                for transfer in transfers:
                    numbers[receiver, backward, micro_batch, transfer] = len(journeys)
                sends.append(len(journeys))
                one_way, both_ways = (
                    costs.travel(action, chunk, receiver, both_ways=both) for both in (False, True)
                )
                handling = costs.handling(action, chunk, receiver)
                journeys.append(Journey(part, receiver, one_way, both_ways, handling))
        pieces = weights.divided.get(action) or (Job(costs.action(action, chunk)),)
        begin = len(jobs[part])
        jobs[part] += pieces
        jobs[part][begin] = pieces[0]._replace(awaits=(*pieces[0].awaits, *awaits))
        last = jobs[part][-1]
        jobs[part][-1] = last._replace(sends=(*last.sends, *sends))
        places.append(range(begin, len(jobs[part])))
    for part, behind in weights.last.items():
        jobs[part] += behind
    return Planned(jobs, journeys, schedule.order, places)
