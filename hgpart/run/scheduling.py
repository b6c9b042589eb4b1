"""Placement + a rule -> Schedule: what each part does when, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, RunError
from hgpart.execution.outlines import outline
from hgpart.hypergraph.shares import part_shares
from hgpart.placement import Placement
from hgpart.run.distributed import DistributedModel
from hgpart.run.schedule_wanted import Scheduling
from hgpart.schedules import check_micro_batches, check_rule, make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules import DEFAULT, STREAMS
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.schedule_files import read_schedule


def schedule(
    placement: Placement,
    rule: str = DEFAULT,
    micro_batches: int = 1,
    costs: Costs | None = None,
    *,
    backward: bool = True,
    in_flight: int | None = None,
) -> Schedule:
    """Order what the parts of a placement do in a step or a stream, in its present mode.

    All parts' sequences are cut from one global order, in which each action stands behind what it
    needs: so no schedule can come to a stop, and sums have one order, the same in each run. It is
    the same by all rules, but for the gradients of weights that several layers share: there each
    rule has its own, and results may differ between rules by rounding.

    Parameters
    ----------
    placement : Placement
        All its parts in this process.
    rule : str
        ``sequential``, ``gpipe``, ``1f1b``, ``zero-bubble`` or ``greedy``; ``async`` is for
        `Placement.stream`.
    micro_batches : int
        That a batch is divided into; of a stream, its batches.
    costs : Costs, optional
        What actions and messages are taken to last; `costs_of` the placement when left out.
    backward : bool
        Whether a step has backward passes.
    in_flight : int, optional
        Batches of a stream that each part may have begun at a time; 2 when left out.

    Raises
    ------
    ArgumentError
        If there is no such rule, there are no micro-batches, a stream is to do without backward
        passes, or there are to be batches in flight by another rule.
    RunError
        If this process does not hold all parts.
    """
    check_rule(rule)
    check_micro_batches(micro_batches)
    costs = _costs(placement, rule, micro_batches) if costs is None else costs
    options: dict[str, Any] = {"backward": backward, "in_flight": in_flight}
    return make_schedule(all_outlines(placement), rule, micro_batches, costs, **options)


def schedule_among(
    model: DistributedModel,
    rule: str = DEFAULT,
    micro_batches: int = 1,
    costs: Costs | None = None,
    *,
    backward: bool = True,
    in_flight: int | None = None,
) -> Schedule:
    """The same as `schedule` where each rank has its own part; all ranks call it."""
    placement, connection = model.placement, model.connection
    costs = _costs(placement, rule, micro_batches) if costs is None else costs
    outlines = connection.gather(next(outlines_here(placement)))
    options: dict[str, Any] = {"backward": backward, "in_flight": in_flight}
    return make_schedule(outlines, rule, micro_batches, costs, **options)


def _costs(placement: Placement, rule: str, micro_batches: int) -> Costs:
    return costs_of(placement, 1 if rule in STREAMS else micro_batches)


def load_schedule(path: Path | str, placement: Placement) -> Schedule:
    """Read a file of `save_schedule`, which has to be for this placement, in its present mode.

    Raises
    ------
    FormatError
        If it is no schedule, or no valid one.
    PlanError
        If it is for another placement.
    """
    return read_schedule(path).of(all_outlines(placement))


def wanted_schedule(
    placement: Placement, wanted: Scheduling, backward: bool, batches: int = 1
) -> Schedule:
    """What is wanted, by a rule as `schedule` or from a file as `load_schedule`.

    Of a stream, for a number of batches.

    Raises
    ------
    ArgumentError
        If there are to be backward passes, and the file has none.
    """
    if wanted.file is None:
        return schedule(placement, **_asked(wanted, backward, batches))
    return _for_mode(wanted.file.of(all_outlines(placement)), wanted, backward)


def wanted_among(
    model: DistributedModel, wanted: Scheduling, backward: bool, batches: int = 1
) -> Schedule:
    """The same as `wanted_schedule` where each rank has its own part; all ranks call it."""
    if wanted.file is None:
        return schedule_among(model, **_asked(wanted, backward, batches))
    outlines = model.connection.gather(next(outlines_here(model.placement)))
    return _for_mode(wanted.file.of(outlines), wanted, backward)


def _asked(wanted: Scheduling, backward: bool, batches: int) -> dict[str, Any]:
    return {
        "rule": wanted.rule,
        "micro_batches": batches if wanted.is_stream else wanted.micro_batches,
        "backward": backward,
        "in_flight": wanted.in_flight,
    }


def _for_mode(schedule: Schedule, wanted: Scheduling, backward: bool) -> Schedule:
    if backward and not schedule.backward:
        raise ArgumentError(
            f"{wanted.name} is a schedule without backward passes: accepted in training is one "
            "that has some"
        )
    return schedule if backward else schedule.forward_only


def costs_of(placement: Placement, micro_batches: int) -> Costs:
    """Estimates for the plan's batch: by measured work, or so many operations a second."""
    work = placement.work
    each = 1.0 if work.unit == "s" else Costs.work
    samples = placement.partition.modelling.batch_size / max(1, micro_batches)
    return Costs(samples=samples, work=each / work.units)


def all_outlines(placement: Placement) -> tuple[Outline, ...]:
    """The chunks of all parts."""
    held = placement.programs
    if len(held) != placement.k:
        raise RunError(
            f"this process holds {len(held)} of {placement.k} parts: accepted is all of them"
        )
    return tuple(outlines_here(placement))


def outlines_here(placement: Placement) -> Iterator[Outline]:
    """The chunks of the parts that this process holds."""
    partition = placement.partition
    layer_work = part_shares(partition.model, partition.parts, placement.k).layer_work
    for part in sorted(placement.programs):
        yield outline(placement.programs[part], _step_work(placement, part, layer_work[:, part]))


def _step_work(placement: Placement, part: int, shares: Int64) -> Mapping[str, float]:
    """Work of a part's steps by name, for a sample; a layer's is that of its first step."""
    names = placement.blueprint.names
    steps = dict(placement.programs[part].module.named_children())
    return {
        partial if (partial := f"{names[at]}_partial") in steps else names[at]: float(shares[at])
        for at in np.flatnonzero(shares).tolist()
    }
