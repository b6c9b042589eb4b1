"""What a part has of a batch that is under way: values, gradients, and its ends of the wires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from hgpart.execution.records.events import Doing, Span
from hgpart.execution.records.totals import Traffic
from hgpart.execution.transfers import Transfer
from hgpart.execution.transport import Wires
from hgpart.execution.weights.gradients import Product
from hgpart.execution.weights.versions import Weights
from hgpart.schedules.schedule import Direction, Piece


class PartState:
    """Values by their numbers, the slots; those of one part and batch.

    Attributes
    ----------
    module : torch.fx.GraphModule
        What the part computes with.
    device : torch.device
        Where its weights are.
    values, differentiable : list
        By slot. Values are detached: each instruction has a graph of its own.
    weights : Weights or None
        What steps compute with instead of their parameters.
    saved : dict
        What instructions keep for their backward.
    buffers : dict
        By step, what it computes with, and changes, instead of its own buffers.
    traffic : Traffic
        What this part sent: maps in forward, gradients in backward.
    spans : list of Span
        What it waited for and sent, in order.
    wires : Wires
    to_inputs_alone : bool
        Whether a backward pass is for the gradients of inputs, and parameters get none.
    products : dict, optional
        If there is one, what gradients of weights are left for the end of a step, where those of
        all its micro-batches, and of slices of the batch, are computed at once: a large matrix is
        then gone through once.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        wires: Wires,
        device: torch.device,
        k: int,
        slots: int,
        micro_batch: int,
    ) -> None:
        self.module, self.device = module, device
        self.values: list[Any] = [None] * slots
        self.differentiable = [False] * slots
        self.weights: Weights | None = None
        self.saved: dict[Any, Any] = {}
        self.buffers: dict[Any, dict[str, Tensor]] = {}
        self.traffic = Traffic.none(k)
        self.spans: list[Span] = []
        self.products: dict[Any, list[Product]] | None = None
        self.to_inputs_alone = False
        self.wires, self._micro_batch = wires, micro_batch
        self._gradients: dict[int, Tensor] = {}
        self._own: set[int] = set()  # slots whose gradient nobody else holds

    def call(self, step: nn.Module, operands: Sequence[Any], buffers: Mapping[str, Tensor]) -> Any:
        """Run a step, with the batch's weights and some buffers instead of its own."""
        instead = {} if self.weights is None else self.weights.of_step[step]
        if not instead and not buffers:
            return step(*operands)
        instead = {**instead, **buffers}
        return functional_call(step, instead, tuple(operands), tie_weights=False)

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
        self._send(Direction.FORWARD, transfer.number, transfer.receiver, tensors)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send a gradient and count it."""
        self._count(transfer, tensors, backward=True)
        self._send(Direction.BACKWARD, transfer.number, transfer.sender, tensors)

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for what the sender sent; it is on this part's device."""
        return self._receive(Direction.FORWARD, transfer.number)

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for the receiver's gradient; it is on this part's device."""
        return self._receive(Direction.BACKWARD, transfer.number)

    def _send(
        self, direction: Direction, number: int, receiver: int, tensors: Sequence[Tensor]
    ) -> None:
        begin = perf_counter_ns()
        self.wires.send(Piece(direction, self._micro_batch, number), receiver, tensors)
        self.spans.append((Doing.SEND, begin, perf_counter_ns()))

    def _receive(self, direction: Direction, number: int) -> Sequence[Tensor]:
        begin = perf_counter_ns()
        tensors = self.wires.receive(Piece(direction, self._micro_batch, number))
        found = [tensor.to(self.device) for tensor in tensors]
        self.spans.append((Doing.WAIT, begin, perf_counter_ns()))
        return found

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
