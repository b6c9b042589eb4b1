"""Placement -> PlacementReport: what each part holds, computes, keeps and sends, counted in it.

The figures come from the submodules: each part's program runs once on tensors without memory, and
what it does is counted. The partition's own figures come from the hypergraph; `disagreements`
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hgpart.arrays import Int64
from hgpart.errors import PlacementError, not_one_of
from hgpart.execution.program import PartProgram, receive
from hgpart.execution.records.totals import Traffic
from hgpart.execution.transfers import Transfer
from hgpart.hypergraph.shares import part_shares
from hgpart.placement.batches.micro_batches import named_by_share
from hgpart.placement.building.blueprint import UNUSED
from hgpart.placement.rehearsal import Moments, Rehearsal, StepRehearsal, rehearse
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.schedules.message_bytes import message_bytes
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.peak import peak
from hgpart.schedules.schedule import Action, Piece, Schedule

if TYPE_CHECKING:
    from hgpart.placement.placement import Placement

# Tensors that an optimizer keeps for each gradient, once it has made a step.
OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 0, "sgd with momentum": 1, "adam": 2}


@dataclass(frozen=True)
class PartFigures:
    """What one part holds, computes and keeps.

    Attributes
    ----------
    part : int
    device : str
    parameters, parameter_bytes : int
        Elements and bytes, each tensor once.
    unused_parameters : int
        Elements among them that the model makes no use of, in this mode; part 0 holds those of
        no use in either.
    buffers, buffer_bytes : int
        Of the model's buffers and constants; several parts may hold the same. Also of what a part
        has copies of because other parts have it in other slices of the batch, and bytes of their
        gradients, too.
    exchange_bytes : int
        Of messages that are in the part's memory where it is a process: gradients of its
        parameters from other parts that have copies of them, weights of copies that do not arrive
        where they belong, and what departs of several tensors at once, which is copied for that. 0
        where it is not known yet what other processes hold.
    index_bytes : int
        Lists of channels that the part gathers and scatters by.
    gradient_bytes : int
        Of the parameters that are used and require a gradient.
    activation_bytes : int
        What is kept from a forward pass, in the placement's mode, for the backward pass: maps
        made and received, masks, inputs and the results, each memory once.
    macs : int
        Multiply-accumulates of a forward pass of a batch.
    """

    part: int
    device: str
    parameters: int
    parameter_bytes: int
    unused_parameters: int
    buffers: int
    buffer_bytes: int
    exchange_bytes: int
    index_bytes: int
    gradient_bytes: int
    activation_bytes: int
    macs: int

    def optimizer_bytes(self, optimizer: str) -> int:
        """What an optimizer keeps: ``sgd``, ``sgd with momentum`` or ``adam``."""
        if optimizer not in OPTIMIZER_STATES:
            raise not_one_of("optimizer", optimizer, OPTIMIZER_STATES)
        return OPTIMIZER_STATES[optimizer] * self.gradient_bytes

    def memory_bytes(self, optimizer: str) -> int:
        """All that the part keeps between the passes of a training step."""
        return (
            self.parameter_bytes
            + self.buffer_bytes
            + self.exchange_bytes
            + self.index_bytes
            + self.gradient_bytes
            + self.optimizer_bytes(optimizer)
            + self.activation_bytes
        )


@dataclass(frozen=True, eq=False)
class PlacementReport:
    """What the parts of a placement hold, compute, keep and send in a forward pass of a batch.

    Attributes
    ----------
    k, batch_size : int
    training : bool
        The mode that it was counted in.
    parts : tuple of PartFigures
        Those that this process holds.
    sent_bytes, sent_messages : int64 arrays, shape (k, k)
        From the part of the row to the part of the column, as the tensors that the row's
        submodule sends; zero in rows of parts that are elsewhere.
    received_bytes, received_messages : int64 arrays, shape (k, k)
        The same as the column's submodule expects it; zero in columns of parts elsewhere.
    uncounted_bytes : int64 array, shape (k, k)
        Sent too, but no part of the communication volume: the result, where the plan leaves its
        reader out.
    """

    k: int
    batch_size: int
    training: bool
    parts: tuple[PartFigures, ...]
    sent_bytes: Int64
    sent_messages: Int64
    received_bytes: Int64
    received_messages: Int64
    uncounted_bytes: Int64


def account(placement: Placement, batch_size: int | None = None) -> PlacementReport:
    """Count what the parts that this process holds do with a batch; allocates nothing for it.

    Parameters
    ----------
    placement : Placement
        Is left as it is.
    batch_size : int, optional
        The plan's when left out, or the only one that the model computes with.

    Raises
    ------
    ArgumentError
        If the batch size is less than 1.
    PlacementError
        If the model only computes with another batch size, or has an operator that torch can't run
        without memory, as one whose result's shape goes by values.

    >>> import hgpart
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> split = hgpart.partition_model(model, torch.zeros(2, 3, 16, 16), k=2, eps=0.1)
    >>> report = account(hgpart.place(model, split), batch_size=4)
    >>> sum(part.parameters for part in report.parts)  # 8 * 3 * 9 + 8 and 8 * 8 * 9 + 8
    808
    """
    batch_size = _batch_size(placement, batch_size)
    values = _inputs(placement, batch_size)
    parts, sent, received = [], Traffic.none(placement.k), Traffic.none(placement.k)
    for part, program in placement.programs.parts.items():
        rehearsal = rehearse(program, placement.k, values, batch_size)
        parts.append(_figures(placement, part, rehearsal))
        sent = sent + rehearsal.sent
        for transfer in _received(program):
            way = (transfer.sender, transfer.receiver)
            received.forward_bytes[way] += transfer.nbytes(batch_size)
            received.forward_messages[way] += 1
    return PlacementReport(
        k=placement.k,
        batch_size=batch_size,
        training=placement.training,
        parts=tuple(parts),
        sent_bytes=sent.forward_bytes,
        sent_messages=sent.forward_messages,
        received_bytes=received.forward_bytes,
        received_messages=received.forward_messages,
        uncounted_bytes=sent.uncounted_bytes,
    )


def disagreements(report: PlacementReport, placement: Placement) -> tuple[str, ...]:
    """Say where a report's figures are not those of the placement's partition; nothing if nowhere.

    Bytes and messages are compared with those of the hypergraph's nets at the report's batch
    size, parameters with the parts' shares of the layers (`hgpart.hypergraph.part_shares`), where
    those that the model makes no use of do not count.
    """
    found = []
    expected = placement.programs.expected(report.batch_size)
    here = [figures.part for figures in report.parts]
    for sender, receiver in np.ndindex(report.k, report.k):
        for part, verb, nbytes, messages in (
            (sender, "sends", report.sent_bytes, report.sent_messages),
            (receiver, "receives", report.received_bytes, report.received_messages),
        ):
            if part not in here:
                continue
            other = f"to part {receiver}" if part == sender else f"from part {sender}"
            for unit, counted, planned in (
                ("bytes", nbytes[sender, receiver], expected.traffic[sender, receiver]),
                ("messages", messages[sender, receiver], expected.messages[sender, receiver]),
            ):
                if counted != planned:
                    found.append(
                        f"part {part} {verb} {counted:,} {unit} {other}, "
                        f"by the partition {planned:,}"
                    )
    partition = placement.programs.partition
    shares = part_shares(partition.model, partition.parts, placement.k)
    for figures in report.parts:
        used, planned = figures.parameters - figures.unused_parameters, shares.parameters
        if len(placement.programs.shares) > 1:
            used += sum(_copied(placement, figures.part))
        if used != planned[figures.part]:
            found.append(
                f"part {figures.part} holds {used:,} parameters, "
                f"by the partition {planned[figures.part]:,}"
            )
    return tuple(found)


def _copied(placement: Placement, part: int) -> Iterator[int]:
    """Of how many elements of other parts' parameters a part has copies."""
    parameters = {*placement.programs.blueprint.traced.parameters.values()}
    for one in placement.copies.present.state:
        if one.holder == part != one.owner:
            yield from (each.count for each in one.elements if each.name in parameters)


