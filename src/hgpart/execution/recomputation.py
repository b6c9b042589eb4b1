"""A stretch of a program that backward recomputes -> what is kept of it: the values it read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from hgpart.execution.instructions import Compute, Instruction, Pack, StepCall, prepare
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram

Made = Compute | Pack
STATISTICS = ("running_mean", "running_var")  # norms change them, though their schemas don't say


_notes_statistics: ContextVar[bool] = ContextVar("notes_statistics", default=True)


@contextmanager
def without_statistics() -> Iterator[None]:
    """Turn off the updates of batch statistics, for a second run of the same pass."""
    token = _notes_statistics.set(False)
    try:
        yield
    finally:
        _notes_statistics.reset(token)


def notes_statistics() -> bool:
    """Whether steps are to update batch statistics."""
    return _notes_statistics.get()


@dataclass(frozen=True, eq=False)
class Recomputation:
    """What is needed to compute a stretch a second time with the same bits.

    Attributes
    ----------
    instructions : sequence of Compute or Pack
        The stretch's instructions that backward needs, in order.
    values : mapping of int to Any
        Values that they read and do not write, by slot.
    buffers : mapping
        Contents of the buffers that passes change, by step. The second time these copies change,
        not the step's own.
    """

    instructions: Sequence[Made]
    values: Mapping[int, Any]
    buffers: Mapping[StepCall, dict[str, Tensor]]

    @property
    def held(self) -> list[Any]:
        """All that takes memory, in any structure."""
        return [{**self.values}, [*self.buffers.values()]]

    def run(self, run: PartState) -> None:
        """Restore the autograd graphs for backward, and nothing else."""
        run.values = [None] * len(run.differentiable)
        for slot, value in self.values.items():
            run.values[slot] = value
        run.buffers.update(self.buffers)
        with torch.enable_grad(), without_statistics():
            for instruction in self.instructions:
                instruction.forward(run)
        run.buffers.clear()
        run.values.clear()


class Noting:
    """Computes a stretch, and notes on the way what a second time takes.

    Graphs go as soon as they are made, so that no more is in memory than without gradients.
    """

    def __init__(self, program: PartProgram) -> None:
        self._changing = changing(program)
        self._instructions: list[Made] = []
        self._graphs: set[Made] = set()
        self._made: set[int | None] = set()
        self._read: dict[int, Any] = {}  # values from outside the stretch
        self._buffers: dict[StepCall, dict[str, Tensor]] = {}

    def forward(self, run: PartState, instruction: Instruction) -> None:
        """Compute the next instruction of the stretch."""
        if not isinstance(instruction, Made):
            instruction.forward(run)
            return
        for slot in instruction.reads:
            if slot not in self._made:
                self._read.setdefault(slot, run.values[slot])
        self._made.update(instruction.makes)
        self._instructions.append(instruction)
        if isinstance(instruction, Compute):
            for step in instruction.steps:
                names = self._changing.get(step.name, ())
                module = step.find(run.module)
                own = {name: module.get_buffer(name) for name in names}
                # Some have several names.
                copies = {buffer: buffer.clone() for buffer in own.values()}
                self._buffers[step] = {name: copies[buffer] for name, buffer in own.items()}
        instruction.forward(run)
        if isinstance(instruction, Compute) and run.saved.pop(instruction, None) is not None:
            self._graphs.add(instruction)

    @property
    def held(self) -> list[Any]:
        """All that takes memory, in any structure."""
        return [{**self._read}, [*self._buffers.values()]]

    def result(self) -> Recomputation | None:
        """What recomputes the stretch, behind its last instruction; None if there is no graph."""
        needed, reads = list[Made](), set[int]()
        for instruction in reversed(self._instructions):
            if instruction in self._graphs or not reads.isdisjoint(instruction.makes):
                needed.append(instruction)
                reads.difference_update(instruction.makes)
                reads.update(instruction.reads)
        steps = chain.from_iterable(item.steps for item in needed if isinstance(item, Compute))
        kept = {step: self._buffers[step] for step in steps if self._buffers[step]}
        values = {slot: self._read[slot] for slot in sorted(reads)}
        return Recomputation(needed[::-1], values, kept) if needed else None


def changing(program: PartProgram) -> Mapping[str, tuple[str, ...]]:
    """Names of the buffers that a pass of the program changes, by the name of their step."""
    changing_names = _changing.get(program)
    if changing_names is None:
        computes = (item for item, _ in prepare(program).instructions if isinstance(item, Compute))
        calls = chain.from_iterable(compute.steps for compute in computes)
        steps = {step.name: step.find(program.module) for step in calls}
        changed = {id(buffer) for step in steps.values() for buffer in _changed(step)}
        changing_names = {}
        for name, step in steps.items():
            buffers = step.named_buffers(remove_duplicate=False)
            if names := tuple(key for key, buffer in buffers if id(buffer) in changed):
                changing_names[name] = names
        _changing[program] = changing_names
    return changing_names


_changing: WeakKeyDictionary[PartProgram, Mapping[str, tuple[str, ...]]] = WeakKeyDictionary()


def _changed(step: nn.Module) -> list[Tensor]:
    """Buffers that a step writes to; all of them, if it is not a GraphModule."""
    if not isinstance(step, fx.GraphModule):
        return [*step.buffers()]
    written = (
        value
        for node in step.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        for argument, value in _arguments(node)
        if argument.name in STATISTICS or (argument.alias_info and argument.alias_info.is_write)
    )
    buffers = dict(step.named_buffers(remove_duplicate=False))
    nodes = (node for node in written if isinstance(node, fx.Node) and node.op == "get_attr")
    return [buffers[str(node.target)] for node in nodes]


def _arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The schema of each argument of an operator, and its value."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    yield from zip(schema, node.args, strict=False)
    yield from (
        (argument, node.kwargs[argument.name])
        for argument in schema
        if argument.name in node.kwargs
    )
