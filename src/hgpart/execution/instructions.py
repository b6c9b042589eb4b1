"""PartProgram -> Prepared: its nodes as instructions that know their operands, read only once."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hgpart.errors import PlacementError, RunError
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram, pack, receive, send
from hgpart.execution.transfers import Transfer
from hgpart.execution.weights.gradients import WeightGradient, add_map_gradients
from hgpart.operators.calls import has_gradients

JOINED_BYTES = 2**24  # of weights in an instruction: their gradients depart together


@dataclass(frozen=True, eq=False)
class Graph:
    """What a step keeps for backward: its autograd graph, by where it begins and where it ends."""

    heads: list[tuple[int, GradientEdge]]
    leaves: list[tuple[int, Tensor]]


class Instruction(Protocol):
    """One node of a program; values are numbered by slots."""

    def forward(self, run: PartState) -> None:
        """Read values and put new ones."""

    def backward(self, run: PartState, weights: bool) -> None:
        """Take the gradients of what forward put and add to those of what it read.

        And to those of the parameters if `weights` are wanted now, and not by `backward_weights`.
        """


@dataclass(frozen=True, eq=False)
class Receive:
    """Put what arrives."""

    transfer: Transfer
    results: tuple[int | None, ...]

    def forward(self, run: PartState) -> None:
        """Wait for it."""
        tensors = run.receive(self.transfer)
        back = torch.is_grad_enabled() and self.transfer.differentiable
        if back:
            run.saved[self] = [(tensor.shape, tensor.dtype) for tensor in tensors]
        for slot, tensor in zip(self.results, tensors, strict=True):
            if slot is not None:
                run.values[slot] = tensor
                run.differentiable[slot] = back and has_gradients(tensor.dtype)

    def backward(self, run: PartState, weights: bool) -> None:
        """Send the gradient back: all that read it have run."""
        if self.transfer.differentiable:
            gradients = []
            for slot, (shape, dtype) in zip(self.results, run.saved.pop(self), strict=True):
                gradient = None if slot is None else run.take_gradient(slot)
                if gradient is None:
                    gradient = torch.zeros(shape, dtype=dtype, device=run.device)
                gradients.append(gradient)
            run.send_gradient(self.transfer, gradients)


def matrices(step: nn.Module) -> Iterator[Tensor]:
    """The weights of a step whose gradients may be products; some are copies of other parts'."""
    for one in chain(step.parameters(), step.buffers()):
        if one.dim() == 2 and one.requires_grad:
            yield one


def _has_matrix(step: nn.Module) -> bool:
    return any(True for _ in matrices(step))


