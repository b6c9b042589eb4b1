"""Placement + a rule -> Schedule: what each part does when, micro-batch by micro-batch."""

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
    """Order what the parts of a placement do in a step or a stream, in its present mode.

    All parts' sequences are cut from one global order, in which each action stands behind what it
    needs: so no schedule can come to a stop, and sums have one order, the same in each run. It is
    the same by all rules, but for the gradients of weights that several layers share, and where
    backward is in halves: there results may differ between rules by rounding.

    Parameters
    ----------
    model : Placement or DistributedModel
        A placement has all its parts in this process. Of a distributed model each rank has its own,
        and all ranks call this: of what they take costs to be, rank 0's counts.
    rule : str
        ``sequential``, ``gpipe``, ``1f1b``, ``zero-bubble`` or ``greedy``; ``async`` is for
        `Placement.stream`.
    micro_batches : int
        That a batch is divided into; of a stream, its batches.
    costs : CostModel, optional
        What actions and messages are taken to last; `costs_of` the placement when left out.
    backward : bool
        Whether a step has backward passes.
    in_flight : int, optional
        Batches of a stream that each part may have begun at a time; 2 when left out.
    recompute : bool
        Keep only what chunks read, and let backward compute them again, with the same results:
        chunks that keep more than they read, in parts whose `peak_bytes` are less by that. In such
        a batch no part holds more than without. The order of a stream stays as it is without: its
        results depend on that.
    batch_size : int, optional
        Of a step, or of each batch of a stream, which costs and `recompute` go by; the plan's when
        left out, or a sample for each micro-batch if that is more.

    Raises
    ------
    ArgumentError
        If there is no such rule, there are no micro-batches, or more than samples, a stream is to
        do without backward passes, or there are to be batches in flight by another rule.
    PlacementError
        If there are to be several micro-batches, and the model mixes samples, or reads a
        buffer and changes it.
    RunError
        If a placement does not hold all parts. On all ranks, if they ask for different schedules.
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

    said = {**options, "recompute": recompute, "batch_size": batch_size}
    again = divided if recompute and backward else None
    return _made(placement, gather, make, said, again, batch_size, costs)


def _among(
    model: Placement | DistributedModel, batch_size: int | None = None
) -> tuple[Placement, Gather]:
    """The placement, switched to a batch size if there is one, and how its processes gather."""
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
    """Gather from the only process that there is."""
    return [value]


def _from_file(
    placement: Placement, gather: Gather, wanted: Scheduling, backward: bool, batch_size: int | None
) -> Schedule:
    """Raises an ArgumentError if there are to be backward passes, and the file has none."""
    file = wanted.file
    assert file is not None
    again = wanted.micro_batches if wanted.recompute and backward else None
    said = {
        "file": file.fingerprint,
        "backward": backward,
        "recompute": wanted.recompute,
        "batch_size": batch_size,
    }

    def make(outlines: Sequence[Outline], costs: None) -> Schedule:
        return file.of(outlines)

    made = _made(placement, gather, make, said, again, batch_size, None)
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
    said: Mapping[str, Any],
    again: int | None,
    batch_size: int | None,
    costs: CostModel | None,
) -> Schedule:
    """Make a schedule of all parts' outlines, by the costs of the first process.

    With `again` micro-batches, chunks are computed again.

    Raises
    ------
    RunError
        If processes say that they want different ones.
    """
    found = gather(([*outlines_here(placement, again, batch_size)], said, costs))
    outlines = [one for here, _, _ in found for one in here]
    _, first, costs = found[0]
    for rank, (_, other, _) in enumerate(found):
        if other != first:
            raise RunError(
                f"rank 0 asks for a schedule by {_words(first)}, rank {rank} for one by "
                f"{_words(other)}: accepted is the same on all ranks"
            )
    if again is None:
        return make(outlines, costs)

    def peaks(schedules: Sequence[Schedule]) -> dict[int, list[int]]:
        return dict(ChainMap(*gather(peaks_by(placement, schedules, batch_size))))

    return _holding_less(outlines, lambda some: make(some, costs), peaks)


def _words(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in said.items())


def _holding_less(
    outlines: Sequence[Outline],
    make: Callable[[Sequence[Outline]], Schedule],
    peaks_of: Callable[[Sequence[Schedule]], Mapping[int, Sequence[int]]],
) -> Schedule:
    """Compute chunks again in the parts that hold less by that, and let no part hold more.

    The order is one by the costs of doing so, or, where a part would hold more in that, and in a
    stream, the order without.
    """
    parts = range(len(outlines))
    plain = make([one.keeping for one in outlines])
    same = replace(plain, outlines=tuple(outlines))
    timed = make(outlines) if plain.in_flight is None else same
    peaks = peaks_of([timed, timed.keeping(parts), same, plain])
    fits = all(min(peaks[part][:2]) <= peaks[part][3] for part in parts)
    found, at = (timed, 0) if fits else (same, 2)
    return found.keeping([part for part in parts if peaks[part][at] >= peaks[part][at + 1]])


def load_schedule(path: Path | str, placement: Placement) -> Schedule:
    """Read a file of `save_schedule`, which has to be for this placement, in its present mode.

    Raises
    ------
    FormatError
        If it is no schedule, or no valid one.
    PlanError
        If it is for another placement.
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
    """What is wanted, by a rule as `schedule` or from a file as `load_schedule`.

    Of a stream, for a number of batches; of a batch size as of `schedule`.

    Raises
    ------
    ArgumentError
        If there are to be backward passes, and the file has none.
    RunError
        If a placement does not hold all parts. On all ranks, if they ask for different schedules,
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
    """Estimates for a batch: by measured work, or so many operations a second.

    Of the batch size that `schedule` goes by.
    """
    check_micro_batches(micro_batches)
    if batch_size is not None:
        check_whole("batch size", batch_size)
    work = placement.programs.work
    each = 1.0 if work.unit == "s" else Costs.work
    if batch_size is None:
        batch_size = max(placement.programs.partition.modelling.batch_size, micro_batches)
    return Costs(samples=batch_size / micro_batches, work=each / work.units)


def outlines_here(
    placement: Placement, micro_batches: int | None = None, batch_size: int | None = None
) -> Iterator[Outline]:
    """The chunks of the parts that this process holds.

    With so many micro-batches of a batch, those that keep more than they read are computed again.
    """
    again = {} if micro_batches is None else worth_recomputing(placement, micro_batches, batch_size)
    work = [
        part_shares(one.partition.model, one.partition.parts, placement.k).layer_work
        for one in placement.programs.blueprints
    ]
    owners = placement.programs.owned_elsewhere()
    for part in sorted(placement.programs.parts):
        of_steps: dict[str, float] = {}
        for one, layer_work in zip(placement.programs.blueprints, work, strict=True):
            of_steps.update(_step_work(placement, one, part, layer_work[:, part]))
        program = placement.programs.parts[part]
        found = with_recomputation(outline(program, of_steps), program, again.get(part, ()))
        yield replace(found, owners=owners[part])


def _step_work(
    placement: Placement, blueprint: Blueprint, part: int, shares: Int64
) -> Mapping[str, float]:
    """Work of a part's steps by name, for a sample; a layer's is that of its first step."""
    names, part_of_batch = blueprint.names, len(blueprint.share.slices) / blueprint.share.of
    program = placement.programs.parts[part]
    steps = {*dict(program.module.named_children()), *chain(*program.joined.values())}
    found = {}
    for at in np.flatnonzero(shares).tolist():
        first = (f"{names[at]}{behind}" for behind in ("_partial", "_before_0"))
        step = next((name for name in first if name in steps), names[at])
        found[step] = float(shares[at]) * part_of_batch
    return found
