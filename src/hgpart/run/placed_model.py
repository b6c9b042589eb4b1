"""Placement or DistributedModel -> PlacedModel: a Learner for a model in parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hgpart.execution.program import WHOLE
from hgpart.execution.records.events import Event, planned_events
from hgpart.execution.records.totals import Totals, Traffic
from hgpart.placement import Placement
from hgpart.placement.accounting import known_peak_bytes
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.ordering.ordered import costs_of
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.run.distributed import DistributedModel
from hgpart.run.learner import Learner, Losses, LossFunction
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import LONGEST
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import times_of
from hgpart.tracing.arguments import Inputs, as_called


class PlacedModel(Learner):
    """A Learner for a placed model: all of its parts, in threads, or this process's part.

    Parameters
    ----------
    scheduling : Scheduling, optional
        Default: the whole batch at once.
    autocast : torch.dtype, optional
        The type that torch's autocast casts to in passes.
    """

    model: Placement | DistributedModel

    def __init__(
        self,
        model: Placement | DistributedModel,
        scheduling: Scheduling | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.model, self.autocast = model, autocast
        self.placement = model if isinstance(model, Placement) else model.placement
        self.scheduling = scheduling or Scheduling()
        self.norms, self.dtype = self.placement.programs.norms, self.placement.dtype
        self._transport, devices = model.runtime.transport, model.runtime.devices
        self._parts = (*devices,)
        self.processes = self.placement.k // len(devices)
        self.first = 0 in devices
        own = devices[self._parts[0]]
        self.device = devices.get(self.placement.programs.output_part, own)
        # If there are several parts here, each moves what it reads to its own device.
        self._inputs_go_to = own if len(devices) == 1 else None
        self._schedules: dict[tuple[bool, bool, int, int | None], Schedule] = {}
        self.count_anew()

    @property
    def has_norms(self) -> bool:
        """Whether steps have norms that take statistics from samples, in the present mode."""
        return self.placement.programs.blueprint.has_norms

    @property
    def _is_in_turns(self) -> bool:
        """Whether a process may need any samples, as batches take turns; passes forward do not."""
        return self.scheduling.is_in_turns and self.placement.training

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """The samples of the slices that this process begins with."""
        if self.processes == 1 or self._is_in_turns:
            return super().samples_read(sizes)
        return self.placement.programs.samples_read(self._parts[0], sizes)

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """The samples of the slices that this process ends with."""
        if self.processes == 1 or self._is_in_turns:
            return super().samples_of_result(sizes)
        return self.placement.programs.samples_of_result(self._parts[0], *sizes)

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """Numbers of samples of the slices that share parts, or of the whole batch."""
        together = self.placement.programs.blueprint.partition.modelling.norms == "batch"
        shares = (WHOLE,) if together else self.placement.programs.shares
        return [sizes_of(shares, size) for size in self.scheduling.sizes(batch_size)]

    def schedule(self, batches: int = 1, batch_size: int | None = None) -> Schedule:
        """The schedule of a step, or a stream, in the present mode, grad mode and sizes.

        If the parts are in several processes, all call this.
        """
        key = self.placement.training, torch.is_grad_enabled(), batches, batch_size
        if key not in self._schedules:
            self._schedules[key] = wanted_schedule(self.model, self.scheduling, *key[1:])
        return self._schedules[key]

    def forward_bytes(self, batch_size: int) -> int:
        """Bytes that all parts send forward in a step, by the plan; in the mean of all turns."""
        batches = len(self.placement.forms.turns) if self._is_in_turns else 1
        traffic = expected_traffic(self.placement, self.scheduling, batches, batch_size)
        return int(traffic.forward_bytes.sum()) // batches

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Inputs | None, batch_size: int) -> Any:
        """Compute the share of the parts here."""
        args, kwargs = as_called(self._cast(images))
        with self._precision():
            result = self.model(*args, **kwargs, **self._options(batch_size))
        self._count()
        is_here = self.processes == 1 or self.model.makes_result
        return result if is_here else None

    def step(
        self, images: Inputs | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run the batch in micro-batches."""
        loss = self._step(images, targets, batch_size, loss_fn)
        return None if loss_fn is None else loss

    def results(self, images: Inputs | None, batch_size: int) -> list[Any]:
        """Run the batch forward by the schedule of a step; the results of its micro-batches.

        Nothing where they are in another process.
        """
        return self._step(images, None, batch_size, None) or []

    def _step(
        self, images: Inputs | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Any:
        schedule, sizes = self.schedule(batch_size=batch_size), self._options(batch_size)
        with self._precision():
            made = self.model.step(self._cast(images), targets, loss_fn, schedule, **sizes)
        self._count()
        return made

    def learn(
        self,
        batches: Iterable[tuple[Inputs | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[float], object],
        on_step: Callable[[], object] = lambda: None,
    ) -> Sequence[Sequence[int]]:
        """Run steps, or a stream."""
        if not self.scheduling.is_stream:
            return super().learn(batches, count, batch_size, loss_fn, update, on_loss, on_step)
        self.model.for_batch(batch_size)
        schedule = self.schedule(count, batch_size)
        losses = Losses(self, on_loss, behind=schedule.under_way + 1)

        def end(loss: Tensor | None) -> None:
            on_step()
            losses.add(loss)

        cast = ((self._cast(images), targets) for images, targets in batches)
        options = {"stash": self.scheduling.stash, "on_loss": end, **self._options(batch_size)}
        with self._precision():
            self.model.stream(cast, loss_fn, update, schedule, **options)
        losses.tell()
        self._count()
        if not schedule.is_dynamic:
            return schedule.staleness
        return [*chain.from_iterable(self.gather(self.model.runtime.last.staleness))]

    def _precision(self) -> torch.autocast:
        enabled = self.autocast is not None
        return torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled)

    def _cast(self, inputs: Inputs | None) -> Inputs:
        """Inputs on this process's device, in the type of the parts; None is one from elsewhere."""

        def cast(tensor: Tensor) -> Tensor:
            dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
            return tensor.to(self._inputs_go_to, dtype)

        cast_inputs: Inputs = pytree.tree_map_only(
            Tensor, cast, [inputs] if inputs is None or isinstance(inputs, Tensor) else inputs
        )
        return cast_inputs

    def _options(self, batch_size: int) -> dict[str, Any]:
        """The batch size for processes, each of which has only some samples' images."""
        return {"batch_size": batch_size} if isinstance(self.model, DistributedModel) else {}

    @property
    def events(self) -> Sequence[Event]:
        """What was done here and when, in the last step."""
        return self.model.runtime.last.events

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """What all parts should do and when, by estimated costs."""
        schedule = self.schedule(batches if self.scheduling.is_stream else 1, batch_size)
        costs = costs_of(self.placement, self.scheduling.micro_batches, batch_size)
        return planned_events(schedule.order, times_of(schedule, costs))

    def sums(self, batch_size: int) -> str:
        """The rule for the order of sums, and the order itself if batches are in flight."""
        rule = self.scheduling.sums
        if self.scheduling.most_in_flight == 1:
            return rule
        return f"{rule}, order {self._sample(batch_size).fingerprint}"

    def _sample(self, batch_size: int) -> Schedule:
        """The schedule of a step, or of enough batches of a stream."""
        return self.schedule(self.scheduling.sample_batches, batch_size)

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """Part, slice and tensor of what the parts here hold."""
        return held_by_parts(self.placement)

    def whole_state(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, gathered from all parts."""
        if isinstance(self.model, Placement):
            return self.model.state_dict()
        return self.model.gathered_state_dict()

    def add_later(self, value: float) -> Callable[[], float]:
        """The number of the only process with the result, or the sum over all that have some."""
        makers = {*self.placement.programs.output_parts}
        total = self._transport.add_later(value, makers)
        if self.processes == 1 or len(makers) == 1:
            return total
        dtype = torch.promote_types(self.dtype, torch.float32)  # the type of a step's own sums
        return lambda: torch.tensor(total(), dtype=torch.float64).to(dtype).item()

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        return self._transport.gather(value)

    def count_anew(self) -> None:
        """Let `totals` begin again from zero."""
        self._done = Totals.none(len(self._parts), self.placement.k)

    def _count(self) -> None:
        self._done = self._done + self.model.runtime.last.totals

    def totals(self) -> Totals:
        """Everything done since `count_anew`, in all processes."""
        all_totals: list[Totals] = self.gather(self._done)
        timings = tuple(timing for totals in all_totals for timing in totals.timings)
        return Totals(timings, reduce(add, (totals.traffic for totals in all_totals)))

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """Most bytes that each part holds in a step, in the present mode and grad mode."""
        if self.autocast is not None:  # maps are known in the types that were placed
            return (None,) * self.placement.k
        here = known_peak_bytes(self.placement, self._sample(batch_size), batch_size)
        return tuple(chain.from_iterable(self.gather(here)))

    def counted_peak(self) -> tuple[int, ...]:
        """Most bytes that each part held in the last step, if they were counted."""
        return tuple(chain.from_iterable(self.gather(self.model.runtime.last.peak_bytes)))


def expected_traffic(
    placement: Placement,
    scheduling: Scheduling,
    steps: int,
    batch_size: int,
    *,
    backward: bool = True,
) -> Traffic:
    """What steps should send, by the plan's hypergraph; streams are of at most `LONGEST` steps.

    Where batches take turns, each stream begins with the first slice.
    """
    if not scheduling.is_in_turns:
        return placement.programs.expected_traffic(scheduling.sizes(batch_size), backward) * steps
    turns = placement.forms.turns
    counts = Counter(step % LONGEST % len(turns) for step in range(steps))
    of_turns = (
        placement.programs.expected_turn(turn, turns[turn], batch_size) * count
        for turn, count in counts.items()
    )
    return reduce(add, of_turns)


def held_by_parts(placement: Placement) -> Iterator[tuple[int, Slice, Tensor]]:
    """Part, slice and tensor of all parameters and buffers of the model that are here."""
    for part in placement.programs.parts:
        for held, tensor in placement.held(part):
            yield part, held, tensor
