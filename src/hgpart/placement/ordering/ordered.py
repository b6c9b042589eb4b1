"""Placement, costs -> Schedule: its parts' programs in outline, put in order by a rule."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import RunError, check_whole
from hgpart.execution.outlines import chunk_steps, outline, with_dropped
from hgpart.execution.program import PartProgram
from hgpart.execution.runtime import Gather
from hgpart.hypergraph.shares import part_shares
from hgpart.partition import Partition
from hgpart.placement.accounting import peaks_by, step_memory
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.ordering.stretches import worth_recomputing
from hgpart.placement.placement import Placement
from hgpart.placement.programs import Programs
from hgpart.schedules import check_micro_batches
from hgpart.schedules.costs import CostModel, Costs
from hgpart.schedules.outline import Outline, Stretch
from hgpart.schedules.schedule import Schedule
from hgpart.work.figures import Work, seconds_a_unit


def from_one(value: Any) -> list[Any]:
    """Gather from the only process."""
    return [value]


def ordered(
    placement: Placement,
    gather: Gather,
    make: Callable[[Sequence[Outline], Any], Schedule],
    request: Mapping[str, Any],
    dropped: int | Sequence[Sequence[Stretch]],
    batch_size: int | None,
    costs: CostModel | None,
) -> Schedule:
    """Make a schedule from all parts' outlines, by the costs of the first process.

    Parameters
    ----------
    dropped : int or sequence of sequence of Stretch
        The stretches that each part drops, if any; or the number of micro-batches for which chunks
        are recomputed where this saves memory.

    Raises
    ------
    PlanError
        If a part has no such stretches.
    RunError
        If processes make different requests.
    """
    gathered = gather(([*outlines_here(placement, dropped, batch_size)], request, costs))
    outlines = [outline for here, _, _ in gathered for outline in here]
    _, first_request, costs = gathered[0]
    for rank, (_, other_request, _) in enumerate(gathered):
        if other_request != first_request:
            raise RunError(
                f"rank 0 asks for a schedule by {_words(first_request)}, rank {rank} for one by "
                f"{_words(other_request)}: accepted is the same on all ranks"
            )
    if not isinstance(dropped, int):
        plain = make([outline.keeping for outline in outlines], costs)
        if plain.in_flight is not None:  # the results of a stream depend on its order
            return replace(plain, outlines=tuple(outlines))
        return make(outlines, costs) if any(dropped) else plain

    def peaks(schedules: Sequence[Schedule]) -> dict[int, list[int]]:
        return dict(ChainMap(*gather(peaks_by(placement, schedules, batch_size))))

    return _holding_less(outlines, lambda outlines: make(outlines, costs), peaks)


def _words(request: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in request.items())


def _holding_less(
    outlines: Sequence[Outline],
    make: Callable[[Sequence[Outline]], Schedule],
    peaks_of: Callable[[Sequence[Schedule]], Mapping[int, Sequence[int]]],
) -> Schedule:
    """Recompute chunks in the parts that hold less by that, and let no part hold more.

    The order is made with the costs of recomputing. In a stream, or where a part would hold more
    in that order, it is the order without recomputing.
    """
    parts = range(len(outlines))
    plain = make([outline.keeping for outline in outlines])
    same = replace(plain, outlines=tuple(outlines))
    timed = make(outlines) if plain.in_flight is None else same
    peaks = peaks_of([timed, timed.keeping(parts), same, plain])
    fits = all(min(peaks[part][:2]) <= peaks[part][3] for part in parts)
    chosen, at = (timed, 0) if fits else (same, 2)
    return chosen.keeping([part for part in parts if peaks[part][at] >= peaks[part][at + 1]])


def costs_of(placement: Placement, micro_batches: int, batch_size: int | None = None) -> Costs:
    """Estimated costs of a batch: by measured work, or a number of operations per second.

    Measured seconds are those of a step of the plan's batch. For `batch_size`, see
    `hgpart.schedule`.
    """
    check_micro_batches(micro_batches)
    if batch_size is not None:
        check_whole("batch size", batch_size)
    partition = placement.programs.partition
    if batch_size is None:
        batch_size = max(partition.modelling.batch_size, micro_batches)
    return rough_costs(partition, placement.programs.work, batch_size / micro_batches)


def rough_costs(partition: Partition, work: Work, samples: float) -> Costs:
    """Estimated costs of a micro-batch of some samples."""
    unit = seconds_a_unit(work, partition.modelling.batch_size, Costs.work)
    return Costs(samples=samples, work=unit, speeds=partition.problem.speeds)


def outlines_here(
    placement: Placement,
    dropped: int | Sequence[Sequence[Stretch]] = (),
    batch_size: int | None = None,
) -> Iterator[Outline]:
    """The outlines of the parts that this process holds; see `ordered`."""
    owners = placement.programs.owned_elsewhere()
    for part, work in step_work(placement.programs).items():
        program, stretches = placement.programs.parts[part], tuple[Stretch, ...]()
        if not isinstance(dropped, int):
            if dropped:
                stretches = tuple(dropped[part])
        elif placement.k > 1:
            steps = step_memory(placement, part, dropped, batch_size)
            stretches = worth_recomputing(steps, chunk_steps(program))
        own = with_dropped(outline(program, work), program, stretches, work)
        yield replace(own, owners=owners[part])


def step_work(programs: Programs) -> dict[int, dict[str, float]]:
    """Work of the steps of each part here, per sample, by the steps' names."""
    layer_work = [
        part_shares(blueprint.partition.model, blueprint.partition.parts, programs.k).layer_work
        for blueprint in programs.blueprints
    ]
    work = {}
    for part, program in sorted(programs.parts.items()):
        of_steps: dict[str, float] = {}
        for blueprint, of_layers in zip(programs.blueprints, layer_work, strict=True):
            of_steps.update(_step_work(program, blueprint, of_layers[:, part]))
        work[part] = of_steps
    return work


def outlines_in_turns(placement: Placement, gather: Gather) -> list[list[Outline]]:
    """The outlines of all parts in each turn; see `hgpart.placement.mode_programs.in_turns`."""
    here = [
        {part: outline(programs.parts[part], work) for part, work in step_work(programs).items()}
        for programs in placement.forms.turns
    ]
    gathered = gather(here)
    turns = (ChainMap(*(own[at] for own in gathered)) for at in range(len(here)))
    return [[of_parts[part] for part in range(placement.k)] for of_parts in turns]


def _step_work(program: PartProgram, blueprint: Blueprint, shares: Int64) -> Mapping[str, float]:
    """Work of a part's steps by name, per sample; a tile's work counts in its first step."""
    names, share = blueprint.names, blueprint.share
    part_of_batch = len(share.slices) / share.of if share.turn is None else 1.0
    steps = {*dict(program.module.named_children()), *chain(*program.joined.values())}
    work = {}
    for at in np.flatnonzero(shares).tolist():
        of_layer = float(shares[at]) * part_of_batch
        if f"{names[at]}_partial" in steps:
            work[f"{names[at]}_partial"] = of_layer
            continue
        tiles = blueprint.tiles(at, program.part)
        sizes = [len(tile.tasks) * (1 if tile.rows is None else len(tile.rows)) for tile in tiles]
        first = "_before_0" if f"{names[at]}_before_0" in steps else ""
        for number, size in enumerate(sizes):
            step = f"{names[at]}{first}{f'_tile_{number}' if number else ''}"
            work[step] = of_layer * size / sum(sizes)
    return work
