"""Placement -> PlacementReport: what each part holds, computes, keeps and sends, by counting.

The figures come from the submodules: each part's program runs once on tensors without memory and
its work is counted. The partition's own figures come from the hypergraph; `disagreements` compares
the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hgpart.arrays import Int64
from hgpart.errors import PlacementError, not_one_of
from hgpart.execution.program import PartProgram, Transfer, receive
from hgpart.execution.records.totals import Traffic
from hgpart.execution.weights.exchanges import Exchange
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import PARAMETER
from hgpart.placement.batches.micro_batches import named_by_share
from hgpart.placement.building.blueprint import UNUSED
from hgpart.placement.rehearsal import (
    Moments,
    Rehearsal,
    StepMemory,
    StepRehearsal,
    rehearse,
)
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.schedules.message_bytes import message_bytes
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.peak import peak
from hgpart.schedules.schedule import GO_BACK, Action, Piece, Schedule

if TYPE_CHECKING:
    from hgpart.placement.placement import Placement

# Tensors that an optimizer keeps per gradient, once it has made a step.
OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 0, "sgd with momentum": 1, "adam": 2}


@dataclass(frozen=True)
class PartFigures:
    """What one part holds, computes and keeps.

    Attributes
    ----------
    parameters, parameter_bytes : int
        Elements and bytes of the parameters, each tensor once.
    unused_parameters : int
        Elements among them that the model does not use in this mode; part 0 also holds those that
        it never uses.
    buffers, buffer_bytes : int
        Elements and bytes of the model's buffers and constants; several parts may hold the same.
        They include copies of weights that other parts own, for other slices of the batch.
    exchange_bytes : int
        Bytes of messages in the part's memory if it is a process: gradients that other parts send
        for its parameters, weights of copies that do not arrive in place, and messages of several
        tensors, which are copied to be sent; and the lists of elements by which all parts take
        weights out of tensors, which each process has. 0 if it is not known yet what other
        processes hold.
    index_bytes : int
        Bytes of the lists of channels by which the part gathers and scatters.
    gradient_bytes, copied_gradient_bytes : int
        Bytes of the gradients of used parameters, and of copies of weights without those that are
        counted with parameters already.
    activation_bytes : int
        Bytes that a forward pass in the placement's mode keeps for the backward pass: maps that are
        computed or received, masks, inputs and results, each memory once.
    macs : int
        Multiply-accumulates of a batch's forward pass.
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
    copied_gradient_bytes: int
    activation_bytes: int
    macs: int

    def optimizer_bytes(self, optimizer: str) -> int:
        """Bytes that an optimizer keeps: ``sgd``, ``sgd with momentum`` or ``adam``."""
        if optimizer not in OPTIMIZER_STATES:
            raise not_one_of("optimizer", optimizer, OPTIMIZER_STATES)
        return OPTIMIZER_STATES[optimizer] * self.gradient_bytes

    def memory_bytes(self, optimizer: str) -> int:
        """All bytes that the part keeps between the passes of a training step."""
        gradients = self.gradient_bytes + self.copied_gradient_bytes
        return self.lasting_bytes(optimizer) + gradients + self.activation_bytes

    def lasting_bytes(self, optimizer: str | None) -> int:
        """Bytes that it keeps from step to step; without an optimizer in passes forward."""
        return (
            self.parameter_bytes
            + self.buffer_bytes
            + self.exchange_bytes
            + self.index_bytes
            + (0 if optimizer is None else self.optimizer_bytes(optimizer))
        )


