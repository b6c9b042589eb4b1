"""nn.Module -> Learner: one interface for models whose steps are run, whole or in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hgpart.execution.records.events import Event, Timeline
from hgpart.execution.records.totals import Totals
from hgpart.placement.cutting.slices import Slice
from hgpart.schedule_wanted import Scheduling

LossFunction = Callable[[Any, Any], Tensor]  # called with results and targets; `Placement.step`


class Learner:
    """A model whose steps are run: any module, whole in this process.

    `PlacedModel` overrides what differs for a model in parts, in this process or in several.
    """

    processes = 1  # number of processes that the model is divided among
    scheduling = Scheduling("sequential")  # of a step
    norms = "micro-batch"  # what updates running statistics, as in `hgpart.place`
    autocast: torch.dtype | None = None  # the type of autocast in passes
    first = True  # whether this process writes and prints
    device: torch.device  # of labels
    dtype: torch.dtype  # of images

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        tensor = next(iter(model.parameters()), torch.empty(0))
        self.device, self.dtype = tensor.device, tensor.dtype

    @property
    def has_norms(self) -> bool:
        """Whether norms take their statistics from the samples of a batch, in training."""
        return any(isinstance(module, _BatchNorm) for module in self.model.modules())

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """The samples that are read here, in a batch of micro-batches of these sizes."""
        return range(sum(sizes))

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """The samples of such a batch whose result is here."""
        return range(sum(sizes))

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """Numbers of samples that norms take statistics from, per share of each micro-batch."""
        return [(size,) for size in self.scheduling.sizes(batch_size)]

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result of images; None where another process has it.

        Images are those of `samples_read`, results those of `samples_of_result`.
        """
        assert images is not None
        return self.model(images.to(self.device, self.dtype))

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run forward and, in grad mode, backward, which adds to the gradients held here.

        Images and targets belong to the samples that are read here, and to those whose result is
        here. Returns the loss where the result is, if there is a loss function.
        """
        result = self.forward(images, batch_size)
        if loss_fn is None:
            return None
        value: Any = loss_fn(result, targets)
        loss: Tensor = value[0] / value[1] if isinstance(value, tuple) else value
        if torch.is_grad_enabled():
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def learn(
        self,
        batches: Iterable[tuple[Any, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[float], object],
        on_step: Callable[[], object] = lambda: None,
    ) -> Sequence[Sequence[int]]:
        """Run steps with updates, one after another or several in flight, by `scheduling`.

        `update` is called with each part here when its gradients are those of one batch; they are
        None afterwards, and must be None before. `on_step` is called when a step has ended here.
        `on_loss` is called with the steps' losses, in all processes; some steps later where another
        process has them, because nobody waits for losses that are still to be computed.

        Returns the `Schedule.staleness` of a stream; otherwise nothing.
        """
        losses, learned = Losses(self, on_loss, behind=1), self.learned()
        for images, targets in batches:
            loss = self.step(images, targets, batch_size, loss_fn)
            for part, parameters in learned.items():
                update(part)
                for parameter in parameters:
                    parameter.grad = None
            on_step()
            losses.add(loss)
        losses.tell()
        return ()

    @property
    def events(self) -> Sequence[Event]:
        """What was done here and when, in the last step; empty for a model without parts."""
        return ()

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """What all parts should do and when, in the present mode, by the schedule's own costs.

        This holds for a step, or a stream of `batches` batches; all processes call it.
        """
        return ()

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """Most bytes that each part holds in a step or a stream; see `hgpart.peak_bytes`.

        None for a part for which that can't be computed.
        """
        return ()

    def count_anew(self) -> None:
        """Let `totals` begin again from zero."""

    def totals(self) -> Totals:
        """Everything that all parts have done since `count_anew`."""
        return Totals.none(parts=0, k=1)

    def sums(self, batch_size: int) -> str:
        """The rule for the order of sums, on which losses depend; all processes call it.

        With batches in flight this includes what each part does in a stream, by its costs.
        """
        return self.scheduling.sums

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """Part, slice and tensor of all parameters and buffers here.

        A tensor with several names counts under the first.
        """
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield 0, Slice(name, tuple(tensor.shape)), tensor

    def learned(self) -> dict[int, list[nn.Parameter]]:
        """The parameters that learn, for each part here that has some."""
        parts: dict[int, list[nn.Parameter]] = {}
        for part, _, tensor in self.held():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                parts.setdefault(part, []).append(tensor)
        return parts

    def whole_state(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, in the first process; all processes call it."""
        return self.model.state_dict()

    def add_later(self, value: float) -> Callable[[], float]:
        """Add up a number over the processes that have results; all processes call it.

        Nobody waits before the returned function is called.
        """
        return lambda: value

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order; all processes call it."""
        return [value]


class Losses:
    """Losses of steps, told in order; some steps later if other processes have them."""

    def __init__(self, learner: Learner, on_loss: Callable[[float], object], behind: int) -> None:
        self._learner, self._on_loss = learner, on_loss
        self._behind = behind if learner.processes > 1 else 0
        self._waiting = deque[Callable[[], float]]()

    def add(self, loss: Tensor | None) -> None:
        """Share a step's loss, which is None where other processes have it."""
        self._waiting.append(self._learner.add_later(0.0 if loss is None else loss.item()))
        self.tell(self._behind)

    def tell(self, left: int = 0) -> None:
        """Wait for all losses but the last `left`, and pass them on."""
        while len(self._waiting) > left:
            self._on_loss(self._waiting.popleft()())


def timeline_of(learner: Learner, events: Sequence[Sequence[Event]]) -> Timeline:
    """What all parts did and when, from the events of each step here; all processes call it."""
    events_of_processes: list[Sequence[Sequence[Event]]] = learner.gather(events)
    return tuple(tuple(chain(*step)) for step in zip(*events_of_processes, strict=True))