def peak_bytes(
    placement: Placement, schedule: Schedule, batch_size: int | None = None
) -> tuple[int, ...]:
    """The most that each part holds in a step or a stream, for what it has still to do.

    That is what `hgpart.execution.held_memory` says and counts in a step, here from the part's
    program and its sequence of actions, without running them: each micro-batch alone on tensors
    without memory, with a loss of all results, and then all of them as they overlap.

    Parameters
    ----------
    placement : Placement
        In the mode that the schedule is for.
    schedule : Schedule
    batch_size : int, optional
        Of a step, or of each batch of a stream; as in `account` when left out, or a sample for
        each micro-batch if that is more.

    Returns
    -------
    tuple of int
        Bytes, of the parts that this process holds.

    Raises
    ------
    ArgumentError
        If there are more micro-batches than samples.
    PlacementError
        As of `account`.
    """
    return tuple(one for (one,) in peaks_by(placement, [schedule], batch_size).values())


class StepBytes(NamedTuple):
    """What a part takes in a step or a stream, without weights and their gradients.

    Attributes
    ----------
    held : int
        The most that it holds for what it has still to do; see `peak_bytes`.
    taken : int
        The most that it takes at any time, as a process of its own: also what operators make and
        drop again, and messages, be they receives that are posted or what may not have arrived yet.
        Without what libraries take for themselves: a convolution's packed maps and weights, the
        allocator's holes, buffers of the transport.
    """

    held: int
    taken: int


