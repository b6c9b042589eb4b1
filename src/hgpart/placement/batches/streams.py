"""A stream of batches -> the batches that parts have begun, and their losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add
from threading import Lock
from typing import Any

import torch
from torch import fx

from hgpart.errors import ArgumentError
from hgpart.execution.step_run import Score
from hgpart.hypergraph.modelling import Modelling
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.state.original_state import has_hooks
from hgpart.schedules import check_recompute
from hgpart.schedules.rules import STREAMS
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.arguments import Inputs


class StreamedBatches:
    """Batches of a stream, each taken from its source when it is needed, and their losses.

    Parameters
    ----------
    count : int
        Number of batches that there must be.
    begun : callable
        Function from the number of a batch, its inputs and its targets to the values of the
        placeholders, and a function from a part that has results to its score.
    parts : callable
        Function from the number of a batch to how many parts in this process have results of it.
    """

    def __init__(
        self,
        batches: Iterable[tuple[Inputs, Any]],
        count: int,
        begun: Callable[[int, Inputs, Any], tuple[Mapping[str, Any], Callable[[int], Score]]],
        parts: Callable[[int], int],
    ) -> None:
        self._batches, self._count, self._begun, self._parts = batches, count, begun, parts
        self._scores: dict[int, list[Callable[[int], Score]]] = {}  # once for each part to come

    def values(self) -> Iterator[Mapping[str, Any]]:
        """Values of the placeholders, batch by batch.

        Raises
        ------
        ArgumentError
            If there are too few batches.
        """
        batches = iter(self._batches)
        for number in range(self._count):
            batch = next(batches, None)
            if batch is None:
                raise ArgumentError(
                    f"{number} batches: accepted are {self._count}, as the schedule has"
                )
            values, score = self._begun(number, *batch)
            if parts := self._parts(number):
                self._scores[number] = [score] * parts
            yield values

    def score(self, part: int) -> Score:
        """Score of a part that has results: its part of a batch's loss."""

        def of_batch(number: int, results: tuple[torch.Tensor, ...]) -> torch.Tensor:
            waiting = self._scores[number]
            score = waiting.pop()
            if not waiting:
                self._scores.pop(number, None)
            loss: torch.Tensor = score(part)(0, results)
            return loss

        return of_batch


class StreamedLosses:
    """Losses of a stream's batches, each the sum of the losses of several parts.

    Parameters
    ----------
    parts : iterable of int
        Parts that have results, of some batches at least.
    on_loss : callable
        Called with the loss of each batch, in order, by the last part that contributes to it.

    Attributes
    ----------
    told : list of Tensor
        Losses of the batches that are complete.
    """

    def __init__(self, parts: Iterable[int], on_loss: Callable[[torch.Tensor], object]) -> None:
        self.told: list[torch.Tensor] = []
        self._waiting = {part: deque[torch.Tensor | None]() for part in sorted({*parts})}
        self._on_loss, self._telling = on_loss, Lock()

    def tell(self, part: int, loss: torch.Tensor | None) -> None:
        """Take a part's loss of its next batch, None if it has no results."""
        if part not in self._waiting:
            return
        with self._telling:  # each part in its own thread
            self._waiting[part].append(loss)
            if all(self._waiting.values()):
                of_parts = [waiting.popleft() for waiting in self._waiting.values()]
                self.told.append(sum_of_parts([loss for loss in of_parts if loss is not None]))
                self._on_loss(self.told[-1])


def sum_of_parts(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss of a batch as the sum of its parts' losses, with the same bits as in processes.

    Processes exchange the losses as float64 numbers.
    """
    first, *more = losses
    if not more:
        return first
    total = reduce(add, (loss.to(first.device, torch.float64) for loss in losses))
    return total.to(first.dtype)


def check_stream(schedule: Schedule, stash: bool) -> None:
    """Raise an ArgumentError if a stream can't run by this schedule, or without grad mode."""
    if not isinstance(schedule, Schedule) or schedule.in_flight is None:
        rules = " and ".join(STREAMS)
        given = f"{schedule.rule} schedule" if isinstance(schedule, Schedule) else repr(schedule)
        raise ArgumentError(f"a stream by a {given}: accepted are the rules {rules}")
    stretches = chain.from_iterable(outline.dropped for outline in schedule.outlines)
    recomputes = any(not stretch.offloaded for stretch in stretches)
    check_recompute(recompute=recomputes, stash=stash)
    if not torch.is_grad_enabled():
        raise ArgumentError("a stream without grad mode: accepted is grad mode, as a stream trains")


def check_modules_of_stream(modules: Iterable[fx.GraphModule]) -> None:
    """Raise an ArgumentError if parts can't keep gradients and weights of several batches."""
    for module in modules:
        for name, parameter in module.named_parameters():
            if has_hooks(parameter):
                raise ArgumentError(
                    f"a stream with a hook on {name}, which would not see the gradients: accepted "
                    "are parameters without hooks"
                )
        for step in module.children():
            if getattr(step, "_compiled_call_impl", None) is not None:
                raise ArgumentError(
                    "a stream of steps that torch.compile has compiled, which are bound to one "
                    "version of their weights: accepted are steps as they were placed"
                )


def check_slices_of_stream(*, stash: bool) -> None:
    """Raise an ArgumentError for options that do not work where parts have copies of weights."""
    if not stash:
        raise ArgumentError(
            "batches in flight without stash by a plan over slices, whose parts have copies of "
            "weights: accepted is stash=True"
        )


def check_turns(modelling: Modelling, *, recompute: bool) -> None:
    """Raise an ArgumentError for a plan whose slices can't have batches in turns."""
    if recompute:
        raise ArgumentError("turns with maps recomputed or offloaded: accepted is recompute=no")
    if modelling.slices == 1 or modelling.norms == "batch":
        has = "the batch whole" if modelling.slices == 1 else "norms of the batch"
        raise ArgumentError(
            f"turns by a plan with {has}: accepted are plans over slices, each with norms of its "
            "own, which have whole batches in turns"
        )


def check_norms_of_stream(norms: str) -> None:
    """Raise an ArgumentError for norms that update running statistics at the end of a batch."""
    if norms == "batch":
        raise ArgumentError(
            "norms of the batch with batches in flight, each of which is one micro-batch: accepted "
            "are those of micro-batches"
        )


def check_buffers_of_stream(blueprint: Blueprint) -> None:
    """Raise an ArgumentError for buffers that are computed from weights, which have versions."""
    for buffer in blueprint.carriers:
        raise ArgumentError(
            f"batches in flight with {blueprint.traced.buffers[buffer.name]}, a buffer that is "
            "computed from weights that change: accepted are buffers that are not computed from "
            "parameters"
        )