@dataclass(frozen=True, eq=False)
class Step:
    """What computes a layer's share.

    Attributes
    ----------
    name : str
    find : callable
        Given the part's module, the step; anew in each run: it may have been compiled or moved.
    operands : tuple of int
    results : tuple of int or None
    finished : tuple of int
        Slots that nothing behind it reads.
    """

    name: str
    find: Callable[[Any], Any]
    operands: tuple[int, ...]
    results: tuple[int | None, ...]
    finished: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Compute:
    """Run steps one after the other; they have one autograd graph, which ends where they begin.

    Attributes
    ----------
    steps : tuple of Step
    reads : tuple of int
        Slots of what they compute with and have not made.
    makes : tuple of int
        Slots of what they compute for others.
    """

    steps: tuple[Step, ...]
    reads: tuple[int, ...]
    makes: tuple[int, ...]

    @staticmethod
    def of(steps: Sequence[Step]) -> Compute:
        """Find what they read and make together."""
        made = {slot for step in steps for slot in step.results if slot is not None}
        reads = {slot: None for step in steps for slot in step.operands if slot not in made}
        inside = {slot for step in steps for slot in step.finished}
        return Compute(tuple(steps), tuple(reads), tuple(sorted(made - inside)))

    def forward(self, run: PartState) -> None:
        """Call them on leaves."""
        values, leaves, known = run.values, [], {}
        for slot in self.reads:
            value = values[slot]
            if run.differentiable[slot]:
                value = value.detach().requires_grad_()
                leaves.append((slot, value))
            known[slot] = value
        for step in self.steps:
            operands = [known[slot] for slot in step.operands]
            outputs = run.call(step.find(run.module), operands, run.buffers.get(step, {}))
            if isinstance(outputs, Tensor):
                outputs = (outputs,)
            for result, output in zip(step.results, outputs, strict=False):
                if result is not None:
                    known[result] = output
            for slot in step.finished:
                known[slot] = values[slot] = None
            del operands, outputs
        heads = []
        for slot in self.makes:
            value = known[slot]
            if value.requires_grad:
                run.differentiable[slot] = True
                heads.append((slot, get_gradient_edge(value)))  # not the map itself
                value = value.detach()
            values[slot] = value
        if heads:
            run.saved[self] = Graph(heads, leaves)

    def backward(self, run: PartState, weights: bool) -> None:
        """Run their graph with the gradients that have come; without any there is nothing to do."""
        graph: Graph | None = run.saved.pop(self, None)
        if graph is None:
            return
        outputs, gradients = [], []
        for slot, head in graph.heads:
            gradient = run.take_gradient(slot)
            if gradient is not None:
                outputs.append(head)
                gradients.append(gradient)
        if outputs and run.to_inputs_alone:
            leaves = [leaf for _, leaf in graph.leaves]
            found = torch.autograd.grad(outputs, leaves, gradients, allow_unused=True)
            for leaf, gradient in zip(leaves, found, strict=True):
                leaf.grad = gradient
        # What is compiled can run its graph once only: all of it is done now then.
        elif outputs and (self._compiled(run) or (weights and not self._has_products(run))):
            torch.autograd.backward(outputs, gradients)
        elif outputs:
            left = add_map_gradients(outputs, gradients, [leaf for _, leaf in graph.leaves])
            if weights:
                self._add(run, left)
            else:
                run.saved[self] = left
        for slot, leaf in graph.leaves:
            if leaf.grad is not None:
                run.add_gradient(slot, leaf.grad)
                leaf.grad = None  # what is left to `backward_weights` may hold the leaf

    def modules(self, module: fx.GraphModule) -> list[nn.Module]:
        """Its steps in a part's module."""
        return [step.find(module) for step in self.steps]

    def _compiled(self, run: PartState) -> bool:
        modules = self.modules(run.module)
        return any(getattr(one, "_compiled_call_impl", None) is not None for one in modules)

    def _has_products(self, run: PartState) -> bool:
        """Whether it may have gradients that are computed for several batches at once."""
        return run.products is not None and any(map(_has_matrix, self.modules(run.module)))

    def _add(self, run: PartState, left: Sequence[WeightGradient]) -> None:
        for one in left:
            product = None if run.products is None else one.product()
            if product is None or run.products is None:
                one.add()
            else:
                # By several steps, if they are of several slices of the batch.
                key = id(product.weight), id(product.bias)
                run.products.setdefault(key, []).append(product)

    def backward_weights(self, run: PartState) -> None:
        """The gradients of its parameters, where `backward` was to leave them out."""
        self._add(run, run.saved.pop(self, ()))


@dataclass(frozen=True, eq=False)
class Pack:
    """Gather the channels that travel."""

    operand: int
    result: int
    dim: int
    find_index: Callable[[Any], Tensor]

    @property
    def reads(self) -> tuple[int, ...]:
        """Slots of what it computes with."""
        return (self.operand,)

    @property
    def makes(self) -> tuple[int | None, ...]:
        """Slots of what it computes."""
        return (self.result,)

    def forward(self, run: PartState) -> None:
        """Gather."""
        value = run.values[self.operand]
        run.values[self.result] = pack(value, self.dim, self.find_index(run.module))
        if run.differentiable[self.operand]:
            run.differentiable[self.result] = True
            run.saved[self] = value.shape

    def backward(self, run: PartState, weights: bool) -> None:
        """Scatter."""
        gradient = run.take_gradient(self.result)
        if gradient is not None:
            index = self.find_index(run.module)
            shape = run.saved.pop(self)
            run.add_packed_gradient(self.operand, shape, self.dim, index, gradient)


