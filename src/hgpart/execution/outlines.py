"""PartProgram -> Outline, Uses: what chunks await, send and compute, and the weights they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from torch import nn

from hgpart.errors import PlanError
from hgpart.execution.instructions import (
    Compute,
    Instruction,
    Prepared,
    Receive,
    Send,
    prepare,
)
from hgpart.execution.program import CARRY, PartProgram, Transfer
from hgpart.schedules.outline import Chunk, Computation, Outline, Sent, Stretch, Uses
from hgpart.schedules.schedule import Schedule, outlines_fingerprint


def outline(program: PartProgram, work: Mapping[str, float]) -> Outline:
    """Outline of a program.

    Parameters
    ----------
    work : mapping of str to float
        Work of a step in each share of the batch, by its name; 0 for other steps.
    """
    prepared = prepare(program)
    forward = tuple(_chunk(program, places, work, False) for places in prepared.forward)
    backward = tuple(_chunk(program, places, work, True) for places in prepared.backward)
    return Outline(forward, backward, _is_serial(program))


def uses(program: PartProgram, weights_of: Callable[[nn.Module], Sequence[int]]) -> Uses:
    """Find out where a program computes with copies of weights.

    Parameters
    ----------
    weights_of : callable
        Function from a step to the numbers of the weights that it has copies of.
    """
    alone, joined = prepare(program), prepare(program, joined=True)

    def computations(prepared: Prepared, back: bool) -> tuple[tuple[Computation, ...], ...]:
        chunks = prepared.backward if back else prepared.forward
        places = prepared.backward_places if back else prepared.forward_places
        return tuple(
            tuple(
                computation(prepared.instructions[at][0], *ends, back)
                for at, ends in zip(chunk, pairwise(chunk_places), strict=True)
            )
            for chunk, chunk_places in zip(chunks, places, strict=True)
        )

    def computation(item: Instruction, begin: int, end: int, back: bool) -> Computation:
        steps = item.modules(program.module) if isinstance(item, Compute) else []
        numbers = sorted({number for step in steps for number in weights_of(step)})
        sends = (item.transfer.number,) if isinstance(item, Receive if back else Send) else ()
        return Computation(begin, end, tuple(numbers), sends)

    return Uses(computations(joined, False), computations(joined, True), computations(alone, True))


def with_dropped(
    outline: Outline, program: PartProgram, stretches: Sequence[Stretch], work: Mapping[str, float]
) -> Outline:
    """The same outline, with these stretches dropped: recomputed or read when backward needs them.

    Parameters
    ----------
    work : mapping of str to float
        Work of steps, as `outline` takes it.

    Raises
    ------
    PlanError
        If the program has no such stretches.
    """
    prepared = prepare(program, stretches=stretches)
    ends = {
        places[-1]: sum(_step_work(program, name, work) for name in stretch.steps)
        for places, stretch in zip(prepared.stretches, stretches, strict=True)
        if not stretch.offloaded
    }
    backward = tuple(
        replace(chunk, recomputed=sum(work for end, work in ends.items() if end in places))
        for chunk, places in zip(outline.backward, prepared.backward, strict=True)
    )
    return replace(outline, backward=backward, dropped=tuple(stretches))


def chunk_steps(program: PartProgram) -> tuple[tuple[str, ...], ...]:
    """The names of the steps of each forward chunk."""
    prepared = prepare(program)
    return tuple(
        tuple(
            step.name
            for at in places
            if isinstance(item := prepared.instructions[at][0], Compute)
            for step in item.steps
        )
        for places in prepared.forward
    )


def _step_work(program: PartProgram, name: str, work: Mapping[str, float]) -> float:
    return sum(work.get(joined, 0.0) for joined in program.joined.get(name, (name,)))


def check_fits(
    schedule: Schedule, programs: Mapping[int, PartProgram], k: int, turn: int = 0
) -> None:
    """Raise a PlanError if a schedule does not fit the programs of some of k parts in a turn."""
    for part, program in programs.items():
        here = outlines_fingerprint([outline(program, {})])
        if schedule.k != k or outlines_fingerprint([schedule.outlines_of(turn)[part]]) != here:
            raise PlanError(
                f"the {schedule.rule} schedule of {schedule.k} parts is for other chunks than part "
                f"{part} has: accepted is one that was made for this placement, in its present mode"
            )


def _chunk(program: PartProgram, places: range, work: Mapping[str, float], backward: bool) -> Chunk:
    instructions = [prepare(program).instructions[at][0] for at in places]
    arriving, leaving = (Send, Receive) if backward else (Receive, Send)
    awaits, sends, total, steps = [], [], 0.0, 0
    for item in instructions:
        if isinstance(item, Compute):
            for step in item.steps:
                total += _step_work(program, step.name, work)
                steps += 1
        elif isinstance(item, Receive | Send) and (item.transfer.differentiable or not backward):
            transfer = item.transfer
            if isinstance(item, arriving):
                awaits.append(transfer.number)
            if isinstance(item, leaving):
                receiver = transfer.sender if backward else transfer.receiver
                sends.append(Sent(transfer.number, receiver, nbytes_a_sample(transfer)))
    return Chunk(tuple(awaits), tuple(sends), total, steps=steps)


def nbytes_a_sample(transfer: Transfer) -> int:
    """Mean bytes per sample of the batch."""
    slices = max((tensor.share.of for tensor in transfer.tensors), default=1)
    return transfer.nbytes(slices) // slices


def _is_serial(program: PartProgram) -> bool:
    """Whether a pass may read what the pass before has left in a buffer at its end.

    Buffers that only one step reads and changes, such as running statistics of a norm that is
    called once, do not count: they change in the order of the micro-batches, whatever comes
    between.
    """
    steps = dict(program.module.named_children())
    held = (
        {id(buffer) for buffer in step.buffers() if buffer.is_floating_point()}
        for step in steps.values()
    )
    shared = Counter(chain.from_iterable(held)).values()
    return CARRY in steps or max(shared, default=0) > 1
