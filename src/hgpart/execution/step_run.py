"""PartProgram + its sequence of actions -> what a part does in a step, be it a thread or a rank."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hgpart.execution.engine import PartRun
from hgpart.execution.held_memory import (
    CopyingWires,
    Counter,
    copied,
    is_memory_counted,
    of_weights,
)
from hgpart.execution.instructions import matrices
from hgpart.execution.program import PartProgram
from hgpart.execution.records.events import Doing, Event, Span
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.execution.transport import Wires
from hgpart.execution.weights.copies import Travelling
from hgpart.execution.weights.exchanges import Exchange
from hgpart.execution.weights.gradients import Product, add_products
from hgpart.execution.weights.versions import Versions
from hgpart.schedules.schedule import GO_BACK, GO_FORWARD, Action, Direction, Piece

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
    travelling : Travelling, optional
        The weights that travel.
    traffic : Traffic, optional
        What the part sends is added to it.

    Attributes
    ----------
    scores : dict of int to Any
        By micro-batch, what `score` returned.
    results : dict of int to tuple of Tensor
        Where nobody scores them: those that no backward pass has begun with.
    input_gradients : dict of str to Tensor or None
        Of inputs that required some, by name, after a backward pass.
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
        batches: Iterable[Mapping[str, Any]],
        score: Score | None = None,
        again: Collection[int] = (),
        count: Callable[[StepRun], int] | None = None,
        versions: Versions | None = None,
        on_update: Callable[[Any], None] = lambda score: None,
        travelling: Travelling | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.scores: dict[int, Any] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}
        self.input_gradients: dict[str, Tensor | None] = {}
        self.traffic, self.timing = traffic or Traffic.none(k), Timing()
        self.events: list[Event] = []
        self._spans: list[Span] = []  # of the action under way
        self._program, self._device, self._k = program, device, k
        self._batches, self._score, self._again = iter(batches), score, again
        self._versions, self._on_update = versions, on_update
        self._runs: dict[int, PartRun] = {}
        self._in_halves: set[int] = set()  # micro-batches whose gradients of weights come apart
        self._products: dict[Any, list[Product]] = {}
        self._several_use_a_matrix = _several_use_a_matrix(program)
        self._gradients: dict[int, Sequence[Tensor | None]] = {}  # of results, by micro-batch
        self._travelling = travelling
        self._own: dict[tuple[int, int], Tensor] = {}  # new weights of a stream for own copies
        self.counts: list[list[int]] = []
        self._count = Counter() if count is None and is_memory_counted() else count

    def run(self, actions: Sequence[Action], wires: Wires) -> None:
        """Do what the part is to do, in the caller's grad mode."""
        self._wires = wires if self._count is None else CopyingWires(wires)
        for run in self._runs.values():
            run.wires = self._wires
        computing = [action for action in actions if not action.is_of_weights]
        last = {action.micro_batch: action for action in computing}
        forward = (action for action in computing if action.direction is Direction.FORWARD)
        back = [action for action in computing if action.direction in GO_BACK]
        self._last_forward = {action.micro_batch: action for action in forward}
        self._last_backward = {action.micro_batch: action for action in back}
        self._learns = bool(back)
        halves = (action for action in back if action.direction is Direction.WEIGHTS)
        self._in_halves = {action.micro_batch for action in halves}
        self._has_products = self._several_use_a_matrix or self._is_of_several(len(last))
        self._last, self._final = last, computing[-1] if computing else None
        try:
            for action in actions:
                self._do(action)
        finally:
            if self._learns and self._travelling is not None:
                # They were taken, or the pass has failed; the next job of this part adds its own.
                self._travelling.copies.clear(self._program.part)
        begin = perf_counter_ns()
        if wires.settle() and actions:
            end = perf_counter_ns()
            self.events.append(Event(actions[-1], Doing.WAIT, begin, end))
            self.timing.add(_way(actions[-1]), *[(end - begin) / 1e9] * 2)

    def begin_backward(self, gradients: Sequence[Tensor | None], weights: bool) -> None:
        """Let the only micro-batch go back from here, with the gradients of its results.

        If not for `weights`, to the inputs alone.
        """
        self._gradients[0] = gradients
        self._runs[0].to_inputs_alone = not weights

    def _do(self, action: Action) -> None:
        if self._count is not None:
            self.counts.append([])
        begin = perf_counter_ns()
        (self._move if action.is_of_weights else self._compute)(action)
        if action is self._final:
            self._add_products()
        self._note(action, begin, perf_counter_ns())
        ends = self._last.get(action.micro_batch) is action
        if ends and (self._learns or not torch.is_grad_enabled()):
            self._end(action.micro_batch)
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

    def _add_products(self) -> None:
        """What nobody waits for comes last."""
        _add_all(self._products)

    def _is_of_several(self, micro_batches: int) -> bool:
        """Whether gradients of large matrices may be of several micro-batches at once."""
        return self._versions is None and micro_batches > 1

    def _note(self, action: Action, begin: int, end: int) -> None:
        self.events.append(Event(action, Doing.RUN, begin, end))
        self.events.extend(Event(action, *span) for span in self._spans)
        waits = (until - since for doing, since, until in self._spans if doing is Doing.WAIT)
        self.timing.add(_way(action), (end - begin) / 1e9, sum(waits) / 1e9)
        self._spans.clear()

    def _compute(self, action: Action) -> None:
        _, direction, micro_batch, chunk, piece = action
        if direction is Direction.FORWARD:
            if action.is_begin:
                self._begin(micro_batch)
            run = self._runs[micro_batch]
            run.forward_chunk(chunk, again=self._learns and chunk in self._again, piece=piece)
            if action is self._last_forward[micro_batch]:
                self._finish_forward(micro_batch)
            return
        if direction is Direction.UPDATE:
            assert self._versions is not None
            self._runs.pop(micro_batch, None)  # with its weights, before there are new ones
            self._versions.collect(micro_batch)
            self._versions.end()
            self._on_update(self.scores.pop(micro_batch, None))
            return
        run = self._runs[micro_batch]
        if direction is Direction.WEIGHTS:
            run.backward_weights(chunk, piece)
            return
        if action.is_begin:
            run.begin_backward(self._gradients.pop(micro_batch, ()))
        run.backward_chunk(chunk, weights=direction is Direction.BACKWARD, piece=piece)
        if self._versions is not None and action is self._last_backward[micro_batch]:
            _add_all(run.products)

    def _move(self, action: Action) -> None:
        """Send weights, or gradients of copies, or take them in."""
        assert self._travelling is not None
        _, direction, batch, number, _ = action
        one, copies, versions = (
            self._travelling.exchanges[number],
            self._travelling.copies,
            self._versions,
        )
        is_own = one.owner == one.holder
        if direction is Direction.SPREAD:
            body = copies.values(one)
            if versions is not None:
                body = body.clone()  # the next update changes what it is of
            if is_own:
                self._own[batch, number] = body
            else:
                self._send(Piece(Direction.SPREAD, batch, number), one, body)
        elif direction is Direction.GATHER:
            if not is_own:
                body = self._receive(Piece(Direction.SPREAD, batch, number))
            else:
                body = self._own.pop((batch, number)) if versions else copies.values(one)
            if versions is not None:
                versions.let_go(copies.copy(one, key) for key in one.copy_keys)
            copies.put(one, body)
        elif direction is Direction.REDUCE:
            self._complete(copies.copy(one, key) for key in one.copy_keys)
            leaves = None if versions is None else versions.leaves(batch)
            piece = Piece(Direction.REDUCE, batch, number)
            self._send(piece, one, copies.gradients(one, leaves))
        else:
            leaves = None
            if versions is not None:
                self._runs.pop(batch, None)
                leaves = versions.collect(batch)
            if is_own:
                copies.hand_over(one, leaves)
            else:
                piece = Piece(Direction.REDUCE, batch, number)
                copies.add_gradients(one, self._receive(piece))

    def _complete(self, weights: Iterable[Tensor]) -> None:
        """Add to gradients what was left for the end of the step."""
        wanted = {id(one) for one in weights}
        for key in [key for key in self._products if not wanted.isdisjoint(key)]:
            add_products(self._products.pop(key))

    def _send(self, piece: Piece, one: Exchange, body: Tensor) -> None:
        """Send what travels of weights, or back; it is counted."""
        assert self._travelling is not None
        back, traffic = piece.direction is Direction.REDUCE, self.traffic
        way = (one.holder, one.owner) if back else (one.owner, one.holder)
        if not self._travelling.is_counted:
            traffic.uncounted_bytes[way] += body.nbytes
        elif back:
            traffic.backward_bytes[way] += body.nbytes
            traffic.backward_messages[way] += 1
        else:
            traffic.forward_bytes[way] += body.nbytes
            traffic.forward_messages[way] += 1
        begin = perf_counter_ns()
        self._wires.send(piece, way[1], [body])
        self._spans.append((Doing.SEND, begin, perf_counter_ns()))

    def _receive(self, piece: Piece) -> Tensor:
        begin = perf_counter_ns()
        (body,) = self._wires.receive(piece)
        self._spans.append((Doing.WAIT, begin, perf_counter_ns()))
        return body.to(self._device)

    def _begin(self, micro_batch: int) -> None:
        values = next(self._batches)  # they begin in their order
        if self._count is not None:
            values = copied(values)
        joined = micro_batch not in self._in_halves
        run = PartRun(self._program, self._wires, self._device, self._k, joined, micro_batch)
        # Of all micro-batches.
        run.traffic, run.spans = self.traffic, self._spans
        products = self._products if self._versions is None else {}
        run.products = products if self._has_products else None
        if self._count is not None:  # else nothing holds it but what it is to do
            run.on_again = self._look
        run.begin(values)
        if self._versions is not None:
            run.weights = self._versions.begin(micro_batch)
        self._runs[micro_batch] = run

    def _finish_forward(self, micro_batch: int) -> None:
        results = self._runs[micro_batch].results()
        if self._score is None:
            self.results[micro_batch] = results
            return
        score = self._score(micro_batch, results)
        if self._learns:
            score = backward_from(score, results)
            self._gradients[micro_batch] = [result.grad for result in results]
        self.scores[micro_batch] = score

    def _end(self, micro_batch: int) -> None:
        run = self._runs.pop(micro_batch, None)
        if run is not None and self._learns:
            self.input_gradients |= run.end_backward()


def _way(action: Action) -> str:
    """Which pass it counts with."""
    return "forward" if action.direction in GO_FORWARD else "backward"


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
