"""Schedule + CostModel -> Planned: the actions of all parts as jobs, their messages as journeys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hgpart.prediction.jobs import Job, Journey, Span, Spans
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
    places : sequence of int
        Of each action, the place of its job among its part's.
    """

    jobs: Sequence[Sequence[Job]]
    journeys: Sequence[Journey]
    order: Sequence[Action]
    places: Sequence[int]

    def times(self, spans: Spans) -> list[Span]:
        """Seconds at which each action of the order begins and ends."""
        actions = zip(self.order, self.places, strict=True)
        return [spans.jobs[action.part][place] for action, place in actions]


def jobs_of(schedule: Schedule, costs: CostModel) -> Planned:
    """Find what each action of a schedule takes, awaits and sends.

    Parameters
    ----------
    schedule : Schedule
    costs : CostModel
    """
    jobs: list[list[Job]] = [[] for _ in schedule.outlines]
    journeys: list[Journey] = []
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
                journeys.append(Journey(part, receiver, one_way, both_ways))
        places.append(len(jobs[part]))
        jobs[part].append(Job(costs.action(action, chunk), tuple(awaits), tuple(sends)))
    return Planned(jobs, journeys, schedule.order, places)
