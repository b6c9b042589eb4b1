"""PartProgram + its sequence of actions -> a part's run of a step, in a thread or a process."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hgpart.execution.engine import PartRun
from hgpart.execution.held_memory import (
    CopyingChannel,
    Counter,
    copied,
    is_memory_counted,
    of_weights,
)
from hgpart.execution.instructions import matrices
from hgpart.execution.offloading.stores import SlowStore
from hgpart.execution.program import PartProgram
from hgpart.execution.records.events import Doing, Event, Span
from hgpart.execution.records.totals import Timing, Traffic
from hgpart.execution.transport import Channel
from hgpart.execution.weights.copies import Travelling
from hgpart.execution.weights.exchanges import Exchange
from hgpart.execution.weights.gradients import WeightProduct, add_products
from hgpart.execution.weights.versions import Versions
from hgpart.schedules.outline import Stretch
from hgpart.schedules.schedule import GO_BACK, GO_FORWARD, Action, Direction, Piece

Score = Callable[[int, tuple[Tensor, ...]], Any]


@dataclass(frozen=True, eq=False)
class PartOnDevice:
    """A part on its device.

    Attributes
    ----------
    turns : tuple of PartProgram
        The part's programs, which micro-batches have in turns.
    device : torch.device
        Device of the part's weights.
    k : int
        Number of parts of the placement.
    slower : SlowStore or None
        Where the part offloads to; None for one of each micro-batch's own.
    """

    turns: tuple[PartProgram, ...]
    device: torch.device
    k: int
    slower: SlowStore | None = None

    def program(self, micro_batch: int) -> PartProgram:
        """The program of a micro-batch."""
        return self.turns[micro_batch % len(self.turns)]


@dataclass(frozen=True, eq=False)
class Updates:
    """A part's updates of its weights in a stream.

    Attributes
    ----------
    done : callable
        Called after each update with what `score` returned for the batch, None without `score`.
    """

    versions: Versions
    done: Callable[[Any], None]


class StepRun:
    """One part's share of a step: a `PartRun` for each micro-batch, which go on in turns.

    In a stream, batches take the place of micro-batches.

    Parameters
    ----------
    batches : iterable of mapping
        The values of the placeholders for each micro-batch; taken when the micro-batch begins.
    score : callable, optional
        Function of a micro-batch's number and results, for the part that has them. What it returns
        is kept; if the step has backward passes, it is the number that they begin with.
    dropped : sequence of Stretch
        Stretches that backward recomputes, or that are offloaded: see `PartRun`.
    updates : Updates, optional
        Weights in flight, and what follows an update; needed in a stream.
    travelling : Travelling, optional
        Weights that travel.
    traffic : Traffic, optional
        Traffic to which the part's messages are added.
    count : callable, optional
        Function from a StepRun to the bytes that it holds at present. Default: a `Counter` if the
        caller's steps are `memory_counted`, else none.

    Attributes
    ----------
    scores : dict of int to Any
        What `score` returned, by micro-batch.
    results : dict of int to tuple of Tensor
        Results by micro-batch, without `score`; a backward pass takes them.
    input_gradients : dict of str to Tensor or None
        Gradients of the inputs that required one, by name, after a backward pass.
    traffic : Traffic
        Bytes that the part has sent.
    events : list of Event
        Actions with their waits and sends, in order.
    counts : list of list of int
        Bytes counted in each action: after a stretch was recomputed, and at the end.
    """

    def __init__(
        self,
        part: PartOnDevice,
        batches: Iterable[Mapping[str, Any]],
        score: Score | None = None,
        dropped: Sequence[Stretch] = (),
        updates: Updates | None = None,
        travelling: Travelling | None = None,
        traffic: Traffic | None = None,
        count: Callable[[StepRun], int] | None = None,
    ) -> None:
        self.scores: dict[int, Any] = {}
        self.results: dict[int, tuple[Tensor, ...]] = {}
        self.input_gradients: dict[str, Tensor | None] = {}
        self.traffic, self.timing = traffic or Traffic.none(part.k), Timing()
        self.events: list[Event] = []
        self._spans: list[Span] = []  # of the action under way
        self._part, self._updates = part, updates
        self._versions = None if updates is None else updates.versions
        self._batches, self._score, self._dropped = iter(batches), score, dropped
        self._runs: dict[int, PartRun] = {}
        self._in_halves: set[int] = set()  # micro-batches whose backward passes are in halves
        self._products: dict[Any, list[WeightProduct]] = {}
        self._several_use_a_matrix = any(map(_several_use_a_matrix, part.turns))
        self._gradients: dict[int, Sequence[Tensor | None]] = {}  # of results, by micro-batch
        self._travelling = travelling
        self._own: dict[tuple[int, int], Tensor] = {}  # new weights of a stream for its own copies
        self.counts: list[list[int]] = []
        self._count = Counter() if count is None and is_memory_counted() else count

    def run(
        self,
        actions: Sequence[Action],
        channel: Channel,
        in_turn: Iterable[Action] | None = None,
    ) -> None:
        """Do the part's actions, in the caller's grad mode, in another order if one is given."""
        self._channel = channel if self._count is None else CopyingChannel(channel)
        for run in self._runs.values():
            run.channel = self._channel
        computing = [action for action in actions if not action.is_of_weights]
        last = {action.micro_batch: action for action in computing}
        forward = (action for action in computing if action.direction is Direction.FORWARD)
        back = [action for action in computing if action.direction in GO_BACK]
        self._last_forward = {action.micro_batch: action for action in forward}
        self._last_backward = {action.micro_batch: action for action in back}
        self._learns = bool(back)
        halves = (action for action in back if action.direction is Direction.WEIGHTS)
        self._in_halves = {action.micro_batch for action in halves}
        self._has_products = self._several_use_a_matrix or self._has_several(len(last))
        self._last, self._final = last, computing[-1] if computing else None
        try:
            if in_turn is None:
                for action in actions:
                    self._do(action, perf_counter_ns())
            else:
                self._do_in_turn(in_turn)
        finally:
            if self._learns and self._travelling is not None:
                # Their gradients were taken, or the pass has failed; a later pass adds its own.
                self._travelling.copies.clear(self._part.turns[0].part)
        begin = perf_counter_ns()
        if channel.settle() and actions:
            end = perf_counter_ns()
            self.events.append(Event(actions[-1], Doing.WAIT, begin, end))
            self.timing.add(_way(actions[-1]), *[(end - begin) / 1e9] * 2)

    def begin_backward(self, gradients: Sequence[Tensor | None], weights: bool) -> None:
        """Give the gradients of the results of the only micro-batch, before its backward actions.

        Without `weights`, backward computes the gradients of inputs only.
        """
        self._gradients[0] = gradients
        self._runs[0].to_inputs_alone = not weights

    def _do_in_turn(self, actions: Iterable[Action]) -> None:
        """Do actions as they become ready, and note for how long nothing was."""
        since = perf_counter_ns()
        for action in actions:
            now = perf_counter_ns()
            self._spans.append((Doing.WAIT, since, now))
            self._do(action, since)
            since = perf_counter_ns()

    def _do(self, action: Action, begin: int) -> None:
        if self._count is not None:
            self.counts.append([])
        (self._transport_weights if action.is_of_weights else self._compute)(action)
        if action is self._final:
            self._add_products()
        self._note(action, begin, perf_counter_ns())
        ends = self._last.get(action.micro_batch) is action
        if ends and (self._learns or not torch.is_grad_enabled()):
            self._end(action.micro_batch)
        self._count_memory()

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes that it held, if memory was counted."""
        return (max(chain(*self.counts), default=0),) if self._count is not None else ()

    @property
    def held(self) -> list[Any]:
        """All that it holds for later actions, in any structure."""
        return [
            [run.held for run in self._runs.values()],
            [[*(run.products or {}).values()] for run in self._runs.values()],
            [*self._products.values()],
            self.results,
            self._gradients,
        ]

    @property
    def weights(self) -> list[Tensor]:
        """Parameters, buffers and gradients, including those of batches in flight."""
        in_flight = () if self._versions is None else self._versions.held
        return [*of_weights(self._part.turns[0].module), *in_flight]

    def _count_memory(self) -> None:
        if self._count is not None:
            self.counts[-1].append(self._count(self))

    def _add_products(self) -> None:
        """Compute the gradients that were left for the end, as nobody waits for them."""
        _add_all(self._products)

    def _has_several(self, micro_batches: int) -> bool:
        """Whether gradients of large matrices may be computed for several micro-batches at once."""
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
            run.forward_chunk(chunk, piece)
            if action is self._last_forward[micro_batch]:
                self._finish_forward(micro_batch)
            return
        if direction is Direction.UPDATE:
            assert self._updates is not None
            self._runs.pop(micro_batch, None)  # frees its weights before there are new ones
            self._updates.versions.collect(micro_batch)
            self._updates.versions.end()
            self._updates.done(self.scores.pop(micro_batch, None))
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

    def _transport_weights(self, action: Action) -> None:
        """Send or receive weights, or gradients of copies."""
        assert self._travelling is not None
        _, direction, batch, number, _ = action
        exchange = self._travelling.exchanges[number]
        copies, versions = self._travelling.copies, self._versions
        is_own = exchange.owner == exchange.holder
        if direction is Direction.SPREAD:
            body = copies.values(exchange)
            if versions is not None:
                body = body.clone()  # the next update changes these weights
            if is_own:
                self._own[batch, number] = body
            else:
                self._send(Piece(Direction.SPREAD, batch, number), exchange, body)
        elif direction is Direction.GATHER:
            if not is_own:
                body = self._receive(Piece(Direction.SPREAD, batch, number))
            else:
                body = self._own.pop((batch, number)) if versions else copies.values(exchange)
            if versions is not None:
                versions.let_go(copies.copy(exchange, key) for key in exchange.copy_keys)
            copies.put(exchange, body, at_once=self._travelling.is_counted)
        elif direction is Direction.REDUCE:
            self._complete(copies.copy(exchange, key) for key in exchange.copy_keys)
            leaves = None if versions is None else versions.leaves(batch)
            piece = Piece(Direction.REDUCE, batch, number)
            self._send(piece, exchange, copies.gradients(exchange, leaves))
        else:
            leaves = None
            if versions is not None:
                self._runs.pop(batch, None)
                leaves = versions.collect(batch)
            if is_own:
                copies.hand_over(exchange, leaves)
            else:
                piece = Piece(Direction.REDUCE, batch, number)
                copies.add_gradients(exchange, self._receive(piece))

    def _complete(self, weights: Iterable[Tensor]) -> None:
        """Compute the gradients of these weights that were left for the end of the step."""
        wanted = {id(weight) for weight in weights}
        for key in [key for key in self._products if not wanted.isdisjoint(key)]:
            add_products(self._products.pop(key))

    def _send(self, piece: Piece, exchange: Exchange, body: Tensor) -> None:
        """Send weights, or gradients of copies, and count them."""
        assert self._travelling is not None
        back = piece.direction is Direction.REDUCE
        owner, holder = exchange.owner, exchange.holder
        ends = (holder, owner) if back else (owner, holder)
        counted = self._travelling.is_counted
        self.traffic.count(ends, body.nbytes, backward=back, counted=counted)
        begin = perf_counter_ns()
        self._channel.send(piece, ends[1], [body])
        self._spans.append((Doing.SEND, begin, perf_counter_ns()))

    def _receive(self, piece: Piece) -> Tensor:
        begin = perf_counter_ns()
        (body,) = self._channel.receive(piece)
        self._spans.append((Doing.WAIT, begin, perf_counter_ns()))
        return body.to(self._part.device)

    def _begin(self, micro_batch: int) -> None:
        values = next(self._batches)  # micro-batches begin in order
        if self._count is not None:
            values = copied(values)
        joined = micro_batch not in self._in_halves
        part = self._part
        program = part.program(micro_batch)
        dropped = self._dropped if self._learns else ()
        facts = part.device, part.k, joined, micro_batch, dropped, part.slower
        run = PartRun(program, self._channel, *facts)
        run.traffic, run.spans = self.traffic, self._spans  # the same for all micro-batches
        products = self._products if self._versions is None else {}
        run.products = products if self._has_products else None
        if self._count is not None:  # else only the jobs of this StepRun refer to it
            run.on_recomputed = self._count_memory
        run.begin(values)
        if self._versions is not None:
            run.weights = self._versions.begin(micro_batch)
        self._runs[micro_batch] = run

    def _finish_forward(self, micro_batch: int) -> None:
        results = self._runs[micro_batch].results()
        if self._score is None or not results:  # in a turn another part may have them
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
    """Pass to which an action's time belongs."""
    return "forward" if action.direction in GO_FORWARD else "backward"


def _add_all(products: dict[Any, list[WeightProduct]] | None) -> None:
    for of_one_weight in (products or {}).values():
        add_products(of_one_weight)
    if products:
        products.clear()


def _several_use_a_matrix(program: PartProgram) -> bool:
    """Whether several steps have a matrix in common, as steps of several slices do."""
    if program not in _have_in_common:
        uses: Counts[int] = Counts()
        for step in program.module.children():
            uses.update({id(matrix) for matrix in matrices(step)})
        _have_in_common[program] = max(uses.values(), default=0) > 1
    return _have_in_common[program]


_have_in_common: WeakKeyDictionary[PartProgram, bool] = WeakKeyDictionary()


def backward_from(score: Tensor, results: Sequence[Tensor]) -> Tensor:
    """Go back from a score, which gives results their gradients; return it without its graph."""
    if any(result.requires_grad for result in results):
        score.backward()  # type: ignore[no-untyped-call]
    return score.detach()