@dataclass(frozen=True, eq=False)
class Send:
    """Let values depart."""

    transfer: Transfer
    operands: tuple[int, ...]

    def forward(self, run: PartState) -> None:
        """Send; never blocks."""
        requires = any(run.differentiable[slot] for slot in self.operands)
        if requires and not self.transfer.differentiable:
            raise RunError(
                f"{self.transfer.layer} requires a gradient, but part {self.transfer.receiver}"
                " sends none back; accepted are parameters that required one when they were placed"
            )
        run.send(self.transfer, [run.values[slot] for slot in self.operands])

    def backward(self, run: PartState, weights: bool) -> None:
        """Wait for the gradient."""
        if self.transfer.differentiable:
            gradients = run.receive_gradient(self.transfer)
            for slot, gradient in zip(self.operands, gradients, strict=True):
                run.add_gradient(slot, gradient)


@dataclass(frozen=True)
class Prepared:
    """A program, ready to run many times.

    Attributes
    ----------
    inputs : tuple of (str, int)
        Placeholder names and their slots.
    instructions : tuple of (Instruction, tuple of int)
        In order, each with the slots that no later one reads and that it has not let go of itself.
    results : tuple of int
        Slots of the model's results.
    slots : int
        How many there are.
    forward, backward : tuple of range
        The instructions of each chunk, in order: it begins with all that it awaits.
    forward_places, backward_places : tuple of tuple of int
        Where each of them begins in its chunk, and where that ends, counted in steps that are not
        joined: see `Action.piece`.
    """

    inputs: tuple[tuple[str, int], ...]
    instructions: tuple[tuple[Instruction, tuple[int, ...]], ...]
    results: tuple[int, ...]
    slots: int
    forward: tuple[range, ...]
    backward: tuple[range, ...]
    forward_places: tuple[tuple[int, ...], ...]
    backward_places: tuple[tuple[int, ...], ...]

    def some(self, chunk: int, piece: tuple[int, int] | None, back: bool) -> range:
        """The instructions of a chunk, or of a piece of it."""
        every = (self.backward if back else self.forward)[chunk]
        if piece is None:
            return every
        places = (self.backward_places if back else self.forward_places)[chunk]
        first, end = (bisect_left(places, place) for place in piece)
        return every[first:end]


def prepare(program: PartProgram, joined: bool = False) -> Prepared:
    """Read a program's graph, the first time only.

    Parameters
    ----------
    program : PartProgram
    joined : bool
        Whether steps that follow one another are one instruction. Its chunks are the same ones, and
        gradients of weights still depart about when they are there: an instruction has few
        weights, or one step, and steps with matrices are alone.

    Raises
    ------
    PlacementError
        If it has a node that no part's program has (see `PartProgram`).
    """
    both = _prepared.get(program)
    if both is None:
        apart = _Preparation(program).result()
        both = _prepared[program] = apart, _joined(apart, program.module)
    return both[joined]


_prepared: WeakKeyDictionary[PartProgram, tuple[Prepared, Prepared]] = WeakKeyDictionary()


def _in_chunks(
    inputs: Iterable[tuple[str, int]],
    instructions: Sequence[tuple[Instruction, tuple[int, ...]]],
    results: tuple[int, ...],
    slots: int,
) -> Prepared:
    alone = [one for one, _ in instructions]
    sizes = [len(one.steps) if isinstance(one, Compute) else 1 for one in alone]
    both = tuple(_chunks(alone, Receive, 1)), tuple(_chunks(alone, Send, -1))
    places = (
        tuple((0, *accumulate(sizes[at] for at in chunk)) for chunk in chunks) for chunks in both
    )
    return Prepared(tuple(inputs), tuple(instructions), results, slots, *both, *places)


def _chunks(
    instructions: Sequence[Instruction], awaits: type[Receive | Send], way: int
) -> Iterator[range]:
    """Cut in front of each await that comes after something else."""
    places = range(len(instructions))[::way]
    begin, works = 0, False
    for at, place in enumerate(places):
        one = instructions[place]
        if way == -1 and isinstance(one, Receive | Send) and not one.transfer.differentiable:
            continue  # it does nothing
        if isinstance(one, awaits) and works:
            yield places[begin:at]
            begin = at
        works = not isinstance(one, awaits)
    yield places[begin:]


