"""PartProgram -> Outline, Uses: what its chunks await, send and compute, and read of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
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
from hgpart.execution.program import CARRY, PartProgram
from hgpart.execution.transfers import Transfer
from hgpart.schedules.outline import Chunk, Line, Outline, Sent, Uses
from hgpart.schedules.schedule import Schedule, outlines_fingerprint


def outline(program: PartProgram, work: Mapping[str, float]) -> Outline:
    """Read off a program's chunks.

    Parameters
    ----------
    program : PartProgram
    work : mapping of str to float
        By the name of a step, in each share of the batch; 0 where there is none.
    """
    prepared = prepare(program)
    forward = tuple(_chunk(program, places, work, False) for places in prepared.forward)
    backward = tuple(_chunk(program, places, work, True) for places in prepared.backward)
    return Outline(forward, backward, _is_serial(program))


def uses(program: PartProgram, weights_of: Callable[[nn.Module], Sequence[int]]) -> Uses:
    """Read off where a program computes with copies of weights.

    Parameters
    ----------
    program : PartProgram
    weights_of : callable
        Given a step, the numbers of the weights that it has copies of.
    """
    alone, joined = prepare(program), prepare(program, joined=True)

    def lines(prepared: Prepared, back: bool) -> tuple[tuple[Line, ...], ...]:
        chunks = prepared.backward if back else prepared.forward
        places = prepared.backward_places if back else prepared.forward_places
        return tuple(
            tuple(
                line(prepared.instructions[at][0], *ends, back)
                for at, ends in zip(chunk, pairwise(places_of_it), strict=True)
            )
            for chunk, places_of_it in zip(chunks, places, strict=True)
        )

    def line(one: Instruction, begin: int, end: int, back: bool) -> Line:
        steps = one.modules(program.module) if isinstance(one, Compute) else []
        numbers = sorted({number for step in steps for number in weights_of(step)})
        sends = (one.transfer.number,) if isinstance(one, Receive if back else Send) else ()
        return Line(begin, end, tuple(numbers), sends)

    return Uses(lines(joined, False), lines(joined, True), lines(alone, True))


def with_again(outline: Outline, program: PartProgram, chunks: Collection[int]) -> Outline:
    """The same, where backward computes some forward chunks again, when it first comes to them."""
    prepared = prepare(program)
    ends = {prepared.forward[chunk][-1]: outline.forward[chunk].work for chunk in chunks}
    backward = tuple(
        replace(chunk, again=sum(work for end, work in ends.items() if end in places))
        for chunk, places in zip(outline.backward, prepared.backward, strict=True)
    )
    return replace(outline, backward=backward, again=tuple(sorted(chunks)))


def check_fits(schedule: Schedule, programs: Mapping[int, PartProgram], k: int) -> None:
    """Raise a PlanError if a schedule is not for the programs of some of k parts."""
    for part, program in programs.items():
        ours = outlines_fingerprint([outline(program, {})])
        if schedule.k != k or outlines_fingerprint([schedule.outlines[part]]) != ours:
            raise PlanError(
                f"the {schedule.rule} schedule of {schedule.k} parts is for other chunks than part "
                f"{part} has: accepted is one that was made for this placement, in its present mode"
            )


def _chunk(program: PartProgram, places: range, work: Mapping[str, float], backward: bool) -> Chunk:
    instructions = [prepare(program).instructions[at][0] for at in places]
    arriving, leaving = (Send, Receive) if backward else (Receive, Send)
    awaits, sends, total, steps = [], [], 0.0, 0
    for one in instructions:
        if isinstance(one, Compute):
            for step in one.steps:
                names = program.joined.get(step.name, (step.name,))
                total += sum(work.get(name, 0.0) for name in names)
                steps += 1
        elif isinstance(one, Receive | Send) and (one.transfer.differentiable or not backward):
            transfer = one.transfer
            if isinstance(one, arriving):
                awaits.append(transfer.number)
            if isinstance(one, leaving):
                receiver = transfer.sender if backward else transfer.receiver
                sends.append(Sent(transfer.number, receiver, nbytes_a_sample(transfer)))
    return Chunk(tuple(awaits), tuple(sends), total, steps=steps)


def nbytes_a_sample(transfer: Transfer) -> int:
    """Bytes for a sample of the batch, on an average."""
    slices = max((tensor.share.of for tensor in transfer.tensors), default=1)
    return transfer.nbytes(slices) // slices


def _is_serial(program: PartProgram) -> bool:
    """Whether a pass may find what the one before has left in a buffer at its end.

    What a single step reads and changes, as the running statistics of a norm that is called once,
    it does so in the order of the micro-batches, whatever comes between.
    """
    steps = dict(program.module.named_children())
    held = (
        {id(one) for one in step.buffers() if one.is_floating_point()} for step in steps.values()
    )
    shared = Counter(chain.from_iterable(held)).values()
    return CARRY in steps or max(shared, default=0) > 1