def known_peak_bytes(
    placement: Placement, schedule: Schedule, batch_size: int | None = None
) -> tuple[int | None, ...]:
    """The same for a table, which no PlacementError is to end: None of such a part."""
    known = known_step_bytes(placement, schedule, batch_size)
    return tuple(None if one is None else one.held for one in known)


def known_step_bytes(
    placement: Placement, schedule: Schedule, batch_size: int | None = None
) -> tuple[StepBytes | None, ...]:
    """What each part here takes in a step or a stream; None of a PlacementError's part."""
    found: list[StepBytes | None] = []
    for part in placement.programs.parts:
        try:
            found += _step_bytes(placement, [schedule], batch_size, [part])[part]
        except PlacementError:
            found.append(None)
    return tuple(found)


def peaks_by(
    placement: Placement, schedules: Sequence[Schedule], batch_size: int | None = None
) -> dict[int, list[int]]:
    """`peak_bytes` by several schedules with as many micro-batches, of all parts here."""
    found = _step_bytes(placement, schedules, batch_size, placement.programs.parts)
    return {part: [one.held for one in several] for part, several in found.items()}


def _step_bytes(
    placement: Placement,
    schedules: Sequence[Schedule],
    batch_size: int | None,
    parts: Iterable[int],
) -> dict[int, list[StepBytes]]:
    count = schedules[0].micro_batches
    if schedules[0].in_flight is not None:
        sizes = (_batch_size(placement, batch_size),) * count
    else:
        sizes = micro_batch_sizes(_batch_size(placement, batch_size, count), count)
    values = {size: _inputs(placement, size) for size in set(sizes)}
    found = {}
    for part in parts:
        program = placement.programs.parts[part]
        if placement.k == 1:  # one micro-batch after the other, by ordinary autograd
            kept = max(rehearse(program, 1, values[size], size).kept_bytes for size in set(sizes))
            each = (kept * schedule.backward for schedule in schedules)
            found[part] = [StepBytes(size, size) for size in each]
        else:
            rehearsal = StepRehearsal(program, placement.k)
            found[part] = [_bytes_by(rehearsal, one, sizes, values) for one in schedules]
    return found


def worth_again(
    placement: Placement, micro_batches: int, batch_size: int | None = None
) -> dict[int, frozenset[int]]:
    """The forward chunks that keep more than they read, of the parts that this process holds."""
    if placement.k == 1:
        return {0: frozenset()}
    size = _batch_size(placement, batch_size, micro_batches)
    samples = min(micro_batch_sizes(size, micro_batches))
    values = _inputs(placement, samples)
    return {
        part: StepRehearsal(program, placement.k).worth_again(values, samples)
        for part, program in placement.programs.parts.items()
    }


def _bytes_by(
    rehearsal: StepRehearsal,
    schedule: Schedule,
    sizes: Sequence[int],
    values: Mapping[int, Mapping[str, Any]],
) -> StepBytes:
    """What a part takes by a schedule."""
    sequence, again = schedule.sequences[rehearsal.part], schedule.outlines[rehearsal.part].again
    found: dict[Action, Moments] = {}
    actions: list[list[Action]] = [[] for _ in sizes]
    for action in sequence:
        actions[action.micro_batch].append(action)
    for own, size in zip(actions, sizes, strict=True):
        alike = tuple(action._replace(micro_batch=0) for action in own)
        moments = rehearsal.moments(values[size], size, alike, len(sizes) - 1, again)
        found.update(zip(own, moments, strict=True))
    held = {action: one.held for action, one in found.items()}
    taken = {action: (one.most, one.held[-1]) for action, one in found.items()}
    sent = {
        Piece(direction, action.micro_batch, number)
        for action, one in found.items()
        for direction, number in one.sent
    }
    messages = message_bytes(schedule, rehearsal.part, sizes, sent)
    return StepBytes(peak(sequence, held), peak(sequence, taken, messages))


