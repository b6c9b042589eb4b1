"""PartProgram -> Prepared: its nodes as instructions that know their operands, read only once."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hgpart.errors import PlacementError, PlanError, RunError, did_you_mean
from hgpart.execution.part_state import PartState
from hgpart.execution.program import PartProgram, Transfer, pack, receive, send
from hgpart.execution.weights.gradients import WeightGradient, map_gradients
from hgpart.operators.calls import has_gradients
from hgpart.schedules.outline import Stretch

JOINED_BYTES = 2**24  # most weights of an instruction: their gradients are sent together


@dataclass(frozen=True, eq=False)
class Graph:
    """A step's autograd graph, which is kept for backward, by its ends and its beginnings.

    Attributes
    ----------
    heads : list of (int, GradientEdge)
        The slot and the edge of each value that the step made.
    operands : list of (int, GradientEdge)
        The slot and the edge of each value that the step read.
    arrived : list of Tensor or None
        Gradients of the operands, once backward has gone through all of the graph.
    """

    heads: list[tuple[int, GradientEdge]]
    operands: list[tuple[int, GradientEdge]]
    arrived: list[Tensor | None]


class _GraphOperands(torch.autograd.Function):
    """Values -> operands of a graph, which keeps those alone that its operators need.

    A leaf would be kept whole, even where an operator only copies from it.
    """

    @staticmethod
    def forward(
        ctx: Any, arrived: list[Tensor | None], start: Tensor, *values: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.arrived = arrived
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.arrived[:] = gradients
        return (None, None, *(None for _ in gradients))


_START = torch.empty(0, requires_grad=True)  # so that operands require gradients


class Instruction(Protocol):
    """One node of a program; values are numbered by slots."""

    def forward(self, run: PartState) -> None:
        """Read values and write new ones."""

    def backward(self, run: PartState, weights: bool) -> None:
        """Take the gradients of what forward wrote and add to the gradients of what it read.

        If `weights`, add to the gradients of the parameters, too; else `backward_weights` does.
        """


@dataclass(frozen=True, eq=False)
class Receive:
    """Receive a transfer."""

    transfer: Transfer
    results: tuple[int | None, ...]

    def forward(self, run: PartState) -> None:
        """Wait for it and write its tensors."""
        tensors = run.receive(self.transfer)
        back = torch.is_grad_enabled() and self.transfer.differentiable
        if back:
            run.saved[self] = [(tensor.shape, tensor.dtype) for tensor in tensors]
        for slot, tensor in zip(self.results, tensors, strict=True):
            if slot is not None:
                run.values[slot] = tensor
                run.differentiable[slot] = back and has_gradients(tensor.dtype)

    def backward(self, run: PartState, weights: bool) -> None:
        """Send the gradient back; it is complete, as all readers have run."""
        if self.transfer.differentiable:
            gradients = []
            for slot, (shape, dtype) in zip(self.results, run.saved.pop(self), strict=True):
                gradient = None if slot is None else run.take_gradient(slot)
                if gradient is None:
                    gradient = torch.zeros(shape, dtype=dtype, device=run.device)
                gradients.append(gradient)
            run.send_gradient(self.transfer, gradients)


def matrices(step: nn.Module) -> Iterator[Tensor]:
    """Weights of a step whose gradients may be products; some are copies of another part's."""
    for weight in chain(step.parameters(), step.buffers()):
        if weight.dim() == 2 and weight.requires_grad:
            yield weight


def _has_matrix(step: nn.Module) -> bool:
    return any(True for _ in matrices(step))