@dataclass(frozen=True, eq=False)
class PlacementReport:
    """What the parts of a placement hold, compute, keep and send in a forward pass of a batch.

    Attributes
    ----------
    training : bool
        The mode in which it was counted.
    parts : tuple of PartFigures
        Figures of the parts that this process holds.
    sent_bytes, sent_messages : int64 arrays, shape (k, k)
        What the row's submodule sends to the part of the column; zero in the rows of parts in other
        processes.
    received_bytes, received_messages : int64 arrays, shape (k, k)
        The same as the column's submodule expects it; zero in the columns of parts in other
        processes.
    uncounted_bytes : int64 array, shape (k, k)
        Bytes that are sent but not part of the communication volume: the result, if the plan leaves
        its reader out.
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
    """Count the work of the parts in this process on a batch, without allocating memory for it.

    Parameters
    ----------
    placement : Placement
        Placement, which is not changed.
    batch_size : int, optional
        Samples of the batch. Default: the plan's, or the only number that the model computes with.

    Raises
    ------
    ArgumentError
        If the batch size is less than 1.
    PlacementError
        If the model computes only with another batch size, or has an operator that torch can't run
        without memory, such as one whose result's shape depends on values.

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
            ends = (transfer.sender, transfer.receiver)
            received.forward_bytes[ends] += transfer.nbytes(batch_size)
            received.forward_messages[ends] += 1
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
    """Say where a report's figures differ from those of the placement's partition.

    Bytes and messages are compared with those of the hypergraph's nets at the report's batch size,
    parameters with the parts' shares of the layers (`hgpart.hypergraph.shares.part_shares`).
    Parameters that the model does not use are not counted.
    """
    lines = []
    expected = placement.programs.expected(report.batch_size)
    here = [figures.part for figures in report.parts]
    for sender, receiver in np.ndindex(report.k, report.k):
        for part, verb, nbytes, messages in (
            (sender, "sends", report.sent_bytes, report.sent_messages),
            (receiver, "receives", report.received_bytes, report.received_messages),
        ):
            if part not in here:
                continue
            direction = f"to part {receiver}" if part == sender else f"from part {sender}"
            for unit, counted, planned in (
                ("bytes", nbytes[sender, receiver], expected.traffic[sender, receiver]),
                ("messages", messages[sender, receiver], expected.messages[sender, receiver]),
            ):
                if counted != planned:
                    lines.append(
                        f"part {part} {verb} {counted:,} {unit} {direction}, "
                        f"by the partition {planned:,}"
                    )
    partition = placement.programs.partition
    shares = part_shares(partition.model, partition.parts, placement.k)
    for figures in report.parts:
        used, planned = figures.parameters - figures.unused_parameters, shares.parameters
        if placement.programs.has_copies:
            used += sum(_copied(placement, figures.part))
        if used != planned[figures.part]:
            lines.append(
                f"part {figures.part} holds {used:,} parameters, "
                f"by the partition {planned[figures.part]:,}"
            )
    return tuple(lines)


def _copied(placement: Placement, part: int) -> Iterator[int]:
    """Numbers of elements of other parts' parameters that a part has copies of, for its tasks.

    A parameter that only tasks of other layers read there counts as received, like a map.
    """
    blueprints = placement.programs.blueprints
    counted = {*blueprints[0].traced.parameters.values()}
    for at, layer in enumerate(blueprints[0].graph.layers):
        holds = any(len(blueprint.finishes(at, part)) for blueprint in blueprints)
        if layer.kind == PARAMETER and not holds:
            counted -= {*layer.parameter_names}
    for exchange in placement.copies.present.state:
        if exchange.holder == part != exchange.owner:
            for elements in exchange.elements:
                if elements.name in counted:
                    yield elements.count


def peak_bytes(
    placement: Placement, schedule: Schedule, batch_size: int | None = None
) -> tuple[int, ...]:
    """The most bytes that each part holds for later work in a step or a stream.

    This is what `hgpart.execution.held_memory` defines and counts in a step, here found from the
    part's program and actions without running them: each micro-batch alone on tensors without
    memory, with a loss of all results, and then all of them as they overlap.

    Parameters
    ----------
    placement : Placement
        Placement in the mode of the schedule.
    batch_size : int, optional
        Samples of a step, or of each batch of a stream. Default: as in `account`, but at least one
        sample per micro-batch.

    Returns
    -------
    tuple of int
        Bytes of each part that this process holds.

    Raises
    ------
    ArgumentError
        If there are more micro-batches than samples.
    PlacementError
        If the batch can't be counted; see `account`.
    """
    return tuple(held for (held,) in peaks_by(placement, [schedule], batch_size).values())


