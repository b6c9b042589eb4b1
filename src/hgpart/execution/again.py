"""A forward chunk -> what is kept of it, where backward computes it again: what it read."""

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

from hgpart.execution.instructions import Compute, Instruction, Pack, Step, prepare
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram

Made = Compute | Pack
STATISTICS = ("running_mean", "running_var")  # norms change them, though their schemas don't say


_notes_statistics: ContextVar[bool] = ContextVar("notes_statistics", default=True)


@contextmanager
def without_statistics() -> Iterator[None]:
    """Where steps note nothing for statistics of the batch: it is a pass that was there before."""
    token = _notes_statistics.set(False)
    try:
        yield
    finally:
        _notes_statistics.reset(token)


def notes_statistics() -> bool:
    """Whether steps are to note what statistics of the batch are made of."""
    return _notes_statistics.get()


@dataclass(frozen=True, eq=False)
class Again:
    """What a chunk is computed again from, with the same bits.

    Attributes
    ----------
    instructions : sequence of Compute or Pack
        Those that a backward pass needs, in order.
    values : mapping of int to Any
        By slot, what they read of what others made.
    buffers : mapping
        By step, what was in those of its buffers that passes change. These are changed again, and
        not the step's own.
    """

    instructions: Sequence[Made]
    values: Mapping[int, Any]
    buffers: Mapping[Step, dict[str, Tensor]]

    @property
    def held(self) -> list[Any]:
        """What takes memory, in any structure."""
        return [{**self.values}, [*self.buffers.values()]]

    def run(self, run: PartState) -> None:
        """Let the graphs be there for backward, and nothing else."""
        run.values = [None] * len(run.differentiable)
        for slot, value in self.values.items():
            run.values[slot] = value
        run.buffers.update(self.buffers)
        with torch.enable_grad(), without_statistics():
            for instruction in self.instructions:
                instruction.forward(run)
        run.buffers.clear()
        run.values.clear()


def read_by(
    instructions: Sequence[Instruction], graphs: Sequence[Compute], values: Mapping[int, Any]
) -> tuple[list[Made], dict[int, Any]]:
    """The instructions of a chunk that graphs come of, and what they read from outside.

    Parameters
    ----------
    instructions : sequence of Instruction
        Of the chunk.
    graphs : sequence of Compute
        Those whose graphs a backward pass goes through.
    values : mapping of int to Any
        By slot, all that the chunk's instructions read.
    """
    wanted, needed, reads = {*graphs}, list[Made](), set[int]()
    for one in reversed(instructions):
        if isinstance(one, Made) and (one in wanted or not reads.isdisjoint(one.makes)):
            needed.append(one)
            reads.difference_update(one.makes)
            reads.update(one.reads)
    return needed[::-1], {slot: values[slot] for slot in sorted(reads)}


def changing(program: PartProgram) -> Mapping[str, tuple[str, ...]]:
    """By the name of a step, those of its buffers that a pass of the program changes."""
    found = _changing.get(program)
    if found is None:
        computes = (one for one, _ in prepare(program).instructions if isinstance(one, Compute))
        every = chain.from_iterable(one.steps for one in computes)
        steps = {step.name: step.find(program.module) for step in every}
        changed = {id(one) for step in steps.values() for one in _changed(step)}
        found = {}
        for name, step in steps.items():
            buffers = step.named_buffers(remove_duplicate=False)
            if names := tuple(each for each, buffer in buffers if id(buffer) in changed):
                found[name] = names
        _changing[program] = found
    return found


_changing: WeakKeyDictionary[PartProgram, Mapping[str, tuple[str, ...]]] = WeakKeyDictionary()


def _changed(step: nn.Module) -> list[Tensor]:
    """Buffers that a step writes to; of any module but a graph they may be all."""
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
    nodes = (one for one in written if isinstance(one, fx.Node) and one.op == "get_attr")
    return [buffers[str(node.target)] for node in nodes]


def _arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """What an operator's schema says of its arguments, and their values."""
    assert isinstance(node.target, torch._ops.OpOverload)
    said = node.target._schema.arguments
    yield from zip(said, node.args, strict=False)
    yield from ((one, node.kwargs[one.name]) for one in said if one.name in node.kwargs)
