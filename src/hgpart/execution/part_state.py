"""A part's state for a batch that is under way: values, gradients, and its ends of the channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from hgpart.execution.program import Transfer
from hgpart.execution.records.events import Doing, Span
from hgpart.execution.records.totals import Traffic
from hgpart.execution.transport import Channel
from hgpart.execution.weights.gradients import WeightProduct
from hgpart.execution.weights.versions import BatchWeights
from hgpart.schedules.schedule import Direction, Piece


class PartState:
    """Values, by the number of their slot, and gradients of one part and batch.

    Attributes
    ----------
    module : torch.fx.GraphModule
        The part's module.
    device : torch.device
        Device of the part's weights.
    values, differentiable : list
        Lists by slot. Values are detached: each instruction has a graph of its own.
    weights : BatchWeights or None
        Weights that steps use instead of their parameters.
    saved : dict
        Values that instructions keep for backward, by instruction.
    buffers : dict
        Buffers that a step uses, and changes, instead of its own, by step.
    traffic : Traffic
        Bytes that this part has sent: maps in forward, gradients in backward.
    spans : list of Span
        Waits and sends, in order.
    to_inputs_alone : bool
        Whether backward computes gradients of inputs only, and none of parameters.
    products : dict, optional
        Gradients of weights that are left for the end of a step, if given: then those of all
        micro-batches, and of several slices of the batch, are computed at once, so that a large
        matrix is read and written once.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        channel: Channel,
        device: torch.device,
        k: int,
        slots: int,
        micro_batch: int,
    ) -> None:
        self.module, self.device = module, device
        self.values: list[Any] = [None] * slots
        self.differentiable = [False] * slots
        self.weights: BatchWeights | None = None
        self.saved: dict[Any, Any] = {}
        self.buffers: dict[Any, dict[str, Tensor]] = {}
        self.traffic = Traffic.none(k)
        self.spans: list[Span] = []
        self.products: dict[Any, list[WeightProduct]] | None = None
        self.to_inputs_alone = False
        self.channel, self._micro_batch = channel, micro_batch
        self._gradients: dict[int, Tensor] = {}
        self._own: set[int] = set()  # slots whose gradient nothing else refers to

    def call(self, step: nn.Module, operands: Sequence[Any], buffers: Mapping[str, Tensor]) -> Any:
        """Run a step with the batch's weights and the given buffers instead of its own."""
        instead = {} if self.weights is None else self.weights.of_step[step]
        if not instead and not buffers:
            return step(*operands)
        instead = {**instead, **buffers}
        return functional_call(step, instead, tuple(operands), tie_weights=False)

    def add_gradient(self, slot: int, gradient: Tensor) -> None:
        """Add to the gradient of a value, without changing the given tensor: others may hold it."""
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
        """Add to the gradient of a value of `shape`, at the places `index` of dimension `dim`."""
        present = self._gradients.get(slot)
        if slot not in self._own:
            present = gradient.new_zeros(shape) if present is None else present.clone()
            self._gradients[slot] = present
            self._own.add(slot)
        assert present is not None
        present.index_add_(dim, index, gradient)

    def take_gradient(self, slot: int) -> Tensor | None:
        """Take the complete gradient of a value out of the state."""
        self._own.discard(slot)
        return self._gradients.pop(slot, None)

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send a transfer and count it."""
        self._count(transfer, tensors, backward=False)
        self._send(Direction.FORWARD, transfer.number, transfer.receiver, tensors)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send a transfer's gradient back and count it."""
        self._count(transfer, tensors, backward=True)
        self._send(Direction.BACKWARD, transfer.number, transfer.sender, tensors)

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a transfer; its tensors are then on this part's device."""
        return self._receive(Direction.FORWARD, transfer.number)

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a transfer's gradient; it is then on this part's device."""
        return self._receive(Direction.BACKWARD, transfer.number)

    def _send(
        self, direction: Direction, number: int, receiver: int, tensors: Sequence[Tensor]
    ) -> None:
        begin = perf_counter_ns()
        self.channel.send(Piece(direction, self._micro_batch, number), receiver, tensors)
        self.spans.append((Doing.SEND, begin, perf_counter_ns()))

    def _receive(self, direction: Direction, number: int) -> Sequence[Tensor]:
        begin = perf_counter_ns()
        tensors = self.channel.receive(Piece(direction, self._micro_batch, number))
        moved = [tensor.to(self.device) for tensor in tensors]
        self.spans.append((Doing.WAIT, begin, perf_counter_ns()))
        return moved

    def _count(self, transfer: Transfer, tensors: Sequence[Tensor], backward: bool) -> None:
        ends = (transfer.sender, transfer.receiver)
        nbytes = sum(tensor.nbytes for tensor in tensors)
        if backward:
            ends = ends[::-1]
        self.traffic.count(ends, nbytes, backward=backward, counted=transfer.counted)