# ------------------------------------------------------------------ what a part is given


def _batch_size(placement: Placement, batch_size: int | None, least: int = 1) -> int:
    """A batch size, or the plan's or `least` if the present form is for that, or the traced one.

    The placement is then in a form for it.
    """
    if batch_size is None:
        planned = max(placement.programs.partition.modelling.batch_size, least)
        if placement.forms.takes(planned):
            return planned
        return placement.programs.blueprint.traced.batch_size
    placement.for_batch(batch_size)
    return batch_size


def _inputs(placement: Placement, batch_size: int) -> dict[str, Any]:
    """The model's inputs and random masks for a batch, without memory."""
    sizes = sizes_of(placement.programs.shares, batch_size)
    return named_by_share(
        placement.programs.blueprints, [_of_share(placement, size) for size in sizes]
    )


def _of_share(placement: Placement, samples: int) -> dict[str, Any]:
    traced = placement.programs.blueprint.traced
    values: dict[str, Any] = {"batch_size": samples}
    shapes = placement.programs.blueprint.input_shapes(samples)
    for name, example, shape in zip(placement.programs.inputs, traced.example, shapes, strict=True):
        dtype = placement.dtype if example.is_floating_point() else example.dtype
        values[name] = torch.empty(shape, dtype=dtype, device="meta")
    with FakeTensorMode():  # draws no numbers: the random state stays
        return {**values, **placement.programs.draw(samples)}


def _received(program: PartProgram) -> Iterator[Transfer]:
    """The messages that a part waits for, but for those outside the communication volume."""
    for node in program.module.graph.nodes:
        if node.target is receive and program.transfers[node.args[0]].counted:
            yield program.transfers[node.args[0]]


# ------------------------------------------------------------------ what a part holds


def _figures(placement: Placement, part: int, rehearsal: Rehearsal) -> PartFigures:
    module = placement.programs.submodule(part)
    names = {id(attrgetter(name)(module)): name for name in placement.programs.slices[part]}
    parameters = list(module.parameters())
    idle = {id(one) for one in parameters if names[id(one)].startswith(f"{UNUSED}.")}
    unused = [one for one in parameters if id(one) in idle]
    used = [one for one in parameters if id(one) not in idle]
    buffers = [buffer for buffer in module.buffers() if id(buffer) in names]
    copies = [buffer for buffer in buffers if buffer.requires_grad]
    memory = {buffer.untyped_storage()._cdata for buffer in buffers}
    within = [one for one in parameters if one.untyped_storage()._cdata in memory]
    indices = [buffer for buffer in module.buffers() if id(buffer) not in names]
    return PartFigures(
        part=part,
        device=str(placement.devices[part]),
        parameters=_elements(parameters),
        parameter_bytes=_bytes(parameters),
        unused_parameters=_elements(unused),
        buffers=_elements(buffers) - _elements(within),
        buffer_bytes=_bytes(buffers) - _bytes(within) + _bytes(copies) - _learning_bytes(within),
        exchange_bytes=_exchanged(placement, part),
        index_bytes=_bytes(indices),
        gradient_bytes=_learning_bytes(used),
        activation_bytes=rehearsal.kept_bytes,
        macs=rehearsal.macs,
    )


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _learning_bytes(tensors: Iterable[Tensor]) -> int:
    return _bytes(tensor for tensor in tensors if tensor.requires_grad)


def _exchanged(placement: Placement, part: int) -> int:
    """See `PartFigures.exchange_bytes`."""
    here = placement.programs.has_all_parts
    if len(placement.programs.shares) == 1 or not (here or placement.copies.are_known):
        return 0
    copies, total = placement.copies.present, 0
    for one in copies.weights:
        if one.owner != one.holder and part in (one.owner, one.holder):
            arrives = one.owner == part or copies.memory(one) is None
            total += (arrives + (len(one.elements) > 1)) * copies.nbytes(one)
    return total
