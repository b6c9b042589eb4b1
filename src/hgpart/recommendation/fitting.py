"""Model, Problem with memory limits -> a plan whose parts, placed, need no more than that.

A search knows what a part keeps by its parameters and maps. What a step takes besides (what layers
keep inside, inputs put together of several parts' rows, what convolutions pack, messages) is known
of a placement. So what a search finds is placed without memory, and where that needs too much, the
next search is given less than there is, by as much as was needed besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import truediv

import numpy as np
from torch import nn

from hgpart.errors import HgpartError, InfeasibleError, PlacementError
from hgpart.partition.partition import Partition, uninterrupted
from hgpart.partition.problem.memory import in_words
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve_in_tiles
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement import place
from hgpart.placement.accounting import known_step_bytes
from hgpart.placement.ordering.usual_schedule import fastest
from hgpart.plan import Plan
from hgpart.recommendation.memory import OPTIMIZER, lasting_bytes, needed_bytes
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling

SEARCHES = 3
WAYS = ("spatial", "spatial-data", "data-parallel")  # where no search fits: all keep about as much


@dataclass(frozen=True, eq=False)
class Asked:
    """How a model is to be trained.

    Attributes
    ----------
    module : nn.Module
        The model in training mode; its weights need no memory.
    name : str
        The model spec, as `load_model` takes it.
    shape : tuple of int
        Shape of one sample.
    scheduling : Scheduling or None
        Schedule of a step. Default: what is simulated fastest; its maps are recomputed where
        nothing fits without.
    optimizer : str
        See `PartFigures.optimizer_bytes`.
    norms : str
        See `hgpart.place`.
    """

    module: nn.Module
    name: str
    shape: tuple[int, ...]
    scheduling: Scheduling | None = None
    optimizer: str = OPTIMIZER
    norms: str = "micro-batch"


@dataclass(frozen=True, eq=False)
class Fitted:
    """A plan, and what its devices need.

    Attributes
    ----------
    needed_bytes : tuple of int
        Bytes that each device needs for a training step, without those of libraries.
    """

    plan: Plan
    needed_bytes: tuple[int, ...]

    @property
    def text(self) -> str:
        """One line for people."""
        limits = self.plan.partition.problem.memory
        of_limit = "" if limits is None else f" of {in_words(min(limits.bytes))}"
        return (
            f"Plan: {', '.join(self.divided)}; a step needs most memory on device {self.fullest}, "
            f"{in_words(max(self.needed_bytes))}{of_limit}"
        )

    @property
    def fullest(self) -> int:
        """The device that needs most."""
        return self.needed_bytes.index(max(self.needed_bytes))

    @property
    def divided(self) -> list[str]:
        """What there are several of, in words."""
        partition, scheduling = self.plan.partition, self.plan.scheduling
        modelling = partition.modelling
        said = [f"{partition.k} devices"]
        said += [f"{modelling.slices} slices of the batch"] * (modelling.slices > 1)
        said += [f"{modelling.bands} bands of rows"] * (modelling.bands > 1)
        recomputed = scheduling is not None and scheduling.recompute
        return said + ["maps recomputed"] * recomputed


def fitting_plan(asked: Asked, problem: Problem, search: Search) -> Fitted:
    """Divide a model, its batch and its rows so that each device has room for its part.

    Parameters
    ----------
    problem : Problem
        With limits of memory, or without; in one slice and one band, whose numbers are chosen.

    Returns
    -------
    Fitted
        The first that fits: what a search finds, or else a known way.

    Raises
    ------
    InfeasibleError
        If none fits; the message says what would.
    PlacementError
        If it can't be known what an operator needs.
    """
    limits, tried = problem.memory, list[Fitted]()
    for partition in _divided(asked, problem, search, tried):
        counted = None if limits is None else limits.needed(partition.model, partition.parts)
        own = replace(
            partition,
            problem=replace(partition.problem, memory=limits),
            memory_bytes=counted,
        )
        tried.append(_fitted(asked, own))
        if _fits(tried[-1]):
            return tried[-1]
    least = min(tried, key=lambda fitted: max(fitted.needed_bytes))
    if asked.scheduling is None:
        recomputed = replace(least.plan.scheduling or Scheduling(), recompute=True)
        again = _fitted(replace(asked, scheduling=recomputed), least.plan.partition)
        if _fits(again):
            return again
        least = min(least, again, key=lambda fitted: max(fitted.needed_bytes))
    raise _too_large(least)


def _divided(
    asked: Asked, problem: Problem, search: Search, tried: Sequence[Fitted]
) -> Iterator[Partition]:
    """Partitions to try: of least traffic, then with less of the memory as it counts, then ways."""
    limits, any_slices = problem.memory, problem.modelling.batch_size > 1
    problem = replace(problem, memory=None)
    for _ in range(SEARCHES):
        try:
            found = solve_in_tiles(problem, search, any_slices=any_slices, any_bands=True)
        except InfeasibleError:
            if not tried:
                raise
            break
        yield uninterrupted(found)
        if limits is None or problem.k == 1:
            return
        counted = np.maximum(limits.needed(found.model, found.parts), 1).tolist()
        ratio = max(map(truediv, tried[-1].needed_bytes, counted))
        less = tuple(round(limit / ratio) for limit in limits.bytes)
        problem = replace(problem, memory=replace(limits, bytes=less))
    for name in WAYS:
        try:
            yield way_named(name).partition(replace(problem, memory=None), search)
        except HgpartError:  # the model or the batch can't be divided so
            continue


def _fitted(asked: Asked, partition: Partition) -> Fitted:
    """A partition as a plan with a schedule, and what its parts need when they are placed."""
    k, size = partition.k, partition.modelling.batch_size
    plan = Plan(partition, asked.name, asked.shape)
    placement = place(asked.module, plan, ["meta"] * k, norms=asked.norms).train(True)
    chosen = asked.scheduling or fastest(placement, size).scheduling
    schedule = wanted_schedule(placement, chosen, True, chosen.sample_batches, size)
    steps = [known and known.taken for known in known_step_bytes(placement, schedule, size)]
    lasting, versions = lasting_bytes(placement, size, asked.optimizer), partition.shares
    needed = needed_bytes(lasting, versions.parameter_bytes.tolist(), steps, chosen)
    known = tuple(nbytes for nbytes in needed if nbytes is not None)
    if len(known) < k:
        raise PlacementError(
            f"what part {needed.index(None)} needs can't be counted, as it has an operator that "
            "can't be run without memory: accepted is a plan of 'hgpart partition --memory'"
        )
    kept = chosen if chosen.file is None else None
    return Fitted(replace(plan, scheduling=kept), known)


def _fits(fitted: Fitted) -> bool:
    limits = fitted.plan.partition.problem.memory
    return limits is None or limits.hold(np.array(fitted.needed_bytes))


def _too_large(least: Fitted) -> InfeasibleError:
    """The error that says what needs least of all that was tried, which would do."""
    partition, most = least.plan.partition, max(least.needed_bytes)
    limits = partition.problem.memory
    assert limits is not None
    return InfeasibleError(
        f"no plan for {partition.k} devices of {in_words(min(limits.bytes))} was found: the one "
        f"that needs least ({', '.join(least.divided)}) needs {in_words(most)} on device "
        f"{least.fullest}; accepted is that much memory, more devices, a smaller batch or smaller "
        "images"
    )