class StepBytes(NamedTuple):
    """The memory of a part in a step or a stream, without weights.

    Attributes
    ----------
    held : int
        The most bytes that it holds for later work, without gradients of weights; see `peak_bytes`.
    taken : int
        The most bytes that it uses at any time, as a process: this includes what operators make and
        drop (on a CPU also the maps that a convolution packs), gradients of weights from when they
        are computed on, and messages, also receives that are posted and messages that may not have
        arrived. It does not include what libraries use themselves: holes of the allocator, buffers
        of the transport.
    elsewhere : int
        The most bytes that are in slower memory at a time.
    offloaded : mapping of Action to int
        Bytes that actions write to slower memory or read from there; none of the others.
    """

    held: int
    taken: int
    elsewhere: int = 0
    offloaded: Mapping[Action, int] = MappingProxyType({})


def known_peak_bytes(
    placement: Placement, schedule: Schedule, batch_size: int | None = None
) -> tuple[int | None, ...]:
    """`peak_bytes` for a table: None for a part that raises a PlacementError."""
    known = known_step_bytes(placement, schedule, batch_size)
    return tuple(None if part_bytes is None else part_bytes.held for part_bytes in known)


def known_step_bytes(
    placement: Placement,
    schedule: Schedule,
    batch_size: int | None = None,
    devices: Sequence[str] | None = None,
) -> tuple[StepBytes | None, ...]:
    """Memory of each part in this process, in a step or a stream; None if it can't be counted.

    `devices` are those that parts placed without memory will be on. Default: the placement's; what
    has no memory is counted as on a CPU.
    """
    by_part: list[StepBytes | None] = []
    for part in placement.programs.parts:
        try:
            by_part.append(part_step_bytes(placement, part, schedule, batch_size, devices))
        except PlacementError:
            by_part.append(None)
    return tuple(by_part)


def part_step_bytes(
    placement: Placement,
    part: int,
    schedule: Schedule,
    batch_size: int | None = None,
    devices: Sequence[str] | None = None,
) -> StepBytes:
    """Memory of a part in this process; a PlacementError if it can't be counted."""
    return _step_bytes(placement, [schedule], batch_size, [part], devices)[part][0]


def peaks_by(
    placement: Placement, schedules: Sequence[Schedule], batch_size: int | None = None
) -> dict[int, list[int]]:
    """`peak_bytes` by several schedules with the same number of micro-batches, by part."""
    by_part = _step_bytes(placement, schedules, batch_size, placement.programs.parts)
    return {part: [step.held for step in steps] for part, steps in by_part.items()}


def _step_bytes(
    placement: Placement,
    schedules: Sequence[Schedule],
    batch_size: int | None,
    parts: Iterable[int],
    devices: Sequence[str] | None = None,
) -> dict[int, list[StepBytes]]:
    count = schedules[0].micro_batches
    if schedules[0].turns:
        raise PlacementError(
            "the memory of batches in turns, which is not counted: accepted are other schedules"
        )
    if schedules[0].in_flight is not None:
        sizes = (_batch_size(placement, batch_size),) * count
    else:
        sizes = micro_batch_sizes(_batch_size(placement, batch_size, count), count)
    values = {size: _inputs(placement, size) for size in set(sizes)}
    by_part: dict[int, list[StepBytes]] = {}
    for part in parts:
        program = placement.programs.parts[part]
        device = placement.devices[part] if devices is None else torch.device(devices[part])
        on_cpu = device.type != "cuda"
        if placement.k == 1 and schedules[0].backward:
            # One micro-batch after the other, by ordinary autograd.
            facts = on_cpu, True
            first = rehearse(program, 1, values[sizes[0]], sizes[0], *facts)
            held, taken = first.kept_bytes, first.most_bytes
            if count > 1 and schedules[0].in_flight is None:
                later = rehearse(program, 1, values[sizes[0]], sizes[0], *facts, again=True)
                taken = max(taken, _held(placement, part).gradient_bytes + later.most_bytes)
            by_part[part] = [StepBytes(held, taken)] * len(schedules)
        else:
            rehearsal = StepRehearsal(program, placement.k, on_cpu)
            gradients = _held(placement, part).gradient_bytes
            for order in schedules:
                step = _bytes_by(rehearsal, order, sizes, values)
                if order.backward:  # all gradients are there when the optimizer begins
                    step = step._replace(taken=max(step.taken, gradients))
                by_part.setdefault(part, []).append(step)
    return by_part


