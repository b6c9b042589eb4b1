"""PartProgram + its sequence of actions -> what a part does in a step, be it a thread or a rank."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hgpart.execution.engine import PartRun
from hgpart.execution.events import Doing, Event, Span
from hgpart.execution.held_memory import (
    CopyingWire,
    Counter,
    copied,
    is_memory_counted,
    of_weights,
)
from hgpart.execution.instructions import matrices, prepare
from hgpart.execution.program import PartProgram
from hgpart.execution.totals import Timing, Traffic
from hgpart.execution.transfers import Wire
from hgpart.execution.weights.gradients import Product, add_products
from hgpart.execution.weights.versions import Versions
from hgpart.schedules.schedule import Action, Direction

Score = Callable[[int, tuple[Tensor, ...]], Any]


class StepRun:
    """One part's share of a step: a `PartRun` for each micro-batch, all of which go on in turns.

    Or of a stream, whose batches take the place of micro-batches.

    Parameters
    ----------
    program : PartProgram
    device : torch.device
        Where the part's weights are.
    k : int
        Number of parts of the placement.
    wires : sequence of Wire
        The part's, one for each micro-batch.
    batches : iterable of mapping
        The values of the placeholders, for each micro-batch; each is asked for when it begins.
    score : callable, optional
        Given a micro-batch and the results, in the part that has them; what it returns is kept
        and, if the step has backward passes, is the number that these begin with.
    again : collection of int
        The forward chunks that backward computes again; what they made is not kept.
    count : callable, optional
        Of a StepRun, the bytes that it holds now; a `Counter` where the caller's steps are
        `memory_counted`.
    versions : Versions, optional
        Of a stream.
    on_update : callable, optional
        Told of each batch of a stream what `score` returned, if it was asked, after the update.

    Attributes
    ----------
    scores : dict of int to Any
        By micro-batch, what `score` returned.
    results : dict of int to tuple of Tensor
        Where nobody scores them: those that no backward pass has begun with.
    traffic : Traffic
        What the part sent.
    timing : Timing
    events : list of Event
        What it did when.
    counts : list of list of int
        What was counted in each action: when a chunk had been computed again, and at the end.
    """

    def __init__(
        self,
        program: PartProgram,
        device: torch.device,
        k: int,
        wires: Sequence[Wire],
        batches: Iterable[Mapping[str, Any]],
        score: Score | None = None,
        again: Collection[int] = (),
        count: Callable[[StepRun], int] | None = None,
        versions: Versions | None = None,
        on_update: Callable[[Any], None] = lambda score: None,
    ) -> None:
        self.scores: dict[int, Any] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}
        self.traffic, self.timing = Traffic.none(k), Timing()
        self.events: list[Event] = []
        self._spans: list[Span] = []  # of the action under way
        if versions is not None:
            versions.note_waiting(self._spans)
        self._program, self._device, self._k = program, device, k
        self._wires, self._batches, self._score = wires, iter(batches), score
        self._again, self._last = again, len(prepare(program).forward) - 1
        self._last_backward = len(prepare(program).backward) - 1
        self._versions, self._on_update = versions, on_update
        self._runs: dict[int, PartRun] = {}
        self._in_halves: set[int] = set()  # micro-batches whose gradients of weights come apart
        self._products: dict[Any, list[Product]] = {}
        of_several = versions is None and len(wires) > 1
        self._has_products = of_several or _several_use_a_matrix(program)
        self._gradients: dict[int, list[Tensor | None]] = {}  # of results, by micro-batch
        self.counts: list[list[int]] = []
        self._count = Counter() if count is None and is_memory_counted() else count
        self.before_step: Callable[[nn.Module], bool] | None = None
        self.on_used: Callable[[nn.Module], None] | None = None

    def run(self, actions: Sequence[Action]) -> None:
        """Do what the part is to do, in the caller's grad mode."""
        last = {action.micro_batch: action for action in actions}
        learns = any(action.direction is not Direction.FORWARD for action in actions)
        halves = (action for action in actions if action.direction is Direction.WEIGHTS)
        self._in_halves = {action.micro_batch for action in halves}
        for action in actions:
            if self._count is not None:
                self.counts.append([])
            begin = perf_counter_ns()
            self._do(action, learns)
            if action is actions[-1]:
                self._add_products()
            self._note(action, begin, perf_counter_ns())
            if last[action.micro_batch] is action and (learns or not torch.is_grad_enabled()):
                self._runs.pop(action.micro_batch, None)
            self._look()

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most that it held, if that was counted."""
        return (max(chain(*self.counts), default=0),) if self._count is not None else ()

    @property
    def held(self) -> list[Any]:
        """All that it holds for what it has still to do, in any structure."""
        return [
            [run.held for run in self._runs.values()],
            [[*(run.products or {}).values()] for run in self._runs.values()],
            [*self._products.values()],
            self.results,
            self._gradients,
        ]

    @property
    def weights(self) -> list[Tensor]:
        """Parameters, buffers and gradients, of batches in flight too."""
        in_flight = () if self._versions is None else self._versions.held
        return [*of_weights(self._program.module), *in_flight]

    def _look(self) -> None:
        if self._count is not None:
            self.counts[-1].append(self._count(self))

    def complete(self, weights: Collection[Tensor]) -> None:
        """Add to gradients what was left for the end of the step."""
        wanted = {id(one) for one in weights}
        for key in [key for key in self._products if not wanted.isdisjoint(key)]:
            add_products(self._products.pop(key))

    def _add_products(self) -> None:
        """What nobody waits for comes last."""
        _add_all(self._products)

    def _note(self, action: Action, begin: int, end: int) -> None:
        self.events.append(Event(action, Doing.RUN, begin, end))
        self.events.extend(Event(action, *span) for span in self._spans)
        waits = (until - since for doing, since, until in self._spans if doing is Doing.WAIT)
        direction = "forward" if action.direction is Direction.FORWARD else "backward"
        self.timing.add(direction, (end - begin) / 1e9, sum(waits) / 1e9)
        self._spans.clear()

    def _do(self, action: Action, learns: bool) -> None:
        _, direction, micro_batch, chunk, _ = action
        if direction is Direction.FORWARD:
            if chunk == 0:
                self._begin(micro_batch)
            run = self._runs[micro_batch]
            run.forward_chunk(chunk, again=learns and chunk in self._again)
            if chunk == self._last:
                self._finish_forward(micro_batch, learns)
            return
        if direction is Direction.UPDATE:
            assert self._versions is not None
            del self._runs[micro_batch]  # with its weights, before there are new ones
            self._versions.collect(micro_batch)
            self._versions.end()
            self._on_update(self.scores.pop(micro_batch, None))
            return
        run = self._runs[micro_batch]
        if direction is Direction.WEIGHTS:
            run.backward_weights(chunk)
            return
        if chunk == 0:
            if micro_batch in self.results:  # that its caller has scored
                results = self.results.pop(micro_batch)
                self._gradients[micro_batch] = [result.grad for result in results]
            run.begin_backward(self._gradients.pop(micro_batch, ()))
        run.backward_chunk(chunk, weights=direction is Direction.BACKWARD)
        if self._versions is not None and chunk == self._last_backward:
            _add_all(run.products)
            self._versions.depart(micro_batch)

    def _begin(self, micro_batch: int) -> None:
        wire, values = self._wires[micro_batch], next(self._batches)  # they begin in their order
        if self._count is not None:
            wire, values = CopyingWire(wire), copied(values)
        joined = micro_batch not in self._in_halves
        run = PartRun(self._program, wire, self._device, self._k, joined)
        # Of all micro-batches.
        run.traffic, run.spans = self.traffic, self._spans
        products = self._products if self._versions is None else {}
        run.products = products if self._has_products else None
        run.on_again = self._look
        run.before_step, run.on_used = self.before_step, self.on_used
        run.begin(values)
        if self._versions is not None:
            self._versions.arrive(micro_batch)
            run.weights = self._versions.begin(micro_batch)
        self._runs[micro_batch] = run

    def _finish_forward(self, micro_batch: int, learns: bool) -> None:
        results = self._runs[micro_batch].results()
        if self._score is None:
            self.results[micro_batch] = results
            return
        score = self._score(micro_batch, results)
        if learns:
            score = backward_from(score, results)
            self._gradients[micro_batch] = [result.grad for result in results]
        self.scores[micro_batch] = score


def _add_all(products: dict[Any, list[Product]] | None) -> None:
    for several in (products or {}).values():
        add_products(several)
    if products:
        products.clear()


def _several_use_a_matrix(program: PartProgram) -> bool:
    """Whether several steps have a matrix in common, as those of several slices of the batch do."""
    if program not in _have_in_common:
        uses: Counts[int] = Counts()
        for step in program.module.children():
            uses.update({id(one) for one in matrices(step)})
        _have_in_common[program] = max(uses.values(), default=0) > 1
    return _have_in_common[program]


_have_in_common: WeakKeyDictionary[PartProgram, bool] = WeakKeyDictionary()


def backward_from(score: Tensor, results: Sequence[Tensor]) -> Tensor:
    """Give results their gradients, if they can have some; the score by itself."""
    if any(result.requires_grad for result in results):
        score.backward()  # type: ignore[no-untyped-call]
    return score.detach()
