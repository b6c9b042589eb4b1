"""Placement + a rule -> Schedule: what each part does and when, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hgpart.errors import ArgumentError, RunError, check_whole
from hgpart.execution.runtime import Gather
from hgpart.placement import Placement
from hgpart.placement.batches.streams import check_turns
from hgpart.placement.ordering.ordered import (
    costs_of,
    from_one,
    ordered,
    outlines_here,
    outlines_in_turns,
)
from hgpart.run.distributed import DistributedModel
from hgpart.schedule_wanted import Recompute, Scheduling
from hgpart.schedules import check_micro_batches, check_rule, make_schedule
from hgpart.schedules.costs import CostModel
from hgpart.schedules.outline import Outline
from hgpart.schedules.rules import DEFAULT, STREAMS
from hgpart.schedules.schedule import TURNS, Schedule
from hgpart.schedules.schedule_files import read_schedule


def schedule(
    model: Placement | DistributedModel,
    rule: str = DEFAULT,
    micro_batches: int = 1,
    costs: CostModel | None = None,
    *,
    backward: bool = True,
    in_flight: int | None = None,
    recompute: Recompute = False,
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
        ``sequential``, ``gpipe``, ``1f1b``, ``zero-bubble`` or ``greedy``; ``async``,
        ``dynamic`` and ``turns`` are for `Placement.stream`.
    micro_batches : int
        Number of micro-batches in a batch; for a stream, its number of batches.
    costs : CostModel, optional
        Costs of actions and messages. Default: `costs_of` the placement.
    backward : bool
        Whether a step has backward passes.
    in_flight : int, optional
        For a stream, the number of batches that each part may have begun at a time. Default: 2.
    recompute : bool or tuple
        Whether chunks keep only what they read, and backward recomputes the rest, with the same
        results. This holds for chunks that keep more than they read, in parts where it lowers
        `peak_bytes`; with such a batch no part holds more than without. A tuple has the stretches
        that each part recomputes or offloads, as of `dropped_within`. The order of a stream is
        the same as without, because its results depend on that.
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
    Scheduling(recompute=recompute).check_parts(placement.k)
    if batch_size is not None:
        check_whole("batch size", batch_size)
    divided = 1 if rule in STREAMS else micro_batches
    placement.programs.check_micro_batches(divided)
    if rule == TURNS:
        asked = micro_batches, in_flight, batch_size
        return _in_turns(placement, gather, *asked, recompute=recompute)
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
    dropped = _dropped(recompute, divided, backward)
    return ordered(placement, gather, make, request, dropped, batch_size, costs)


def _dropped(recompute: Recompute, micro_batches: int, backward: bool) -> Any:
    """What `ordered` takes."""
    if not backward or not recompute:
        return ()
    return micro_batches if recompute is True else recompute


def _in_turns(
    placement: Placement,
    gather: Gather,
    batches: int,
    in_flight: int | None,
    batch_size: int | None,
    *,
    recompute: Recompute,
) -> Schedule:
    check_turns(placement.programs.partition.modelling, recompute=bool(recompute))
    turns = outlines_in_turns(placement, gather)
    costs = costs_of(placement, 1, batch_size)
    return make_schedule(turns[0], TURNS, batches, costs, in_flight=in_flight, turns=turns)


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
        placement, gather = model, from_one
    else:
        placement, gather = model.placement, model.connection.gather
    if batch_size is not None:
        model.for_batch(batch_size)
    return placement, gather


def _from_file(
    placement: Placement, gather: Gather, wanted: Scheduling, backward: bool, batch_size: int | None
) -> Schedule:
    """The schedule of a file; an ArgumentError if backward passes are needed and it has none."""
    file = wanted.file
    assert file is not None
    dropped = _dropped(wanted.recompute, wanted.micro_batches, backward)
    request = {
        "file": file.fingerprint,
        "backward": backward,
        "recompute": wanted.recompute,
        "batch_size": batch_size,
    }

    def make(outlines: Sequence[Outline], costs: None) -> Schedule:
        return file.of(outlines)

    made = ordered(placement, gather, make, request, dropped, batch_size, None)
    if backward and not made.backward:
        raise ArgumentError(
            f"{wanted.name} is a schedule without backward passes: accepted in training is one "
            "that has some"
        )
    return made if backward else made.forward_only


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
