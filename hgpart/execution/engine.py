"""PartProgram + Wire -> PartRun: what one part computes on one batch, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.instructions import Instruction, prepare
from hgpart.execution.program import PartProgram
from hgpart.execution.transfers import Transfer

Int64 = NDArray[np.int64]


class Wire(Protocol):
    """One part's ends of all its transfers, for one batch.

    Every method is called once per transfer. A gradient has one tensor for each tensor that was
    sent, of the same shape and dtype.
    """

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart, at once; they are not changed afterwards."""

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for what the sender sent; returns it on this part's device."""

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let the gradient depart for the sender, at once; it is not changed afterwards."""

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for the receiver's gradient; returns it on this part's device."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """What really travelled, counted where it departed.

    Attributes
    ----------
    forward_bytes, forward_messages, backward_bytes, backward_messages : int64 arrays, (k, k)
        From the part of the row to the part of the column, of transfers that are part of the
        communication volume.
    uncounted_bytes : int64 array, shape (k, k)
        Bytes of the other transfers, both ways.
    """

    forward_bytes: Int64
    forward_messages: Int64
    backward_bytes: Int64
    backward_messages: Int64
    uncounted_bytes: Int64

    @classmethod
    def none(cls, k: int) -> Traffic:
        """Nothing yet, among k parts."""
        return cls(*(np.zeros((k, k), np.int64) for _ in fields(cls)))

    def __add__(self, other: Traffic) -> Traffic:
        """All that travelled in both.

        >>> traffic = Traffic.none(k=2)
        >>> traffic.forward_bytes[0, 1] = 8
        >>> (traffic + traffic).forward_bytes.sum()
        np.int64(16)
        """
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass
class Timing:
    """Seconds that a part worked, and that it waited for messages; on a GPU, the host's."""

    forward_busy: float = 0.0
    forward_waiting: float = 0.0
    backward_busy: float = 0.0
    backward_waiting: float = 0.0

    def __add__(self, other: Timing) -> Timing:
        """The sums.

        >>> Timing(forward_busy=1.0) + Timing(forward_busy=0.5, backward_waiting=2.0)
        Timing(forward_busy=1.5, forward_waiting=0.0, backward_busy=0.0, backward_waiting=2.0)
        """
        return Timing(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def placeholder_values(
    program: PartProgram, device: torch.device, values: Mapping[str, Any]
) -> list[Any]:
    """Pick the values of a part's placeholders, in order, and move them to its device.

    Raises
    ------
    RunError
        If one is missing.
    """
    names = [name for name, _ in prepare(program).inputs]
    for name in names:
        if name not in values:
            raise RunError(f"part {program.part} needs a value for {name}, got {', '.join(values)}")
    return [
        value.to(device, non_blocking=device.type != "cpu") if isinstance(value, Tensor) else value
        for value in map(values.__getitem__, names)
    ]


class PartRun:
    """One part's program on one batch: `forward` once, then `backward` once at most.

    Several can be alive at the same time: each holds the state of its own batch.

    Parameters
    ----------
    program : PartProgram
    wire : Wire
    device : torch.device
        Where the part's weights are.
    k : int
        Number of parts of the placement.

    Attributes
    ----------
    traffic : Traffic
        What this part sent: maps in forward, gradients in backward.
    timing : Timing
    """

    def __init__(self, program: PartProgram, wire: Wire, device: torch.device, k: int) -> None:
        self.traffic = Traffic.none(k)
        self.timing = Timing()
        self.module = program.module
        self.device = device
        self._program = program
        self._wire = wire
        self._prepared = prepare(program)
        self._waiting = 0.0
        self._phase = "nothing"
        # A value has a number, its slot. Values are detached: each step has a graph of its own.
        self.values: list[Any] = [None] * self._prepared.slots
        self.differentiable = [False] * self._prepared.slots
        self.saved: dict[Instruction, Any] = {}
        self._gradients: dict[int, Tensor] = {}
        self._own: set[int] = set()  # slots whose gradient nobody else holds

    def forward(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Compute the part's share, from the values of its placeholders.

        Parameters
        ----------
        values : mapping
            Placeholder name -> value, on any device; names of other parts' may be among them.

        Returns
        -------
        tuple of Tensor
            The model's results on the part that has the output, () elsewhere. In grad mode those
            that a gradient can come back for are leaves that require grad.

        Raises
        ------
        RunError
            If a value is missing, or if it was called before.
        """
        self._enter("nothing", "forward")
        grad = torch.is_grad_enabled()
        with self._timed("forward"):
            own = placeholder_values(self._program, self.device, values)
            for (_, slot), value in zip(self._prepared.inputs, own, strict=True):
                if isinstance(value, Tensor):
                    self.differentiable[slot] = grad and value.requires_grad
                    value = value.detach()
                self.values[slot] = value
            for instruction, finished in self._prepared.instructions:
                instruction.forward(self)
                for slot in finished:
                    self.values[slot] = None
            results = tuple(self._result(slot) for slot in self._prepared.results)
        self.values.clear()
        self._phase = "forward" if grad else "forward without grad mode"
        return results

    def backward(self, gradients: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
        """Add to the gradients of the part's parameters.

        Parameters
        ----------
        gradients : sequence of Tensor or None
            One for each tensor that `forward` returned.

        Returns
        -------
        dict
            For the inputs that required grad: name -> gradient of what this part read of them.

        Raises
        ------
        RunError
            If there was no `forward` in grad mode, or if it was called before.
        """
        self._enter("forward", "backward")
        with self._timed("backward"), torch.no_grad():
            for slot, gradient in zip(self._prepared.results, gradients, strict=True):
                if gradient is not None:
                    self.add_gradient(slot, gradient)
            for instruction, _ in reversed(self._prepared.instructions):
                instruction.backward(self)
            inputs = {
                name: self.take_gradient(slot)
                for name, slot in self._prepared.inputs
                if self.differentiable[slot]
            }
        self.saved.clear()
        self._gradients.clear()
        self._phase = "backward"
        return inputs

    # What the instructions use.

    def add_gradient(self, slot: int, gradient: Tensor) -> None:
        """Add to the gradient of a value; the tensor stays as it is, others may hold it."""
        if not self.differentiable[slot]:
            return
        present = self._gradients.get(slot)
        if present is None:
            self._gradients[slot] = gradient
        elif slot in self._own:
            present.add_(gradient)
        else:
            self._gradients[slot] = present + gradient
            self._own.add(slot)

    def add_packed_gradient(
        self, slot: int, shape: torch.Size, dim: int, index: Tensor, gradient: Tensor
    ) -> None:
        """Add to the gradient of a value of `shape`, where `index` says along `dim`."""
        present = self._gradients.get(slot)
        if slot not in self._own:
            present = gradient.new_zeros(shape) if present is None else present.clone()
            self._gradients[slot] = present
            self._own.add(slot)
        assert present is not None
        present.index_add_(dim, index, gradient)

    def take_gradient(self, slot: int) -> Tensor | None:
        """The gradient of a value, complete; it is kept no longer."""
        self._own.discard(slot)
        return self._gradients.pop(slot, None)

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send and count."""
        self._count(transfer, tensors, backward=False)
        self._wire.send(transfer, tensors)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send a gradient and count it."""
        self._count(transfer, tensors, backward=True)
        self._wire.send_gradient(transfer, tensors)

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a message."""
        started = perf_counter()
        tensors = self._wire.receive(transfer)
        self._waiting += perf_counter() - started
        return tensors

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a gradient."""
        started = perf_counter()
        tensors = self._wire.receive_gradient(transfer)
        self._waiting += perf_counter() - started
        return tensors

    # The rest is its own.

    def _enter(self, expected: str, wanted: str) -> None:
        if self._phase != expected:
            raise RunError(
                f"part {self._program.part}: {wanted} after {self._phase}, "
                "accepted is one forward in grad mode, then one backward"
            )
        self._phase = f"a {wanted} that failed"

    def _result(self, slot: int) -> Tensor:
        value: Tensor = self.values[slot]
        return value.detach().requires_grad_() if self.differentiable[slot] else value

    def _count(self, transfer: Transfer, tensors: Sequence[Tensor], backward: bool) -> None:
        traffic = self.traffic
        way = (transfer.sender, transfer.receiver)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        if backward:
            way = way[::-1]
        if not transfer.counted:
            traffic.uncounted_bytes[way] += nbytes
        elif backward:
            traffic.backward_bytes[way] += nbytes
            traffic.backward_messages[way] += 1
        else:
            traffic.forward_bytes[way] += nbytes
            traffic.forward_messages[way] += 1

    @contextmanager
    def _timed(self, direction: str) -> Iterator[None]:
        self._waiting = 0.0
        started = perf_counter()
        yield
        seconds = perf_counter() - started
        setattr(self.timing, f"{direction}_waiting", self._waiting)
        setattr(self.timing, f"{direction}_busy", seconds - self._waiting)
