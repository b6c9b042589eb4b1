"""PartProgram + Wires -> PartRun: what one part computes on one batch, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.again import Again, changing, read_by
from hgpart.execution.instructions import Compute, Pack, Step, prepare
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram
from hgpart.execution.transport import Wires


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


class PartRun(PartState):
    """One part's program on one batch: chunk by chunk, forward once, then backward once at most.

    Several can be alive at the same time: each holds the state of its own batch, and one can go on
    where another has to wait.

    Parameters
    ----------
    program : PartProgram
    wires : Wires
    device : torch.device
        Where the part's weights are.
    k : int
        Number of parts of the placement.
    joined : bool
        Whether steps that follow one another have one autograd graph. It takes less time; where
        backward leaves the gradients of weights to `backward_weights`, it would hold more memory.
    micro_batch : int
        The number that its messages have.

    Attributes
    ----------
    on_again : callable
        Called when a chunk has been computed again.
    """

    def __init__(
        self,
        program: PartProgram,
        wires: Wires,
        device: torch.device,
        k: int,
        joined: bool = True,
        micro_batch: int = 0,
    ) -> None:
        self._program, self._prepared = program, prepare(program, joined)
        super().__init__(program.module, wires, device, k, self._prepared.slots, micro_batch)
        self.on_again: Callable[[], None] = lambda: None
        self._again: dict[int, Again] = {}  # by forward chunk
        self._phase = "nothing"

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
        self.begin(values)
        for chunk in range(len(self._prepared.forward)):
            self.forward_chunk(chunk)
        return self.results()

    def begin(self, values: Mapping[str, Any]) -> None:
        """Take the values of the part's placeholders, for `forward_chunk` to go on from."""
        self._enter("nothing", "forward")
        grad = torch.is_grad_enabled()
        own = placeholder_values(self._program, self.device, values)
        for (_, slot), value in zip(self._prepared.inputs, own, strict=True):
            if isinstance(value, Tensor):
                self.differentiable[slot] = grad and value.requires_grad
                value = value.detach()
            self.values[slot] = value

    def forward_chunk(
        self, chunk: int, again: bool = False, piece: tuple[int, int] | None = None
    ) -> None:
        """Go on to the next await, or to the end of a piece; chunks come in order.

        If backward is to compute it `again`, only what that takes is kept, and no graph.
        """
        if again:
            found = self.note_forward(chunk)
            if found is not None:
                self._again[chunk] = found
                for one in found.instructions:
                    self.saved.pop(one, None)
            return
        for at in self._prepared.some(chunk, piece, back=False):
            instruction, finished = self._prepared.instructions[at]
            instruction.forward(self)
            for slot in finished:
                self.values[slot] = None

    def note_forward(self, chunk: int) -> Again | None:
        """As `forward_chunk`; returns what the chunk could be computed again from, if need be."""
        places = self._prepared.forward[chunk]
        read, buffers = dict[int, Any](), dict[Step, dict[str, Tensor]]()
        graphs = []
        for at in places:
            instruction, finished = self._prepared.instructions[at]
            if isinstance(instruction, Compute):
                for step in instruction.steps:
                    names = changing(self._program).get(step.name, ())
                    module = step.find(self.module)
                    own = {name: module.get_buffer(name) for name in names}
                    copies = {one: one.clone() for one in own.values()}  # it may have several names
                    buffers[step] = {name: copies[one] for name, one in own.items()}
            if isinstance(instruction, Compute | Pack):
                read.update((slot, self.values[slot]) for slot in instruction.reads)
            instruction.forward(self)
            if isinstance(instruction, Compute) and instruction in self.saved:
                graphs.append(instruction)
            for slot in finished:
                self.values[slot] = None
        instructions = [self._prepared.instructions[at][0] for at in places]
        needed, values = read_by(instructions, graphs, read)
        steps = chain.from_iterable(one.steps for one in needed if isinstance(one, Compute))
        kept = {step: buffers[step] for step in steps if buffers[step]}
        return Again(needed, values, kept) if needed else None

    def results(self) -> tuple[Tensor, ...]:
        """What `forward` returns, after the last chunk."""
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
            Whether parameters get gradients; inputs do in any case.

        Returns
        -------
        dict
            For the inputs that required grad: name -> gradient of what this part read of them.

        Raises
        ------
        RunError
            If there was no `forward` in grad mode, or if it was called before.
        """
        self.begin_backward(gradients)
        for chunk in range(len(self._prepared.backward)):
            self.backward_chunk(chunk, weights)
        return self.end_backward()

    def begin_backward(self, gradients: Sequence[Tensor | None]) -> None:
        """Take the gradients of the results, for `backward_chunk` to go on from."""
        self._enter("forward", "backward")
        with torch.no_grad():
            for slot, gradient in zip(self._prepared.results, gradients, strict=True):
                if gradient is not None:
                    self.add_gradient(slot, gradient)

    def backward_chunk(
        self, chunk: int, weights: bool = True, piece: tuple[int, int] | None = None
    ) -> None:
        """Go on to the next await, or to the end of a piece; chunks come in order.

        Without `weights`, gradients of parameters are left to `backward_weights`.
        """
        with torch.no_grad():
            for at in self._prepared.some(chunk, piece, back=True):
                if self._again:
                    self._compute_again(at)
                self._prepared.instructions[at][0].backward(self, weights)

    def _compute_again(self, at: int) -> None:
        """The chunk that an instruction belongs to, if it is the first of it."""
        chunk = max(self._again)  # backward goes through them in the opposite order
        if at in self._prepared.forward[chunk]:
            self._again.pop(chunk).run(self)
            self.on_again()

    def backward_weights(self, chunk: int, piece: tuple[int, int] | None = None) -> None:
        """Add to the gradients of parameters what `backward_chunk` has left out."""
        with torch.no_grad():
            for at in self._prepared.some(chunk, piece, back=True):
                instruction = self._prepared.instructions[at][0]
                if isinstance(instruction, Compute):
                    instruction.backward_weights(self)

    def end_backward(self) -> dict[str, Tensor | None]:
        """What `backward` returns, after the last chunk."""
        inputs = {
            name: self.take_gradient(slot)
            for name, slot in self._prepared.inputs
            if self.differentiable[slot]
        }
        self.saved.clear()
        self._again.clear()
        self._gradients.clear()
        self._phase = "backward"
        return inputs

    @property
    def held(self) -> list[Any]:
        """What it holds for what it has still to do; see `hgpart.execution.held_memory`."""
        again = [one.held for one in self._again.values()]
        return [self.values, [*self.saved.values()], self._gradients, again]

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
