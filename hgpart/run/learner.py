"""nn.Module, Placement or DistributedModel -> Learner: what a training needs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from hgpart.execution.totals import Timing, Traffic
from hgpart.placement.cutting.slices import Slice

if TYPE_CHECKING:
    from hgpart.placement import Placement
    from hgpart.run.distributed import DistributedModel


@dataclass(frozen=True, eq=False)
class Effort:
    """What the parts did.

    Attributes
    ----------
    timings : tuple of Timing
        One for each part.
    traffic : Traffic
    """

    timings: tuple[Timing, ...]
    traffic: Traffic


class Learner(Protocol):
    """A model that is trained, or what this process has of it."""

    processes: int  # that the model is divided among
    first: bool  # whether this process is the one that writes and prints
    device: torch.device  # where labels go
    dtype: torch.dtype  # of the images

    @property
    def reads_inputs(self) -> bool:
        """Whether `forward` needs the images here."""

    @property
    def makes_result(self) -> bool:
        """Whether `forward` returns the result here."""

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the result, which is None where another process has it."""

    def backward(self, loss: Tensor | None) -> None:
        """Add to the gradients of what is held."""

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """Part, slice and tensor of all parameters and buffers here."""

    def share(self, value: float | None) -> float:
        """Tell all processes what the one that makes the result found."""

    def gather(self, value: Any) -> list[Any]:
        """Tell all processes what each of them has, in their order."""

    def effort(self) -> Effort:
        """What was done up to now, in all parts."""


class WholeModel:
    """A Learner for a module that is wholly in this process: any, or a Placement."""

    processes = 1
    reads_inputs = makes_result = first = True

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

    def backward(self, loss: Tensor | None) -> None:
        """Add to the gradients."""
        assert loss is not None
        loss.backward()  # type: ignore[no-untyped-call]

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """All parameters and buffers; one that has several names counts under the first."""
        seen: set[int] = set()
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield 0, Slice(name, tuple(tensor.shape)), tensor

    def share(self, value: float | None) -> float:
        """Return what is known here."""
        assert value is not None
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return what is known here."""
        return [value]

    def effort(self) -> Effort:
        """Nothing is measured, and nothing travels."""
        return Effort((), Traffic.none(1))


class PlacedModel(WholeModel):
    """A Learner for a placement all of which is in this process."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.placement = placement
        self.device = placement.devices[placement.output_part]
        self.dtype = placement.dtype
        self.timings = [Timing() for _ in range(placement.k)]
        self.traffic = Traffic.none(placement.k)

    def backward(self, loss: Tensor | None) -> None:
        """Add to the gradients."""
        super().backward(loss)
        last = self.placement.runtime.last
        assert last is not None
        self.timings = [*map(add, self.timings, last.timing)]
        self.traffic = self.traffic + last.traffic

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """What all parts hold."""
        return held_by_parts(self.placement)

    def effort(self) -> Effort:
        """What was done up to now."""
        return Effort((*self.timings,), self.traffic)


class RankModel:
    """A Learner for the part of a placement that this process holds."""

    def __init__(self, model: DistributedModel) -> None:
        self.model, self.dtype = model, model.placement.dtype
        self.processes = model.connection.k
        self.first = model.connection.rank == 0
        self.device = model.connection.device
        self.timing, self.traffic = Timing(), Traffic.none(model.connection.k)

    @property
    def reads_inputs(self) -> bool:
        """Whether `forward` needs the images here."""
        return self.model.reads_inputs

    @property
    def makes_result(self) -> bool:
        """Whether `forward` returns the result here."""
        return self.model.makes_result

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation."""
        self.model.train(mode)

    def forward(self, images: Tensor | None, batch_size: int) -> Any:
        """Compute the part's share."""
        if images is not None:
            images = images.to(self.device, self.dtype)
        return self.model(images, batch_size=batch_size)

    def backward(self, loss: Tensor | None) -> None:
        """Add to the gradients of the part."""
        self.model.backward(loss)
        self.timing = self.timing + self.model.timing
        self.traffic = self.traffic + self.model.traffic

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """What the part holds."""
        return held_by_parts(self.model.placement)

    def share(self, value: float | None) -> float:
        """Hear from the process that has the result."""
        return self.model.connection.share(value, self.model.placement.output_part)

    def gather(self, value: Any) -> list[Any]:
        """Hear from all processes."""
        return self.model.connection.gather(value)

    def effort(self) -> Effort:
        """What was done up to now, in all processes."""
        done = self.gather((self.timing, self.traffic))
        return Effort(
            timings=tuple(timing for timing, _ in done),
            traffic=reduce(add, (traffic for _, traffic in done)),
        )


def held_by_parts(placement: Placement) -> Iterator[tuple[int, Slice, Tensor]]:
    """Part, slice and tensor of all parameters and buffers of the model that are here."""
    for part in placement.programs:
        for held, tensor in placement.held(part):
            yield part, held, tensor
