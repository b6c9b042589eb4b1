"""Placement, what its steps take -> bytes that each device needs; and a plan for what they have.

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
import torch
from torch import nn

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, HgpartError, InfeasibleError, PlacementError
from hgpart.execution.outlines import chunk_steps
from hgpart.machines.machine import Machine
from hgpart.partition.partition import Partition, uninterrupted
from hgpart.partition.problem.memory import in_words
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve_in_tiles
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement import Placement, place
from hgpart.placement.accounting import account, known_step_bytes
from hgpart.placement.ordering.ordered import step_work
from hgpart.placement.ordering.usual_schedule import fastest
from hgpart.placement.ordering.within_memory import dropped_within
from hgpart.plan import Plan
from hgpart.run.processes.lanes import lane_bytes
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.input_shape import InputShape

OPTIMIZER = "sgd with momentum"  # what `hgpart train` takes where nothing is said
BESIDES = "Python with its libraries takes 300 to 400 MB besides"
STEP_BYTES = 350_000  # of what Python has for a step of a part: measured for unet and resnet50
SEARCHES = 3
WAYS = ("spatial", "spatial-data", "data-parallel")  # where no search fits: parts keep as much


def lasting_bytes(
    placement: Placement,
    batch_size: int,
    optimizer: str | None = OPTIMIZER,
    devices: Sequence[str] | None = None,
) -> tuple[int | None, ...]:
    """What each part has from step to step: parameters and, with an optimizer, its state.

    And its other tensors, with what arrives of the weights of others, and what its process takes
    besides tensors; None where an operator can't be run without memory, so that nothing is known.
    Gradients are part of what a step takes. `devices` are as in `known_step_bytes`.
    """
    try:
        parts = account(placement, batch_size).parts
    except PlacementError:
        return (None,) * placement.k
    on_cpu = [devices is None or not devices[part.part].startswith("cuda") for part in parts]
    return tuple(
        part.lasting_bytes(optimizer) + here * process_bytes(placement, part.part)
        for part, here in zip(parts, on_cpu, strict=True)
    )


def process_bytes(placement: Placement, part: int) -> int:
    """What a process takes besides tensors, among several: lanes to others, objects of its part."""
    if placement.k == 1:
        return 0
    steps = sum(map(len, chunk_steps(placement.programs.parts[part])))
    return lane_bytes(placement.k) + steps * STEP_BYTES


def needed_bytes(
    lasting: Sequence[int | None],
    versions: Sequence[int],
    step_bytes: Sequence[int | None],
    scheduling: Scheduling,
) -> tuple[int | None, ...]:
    """The same and the most that the part takes in a step.

    Parameters
    ----------
    lasting : sequence of int or None
        What `lasting_bytes` returns.
    versions : sequence of int
        Bytes of each part's parameters, which batches in flight have versions of.
    step_bytes : sequence of int or None
        The most that each part takes in a step; see `StepBytes.taken`.
    """
    more = (scheduling.most_in_flight - 1) * scheduling.stash
    return tuple(
        None if kept is None or step is None else kept + step + more * version
        for kept, step, version in zip(lasting, step_bytes, versions, strict=True)
    )


def limits_of(machine: Machine, memory: int | None) -> tuple[int | None, ...]:
    """Bytes of each device: what is given for all, or what the machine says."""
    return tuple(device.memory if memory is None else memory for device in machine.devices)


def what_is_over(needed: Sequence[int | None], limits: Sequence[int | None]) -> str | None:
    """Say which device is short of most, if one is.

    >>> what_is_over((5_000_000, 2_000_000), (1_000_000, None))
    'device 0 needs 5.0 MB of 1.0 MB'
    """
    over = [
        (size - limit, at)
        for at, (size, limit) in enumerate(zip(needed, limits, strict=False))
        if size is not None and limit is not None and size > limit
    ]
    if not over:
        return None
    _, at = max(over, key=lambda excess: (excess[0], -excess[1]))
    return f"device {at} needs {_size(needed[at])} of {_size(limits[at])}"


def _size(size: int | None) -> str:
    known = size or 0
    return f"{known / 1e6:,.1f} MB" if known >= 100_000 else f"{known:,} bytes"


@dataclass(frozen=True, eq=False)
class TrainingWanted:
    """How a model is to be trained.

    Attributes
    ----------
    module : nn.Module
        The model in training mode; its weights need no memory.
    name : str
        The model spec, as `load_model` takes it.
    shape : InputShape
        The inputs that the model takes for each sample.
    scheduling : Scheduling or None
        Schedule of a step. Default: what is simulated fastest; where nothing fits without, parts
        recompute as much as they have to.
    optimizer : str
        See `PartFigures.optimizer_bytes`.
    norms : str
        See `hgpart.place`.
    devices : sequence of str or None
        The device of each part. Default: CPUs.
    autocast : torch.dtype or None
        The type of autocast, if that is used.
    """

    module: nn.Module
    name: str
    shape: InputShape
    scheduling: Scheduling | None = None
    optimizer: str = OPTIMIZER
    norms: str = "micro-batch"
    devices: Sequence[str] | None = None
    autocast: torch.dtype | None = None


@dataclass(frozen=True, eq=False)
class PlanInMemory:
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
        at = self.fullest
        of_limit = "" if limits is None else f" of {in_words(limits.bytes[at])}"
        scheduling = self.plan.scheduling
        besides = f" ({BESIDES})" * (scheduling is not None and bool(scheduling.dropped))
        return (
            f"Plan: {', '.join(self.divided)}; a step needs most memory on device {at}, "
            f"{in_words(self.needed_bytes[at])}{of_limit}{besides}"
        )

    @property
    def fullest(self) -> int:
        """The device that needs most, compared with its limit if there is one."""
        return int(np.argmax(self.over))

    @property
    def over(self) -> Int64:
        """Bytes that each device needs beyond its limit, below 0 where it has some left."""
        limits = self.plan.partition.problem.memory
        needed = np.array(self.needed_bytes, dtype=np.int64)
        return needed if limits is None else needed - np.array(limits.bytes)

    @property
    def divided(self) -> list[str]:
        """What there are several of, in words."""
        partition = self.plan.partition
        modelling = partition.modelling
        said = [f"{partition.k} device{'s' * (partition.k > 1)}"]
        said += [f"{modelling.slices} slices of the batch"] * (modelling.slices > 1)
        said += [f"{modelling.bands} bands of rows"] * (modelling.bands > 1)
        scheduling = self.plan.scheduling
        return said if scheduling is None else said + scheduling.dropped_words


def plan_in_memory(wanted: TrainingWanted, problem: Problem, search: Search) -> PlanInMemory:
    """Divide a model, its batch and its rows so that each device has room for its part.

    Parameters
    ----------
    problem : Problem
        With limits of memory, or without; in one slice and one band, whose numbers are chosen.

    Returns
    -------
    PlanInMemory
        The first that fits: what a search finds, or else a known way.

    Raises
    ------
    InfeasibleError
        If none fits; the message says what would.
    ArgumentError, PlacementError
        If the model can't be trained so by any of them, or it can't be known what an operator
        needs.
    """
    limits = problem.memory
    tried, refused = list[PlanInMemory](), list[HgpartError]()
    for partition in _divided(problem, search, tried, refused):
        counted = None if limits is None else limits.needed(partition.model, partition.parts)
        own = replace(
            partition,
            problem=replace(partition.problem, memory=limits),
            memory_bytes=counted,
        )
        try:
            tried.append(_in_memory(wanted, own))
        except (ArgumentError, PlacementError) as error:
            refused.append(error)
            continue
        if _fits(tried[-1]):
            return tried[-1]
    if not tried:
        raise refused[0]
    least = min(tried, key=_lacking)
    if wanted.scheduling is None:
        for plan in sorted(tried, key=_lacking)[:SEARCHES]:
            again = _in_memory(wanted, plan.plan.partition, recomputing=True)
            if _fits(again):
                return again
            least = min(least, again, key=_lacking)
    raise _too_large(least)


def _divided(
    problem: Problem,
    search: Search,
    tried: Sequence[PlanInMemory],
    refused: Sequence[HgpartError],
) -> Iterator[Partition]:
    """Partitions to try: of least traffic, then with less of the memory as it counts, then ways.

    Where one is refused, by a norm or a stream, the next search is without bands, then slices.
    """
    limits, any_slices, any_bands = problem.memory, problem.modelling.batch_size > 1, True
    problem = replace(problem, memory=None)
    for _ in range(SEARCHES):
        try:
            partition = solve_in_tiles(problem, search, any_slices=any_slices, any_bands=any_bands)
        except InfeasibleError:
            if not tried and not refused:
                raise
            break
        known = len(refused)
        yield uninterrupted(partition)
        if len(refused) > known:
            modelling = partition.modelling
            if modelling.bands == modelling.slices == 1:
                return
            any_slices, any_bands = any_slices and modelling.bands > 1, False
            continue
        if limits is None or problem.k == 1:
            return
        counted = np.maximum(limits.needed(partition.model, partition.parts), 1).tolist()
        ratio = max(map(truediv, tried[-1].needed_bytes, counted))
        less = tuple(round(limit / ratio) for limit in limits.bytes)
        problem = replace(problem, memory=replace(limits, bytes=less))
    for name in WAYS:
        try:
            yield way_named(name).partition(replace(problem, memory=None), search)
        except HgpartError:  # the model or the batch can't be divided so
            continue


def _in_memory(
    wanted: TrainingWanted, partition: Partition, *, recomputing: bool = False
) -> PlanInMemory:
    """A partition as a plan with a schedule, and what its parts need when they are placed.

    With `recomputing`, parts recompute some of their steps so as to fit, or else all they can.
    """
    k, size = partition.k, partition.modelling.batch_size
    plan = Plan(partition, wanted.name, wanted.shape)
    placement = place(wanted.module, plan, ["meta"] * k, norms=wanted.norms).train(True)
    if wanted.autocast is not None:
        with torch.autocast("cpu", wanted.autocast):
            placement.programs.check_norms_of_batch([torch.device("cpu")])
    chosen = wanted.scheduling or fastest(placement, size).scheduling
    needed, steps = _needed(wanted, placement, partition, chosen)
    if recomputing and partition.problem.memory is not None:
        limits = partition.problem.memory.bytes
        left = [
            limit - (need - step) for limit, need, step in zip(limits, needed, steps, strict=True)
        ]
        schedule = wanted_schedule(placement, chosen, True, chosen.sample_batches, size)
        work = [*step_work(placement.programs).values()]
        stretches = dropped_within(placement, schedule, left, work, size, wanted.devices)
        chosen = replace(chosen, recompute=stretches or True)
        needed, _ = _needed(wanted, placement, partition, chosen)
    kept = chosen if chosen.file is None else None
    return PlanInMemory(replace(plan, scheduling=kept), needed)


def _needed(
    wanted: TrainingWanted, placement: Placement, partition: Partition, scheduling: Scheduling
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What each part needs by a schedule in all, and what it takes in a step."""
    size = partition.modelling.batch_size
    schedule = wanted_schedule(placement, scheduling, True, scheduling.sample_batches, size)
    if scheduling.is_stream:
        placement.programs.check_stream(schedule, scheduling.stash)
    step_bytes = known_step_bytes(placement, schedule, size, wanted.devices)
    steps = [known and known.taken for known in step_bytes]
    lasting = lasting_bytes(placement, size, wanted.optimizer, wanted.devices)
    versions = partition.shares
    needed = needed_bytes(lasting, versions.parameter_bytes.tolist(), steps, scheduling)
    if None in needed:
        raise PlacementError(
            f"what part {needed.index(None)} needs can't be counted, as it has an operator that "
            "can't be run without memory: accepted is a plan of 'hgpart partition --memory'"
        )
    return _whole(needed), _whole(steps)


def _whole(sizes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(size for size in sizes if size is not None)


def _fits(plan: PlanInMemory) -> bool:
    return plan.plan.partition.problem.memory is None or _lacking(plan) <= 0


def _lacking(plan: PlanInMemory) -> int:
    """Bytes that the device lacks which lacks most."""
    return int(plan.over.max())


def _too_large(least: PlanInMemory) -> InfeasibleError:
    """The error that says what lacks least of all that was tried, which would do."""
    limits, at = least.plan.partition.problem.memory, least.fullest
    assert limits is not None
    sizes = ", ".join(dict.fromkeys(map(in_words, limits.bytes)))
    return InfeasibleError(
        f"no plan for {least.divided[0]} of {sizes} was found: the one that lacks least "
        f"({', '.join(least.divided)}) needs {in_words(least.needed_bytes[at])} on device {at} of "
        f"{in_words(limits.bytes[at])}; accepted is that much memory, more devices, a smaller "
        "batch or smaller images"
    )
