"""nn.Module -> Learner: one face for all that run steps of a model, be it in parts or whole."""

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

LossFunction = Callable[[Any, Any], Tensor]  # of results and targets; see `Placement.step`


class Learner:
    """A model whose steps are run: any module, all of it in this process.

    Of one that is in parts, here or in several processes, `PlacedModel` says what differs.

    Parameters
    ----------
    model : nn.Module
    """

    processes = 1  # that the model is divided among
    scheduling = Scheduling("sequential")  # of a step
    norms = "micro-batch"  # what updates running statistics, as `hgpart.place` takes it
    first = True  # whether this process is the one that writes and prints
    device: torch.device  # where labels go
    dtype: torch.dtype  # of the images

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        tensor = next(iter(model.parameters()), torch.empty(0))
        self.device, self.dtype = tensor.device, tensor.dtype

    @property
    def has_norms(self) -> bool:
        """Whether norms take their statistics of the samples of a batch, in training."""
        return any(isinstance(one, _BatchNorm) for one in self.model.modules())

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """Which samples are looked at here, of a batch of micro-batches of some sizes."""
        return range(sum(sizes))

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """Which samples of such a batch have their result here."""
        return range(sum(sizes))

    def shares(self, batch_size: int) -> Sequence[Sequence[int]]:
        """Samples that norms take their statistics of, share by share of each micro-batch."""
        return [(size,) for size in self.scheduling.sizes(batch_size)]

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result, which is None where another process has it, of images that are read.

        Both are of the samples whose numbers `samples_read` and `samples_of_result` say.
        """
        assert images is not None
        return self.model(images.to(self.device, self.dtype))

    def step(
        self, images: Tensor | None, targets: Any, batch_size: int, loss_fn: LossFunction | None
    ) -> Tensor | None:
        """Run forward and, in grad mode, backward, which adds to the gradients of what is held.

        Images and targets are of the samples that are read, and of those with their result here.
        Returns the loss where the result is, if there is a loss function.
        """
        result = self.forward(images, batch_size)
        if loss_fn is None:
            return None
        loss = loss_fn(result, targets)
        if torch.is_grad_enabled():
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def learn(
        self,
        batches: Iterable[tuple[Tensor | None, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Callable[[int], object],
        on_loss: Callable[[float], object],
        on_step: Callable[[], object] = lambda: None,
    ) -> Sequence[Sequence[int]]:
        """Run steps with updates, one after the other or some in flight, as `scheduling` has it.

        `update` is told the parts that are here, when the gradients of their parameters are of one
        batch; they are None afterwards, and have to be before. `on_step` is called when a step has
        ended here. `on_loss` is told the steps' losses, in all processes: some steps later where
        another one has them, as nobody waits for what has yet to be computed.

        Returns the `Schedule.staleness` of what is no step of its own; else nothing.
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
        """What was done here when in the last step; like what follows, nothing without parts."""
        return ()

    def planned(self, batches: int, batch_size: int) -> tuple[Event, ...]:
        """What all parts should do when, in the present mode, by the schedule's own costs.

        In a step, or in a stream of so many batches; all call it.
        """
        return ()

    def peak_bytes(self, batch_size: int) -> tuple[int | None, ...]:
        """The most that each part holds in a step, or a stream; see `hgpart.peak_bytes`.

        None of a part for which that can't be computed.
        """
        return ()

    def count_anew(self) -> None:
        """Let `totals` be of what is done from now on."""

    def totals(self) -> Totals:
        """What all parts have done up to now."""
        return Totals.none(parts=0, k=1)

    def sums(self, batch_size: int) -> str:
        """What sums, and so losses, have their order by, in the present mode; all call it.

        With batches in flight that is what each part does in a stream, which depends on costs.
        """
        return self.scheduling.sums

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """Part, slice and tensor of all parameters and buffers here.

        One that has several names counts under the first.
        """
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield 0, Slice(name, tuple(tensor.shape)), tensor

    def learned(self) -> dict[int, list[nn.Parameter]]:
        """Those parameters of each part here that learn, if it has some."""
        parts: dict[int, list[nn.Parameter]] = {}
        for part, _, tensor in self.held():
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                parts.setdefault(part, []).append(tensor)
        return parts

    def whole_state(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, in the first process; all call it."""
        return self.model.state_dict()

    def add_later(self, value: float) -> Callable[[], float]:
        """Add up what the processes found that have results, for all of them; all call it.

        Nobody waits before calling what is returned.
        """
        return lambda: value

    def gather(self, value: Any) -> list[Any]:
        """Tell all processes what each of them has, in their order."""
        return [value]


class Losses:
    """Losses of steps, told in their order, so many steps later if other processes have them."""

    def __init__(self, learner: Learner, on_loss: Callable[[float], object], behind: int) -> None:
        self._learner, self._on_loss = learner, on_loss
        self._behind = behind if learner.processes > 1 else 0
        self._waiting = deque[Callable[[], float]]()

    def add(self, loss: Tensor | None) -> None:
        """Share a step's loss, which is None where others have it."""
        self._waiting.append(self._learner.add_later(0.0 if loss is None else loss.item()))
        self.tell(self._behind)

    def tell(self, left: int = 0) -> None:
        """Wait for all but the last few."""
        while len(self._waiting) > left:
            self._on_loss(self._waiting.popleft()())


def timeline_of(learner: Learner, events: Sequence[Sequence[Event]]) -> Timeline:
    """What all parts did when, of the events of each step here; all processes call it."""
    of_all: list[Sequence[Sequence[Event]]] = learner.gather(events)
    return tuple(tuple(chain(*step)) for step in zip(*of_all, strict=True))
