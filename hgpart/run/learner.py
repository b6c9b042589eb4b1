"""nn.Module, Placement or DistributedModel -> Learner: one face for all that run its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hgpart.execution.records.events import Event, Timeline, planned_events
from hgpart.execution.records.totals import Totals
from hgpart.execution.transfers import WHOLE
from hgpart.placement import Placement
from hgpart.placement.accounting import known_peak_bytes
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.run.distributed import DistributedModel
from hgpart.run.scheduling import costs_of, wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import times

LossFunction = Callable[[Any, Any], Tensor]  # of results and targets; see `Placement.step`
Loss = Callable[[], float]  # waits for it, where another process has it


class Learner(Protocol):
    """A model whose steps are run, or what this process has of it."""

    processes: int  # that the model is divided among
    scheduling: Scheduling  # of a step
    norms: str  # what updates running statistics, as `hgpart.place` takes it
    first: bool  # whether this process is the one that writes and prints
    device: torch.device  # where labels go
    dtype: torch.dtype  # of the images

    @property
    def makes_result(self) -> bool:
        """Whether the result, and so the loss, is here, or some samples' of it."""

    @property
    def has_norms(self) -> bool:
        """Whether norms take their statistics of the samples of a batch, in training."""

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """Which samples are looked at here, of a batch of micro-batches of some sizes."""

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """Which samples of such a batch have their result here."""

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """Samples that norms take their statistics of, share by share of each micro-batch."""

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result, which is None where another process has it, of images that are read.

        Both are of the samples whose numbers `samples_read` and `samples_of_result` say.
        """

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run forward and, in grad mode, backward, which adds to the gradients of what is held.

        Images and targets are of the samples that are read, and of those with their result here.
        Returns the loss where the result is, if there is a loss function.
        """

    @property
    def events(self) -> Sequence[Event]:
        """What was done here when in the last step."""

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """What all parts should do when, in the present mode, by the schedule's own costs.

        In a step, or in a stream of so many batches; nothing where there are no parts. All call it.
        """

    def sums(self, batch_size: int) -> str:
        """What sums, and so losses, have their order by, in the present mode; all call it.

        With batches in flight that is what each part does in a stream, which depends on costs.
        """

    def learn(
        self,
        batches: Iterable[tuple[Tensor | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[Loss], object],
    ) -> Sequence[Sequence[int]]:
        """Run steps, one after the other or some in flight, as `scheduling` has it.

        Each with updates: `update` is told the parts that are here, when the gradients of their
        parameters are of one batch; they are None afterwards, and have to be before.

        Returns the `Schedule.staleness` of what is no step of its own; else nothing.
        """

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """Part, slice and tensor of all parameters and buffers here."""

    def whole_state(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, in the first process; all call it."""

    def share(self, value: float | None) -> float:
        """Tell all processes what the one that makes the result found; add up what several did."""

    def share_later(self, value: float | None) -> Loss:
        """The same, where nobody waits before calling what is returned."""

    def gather(self, value: Any) -> list[Any]:
        """Tell all processes what each of them has, in their order."""

    def count_anew(self) -> None:
        """Let `totals` be of what is done from now on."""

    def totals(self) -> Totals:
        """What all parts have done up to now."""

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """The most that each part holds in a step, or a stream; see `hgpart.peak_bytes`.

        None of a part for which that can't be computed.
        """


def learn_in_turn(
    learner: Learner,
    batches: Iterable[tuple[Tensor | None, Any]],
    batch_size: int,
    loss_fn: LossFunction,
    update: Callable[[int], object],
    on_loss: Callable[[Loss], object],
) -> None:
    """`Learner.learn` of steps one after the other."""
    parts: dict[int, list[nn.Parameter]] = {}
    for part, _, tensor in learner.held():
        if isinstance(tensor, nn.Parameter):
            parts.setdefault(part, []).append(tensor)
    for images, targets in batches:
        loss = learner.step(images, targets, batch_size, loss_fn)
        for part, parameters in parts.items():
            update(part)
            for parameter in parameters:
                parameter.grad = None
        on_loss(learner.share_later(None if loss is None else loss.item()))


class WholeModel:
    """A Learner for a module that is wholly in this process: any, or a Placement."""

    processes = 1
    scheduling = Scheduling("sequential")
    norms = "micro-batch"
    makes_result = first = True

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        tensor = next(iter(model.parameters()), torch.empty(0))
        self.device, self.dtype = tensor.device, tensor.dtype

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result."""
        assert images is not None
        return self.model(images.to(self.device, self.dtype))

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run the batch at once."""
        result = self.forward(images, batch_size)
        if loss_fn is None:
            return None
        loss = loss_fn(result, targets)
        if torch.is_grad_enabled():
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @property
    def events(self) -> Sequence[Event]:
        """Nothing is measured."""
        return ()

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """There are no parts."""
        return ()

    def sums(self, batch_size: int) -> str:
        """Those of autograd."""
        return self.scheduling.sums

    def learn(
        self,
        batches: Iterable[tuple[Tensor | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[Loss], object],
    ) -> Sequence[Sequence[int]]:
        """Run steps one after the other."""
        learn_in_turn(self, batches, batch_size, loss_fn, update, on_loss)
        return ()

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """All."""
        return range(sum(sizes))

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """All."""
        return range(sum(sizes))

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """One of all."""
        return [(size,) for size in self.scheduling.sizes(batch_size)]

    @property
    def has_norms(self) -> bool:
        """Whether there are batch norms."""
        return any(isinstance(one, _BatchNorm) for one in self.model.modules())

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """All parameters and buffers; one that has several names counts under the first."""
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield 0, Slice(name, tuple(tensor.shape)), tensor

    def whole_state(self) -> dict[str, Tensor] | None:
        """The module's; of a placement the model's."""
        return self.model.state_dict()

    def share(self, value: float | None) -> float:
        """Return what is known here."""
        assert value is not None
        return value

    def share_later(self, value: float | None) -> Loss:
        """Return what is known here."""
        return partial(self.share, value)

    def gather(self, value: Any) -> list[Any]:
        """Return what is known here."""
        return [value]

    def count_anew(self) -> None:
        """Nothing is counted."""

    def totals(self) -> Totals:
        """Nothing is measured, and nothing travels."""
        return Totals.none(parts=0, k=1)

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """It is in no parts."""
        return ()


class _Scheduled:
    """What learners with parts have in common: a schedule for each mode, made when first needed."""

    scheduling: Scheduling

    def __init__(self, model: Placement | DistributedModel, scheduling: Scheduling | None) -> None:
        self._scheduled = model
        self._placement = model if isinstance(model, Placement) else model.placement
        self.scheduling = scheduling or Scheduling()
        self.norms = self._placement.programs.norms
        self._schedules: dict[tuple[bool, bool, int, int | None], Schedule] = {}

    def schedule(self, batches: int = 1, batch_size: int | None = None) -> Schedule:
        """What a step, or a stream, is done by, in the present mode and grad mode, in all sizes.

        Where the parts are in several processes, all call it.
        """
        key = self._placement.training, torch.is_grad_enabled(), batches, batch_size
        if key not in self._schedules:
            self._schedules[key] = wanted_schedule(self._scheduled, self.scheduling, *key[1:])
        return self._schedules[key]

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """What all parts should do when, by estimated costs."""
        is_stream = self.scheduling.is_stream
        made = self.schedule(batches if is_stream else 1, batch_size)
        costs = costs_of(self._placement, self.scheduling.micro_batches, batch_size)
        return planned_events(made.order, times(made.outlines, made.order, costs))

    def sums(self, batch_size: int) -> str:
        """What sums have their order by."""
        said = self.scheduling.sums
        if self.scheduling.most_in_flight == 1:
            return said
        return f"{said}, order {self._sample(batch_size).fingerprint}"

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """Those of the slices that lie alike, or of all."""
        together = self._placement.programs.blueprint.partition.modelling.norms == "batch"
        shares = (WHOLE,) if together else self._placement.programs.shares
        return [sizes_of(shares, size) for size in self.scheduling.sizes(batch_size)]

    @property
    def has_norms(self) -> bool:
        """Whether steps have some that take their statistics of samples, in the present mode."""
        return self._placement.programs.blueprint.has_norms

    def _sample(self, batch_size: int) -> Schedule:
        """Of a step, or of enough batches of a stream."""
        return self.schedule(self.scheduling.sample_batches, batch_size)

    def _peak_here(self, batch_size: int) -> tuple[int | None, ...]:
        """The most that each part here holds in a step, in the present mode and grad mode."""
        return known_peak_bytes(self._placement, self._sample(batch_size), batch_size)


class PlacedModel(_Scheduled, WholeModel):
    """A Learner for a placement all of which is in this process."""

    def __init__(self, placement: Placement, scheduling: Scheduling | None = None) -> None:
        WholeModel.__init__(self, placement)
        _Scheduled.__init__(self, placement, scheduling)
        self.placement = placement
        self.device = placement.devices[placement.programs.output_part]
        self.dtype = placement.dtype
        self.count_anew()

    def count_anew(self) -> None:
        """Let `totals` be of what is done from now on."""
        self._done = Totals.none(self.placement.k, self.placement.k)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result; each part moves to its device what it reads."""
        assert images is not None
        result = self.placement(images.to(dtype=self.dtype))
        self._count()
        return result

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run the batch in micro-batches."""
        assert images is not None
        images = images.to(dtype=self.dtype)
        order = self.schedule(batch_size=batch_size)
        made = self.placement.step([images], targets, loss_fn, order)
        self._count()
        return None if loss_fn is None else made

    def learn(
        self,
        batches: Iterable[tuple[Tensor | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[Loss], object],
    ) -> Sequence[Sequence[int]]:
        """Run steps by a thread for each part."""
        if not self.scheduling.is_stream:
            return super().learn(batches, count, batch_size, loss_fn, update, on_loss)
        cast = (([_there(images).to(dtype=self.dtype)], targets) for images, targets in batches)
        self.placement.for_batch(batch_size)
        made = self.schedule(count, batch_size)
        self.placement.stream(
            *(cast, loss_fn, update, made),
            stash=self.scheduling.stash,
            on_loss=lambda loss: on_loss(self.share_later(loss.item())),
        )
        self._count()
        return made.staleness

    @property
    def events(self) -> Sequence[Event]:
        """What was done when in the last step."""
        return self.placement.runtime.last.events

    def _count(self) -> None:
        self._done = self._done + self.placement.runtime.last.totals

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """What all parts hold."""
        return held_by_parts(self.placement)

    def totals(self) -> Totals:
        """What was done up to now."""
        return self._done

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """The most that each part holds in a step, in the present mode and grad mode."""
        return self._peak_here(batch_size)

    def counted_peak(self) -> tuple[int, ...]:
        """The same, counted in the last step, if that was to be."""
        return self.placement.runtime.last.peak_bytes


class RankModel(_Scheduled):
    """A Learner for the part of a placement that this process holds."""

    def __init__(self, model: DistributedModel, scheduling: Scheduling | None = None) -> None:
        super().__init__(model, scheduling)
        self.model, self.dtype = model, model.placement.dtype
        self.processes = model.connection.k
        self.first = model.connection.rank == 0
        self.device = model.connection.device
        self.count_anew()

    def count_anew(self) -> None:
        """Let `totals` be of what is done from now on."""
        self._done = Totals.none(1, self.processes)

    @property
    def makes_result(self) -> bool:
        """Whether `forward` returns the result here."""
        return self.model.makes_result

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """Those of the slices that the part begins with."""
        return self.model.placement.programs.samples_read(self.model.connection.rank, sizes)

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """Those of the slices that the part ends."""
        return self.model.placement.programs.samples_of_result(self.model.connection.rank, *sizes)

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the part's share."""
        if images is not None:
            images = images.to(self.device, self.dtype)
        result = self.model(images, batch_size=batch_size)
        self._count()
        return result

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run the part's share of the batch in micro-batches."""
        if images is not None:
            images = images.to(self.device, self.dtype)
        order = self.schedule(batch_size=batch_size)
        made = self.model.step([images], targets, loss_fn, order, batch_size=batch_size)
        self._count()
        return None if loss_fn is None else made

    def learn(
        self,
        batches: Iterable[tuple[Tensor | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[Loss], object],
    ) -> Sequence[Sequence[int]]:
        """Run the part's share of steps."""
        if not self.scheduling.is_stream:
            learn_in_turn(self, batches, batch_size, loss_fn, update, on_loss)
            return ()
        cast = (
            ([None if images is None else images.to(self.device, self.dtype)], targets)
            for images, targets in batches
        )
        made = self.schedule(count, batch_size)
        waiting = deque[Loss]()

        def share(loss: Tensor | None) -> None:
            waiting.append(self.share_later(None if loss is None else loss.item()))
            if len(waiting) > made.under_way:  # nobody waits for what has yet to be computed
                on_loss(waiting.popleft())

        stash = self.scheduling.stash
        self.model.stream(*(cast, loss_fn, update, made, batch_size), stash=stash, on_loss=share)
        for loss in waiting:
            on_loss(loss)
        self._count()
        return made.staleness

    @property
    def events(self) -> Sequence[Event]:
        """What was done here when in the last step."""
        return self.model.last.events

    def _count(self) -> None:
        self._done = self._done + self.model.last.totals

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """What the part holds."""
        return held_by_parts(self.model.placement)

    def whole_state(self) -> dict[str, Tensor] | None:
        """Gathered from all processes."""
        return self.model.gathered_state_dict()

    def share(self, value: float | None) -> float:
        """Hear from the process that has the result."""
        return self.share_later(value)()

    def share_later(self, value: float | None) -> Loss:
        """Hear later from the process that has the result, or all that have samples of it."""
        connection, parts = self.model.connection, {*self.model.placement.programs.output_parts}
        if len(parts) == 1:
            return connection.share_later(value, *parts)
        total = connection.add_later(value or 0.0)
        dtype = torch.promote_types(self.dtype, torch.float32)  # as a step in one process adds up
        return lambda: torch.tensor(total(), dtype=torch.float64).to(dtype).item()

    def gather(self, value: Any) -> list[Any]:
        """Hear from all processes."""
        return self.model.connection.gather(value)

    def totals(self) -> Totals:
        """What was done up to now, in all processes."""
        done: list[Totals] = self.gather(self._done)
        timings = tuple(timing for each in done for timing in each.timings)
        return Totals(timings, reduce(add, (each.traffic for each in done)))

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """The most that each part holds in a step, in the present mode and grad mode."""
        return tuple(chain.from_iterable(self.gather(self._peak_here(batch_size))))

    def counted_peak(self) -> tuple[int, ...]:
        """The same, counted in the last step, if that was to be."""
        return tuple(chain.from_iterable(self.gather(self.model.last.peak_bytes)))


def timeline_of(learner: Learner, events: Sequence[Sequence[Event]]) -> Timeline:
    """What all parts did when, of the events of each step here; all processes call it."""
    of_all: list[Sequence[Sequence[Event]]] = learner.gather(events)
    return tuple(tuple(chain(*step)) for step in zip(*of_all, strict=True))


def _there(images: Tensor | None) -> Tensor:
    assert images is not None
    return images


def held_by_parts(placement: Placement) -> Iterator[tuple[int, Slice, Tensor]]:
    """Part, slice and tensor of all parameters and buffers of the model that are here."""
    for part in placement.programs.parts:
        for held, tensor in placement.held(part):
            yield part, held, tensor