@dataclass(frozen=True, eq=False)
class StepCall:
    """A call of a step: a layer's share.

    Attributes
    ----------
    find : callable
        Function from the part's module to the step. It is called in each run, as the step may have
        been compiled or moved.
    finished : tuple of int
        Slots that no later instruction reads.
    """

    name: str
    find: Callable[[Any], Any]
    operands: tuple[int, ...]
    results: tuple[int | None, ...]
    finished: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Compute:
    """Run steps one after the other, with one autograd graph for all of them.

    Attributes
    ----------
    reads : tuple of int
        Slots that they read and have not written themselves.
    makes : tuple of int
        Slots that they write for other instructions.
    """

    steps: tuple[StepCall, ...]
    reads: tuple[int, ...]
    makes: tuple[int, ...]

    @staticmethod
    def of(steps: Sequence[StepCall]) -> Compute:
        """Find out what these steps read and make together."""
        made = {slot for step in steps for slot in step.results if slot is not None}
        reads = {slot: None for step in steps for slot in step.operands if slot not in made}
        inside = {slot for step in steps for slot in step.finished}
        return Compute(tuple(steps), tuple(reads), tuple(sorted(made - inside)))

    def forward(self, run: PartState) -> None:
        """Call the steps on operands that get gradients of their own."""
        values = run.values
        known = {slot: values[slot] for slot in self.reads}
        learning = [slot for slot in self.reads if run.differentiable[slot]]
        arrived = list[Tensor | None]()
        if learning:
            own = map(known.__getitem__, learning)
            known.update(zip(learning, _GraphOperands.apply(arrived, _START, *own), strict=True))  # type: ignore[no-untyped-call]
        edges = [(slot, get_gradient_edge(known[slot])) for slot in learning]
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
                if torch.is_grad_enabled():  # a parameter requires a gradient in any mode
                    run.differentiable[slot] = True
                    heads.append((slot, get_gradient_edge(value)))  # not the map itself
                value = value.detach()
            values[slot] = value
        if heads:
            run.saved[self] = Graph(heads, edges, arrived)

    def backward(self, run: PartState, weights: bool) -> None:
        """Run the graph backward, if gradients for it have come."""
        graph: Graph | None = run.saved.pop(self, None)
        if graph is None:
            return
        outputs, gradients = [], []
        for slot, head in graph.heads:
            gradient = run.take_gradient(slot)
            if gradient is not None:
                outputs.append(head)
                gradients.append(gradient)
        edges = [edge for _, edge in graph.operands]
        arrived: Sequence[Tensor | None] = ()
        if run.to_inputs_alone:
            if outputs and edges:  # where weights alone require gradients there are no edges
                arrived = torch.autograd.grad(outputs, edges, gradients, allow_unused=True)
        # A compiled step can run its graph only once, so weights get their gradients now.
        elif outputs and (self._compiled(run) or (weights and not self._has_products(run))):
            torch.autograd.backward(outputs, gradients)
            arrived = graph.arrived
        elif outputs:
            arrived, left = map_gradients(outputs, gradients, edges)
            if weights:
                self._add(run, left)
            else:
                run.saved[self] = left
        for (slot, _), gradient in zip(graph.operands, arrived, strict=False):
            if gradient is not None:
                run.add_gradient(slot, gradient)

    def modules(self, module: fx.GraphModule) -> list[nn.Module]:
        """Modules of the steps, in a part's module."""
        return [step.find(module) for step in self.steps]

    def _compiled(self, run: PartState) -> bool:
        modules = self.modules(run.module)
        return any(getattr(module, "_compiled_call_impl", None) is not None for module in modules)

    def _has_products(self, run: PartState) -> bool:
        """Whether there may be gradients that are computed for several batches at once."""
        return run.products is not None and any(map(_has_matrix, self.modules(run.module)))

    def _add(self, run: PartState, left: Sequence[WeightGradient]) -> None:
        for gradient in left:
            product = None if run.products is None else gradient.product()
            if product is None or run.products is None:
                gradient.add()
            else:
                # Several steps add to one entry if they are of several slices of the batch.
                key = id(product.weight), id(product.bias)
                run.products.setdefault(key, []).append(product)

    def backward_weights(self, run: PartState) -> None:
        """Add the gradients of the parameters that `backward` has left out."""
        self._add(run, run.saved.pop(self, ()))


@dataclass(frozen=True, eq=False)
class Pack:
    """Gather the channels to send."""

    operand: int
    result: int
    dim: int
    find_index: Callable[[Any], Tensor]

    @property
    def reads(self) -> tuple[int, ...]:
        """Slot of its operand."""
        return (self.operand,)

    @property
    def makes(self) -> tuple[int | None, ...]:
        """Slot of its result."""
        return (self.result,)

    def forward(self, run: PartState) -> None:
        """Gather the channels."""
        value = run.values[self.operand]
        run.values[self.result] = pack(value, self.dim, self.find_index(run.module))
        if run.differentiable[self.operand]:
            run.differentiable[self.result] = True
            run.saved[self] = value.shape

    def backward(self, run: PartState, weights: bool) -> None:
        """Scatter the gradient."""
        gradient = run.take_gradient(self.result)
        if gradient is not None:
            index = self.find_index(run.module)
            shape = run.saved.pop(self)
            run.add_packed_gradient(self.operand, shape, self.dim, index, gradient)


