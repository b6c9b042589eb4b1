"""Placement, a loss -> Schedule: how a step is run where nobody says how.

It is what the plan says or, where that says nothing, the number of micro-batches by which a step of
the plan is simulated fastest, by estimated costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hgpart.errors import PlacementError
from hgpart.execution.runtime import Gather
from hgpart.placement.batches.loss_counts import adds_up
from hgpart.placement.ordering.ordered import costs_of, from_one, outlines_here
from hgpart.placement.placement import Placement
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules import make_schedule
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import times
from hgpart.work.estimated_times import READING

RULE, COUNTS = "greedy", (1, 2, 4, 8)
GAIN = 0.9  # of the seconds of fewer micro-batches: what saves less by rough costs may save nothing
ENOUGH = 8  # samples for a norm to take its statistics from, where nobody asks for fewer
MOST_CHUNKS = 4000  # of which there is time for all these orders


class Fastest(NamedTuple):
    """A schedule, and what steps take by estimated costs.

    Attributes
    ----------
    seconds, at_once : float
        Seconds of a step by this schedule, and with the whole batch at once.
    for_norms : int or None
        The fewest samples that a norm takes its statistics from, if there are norms.
    why_whole : str
        Why no other number of micro-batches was simulated, if none was.
    """

    scheduling: Scheduling
    seconds: float
    at_once: float
    for_norms: int | None = None
    why_whole: str = ""

    @property
    def text(self) -> str:
        """One line for people.

        >>> Fastest(Scheduling("greedy", 4), 1.0, 1.5).text
        'Schedule: greedy, 4 micro-batches, simulated 1.50 times as fast as 1; the plan names none'
        """
        count = self.scheduling.micro_batches
        if self.why_whole:
            return f"Schedule: the whole batch at once: {self.why_whole}; the plan names none"
        if count == 1:
            return "Schedule: the whole batch at once, simulated to be fastest; the plan names none"
        times = f"{self.at_once / self.seconds:.2f} times as fast as 1"
        of_norms = f"; norms see {self.for_norms} samples" if self.for_norms else ""
        return f"Schedule: {self.scheduling.text}, simulated {times}{of_norms}; the plan names none"


def fastest(
    placement: Placement,
    batch_size: int,
    *,
    backward: bool = True,
    exact: bool = False,
    gather: Gather = from_one,
) -> Fastest:
    """Find the number of micro-batches by which a step is simulated fastest.

    Parameters
    ----------
    exact : bool
        Whether the results have to be those of the whole batch: where norms take statistics of
        samples, it is not divided. Otherwise they take them of 8 samples or more.
    gather : callable
        Gathers a value of each process; all call this.
    """
    outlines = [outline for here in gather([*outlines_here(placement)]) for outline in here]
    seconds: dict[int, float] = {}
    counts, why_whole = _counts(placement, outlines, batch_size, exact)
    for count in counts:
        costs = costs_of(placement, count, batch_size)
        made = make_schedule(outlines, RULE, count, costs, backward=backward)
        seconds[count] = max((end for _, end in times(outlines, made.order, costs)), default=0.0)
        seconds[count] += (count - 1) * _reading(placement)
    best = 1
    for count, spent in seconds.items():
        if spent < GAIN * seconds[best]:
            best = count
    for_norms = None
    if placement.programs.blueprint.has_norms:
        for_norms = _samples_of_norms(placement, batch_size // best)
    return Fastest(Scheduling(RULE, best), seconds[best], seconds[1], for_norms, why_whole)


class UsualSchedules:
    """The schedules of a placement's steps for which none is given, each made once.

    Parameters
    ----------
    scheduling : Scheduling or None
        The schedule of the plan, if it has one.
    """

    def __init__(self, scheduling: Scheduling | None) -> None:
        self._planned = scheduling
        self._made: dict[tuple[object, ...], Schedule] = {}

    def __call__(
        self,
        placement: Placement,
        whole_batch: Schedule,
        batch_size: int,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        gather: Gather = from_one,
    ) -> Schedule:
        """The schedule of a step with a loss in grad mode; without, it is `whole_batch`.

        The batch is divided only where losses and results are sure to be those of the whole batch,
        whatever the plan says. `gather` gathers a value of each process that has parts; all call
        this.
        """
        if loss_fn is None or not torch.is_grad_enabled():
            return whole_batch
        known = adds_up(loss_fn)
        key = placement.forms.present, batch_size, known
        if key not in self._made:
            self._made[key] = self._new(placement, whole_batch, batch_size, known, gather)
        return self._made[key]

    def _new(
        self,
        placement: Placement,
        whole_batch: Schedule,
        batch_size: int,
        adds_up: bool,
        gather: Gather,
    ) -> Schedule:
        planned = self._planned
        # Chunks that are recomputed where this saves memory depend on the batch, stretches do not.
        recompute = False if planned is None else planned.recompute
        stretches = () if isinstance(recompute, bool) else recompute
        divided = None
        if placement.k > 1 and adds_up:
            divided = (
                planned or fastest(placement, batch_size, exact=True, gather=gather).scheduling
            )
        if divided is None or not _may_divide(placement, divided, batch_size):
            if not any(stretches):
                return whole_batch
            divided = Scheduling(RULE)
        here = [*outlines_here(placement, stretches)]
        outlines = [outline for of_rank in gather(here) for outline in of_rank]
        costs = costs_of(placement, divided.micro_batches, batch_size)
        return make_schedule(outlines, divided.rule, divided.micro_batches, costs)


def _may_divide(placement: Placement, scheduling: Scheduling, batch_size: int) -> bool:
    """Whether a step by this schedule has the results of the whole batch."""
    slices = placement.programs.partition.modelling.slices
    count = scheduling.micro_batches
    if scheduling.is_stream or count * slices > batch_size:
        return False
    return count == 1 or not placement.programs.blueprint.has_norms


def _counts(
    placement: Placement, outlines: Sequence[Outline], batch_size: int, exact: bool
) -> tuple[list[int], str]:
    """Numbers of micro-batches to simulate, ascending; why it is 1 alone, if it is."""
    programs = placement.programs
    has_norms, slices = programs.blueprint.has_norms, programs.partition.modelling.slices
    chunks = sum(len(outline.forward) + len(outline.backward) for outline in outlines)
    if placement.k == 1:
        return [1], "there is one part"
    if chunks > MOST_CHUNKS:
        return [1], f"its {chunks:,} chunks are too many to simulate, {MOST_CHUNKS:,} at most"
    if exact and has_norms:
        return [1], "norms take statistics of its samples"
    try:
        programs.check_micro_batches(2)
    except PlacementError as error:
        return [1], str(error)
    counts, least = [1], ENOUGH if has_norms else 1
    for count in COUNTS[1:]:
        size = batch_size // count
        if size >= slices and _samples_of_norms(placement, size) >= least:
            counts.append(count)
    if len(counts) > 1:
        return counts, ""
    needed = f"norms take their statistics of {least} samples or more"
    return counts, needed if has_norms else f"a batch of {batch_size} has too few samples to divide"


def _reading(placement: Placement) -> float:
    """Seconds in which the part that has most weights reads them, forward and back once more."""
    partition = placement.programs.partition
    return 2 * float(partition.shares.parameter_bytes.max()) / READING


def _samples_of_norms(placement: Placement, size: int) -> int:
    """The fewest samples of a micro-batch that a norm would take its statistics from."""
    programs = placement.programs
    return size if programs.has_norms_of_batch else min(sizes_of(programs.shares, size))
