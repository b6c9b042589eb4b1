"""Copies of weights, Schedule -> SharedWeights: when they arrive, and when their gradients depart.

As in a step of processes: at its begin owners send all that others have copies of, in order; a step
that computes with copies waits for them; and when it has added to their gradients for the last time
in the batch, these depart. At the end the owners add up what has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hgpart.errors import ArgumentError
from hgpart.placement import Placement
from hgpart.prediction.jobs import Job, Journey
from hgpart.prediction.measured_costs import MeasuredCosts, together
from hgpart.schedules.schedule import Action, Direction, Schedule

LATER = (Direction.BACKWARD, Direction.WEIGHTS)  # that add to gradients of weights


@dataclass(frozen=True, eq=False)
class SharedWeights:
    """What travels of weights that several parts have.

    Attributes
    ----------
    journeys : tuple of Journey
    first, last : mapping of int to tuple of Job
        What a part does before its first action, and behind its last one.
    divided : mapping of Action to tuple of Job
        What actions take: several jobs, where the part waits for weights, or sends gradients, in
        their midst.
    """

    journeys: tuple[Journey, ...]
    first: Mapping[int, tuple[Job, ...]]
    last: Mapping[int, tuple[Job, ...]]
    divided: Mapping[Action, tuple[Job, ...]]


NONE = SharedWeights((), {}, {}, {})


def shared_weights(placement: Placement, schedule: Schedule, costs: MeasuredCosts) -> SharedWeights:
    """Find what travels of weights in a step.

    Parameters
    ----------
    placement : Placement
        All its parts in this process.
    schedule : Schedule
        Of a step.
    costs : MeasuredCosts

    Raises
    ------
    ArgumentError
        If it is of a stream, whose parts share weights.
    """
    if len(placement.programs.shares) == 1 or not schedule.backward:
        alone = {one: (costs.job(one),) for one in schedule.order}
        late = {part: costs.products(part) for part in range(placement.k) if schedule.backward}
        behind = {part: (job,) for part, job in late.items() if job.seconds}
        return SharedWeights((), {}, behind, alone)
    if schedule.in_flight is not None:
        raise ArgumentError(
            "a stream by a plan over slices of the batch: accepted is a schedule of a step, as "
            "what travels of its weights is not simulated"
        )
    copies = placement.copies
    numbers = [at for at, one in enumerate(copies.weights) if one.owner != one.holder]
    there = {number: at for at, number in enumerate(numbers)}
    back = {number: at + len(numbers) for at, number in enumerate(numbers)}
    journeys = [_journey(placement, costs, number, False) for number in numbers]
    journeys += [_journey(placement, costs, number, True) for number in numbers]
    first, last = dict[int, tuple[Job, ...]](), dict[int, tuple[Job, ...]]()

    def handled(some: Sequence[int]) -> float:
        """Seconds of a part that packs what goes with others in a message, or takes it apart."""
        several = [one for one in map(copies.weights.__getitem__, some) if len(one.elements) > 1]
        return costs.handled(0, sum(map(copies.nbytes, several)))

    def added(some: Sequence[int]) -> float:
        """Seconds of a part that adds gradients of others to its own."""
        nbytes = sum(copies.nbytes(copies.weights[one]) for one in some)
        return costs.handled(len(some), nbytes)

    def departs(some: Sequence[int]) -> float:
        """Seconds of a part that lets gradients depart, while parts compute."""
        return handled(some) + costs.handled(len(some), 0)

    divided: dict[Action, tuple[Job, ...]] = {}
    for part in range(placement.k):
        held = [number for number in numbers if copies.weights[number].holder == part]
        owned = [number for number in numbers if copies.weights[number].owner == part]
        used = _weights_of_steps(placement, part, {*held})
        own = dict(_divided(schedule.sequences[part], costs, used, there, back, handled, departs))
        divided.update(own)
        jobs_of_steps = [job for jobs in own.values() for job in jobs]
        awaited = {one for job in jobs_of_steps for one in job.awaits}
        departed = {one for job in jobs_of_steps for one in job.sends}
        unused = [number for number in held if back[number] not in departed]
        arriving = [number for number in unused if there[number] not in awaited]
        others = Job(
            departs(unused) + handled(arriving),
            awaits=tuple(there[number] for number in unused),
            sends=tuple(back[number] for number in unused),
        )
        come = tuple(back[number] for number in owned)
        departing = Job(handled(owned), sends=tuple(there[number] for number in owned))
        first[part] = (departing,)
        last[part] = (costs.products(part), others, Job(added(owned), awaits=come))
    return SharedWeights(tuple(journeys), first, last, divided)


def _journey(placement: Placement, costs: MeasuredCosts, number: int, back: bool) -> Journey:
    one = placement.copies.weights[number]
    sender, receiver = (one.holder, one.owner) if back else (one.owner, one.holder)
    nbytes = placement.copies.nbytes(one)
    one_way, both_ways = (
        costs.exchange(sender, receiver, nbytes, both_ways=both) for both in (False, True)
    )
    return Journey(sender, receiver, one_way, both_ways, costs.machine.handling * nbytes)


def _weights_of_steps(
    placement: Placement, part: int, numbers: set[int]
) -> Mapping[str, Sequence[int]]:
    """By step, the weights of other parts that it computes with."""
    module = placement.programs.parts[part].module
    names = {name for name, _ in module.named_children()}
    found = {name: placement.copies.of_step(attrgetter(name)(module)) for name in names}
    return {
        name: [number for number in of_step if number in numbers] for name, of_step in found.items()
    }


def _divided(
    actions: Sequence[Action],
    costs: MeasuredCosts,
    used: Mapping[str, Sequence[int]],
    there: Mapping[int, int],
    back: Mapping[int, int],
    handled: Callable[[Sequence[int]], float],
    departs: Callable[[Sequence[int]], float],
) -> Iterator[tuple[Action, tuple[Job, ...]]]:
    """The actions of a part, in as many jobs as there are waits for weights and departures."""
    uses = Counter[int]()
    for action in actions:
        if action.direction in LATER:
            for name in costs.names(action):
                uses.update(used.get(name, ()))
    came = set[int]()
    for action in actions:
        names = costs.names(action)
        if not any(used.get(name) for name in names):
            yield action, (costs.job(action),)
            continue
        found: list[Job] = []
        awaits: tuple[int, ...] = ()
        since = [costs.again_in(action)]
        for name, job in zip(names, costs.jobs_of_steps(action), strict=True):
            numbers = used.get(name, ())
            new = [number for number in numbers if number not in came]
            came.update(numbers)
            if new:
                found.append(together(since)._replace(awaits=awaits))
                awaits, since = tuple(there[number] for number in new), [Job(handled(new))]
            since.append(job)
            departing: list[int] = []
            if action.direction in LATER:
                uses.subtract(numbers)
                departing = [number for number in numbers if not uses[number]]
            if departing:
                since.append(Job(departs(departing)))
                sends = tuple(back[number] for number in departing)
                found.append(together(since)._replace(awaits=awaits, sends=sends))
                awaits, since = (), []
        since.append(costs.moved_in(action))
        yield action, (*found, together(since)._replace(awaits=awaits))