@dataclass(frozen=True, eq=False)
class Send:
    """Send a transfer."""

    transfer: Transfer
    operands: tuple[int, ...]

    def forward(self, run: PartState) -> None:
        """Send it, without blocking."""
        requires = any(run.differentiable[slot] for slot in self.operands)
        if requires and not self.transfer.differentiable:
            raise RunError(
                f"{self.transfer.layer} requires a gradient, but part {self.transfer.receiver}"
                " sends none back; accepted are parameters that required one when they were placed"
            )
        run.send(self.transfer, [run.values[slot] for slot in self.operands])

    def backward(self, run: PartState, weights: bool) -> None:
        """Wait for the gradient from the receiver."""
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
        Names of placeholders and their slots.
    instructions : tuple of (Instruction, tuple of int)
        Instructions in order, each with the slots that can be freed after it and that it does not
        free itself.
    results : tuple of int
        Slots of the model's results.
    slots : int
        Number of slots.
    forward, backward : tuple of range
        The instructions of each chunk, in order; a chunk begins with all that it awaits.
    forward_places, backward_places : tuple of tuple of int
        Where each instruction begins in its chunk, and where the chunk ends, counted in steps that
        are not joined: see `Action.piece`.
    stretches : tuple of range
        The instructions of each stretch that was asked for.
    """

    inputs: tuple[tuple[str, int], ...]
    instructions: tuple[tuple[Instruction, tuple[int, ...]], ...]
    results: tuple[int, ...]
    slots: int
    forward: tuple[range, ...]
    backward: tuple[range, ...]
    forward_places: tuple[tuple[int, ...], ...]
    backward_places: tuple[tuple[int, ...], ...]
    stretches: tuple[range, ...] = ()

    def some(self, chunk: int, piece: tuple[int, int] | None, back: bool) -> range:
        """The instructions of a chunk, or of a piece of it."""
        whole = (self.backward if back else self.forward)[chunk]
        if piece is None:
            return whole
        places = (self.backward_places if back else self.forward_places)[chunk]
        first, end = (bisect_left(places, place) for place in piece)
        return whole[first:end]


def prepare(
    program: PartProgram, joined: bool = False, stretches: Sequence[Stretch] = ()
) -> Prepared:
    """Read a program's graph; the result is remembered.

    Parameters
    ----------
    joined : bool
        Whether consecutive steps are joined into one instruction. Chunks stay the same, and
        gradients of weights are still sent about when they are complete: an instruction has few
        weights or a single step, and a step with matrices stays alone.
    stretches : sequence of Stretch
        Stretches that no instruction reaches out of, in the order of the program.

    Raises
    ------
    PlacementError
        If the graph has a node that is not allowed in a part's program (see `PartProgram`).
    PlanError
        If the program has no such stretches.
    """
    known = _prepared.setdefault(program, {})
    key = joined, tuple(stretches)
    if key not in known:
        if key == (False, ()):
            known[key] = _Preparation(program).result()
        else:
            apart = prepare(program)
            names = _step_names(apart)
            inside = _numbered(names, stretches, program.part)
            made = _joined(apart, program.module, inside) if joined else apart
            known[key] = replace(made, stretches=tuple(_places(made, inside, len(stretches))))
    return known[key]


_prepared: WeakKeyDictionary[PartProgram, dict[tuple[bool, tuple[Stretch, ...]], Prepared]] = (
    WeakKeyDictionary()
)


def _step_names(apart: Prepared) -> list[str]:
    computes = (item for item, _ in apart.instructions if isinstance(item, Compute))
    return [step.name for compute in computes for step in compute.steps]


def _numbered(names: Sequence[str], stretches: Sequence[Stretch], part: int) -> dict[str, int]:
    """The number of the stretch of each step that is in one.

    >>> _numbered(["a", "b", "c", "d"], [Stretch(("b", "c")), Stretch(("d",))], 0)
    {'b': 0, 'c': 0, 'd': 1}
    """
    at = 0
    numbers = dict[str, int]()
    for number, (steps, offloaded) in enumerate(stretches):
        begin = names.index(steps[0], at) if steps and steps[0] in names[at:] else -1
        if begin < 0 or tuple(names[begin : begin + len(steps)]) != steps:
            unknown = next((name for name in steps if name not in names), None)
            lacks = "" if unknown is None else f", but has no step {unknown}"
            raise PlanError(
                f"part {part} is to {'offload' if offloaded else 'recompute'} "
                f"{', '.join(steps) or 'no step'}{lacks}: accepted "
                "are consecutive steps of its program, in their order, each in one stretch; it "
                f"begins with {', '.join(names[:3])}"
                f"{'' if unknown is None else did_you_mean(unknown, names)}"
            )
        numbers.update(dict.fromkeys(steps, number))
        at = begin + len(steps)
    return numbers


def _places(prepared: Prepared, inside: Mapping[str, int], count: int) -> Iterator[range]:
    """The instructions of each stretch, with what sends its results in the same backward chunk.

    So it is recomputed before the part waits for their gradients.
    """
    instructions = [item for item, _ in prepared.instructions]
    steps: list[list[int]] = [[] for _ in range(count)]
    for at, item in enumerate(instructions):
        if isinstance(item, Compute) and item.steps[0].name in inside:
            steps[inside[item.steps[0].name]].append(at)
    for of_stretch in steps:
        end = of_stretch[-1] + 1
        chunk = next(places for places in prepared.backward if end - 1 in places)
        while end in chunk and isinstance(instructions[end], Pack | Send):
            end += 1
        yield range(of_stretch[0], end)


def _in_chunks(
    inputs: Iterable[tuple[str, int]],
    instructions: Sequence[tuple[Instruction, tuple[int, ...]]],
    results: tuple[int, ...],
    slots: int,
) -> Prepared:
    alone = [instruction for instruction, _ in instructions]
    sizes = [len(item.steps) if isinstance(item, Compute) else 1 for item in alone]
    forward, backward = tuple(_chunks(alone, Receive, 1)), tuple(_chunks(alone, Send, -1))

    def places(chunks: Sequence[range]) -> tuple[tuple[int, ...], ...]:
        return tuple((0, *accumulate(sizes[at] for at in chunk)) for chunk in chunks)

    return Prepared(
        inputs=tuple(inputs),
        instructions=tuple(instructions),
        results=results,
        slots=slots,
        forward=forward,
        backward=backward,
        forward_places=places(forward),
        backward_places=places(backward),
    )


def _chunks(
    instructions: Sequence[Instruction], awaits: type[Receive | Send], stride: int
) -> Iterator[range]:
    """Cut before each await that comes after another instruction, and after what leaves at once."""
    places = range(len(instructions))[::stride]
    begin, works, sent = 0, False, False
    for at, place in enumerate(places):
        instruction = instructions[place]
        if (
            stride == -1
            and isinstance(instruction, Receive | Send)
            and not instruction.transfer.differentiable
        ):
            continue  # it does nothing
        is_await = isinstance(instruction, awaits)
        if (is_await and works) or (sent and isinstance(instruction, Compute)):
            yield places[begin:at]
            begin, sent = at, False
        works = not is_await
        sent |= stride == 1 and isinstance(instruction, Send) and instruction.transfer.at_once
    yield places[begin:]


def _joined(apart: Prepared, module: fx.GraphModule, inside: Mapping[str, int]) -> Prepared:
    """Join steps with nothing in between into one instruction, as long as their weights are few.

    Steps of different stretches, by their numbers in `inside`, are not joined.
    """
    instructions: list[tuple[Instruction, tuple[int, ...]]] = []
    steps, nbytes = list[StepCall](), 0

    def close() -> None:
        nonlocal nbytes
        if steps:
            instructions.append((Compute.of(steps), ()))
            steps.clear()
            nbytes = 0

    for instruction, finished in apart.instructions:
        if not isinstance(instruction, Compute):
            close()
            instructions.append((instruction, finished))
            continue
        (step,), (layer,) = instruction.steps, instruction.modules(module)
        size, alone = (
            sum(weight.nbytes for weight in layer.parameters()),
            _has_matrix(layer),
        )
        ends = bool(steps) and inside.get(steps[-1].name) != inside.get(step.name)
        if alone or ends or nbytes + size > JOINED_BYTES:
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
        self.instructions: list[Instruction | StepCall] = []
        self.touched: list[tuple[int, ...]] = []  # slots that each instruction reads or writes
        self.results: tuple[int, ...] = ()
        for node in program.module.graph.nodes:
            self._add(node)

    def result(self) -> Prepared:
        """Find the last instruction that touches each value."""
        later = set(self.results)
        instructions: list[tuple[Instruction, tuple[int, ...]]] = []
        for instruction, touched in zip(
            reversed(self.instructions), reversed(self.touched), strict=True
        ):
            finished = tuple(set(touched) - later)
            later.update(touched)
            if isinstance(instruction, StepCall):
                instructions.append((Compute.of([replace(instruction, finished=finished)]), ()))
            else:
                instructions.append((instruction, finished))
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
            self._append(StepCall(target, find, operands, results), operands + results)
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

    def _append(self, instruction: Instruction | StepCall, slots: tuple[int | None, ...]) -> None:
        self.instructions.append(instruction)
        self.touched.append(tuple(slot for slot in slots if slot is not None))

    def _new_slot(self, *nodes: fx.Node) -> int:
        self.slots.update(dict.fromkeys(nodes, self.count))
        self.count += 1
        return self.count - 1

    def _made(self, node: fx.Node, outputs: int = 1) -> tuple[int | None, ...]:
        """Slots of the output tensors of a node; None for those that nothing reads."""
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
