"""Placement + a rule -> Schedule: what each part does and when, micro-batch by micro-batch."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, RunError, check_whole
from hgpart.execution.outlines import outline, with_recomputation
from hgpart.execution.runtime import Gather
from hgpart.hypergraph.shares import part_shares
from hgpart.placement import Placement
from hgpart.placement.accounting import peaks_by, worth_recomputing
from hgpart.placement.building.blueprint import Blueprint
from hgpart.run.distributed import DistributedModel
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules import check_micro_batches, check_rule, make_schedule
from hgpart.schedules.costs import CostModel, Costs
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules import DEFAULT, STREAMS
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.schedule_files import read_schedule


def schedule(
    model: Placement | DistributedModel,
    rule: str = DEFAULT,
    micro_batches: int = 1,
    costs: CostModel | None = None,
    *,
    backward: bool = True,
    in_flight: int | None = None,
    recompute: bool = False,
    batch_size: int | None = None,
) -> Schedule:
    """Order the actions of a placement's parts in a step or a stream, in its present mode.

    All parts' sequences are cut from one global order, in which each action comes after what it
    needs. So no schedule can deadlock, and sums have one order, the same in each run. All rules
    give the same order, except for the gradients of weights that several layers share, and where
    backward is in halves: there, results of different rules may differ by rounding.

    Parameters
    ----------
    model : Placement or DistributedModel
        A placement has all its parts in this process. A distributed model has this rank's part,
        and all ranks call this function: the costs of rank 0 count.
    rule : str
        ``sequential``, ``gpipe``, ``1f1b``, ``zero-bubble`` or ``greedy``; ``async`` is for
        `Placement.stream`.
    micro_batches : int
        Number of micro-batches in a batch; for a stream, its number of batches.
    costs : CostModel, optional
        Costs of actions and messages. Default: `costs_of` the placement.
    backward : bool
        Whether a step has backward passes.
    in_flight : int, optional
        For a stream, the number of batches that each part may have begun at a time. Default: 2.
    recompute : bool
        Whether chunks keep only what they read, and backward recomputes the rest, with the same
        results. This holds for chunks that keep more than they read, in parts where it lowers
        `peak_bytes`; with such a batch no part holds more than without. The order of a stream stays
        as it is without recomputing, because its results depend on that.
    batch_size : int, optional
        Samples in a step, or in each batch of a stream, for costs and `recompute`. Default: the
        plan's batch size, or one sample per micro-batch if that is more.

    Raises
    ------
    ArgumentError
        If there is no such rule, there are no micro-batches, or more than samples, a stream has no
        backward passes, or `in_flight` is given for another rule.
    PlacementError
        If there are several micro-batches, and the model mixes samples, or reads a buffer and
        changes it.
    RunError
        If a placement does not hold all parts; on all ranks, if they ask for different schedules.
    """
    placement, gather = _among(model, batch_size)
    check_rule(rule)
    check_micro_batches(micro_batches)
    if batch_size is not None:
        check_whole("batch size", batch_size)
    divided = 1 if rule in STREAMS else micro_batches
    placement.programs.check_micro_batches(divided)
    if costs is None:
        costs = costs_of(placement, divided, batch_size)
    options: dict[str, Any] = {
        "rule": rule,
        "micro_batches": micro_batches,
        "backward": backward,
        "in_flight": in_flight,
    }

    def make(outlines: Sequence[Outline], costs: CostModel) -> Schedule:
        return make_schedule(outlines, costs=costs, **options)

    request = {**options, "recompute": recompute, "batch_size": batch_size}
    recomputed_for = divided if recompute and backward else None
    return _made(placement, gather, make, request, recomputed_for, batch_size, costs)


def _among(
    model: Placement | DistributedModel, batch_size: int | None = None
) -> tuple[Placement, Gather]:
    """The placement, switched to a batch size if given, and how its processes gather values."""
    if isinstance(model, Placement):
        held = model.programs.parts
        if len(held) != model.k:
            raise RunError(
                f"this process holds {len(held)} of {model.k} parts: accepted is all of them"
            )
        placement, gather = model, _from_one
    else:
        placement, gather = model.placement, model.connection.gather
    if batch_size is not None:
        model.for_batch(batch_size)
    return placement, gather


def _from_one(value: Any) -> list[Any]:
    """Gather from the only process."""
    return [value]


def _from_file(
    placement: Placement, gather: Gather, wanted: Scheduling, backward: bool, batch_size: int | None
) -> Schedule:
    """The schedule of a file; an ArgumentError if backward passes are needed and it has none."""
    file = wanted.file
    assert file is not None
    recomputed_for = wanted.micro_batches if wanted.recompute and backward else None
    request = {
        "file": file.fingerprint,
        "backward": backward,
        "recompute": wanted.recompute,
        "batch_size": batch_size,
    }

    def make(outlines: Sequence[Outline], costs: None) -> Schedule:
        return file.of(outlines)

    made = _made(placement, gather, make, request, recomputed_for, batch_size, None)
    if backward and not made.backward:
        raise ArgumentError(
            f"{wanted.name} is a schedule without backward passes: accepted in training is one "
            "that has some"
        )
    return made if backward else made.forward_only


def _made(
    placement: Placement,
    gather: Gather,
    make: Callable[[Sequence[Outline], Any], Schedule],
    request: Mapping[str, Any],
    recomputed_for: int | None,
    batch_size: int | None,
    costs: CostModel | None,
) -> Schedule:
    """Make a schedule from all parts' outlines, by the costs of the first process.

    With `recomputed_for` micro-batches, chunks are recomputed.

    Raises
    ------
    RunError
        If processes make different requests.
    """
    gathered = gather(([*outlines_here(placement, recomputed_for, batch_size)], request, costs))
    outlines = [outline for here, _, _ in gathered for outline in here]
    _, first_request, costs = gathered[0]
    for rank, (_, other_request, _) in enumerate(gathered):
        if other_request != first_request:
            raise RunError(
                f"rank 0 asks for a schedule by {_words(first_request)}, rank {rank} for one by "
                f"{_words(other_request)}: accepted is the same on all ranks"
            )
    if recomputed_for is None:
        return make(outlines, costs)

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


def load_schedule(path: Path | str, placement: Placement) -> Schedule:
    """Read a file of `save_schedule`, which must fit this placement in its present mode.

    Raises
    ------
    FormatError
        If the file is no schedule, or no valid one.
    PlanError
        If the schedule is for another placement.
    """
    _among(placement)
    return read_schedule(path).of([*outlines_here(placement)])


def wanted_schedule(
    model: Placement | DistributedModel,
    wanted: Scheduling,
    backward: bool,
    batches: int = 1,
    batch_size: int | None = None,
) -> Schedule:
    """The wanted schedule, by a rule like `schedule` or from a file like `load_schedule`.

    For a stream it has `batches` batches; for `batch_size`, see `schedule`.

    Raises
    ------
    ArgumentError
        If backward passes are needed, and the file has none.
    RunError
        If a placement does not hold all parts; on all ranks, if they ask for different schedules,
        or have files of different orders.
    """
    if wanted.file is None:
        return schedule(
            model,
            wanted.rule,
            batches if wanted.is_stream else wanted.micro_batches,
            backward=backward,
            in_flight=wanted.in_flight,
            recompute=wanted.recompute,
            batch_size=batch_size,
        )
    placement, gather = _among(model, batch_size)
    return _from_file(placement, gather, wanted, backward, batch_size)


def costs_of(placement: Placement, micro_batches: int, batch_size: int | None = None) -> Costs:
    """Estimated costs of a batch: by measured work, or a number of operations per second.

    For `batch_size`, see `schedule`.
    """
    check_micro_batches(micro_batches)
    if batch_size is not None:
        check_whole("batch size", batch_size)
    work = placement.programs.work
    seconds_per_unit = 1.0 if work.unit == "s" else Costs.work
    if batch_size is None:
        batch_size = max(placement.programs.partition.modelling.batch_size, micro_batches)
    return Costs(
        samples=batch_size / micro_batches,
        work=seconds_per_unit / work.units,
        speeds=placement.programs.partition.problem.speeds,
    )


def outlines_here(
    placement: Placement, micro_batches: int | None = None, batch_size: int | None = None
) -> Iterator[Outline]:
    """The outlines of the parts that this process holds.

    With `micro_batches` of a batch, chunks that keep more than they read are recomputed.
    """
    again = {} if micro_batches is None else worth_recomputing(placement, micro_batches, batch_size)
    work = [
        part_shares(blueprint.partition.model, blueprint.partition.parts, placement.k).layer_work
        for blueprint in placement.programs.blueprints
    ]
    owners = placement.programs.owned_elsewhere()
    for part in sorted(placement.programs.parts):
        of_steps: dict[str, float] = {}
        for blueprint, layer_work in zip(placement.programs.blueprints, work, strict=True):
            of_steps.update(_step_work(placement, blueprint, part, layer_work[:, part]))
        program = placement.programs.parts[part]
        own = with_recomputation(outline(program, of_steps), program, again.get(part, ()))
        yield replace(own, owners=owners[part])


def _step_work(
    placement: Placement, blueprint: Blueprint, part: int, shares: Int64
) -> Mapping[str, float]:
    """Work of a part's steps by name, per sample; a layer's work counts in its first step."""
    names, part_of_batch = blueprint.names, len(blueprint.share.slices) / blueprint.share.of
    program = placement.programs.parts[part]
    steps = {*dict(program.module.named_children()), *chain(*program.joined.values())}
    work = {}
    for at in np.flatnonzero(shares).tolist():
        first = (f"{names[at]}{suffix}" for suffix in ("_partial", "_before_0"))
        step = next((name for name in first if name in steps), names[at])
        work[step] = float(shares[at]) * part_of_batch
    return work