def _joined(apart: Prepared, module: fx.GraphModule) -> Prepared:
    """Let steps be one instruction where nothing is between them and their weights are few."""
    instructions: list[tuple[Instruction, tuple[int, ...]]] = []
    steps, nbytes = list[Step](), 0

    def close() -> None:
        nonlocal nbytes
        if steps:
            instructions.append((Compute.of(steps), ()))
            steps.clear()
            nbytes = 0

    for one, finished in apart.instructions:
        if not isinstance(one, Compute):
            close()
            instructions.append((one, finished))
            continue
        (step,), (found,) = one.steps, one.modules(module)
        size, alone = sum(weight.nbytes for weight in found.parameters()), _has_matrix(found)
        if alone or nbytes + size > JOINED_BYTES:
            close()
        steps.append(step)
        nbytes += size
        if alone:
            close()
    close()
    return _in_chunks(apart.inputs, instructions, apart.results, apart.slots)


class _Preparation:
    def __init__(self, program: PartProgram) -> None:
        self.transfers = program.transfers
        self.slots: dict[fx.Node, int] = {}
        self.count = 0
        self.inputs: list[tuple[str, int]] = []
        self.instructions: list[Instruction | Step] = []
        self.touched: list[tuple[int, ...]] = []  # slots that each instruction reads or puts
        self.results: tuple[int, ...] = ()
        for node in program.module.graph.nodes:
            self._add(node)

    def result(self) -> Prepared:
        """Find where each value is touched last."""
        later = set(self.results)
        instructions: list[tuple[Instruction, tuple[int, ...]]] = []
        for one, touched in zip(reversed(self.instructions), reversed(self.touched), strict=True):
            finished = tuple(set(touched) - later)
            later.update(touched)
            if isinstance(one, Step):
                instructions.append((Compute.of([replace(one, finished=finished)]), ()))
            else:
                instructions.append((one, finished))
        return _in_chunks(self.inputs, instructions[::-1], self.results, self.count)

    def _add(self, node: fx.Node) -> None:
        target: Any = node.target
        if node.op == "placeholder":
            self.inputs.append((target, self._new_slot(node)))
        elif node.op == "output":
            values: Any = node.args[0]
            self.results = self._read(node, *values)
        elif node.op == "call_module":
            operands, results = self._read(node, *node.args), self._made(node)
            find = operator.attrgetter(target)
            self._append(Step(target, find, operands, results), operands + results)
        elif target is receive:
            transfer = self.transfers[self._constant(node, 0)]
            results = self._made(node, len(transfer.tensors))
            self._append(Receive(transfer, results), results)
        elif target is pack:
            (operand,), result = self._read(node, node.args[0]), self._new_slot(node)
            index: Any = node.args[2]
            find = operator.attrgetter(index.target)
            packed = Pack(operand, result, self._constant(node, 1), find)
            self._append(packed, (operand, result))
        elif target is send:
            operands = self._read(node, *node.args[1:])
            self._append(Send(self.transfers[self._constant(node, 0)], operands), operands)
        elif target is not operator.getitem and node.op != "get_attr":
            raise PlacementError(
                f"node {node.format_node()} is not accepted in a part's program: its nodes are "
                "placeholders, receive, steps, pack, send and the output"
            )

    def _append(self, instruction: Instruction | Step, slots: tuple[int | None, ...]) -> None:
        self.instructions.append(instruction)
        self.touched.append(tuple(slot for slot in slots if slot is not None))

    def _new_slot(self, *nodes: fx.Node) -> int:
        self.slots.update(dict.fromkeys(nodes, self.count))
        self.count += 1
        return self.count - 1

    def _made(self, node: fx.Node, outputs: int = 1) -> tuple[int | None, ...]:
        """Slots of the tensors that a node makes; None for those that nothing reads."""
        readers: dict[int, list[fx.Node]] = {}
        for user in node.users:
            if user.target is operator.getitem:
                readers.setdefault(self._constant(user, 1), []).append(user)
        if not readers:
            return (self._new_slot(node),) if outputs == 1 else (None,) * outputs
        outputs = max(outputs, *(at + 1 for at in readers))
        return tuple(
            self._new_slot(*readers[at]) if at in readers else None for at in range(outputs)
        )

    def _read(self, node: fx.Node, *values: Any) -> tuple[int, ...]:
        for value in values:
            if value not in self.slots:
                raise PlacementError(
                    f"node {node.format_node()} of a part's program reads {value}, accepted are "
                    "placeholders and what receive, steps and pack return"
                )
        return tuple(self.slots[value] for value in values)

    def _constant(self, node: fx.Node, at: int) -> int:
        value = node.args[at]
        assert isinstance(value, int)
        return value
