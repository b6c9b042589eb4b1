"""PartProgram + Channel -> PartRun: what one part computes on one batch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.instructions import Compute, prepare
from hgpart.execution.offloading.graphs import Offloading
from hgpart.execution.offloading.stores import SlowStore, slow_store
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram
from hgpart.execution.recomputation import Noting, Recomputation
from hgpart.execution.transport import Channel
from hgpart.schedules.outline import Stretch


def placeholder_values(
    program: PartProgram, device: torch.device, values: Mapping[str, Any]
) -> list[Any]:
    """Values of a part's placeholders, in order, on the part's device.

    Raises
    ------
    RunError
        If a value is missing.
    """
    names = [name for name, _ in prepare(program).inputs]
    for name in names:
        if name not in values:
            raise RunError(f"part {program.part} needs a value for {name}, got {', '.join(values)}")
    return [
        value.to(device, non_blocking=device.type != "cpu") if isinstance(value, Tensor) else value
        for value in map(values.__getitem__, names)
    ]


class PartRun(PartState):
    """One part's program on one batch, chunk by chunk: forward once, then backward at most once.

    Several runs can be alive at a time: each holds the state of its own batch, and one can go on
    while another waits.

    Parameters
    ----------
    device : torch.device
        Device of the part's weights.
    k : int
        Number of parts of the placement.
    joined : bool
        Whether consecutive steps have one autograd graph. This takes less time; but where backward
        leaves the gradients of weights to `backward_weights`, it would hold more memory.
    micro_batch : int
        Number of the micro-batch in messages.
    dropped : sequence of Stretch
        Stretches that are offloaded, or of which only what they read is kept, and no graph:
        backward recomputes them.
    slower : SlowStore, optional
        Where stretches are offloaded to. Default: `slow_store` of the device.

    Attributes
    ----------
    on_recomputed : callable
        Called after a stretch has been recomputed.
    """

    def __init__(
        self,
        program: PartProgram,
        channel: Channel,
        device: torch.device,
        k: int,
        joined: bool = True,
        micro_batch: int = 0,
        dropped: Sequence[Stretch] = (),
        slower: SlowStore | None = None,
    ) -> None:
        self._program, self._prepared = program, prepare(program, joined, dropped)
        super().__init__(program.module, channel, device, k, self._prepared.slots, micro_batch)
        self.on_recomputed: Callable[[], None] = lambda: None
        pairs = zip(self._prepared.stretches, dropped, strict=True)
        self._begins = {places[0]: (places, stretch.offloaded) for places, stretch in pairs}
        self._dropping: tuple[range, Noting | None] | None = None  # None: the stretch is offloaded
        # The same for all stretches, as graphs of several may keep the same memory.
        self._offloading: Offloading | None = None
        if any(stretch.offloaded for stretch in dropped):
            self._offloading = Offloading(slow_store(device) if slower is None else slower)
        self._to_recompute: dict[range, Recomputation] = {}  # in the order of the program
        self._phase = "nothing"

    def forward(self, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Compute the part's share of a batch from the values of its placeholders.

        Parameters
        ----------
        values : mapping
            Values by placeholder name, on any device; other parts' placeholders may be among them.

        Returns
        -------
        tuple of Tensor
            The model's results on the part that has the output, () elsewhere. In grad mode those
            that can get a gradient are leaves that require grad.

        Raises
        ------
        RunError
            If a value is missing, or on a second call.
        """
        self.begin(values)
        for chunk in range(len(self._prepared.forward)):
            self.forward_chunk(chunk)
        return self.results()

    def begin(self, values: Mapping[str, Any]) -> None:
        """Set the values of the part's placeholders, before the first `forward_chunk`."""
        self._enter("nothing", "forward")
        grad = torch.is_grad_enabled()
        own = placeholder_values(self._program, self.device, values)
        for (_, slot), value in zip(self._prepared.inputs, own, strict=True):
            if isinstance(value, Tensor):
                self.differentiable[slot] = grad and value.requires_grad
                value = value.detach()
                if self._offloading is not None:
                    self._offloading.let_stay([value])
            self.values[slot] = value

    def forward_chunk(self, chunk: int, piece: tuple[int, int] | None = None) -> None:
        """Compute a chunk (up to the next await), or a piece of it; chunks come in order."""
        for at in self._prepared.some(chunk, piece, back=False):
            instruction, finished = self._prepared.instructions[at]
            if at in self._begins:
                places, offloaded = self._begins[at]
                self._dropping = places, None if offloaded else Noting(self._program)
                if offloaded and self._offloading is not None:
                    in_flight = () if self.weights is None else self.weights.leaves.values()
                    own = self.module.parameters(), self.module.buffers(), in_flight
                    self._offloading.let_stay(chain.from_iterable(own))
            if self._dropping is None:
                instruction.forward(self)
            else:
                places, noting = self._dropping
                if noting is not None:
                    noting.forward(self, instruction)
                elif self._offloading is not None:
                    with self._offloading.graphs():
                        instruction.forward(self)
                if at == places[-1]:
                    self._dropping = None
                    if noting is not None and (again := noting.result()) is not None:
                        self._to_recompute[places] = again
            for slot in finished:
                self.values[slot] = None

    def results(self) -> tuple[Tensor, ...]:
        """Results of `forward`, after the last chunk."""
        results = tuple(self._result(slot) for slot in self._prepared.results)
        self.values.clear()
        grad = torch.is_grad_enabled()
        self._phase = "forward" if grad else "forward without grad mode"
        return results

    def backward(
        self, gradients: Sequence[Tensor | None], weights: bool = True
    ) -> dict[str, Tensor | None]:
        """Add to the gradients of the part's parameters.

        Parameters
        ----------
        gradients : sequence of Tensor or None
            One for each tensor that `forward` returned.
        weights : bool
            Whether parameters get gradients, too; inputs always do.

        Returns
        -------
        dict
            Gradient of what this part read of each input that required grad, by name.

        Raises
        ------
        RunError
            If there was no `forward` in grad mode, or on a second call.
        """
        self.begin_backward(gradients)
        for chunk in range(len(self._prepared.backward)):
            self.backward_chunk(chunk, weights)
        return self.end_backward()

    def begin_backward(self, gradients: Sequence[Tensor | None]) -> None:
        """Set the gradients of the results, before the first `backward_chunk`."""
        self._enter("forward", "backward")
        with torch.no_grad():
            for slot, gradient in zip(self._prepared.results, gradients, strict=True):
                if gradient is not None:
                    self.add_gradient(slot, gradient)

    def backward_chunk(
        self, chunk: int, weights: bool = True, piece: tuple[int, int] | None = None
    ) -> None:
        """Go backward through a chunk (to the next await), or a piece of it; chunks come in order.

        Without `weights`, gradients of parameters are left to `backward_weights`.
        """
        with torch.no_grad():
            for at in self._prepared.some(chunk, piece, back=True):
                self._recompute(at)
                self._prepared.instructions[at][0].backward(self, weights)

    def _recompute(self, at: int) -> None:
        """Recompute the stretch of an instruction, if this is the first of it in backward."""
        # Backward goes through stretches in the opposite order.
        last = next(reversed(self._to_recompute), range(0))
        if at in last:
            self._to_recompute.pop(last).run(self)
            self.on_recomputed()

    def backward_weights(self, chunk: int, piece: tuple[int, int] | None = None) -> None:
        """Add the gradients of parameters that `backward_chunk` has left out."""
        with torch.no_grad():
            for at in self._prepared.some(chunk, piece, back=True):
                instruction = self._prepared.instructions[at][0]
                if isinstance(instruction, Compute):
                    instruction.backward_weights(self)

    def end_backward(self) -> dict[str, Tensor | None]:
        """Result of `backward`, after the last chunk."""
        inputs = {
            name: self.take_gradient(slot)
            for name, slot in self._prepared.inputs
            if self.differentiable[slot]
        }
        self.saved.clear()
        self._to_recompute.clear()
        self._gradients.clear()
        self._phase = "backward"
        return inputs

    @property
    def held(self) -> list[Any]:
        """What it holds for later instructions; see `hgpart.execution.held_memory`."""
        to_recompute = [recomputation.held for recomputation in self._to_recompute.values()]
        if self._dropping is not None and self._dropping[1] is not None:
            to_recompute.append(self._dropping[1].held)
        return [self.values, [*self.saved.values()], self._gradients, to_recompute]

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
