"""Placement + inputs -> Measurement: passes of a placed model, timed and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError
from hgpart.execution.totals import Timing, Traffic
from hgpart.execution.local import RunRecord
from hgpart.placement import Placement
from hgpart.run.connection import Connection
from hgpart.run.distributed import DistributedModel


@dataclass(frozen=True, eq=False)
class Measurement:
    """What some steps on equal batches took, and what travelled in them.

    Attributes
    ----------
    steps, batch_size : int
    backward : bool
        Whether a step is a forward and a backward pass, or a forward pass only.
    seconds : float
        Of all steps.
    timings : tuple of Timing
        Of each part, in all steps.
    traffic : Traffic
        Of all parts, in all steps.
    """

    steps: int
    batch_size: int
    backward: bool
    seconds: float
    timings: tuple[Timing, ...]
    traffic: Traffic

    @property
    def samples_per_second(self) -> float:
        """Throughput."""
        return self.steps * self.batch_size / self.seconds


def measure(
    placement: Placement,
    inputs: Sequence[Tensor],
    steps: int,
    *,
    backward: bool = False,
    connection: Connection | None = None,
    on_step: Callable[[int], None] = lambda done: None,
) -> Measurement:
    """Run one step that does not count, then `steps` that do.

    Called in every process of a `connection`, with the same arguments and its part of the
    placement; without one, the placement runs in this process.

    Parameters
    ----------
    placement : Placement
        Is left in training mode if there are backward passes, else in evaluation.
    inputs : sequence of Tensor
        A batch.
    steps : int
    backward : bool
        Also a backward pass, of the mean square of what the model returns.
    connection : Connection, optional
    on_step : callable
        Told the number of steps done.
    """
    if steps < 1:
        raise ArgumentError(f"{steps} steps: accepted is 1 or more")
    placement.train(backward)
    run = _Here(placement) if connection is None else _Rank(placement, connection)
    with torch.set_grad_enabled(backward):
        run.step(inputs)  # memory is taken, threads start, connections are made
        timings, traffic = [Timing() for _ in run.timings], Traffic.none(placement.k)
        started = run.now()
        for step in range(steps):
            run.step(inputs)
            timings = [*map(add, timings, run.timings)]
            traffic = traffic + run.traffic
            on_step(step + 1)
    seconds = run.now() - started
    timings, traffic = run.gather(timings, traffic)
    return Measurement(steps, len(inputs[0]), backward, seconds, (*timings,), traffic)


class _Here:
    """All parts are in this process."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def step(self, inputs: Sequence[Tensor]) -> None:
        """One pass, or two."""
        self.placement.zero_grad()
        result = self.placement(*inputs)
        if torch.is_grad_enabled():
            mean_square(result).backward()  # type: ignore[no-untyped-call]

    @property
    def timings(self) -> Sequence[Timing]:
        """Of the last step, of the parts in this process."""
        return self._last.timing

    @property
    def traffic(self) -> Traffic:
        """Of the last step, what the parts in this process sent."""
        return self._last.traffic

    @property
    def _last(self) -> RunRecord:
        last = self.placement.runtime.last
        assert last is not None  # a step was done
        return last

    def now(self) -> float:
        """Seconds, when all that was begun is done."""
        for device in self.placement.devices:
            _finish(device)
        return time.perf_counter()

    def gather(self, timings: list[Timing], traffic: Traffic) -> tuple[list[Timing], Traffic]:
        """Those of all parts."""
        return timings, traffic


class _Rank:
    """One part is in this process; as `_Here`."""

    def __init__(self, placement: Placement, connection: Connection) -> None:
        self.model, self.connection = DistributedModel(placement, connection), connection

    def step(self, inputs: Sequence[Tensor]) -> None:
        self.model.zero_grad()
        result = self.model(*inputs)
        if torch.is_grad_enabled():
            self.model.backward(mean_square(result) if self.model.makes_result else None)

    @property
    def timings(self) -> Sequence[Timing]:
        return (self.model.timing,)

    @property
    def traffic(self) -> Traffic:
        return self.model.traffic

    def now(self) -> float:
        _finish(self.connection.device)
        self.connection.gather(None)
        return time.perf_counter()

    def gather(self, timings: list[Timing], traffic: Traffic) -> tuple[list[Timing], Traffic]:
        everywhere = self.connection.gather((timings, traffic))
        return [timing for each, _ in everywhere for timing in each], reduce(
            add, (sent for _, sent in everywhere)
        )


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mean_square(result: object) -> Tensor:
    """A loss of whatever a model returns.

    >>> mean_square({"a": torch.ones(2, 3), "b": (torch.zeros(2),)})
    tensor(1.)
    """
    tensors = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
    return torch.stack(
        [value.square().mean().cpu() for value in tensors if value.is_floating_point()]
    ).sum()
