"""What a part has of a batch that is under way: values, gradients, and its ends of the wires."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from hgpart.execution.events import Doing, Span
from hgpart.execution.totals import Traffic
from hgpart.execution.transfers import Transfer, Wire
from hgpart.execution.weights.gradients import Product
from hgpart.execution.weights.versions import Weights


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
    waited : float
        Seconds, for messages.
    spans : list of Span
        What it waited for and sent, in order.
    before_step : callable or None
        Told a step that is about to be computed; whether that had to be waited for.
    on_used : callable or None
        Told a step whose backward pass is done, but for what `products` have of it.
    products : dict, optional
        If there is one, what gradients of weights are left for the end of a step, where those of
        all its micro-batches, and of slices of the batch, are computed at once: a large matrix is
        then gone through once.
    """

    def __init__(
        self, module: fx.GraphModule, wire: Wire, device: torch.device, k: int, slots: int
    ) -> None:
        self.module, self.device = module, device
        self.values: list[Any] = [None] * slots
        self.differentiable = [False] * slots
        self.weights: Weights | None = None
        self.saved: dict[Any, Any] = {}
        self.buffers: dict[Any, dict[str, Tensor]] = {}
        self.traffic = Traffic.none(k)
        self.waited = 0.0
        self.spans: list[Span] = []
        self.before_step: Callable[[nn.Module], bool] | None = None
        self.on_used: Callable[[nn.Module], None] | None = None
        self.products: dict[Any, list[Product]] | None = None
        self._wire = wire
        self._gradients: dict[int, Tensor] = {}
        self._own: set[int] = set()  # slots whose gradient nobody else holds

    def call(self, step: nn.Module, operands: Sequence[Any], buffers: Mapping[str, Tensor]) -> Any:
        """Run a step, with the batch's weights and some buffers instead of its own.

        All that it computes with is there then.
        """
        if self.before_step is not None:
            begin = perf_counter_ns()
            if self.before_step(step):
                self._wait(begin, perf_counter_ns())
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
        begin = perf_counter_ns()
        self._wire.send(transfer, tensors)
        self.spans.append((Doing.SEND, begin, perf_counter_ns()))

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Send a gradient and count it."""
        self._count(transfer, tensors, backward=True)
        begin = perf_counter_ns()
        self._wire.send_gradient(transfer, tensors)
        self.spans.append((Doing.SEND, begin, perf_counter_ns()))

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a message."""
        begin = perf_counter_ns()
        tensors = self._wire.receive(transfer)
        self._wait(begin, perf_counter_ns())
        return tensors

    def receive_gradient(self, transfer: Transfer) -> Sequence[Tensor]:
        """Wait for a gradient."""
        begin = perf_counter_ns()
        tensors = self._wire.receive_gradient(transfer)
        self._wait(begin, perf_counter_ns())
        return tensors

    def _wait(self, begin: int, end: int) -> None:
        self.waited += (end - begin) / 1e9
        self.spans.append((Doing.WAIT, begin, end))

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