def step_memory(
    placement: Placement,
    part: int,
    micro_batches: int,
    batch_size: int | None = None,
    *,
    most: bool = False,
) -> list[StepMemory]:
    """Memory of each instruction of a part in this process, for the smallest micro-batch.

    With `most`, it is for the largest.

    Raises
    ------
    PlacementError
        If the batch can't be counted; see `account`.
    """
    size = _batch_size(placement, batch_size, micro_batches)
    samples = (max if most else min)(micro_batch_sizes(size, micro_batches))
    rehearsal = StepRehearsal(placement.programs.parts[part], placement.k)
    return rehearsal.steps(_inputs(placement, samples), samples)


def _bytes_by(
    rehearsal: StepRehearsal,
    schedule: Schedule,
    sizes: Sequence[int],
    values: Mapping[int, Mapping[str, Any]],
) -> StepBytes:
    """Memory of a part by a schedule."""
    part = rehearsal.part
    sequence = schedule.sequences[part]
    dropped = schedule.outlines[part].dropped
    by_action: dict[Action, Moments] = {}
    actions: list[list[Action]] = [[] for _ in sizes]
    for action in sequence:
        actions[action.micro_batch].append(action)
    # In a step gradients begin with the first micro-batch that goes back, in a stream with each.
    back = (action.micro_batch for action in sequence if action.direction in GO_BACK)
    first = next(back, 0)
    for micro_batch, (own, size) in enumerate(zip(actions, sizes, strict=True)):
        alike = tuple(action._replace(micro_batch=0) for action in own)
        again = schedule.in_flight is None and micro_batch != first
        others = len(sizes) - 1
        moments = rehearsal.moments(values[size], size, alike, others, dropped, again=again)
        by_action.update(zip(own, moments, strict=True))
    held = {action: moment.held for action, moment in by_action.items()}
    taken = {action: (moment.most, moment.end) for action, moment in by_action.items()}
    sent = {
        Piece(direction, action.micro_batch, number)
        for action, moment in by_action.items()
        for direction, number in moment.sent
    }
    messages = message_bytes(schedule, part, sizes, sent)
    moved = {action: moment.offloaded for action, moment in by_action.items() if moment.offloaded}
    elsewhere = peak(sequence, {action: (own.elsewhere,) for action, own in by_action.items()})
    return StepBytes(peak(sequence, held), peak(sequence, taken, messages), elsewhere, moved)


# ------------------------------------------------------------------ inputs of a part


def _batch_size(placement: Placement, batch_size: int | None, least: int = 1) -> int:
    """A given batch size; else the plan's or `least` if the present form takes it, or the traced.

    The placement then is in a form that takes it.
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
    with FakeTensorMode():  # draws no numbers, so the random state stays the same
        return {**values, **placement.programs.draw(samples)}


def _received(program: PartProgram) -> Iterator[Transfer]:
    """Transfers that a part receives, except those outside the communication volume."""
    for node in program.module.graph.nodes:
        if node.target is receive and program.transfers[node.args[0]].counted:
            yield program.transfers[node.args[0]]


# ------------------------------------------------------------------ what a part holds


class _Held(NamedTuple):
    """The tensors of a part's program: those that the model uses, and those that it does not.

    Attributes
    ----------
    within : list of Tensor
        The parameters that are views of copies of weights.
    indices : list of Tensor
        Buffers that are not the model's.
    """

    used: list[Tensor]
    unused: list[Tensor]
    buffers: list[Tensor]
    within: list[Tensor]
    indices: list[Tensor]

    @property
    def own_gradient_bytes(self) -> int:
        """Bytes of the gradients of used parameters."""
        return _learning_bytes(self.used)

    @property
    def copied_gradient_bytes(self) -> int:
        """Bytes of the gradients of copies, without those of the parameters in them."""
        return _learning_bytes(self.buffers) - _learning_bytes(self.within)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return self.own_gradient_bytes + self.copied_gradient_bytes


def _held(placement: Placement, part: int) -> _Held:
    module = placement.programs.submodule(part)
    names = {id(attrgetter(name)(module)): name for name in placement.programs.slices[part]}
    parameters = list(module.parameters())
    idle = {id(weight) for weight in parameters if names[id(weight)].startswith(f"{UNUSED}.")}
    buffers = [buffer for buffer in module.buffers() if id(buffer) in names]
    memory = {buffer.untyped_storage()._cdata for buffer in buffers}
    return _Held(
        used=[parameter for parameter in parameters if id(parameter) not in idle],
        unused=[parameter for parameter in parameters if id(parameter) in idle],
        buffers=buffers,
        within=[weight for weight in parameters if weight.untyped_storage()._cdata in memory],
        indices=[buffer for buffer in module.buffers() if id(buffer) not in names],
    )


def _figures(placement: Placement, part: int, rehearsal: Rehearsal) -> PartFigures:
    held = _held(placement, part)
    return PartFigures(
        part=part,
        device=str(placement.devices[part]),
        parameters=_elements(held.used) + _elements(held.unused),
        parameter_bytes=_bytes(held.used) + _bytes(held.unused),
        unused_parameters=_elements(held.unused),
        buffers=_elements(held.buffers) - _elements(held.within),
        buffer_bytes=_bytes(held.buffers) - _bytes(held.within),
        exchange_bytes=_exchanged(placement, part),
        index_bytes=_bytes(held.indices),
        gradient_bytes=held.own_gradient_bytes,
        copied_gradient_bytes=held.copied_gradient_bytes,
        activation_bytes=rehearsal.kept_bytes,
        macs=rehearsal.macs,
    )


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _learning_bytes(tensors: Iterable[Tensor]) -> int:
    return _bytes(tensor for tensor in tensors if tensor.requires_grad)


def _places_bytes(exchanges: Iterable[Exchange]) -> dict[int, int]:
    """Bytes of the lists of places of weights, those of other parts too, by their address."""
    every = (elements for exchange in exchanges for elements in exchange.elements)
    places = chain.from_iterable(
        (
            elements.places,
            *chain.from_iterable((copy.places, copy.among) for copy in elements.copies),
        )
        for elements in every
    )
    return {place.data_ptr(): place.nbytes for place in places if isinstance(place, Tensor)}


def _exchanged(placement: Placement, part: int) -> int:
    """Bytes of exchanges with other processes; see `PartFigures.exchange_bytes`."""
    here = placement.programs.has_all_parts
    if not placement.programs.has_copies or not (here or placement.copies.are_known):
        return 0
    copies = placement.copies.present
    total = sum(_places_bytes([*copies.weights, *copies.state]).values())
    for exchange in copies.weights:
        if exchange.owner != exchange.holder and part in (exchange.owner, exchange.holder):
            arrives = exchange.owner == part or copies.memory(exchange) is None
            total += (arrives + (len(exchange.elements) > 1)) * copies.nbytes(exchange)
    return total
