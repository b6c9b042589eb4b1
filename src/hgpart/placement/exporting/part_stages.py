"""Placement -> PartStages: what one part computes in a pass, as modules between its waits.

A part computes, waits for others, and computes again. A stage is a chunk of its program, as the
runtime does it: once begun, nothing can hold it up. The chunks of all parts are in one global order
in which each stands after what it needs. So parts that do their stages in order never wait for each
other in a circle, as long as sending does not wait for the receiver.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

import torch
from torch import fx, nn

from hgpart.errors import PlacementError
from hgpart.execution.instructions import prepare
from hgpart.execution.program import Transfer, pack, receive, send
from hgpart.operators.calls import module_of
from hgpart.placement.batches.micro_batches import dimension_of_samples
from hgpart.placement.placement import Placement
from hgpart.placement.programs import Programs
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.tracing.autograd_functions import operator_name
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_nodes import first_tensor


@dataclass(frozen=True)
class TensorType:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True)
class StageMessage:
    """A transfer, with the names of its tensors in the part that sends or receives it."""

    transfer: Transfer
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class ModelPiece:
    """A tensor of a part that is all or some of an input, or of a result, of the model.

    Attributes
    ----------
    tensor : str
        Name of the tensor in the part.
    of : str or int
        Name of the input in the model's forward, or number of the result.
    shape : tuple of int
        Shape of the whole input or result.
    extent : tuple of (int, int)
        First place, and the place after the last, in each of its dimensions.
    """

    tensor: str
    of: str | int
    shape: tuple[int, ...]
    extent: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class InferenceStage:
    """What a part does between two waits; tensors have the same names in all stages.

    Attributes
    ----------
    receives : tuple of StageMessage
        Messages to wait for, from each part in the order in which that part sends them.
    module : fx.GraphModule or None
        Function of the tensors that it `reads`, which returns the tuple of those that it `makes`.
        None if there is nothing to compute.
    sends : tuple of StageMessage
        Messages to send afterwards.
    frees : tuple of str
        Tensors that nothing needs any more.
    """

    receives: tuple[StageMessage, ...]
    module: fx.GraphModule | None
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    sends: tuple[StageMessage, ...]
    frees: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PartStages:
    """An inference pass of one part.

    Attributes
    ----------
    dtype : torch.dtype
        Type of floating tensors.
    given : mapping of str to TensorType
        Tensors that no stage makes: pieces of inputs, and all that is received.
    inputs, results : tuple of ModelPiece
        The pieces of the model's inputs that the part reads, and those of its results that it has.
    """

    part: int
    k: int
    batch_size: int
    dtype: torch.dtype
    given: Mapping[str, TensorType]
    inputs: tuple[ModelPiece, ...]
    results: tuple[ModelPiece, ...]
    stages: tuple[InferenceStage, ...]

    @property
    def received_bytes(self) -> int:
        """Bytes that the part receives in a pass."""
        messages = (message for stage in self.stages for message in stage.receives)
        return sum(message.transfer.nbytes(self.batch_size) for message in messages)

    @property
    def sent_bytes(self) -> int:
        """Bytes that the part sends in a pass."""
        messages = (message for stage in self.stages for message in stage.sends)
        return sum(message.transfer.nbytes(self.batch_size) for message in messages)


def part_stages(placement: Placement, part: int, batch_size: int) -> PartStages:
    """The stages of a part in evaluation, for batches of one size.

    Modules have the placement's own weights, in the same memory, without gradients.

    Raises
    ------
    PlacementError
        If the placement is in training or holds only some parts, if there is no such part, or if
        the part computes nothing. If the model does not take this batch size, and if it draws
        random numbers or changes its buffers in evaluation, too.
    """
    if placement.training:
        raise PlacementError("a placement in training: accepted is one in evaluation, by eval()")
    placement.for_batch(batch_size)
    programs = placement.programs
    programs.submodule(part)
    if not programs.has_all_parts:
        raise PlacementError(
            f"this process holds {len(programs.parts)} of {programs.k} parts: accepted are all, "
            "as a part receives in the order in which others send"
        )
    computing = [
        other
        for other, program in programs.parts.items()
        if any(node.op == "call_module" for node in program.module.graph.nodes)
    ]
    if part not in computing:
        accepted = ", ".join(map(str, computing))
        raise PlacementError(f"part {part} computes nothing: accepted are the parts {accepted}")
    _check_state(programs)
    placement.passes.check_alike((batch_size,))
    if programs.has_copies:
        placement.runtime.update_copies()
    return _Stages(programs, part, batch_size).result()


def _check_state(programs: Programs) -> None:
    """Raise a PlacementError if a pass depends on more than its inputs."""
    for node in programs.blueprint.draws:
        raise PlacementError(
            f"{operator_name(node.target)} ({module_of(node) or 'the model itself'}) draws random "
            "numbers in evaluation, too: accepted are models that draw none"
        )
    traced = programs.blueprint.traced
    for placeholder in traced.updates:
        raise PlacementError(
            f"the model changes its buffer {traced.buffers[placeholder]} in evaluation, too: "
            "accepted are models that leave their state as it is"
        )


class _Stages:
    """The stages of a part's program; each node but sizes and indices has the name of a tensor."""

    def __init__(self, programs: Programs, part: int, batch_size: int) -> None:
        self._programs, self._part, self._batch_size = programs, part, batch_size
        self._program = programs.parts[part]
        self._nodes = [*self._program.module.graph.nodes]
        self._ends = [*accumulate(sizes_of(programs.shares, batch_size), initial=0)]
        self._names: dict[fx.Node, str] = {}
        self._sizes: dict[fx.Node, int] = {}
        self._first_rows: dict[fx.Node, int] = {}  # of inputs of which some rows are given
        self._given: dict[str, TensorType] = {}
        for transfer in self._program.transfers.values():
            if transfer.receiver == part:
                for name, tensor in zip(_names_of(transfer), transfer.tensors, strict=True):
                    self._given[name] = TensorType(tensor.shape(batch_size), tensor.dtype)

    def result(self) -> PartStages:
        """All stages."""
        inputs = tuple(self._take_inputs())
        computed = self._computed()
        results = tuple(self._results())
        receives, sends = self._receives(), self._sends()
        stages = [
            InferenceStage(received, *self._module(nodes, f"Stage{at}"), sent)
            for at, (received, nodes, sent) in enumerate(
                zip(receives, computed, sends, strict=True)
            )
        ]
        return PartStages(
            self._part,
            self._programs.k,
            self._batch_size,
            self._programs.dtype,
            self._given,
            inputs,
            results,
            _freeing(stages, {piece.tensor for piece in results}),
        )

    def _take_inputs(self) -> Iterator[ModelPiece]:
        """Name the program's inputs, and find out what of the model's inputs they are."""
        programs = self._programs
        nodes = {str(node.target): node for node in self._nodes if node.op == "placeholder"}
        names, shapes = programs.inputs, programs.blueprint.input_shapes(self._batch_size)
        tensors = zip(names, programs.arguments.names, programs.arguments.tensors, strict=True)
        known = [*zip(tensors, shapes, strict=True)]
        for share, blueprint in enumerate(programs.blueprints):
            if (size := nodes.get(f"{blueprint.prefix}batch_size")) is not None:
                self._sizes[size] = self._ends[share + 1] - self._ends[share]
            for (name, shown, example), shape in known:
                node = nodes.get(f"{blueprint.prefix}{name}")
                if node is None or not node.users:
                    continue
                extent = self._extent(share, shown, blueprint.nodes[name], shape)
                rows = self._rows_read(node)
                if rows is not None:
                    dim, begin, end = rows
                    extent[dim], self._first_rows[node] = (begin, end), begin
                self._names[node] = node.name
                own = tuple(end - begin for begin, end in extent)
                self._given[node.name] = TensorType(own, programs.sent_as(example.dtype))
                yield ModelPiece(node.name, shown, shape, tuple(extent))

    def _extent(
        self, share: int, shown: str, traced: fx.Node, shape: Sequence[int]
    ) -> list[tuple[int, int]]:
        """What of an input or a result of the whole batch is of a share."""
        extent = [(0, size) for size in shape]
        dim = dimension_of_samples(shown, traced) if len(self._ends) > 2 else None
        if dim is not None:
            extent[dim] = self._ends[share], self._ends[share + 1]
        return extent

    def _rows_read(self, node: fx.Node) -> tuple[int, int, int] | None:
        """The dimension of an input of which only some rows are read, the first, and the end."""
        if any(user.target is not pack for user in node.users):
            return None
        dims, begins, ends = set[Any](), list[int](), list[int]()
        for user in node.users:
            rows = _as_range(self._index(user))
            if rows is None:
                return None
            dims.add(user.args[1])
            begins.append(rows.start)
            ends.append(rows.stop)
        return (dims.pop(), min(begins), max(ends)) if len(dims) == 1 else None

    def _index(self, node: fx.Node) -> torch.Tensor:
        """The places that a node packs."""
        index: Any = node.args[2]
        tensor: torch.Tensor = operator.attrgetter(index.target)(self._program.module)
        return tensor

    def _computed(self) -> list[list[fx.Node]]:
        """The nodes that each stage computes; all nodes get their names."""
        called = iter(filter(_is_instruction, self._nodes))
        stages = [[next(called) for _ in chunk] for chunk in prepare(self._program).forward]
        self._stage_of = {node: at for at, nodes in enumerate(stages) for node in nodes}
        computed: list[list[fx.Node]] = [[] for _ in stages]
        for node in self._nodes:
            source = node.all_input_nodes[0] if node.target is operator.getitem else node
            if source.target is receive:
                transfer = self._program.transfers[_number(source)]
                at = node.args[1] if node is not source else 0
                self._names[node] = _names_of(transfer)[at]
            elif source.op == "call_module" or source.target is pack:
                whole = self._given_whole(node)
                if whole is not None:
                    self._names[node] = self._names[whole]
                    continue
                name = node.name if node is source else f"{source.name}_{node.args[1]}"
                while name in self._given or name in self._names.values():
                    name += "_"
                self._names[node] = name
                self._stage_of[node] = self._stage_of[source]
                computed[self._stage_of[node]].append(node)
        return computed

    def _given_whole(self, node: fx.Node) -> fx.Node | None:
        """The input of which a node packs just the rows that are given."""
        source: Any = node.args[0] if node.target is pack else None
        if source not in self._first_rows:
            return None
        dim: Any = node.args[1]
        size = self._given[self._names[source]].shape[dim]
        return source if len(self._index(node)) == size else None

    def _results(self) -> Iterator[ModelPiece]:
        programs = self._programs
        traced, of_nodes = programs.blueprint.traced.results, self._nodes[-1].args[0]
        shares = programs.shares_of_result(self._part)
        assert isinstance(of_nodes, tuple)
        for (share, number), node in zip(
            product(shares, range(len(traced))), of_nodes, strict=True
        ):
            sizes = first_tensor(traced[number].meta["val"]).shape
            shape = tuple(at_batch(size, self._batch_size) for size in sizes)
            extent = self._extent(share, f"result {number}", traced[number], shape)
            if len(programs.shares) > 1 and extent == [(0, size) for size in shape]:
                raise PlacementError(
                    f"result {number} has no samples: accepted in slices of the batch are results "
                    "with a dimension for them"
                )
            yield ModelPiece(self._names[node], number, shape, tuple(extent))

    def _module(
        self, nodes: Sequence[fx.Node], name: str
    ) -> tuple[fx.GraphModule | None, tuple[str, ...], tuple[str, ...]]:
        """A stage's module, and the tensors that it reads and makes."""
        own = {self._names[node] for node in nodes}
        makes = tuple(self._names[node] for node in nodes if self._is_kept(node))
        if not makes:
            return None, (), ()
        operands = (operand for node in nodes for operand in node.all_input_nodes)
        named = (self._names[operand] for operand in operands if operand in self._names)
        reads = tuple(dict.fromkeys(name for name in named if name not in own))
        graph = fx.Graph()
        values: dict[str, Any] = {name: graph.placeholder(name) for name in reads}

        def value(operand: fx.Node) -> Any:
            if operand.op == "get_attr":
                return graph.get_attr(str(operand.target))
            return self._sizes[operand] if operand in self._sizes else values[self._names[operand]]

        for node in nodes:
            places = _as_range(self._index(node)) if node.target is pack else None
            if places is None:
                values[self._names[node]] = graph.node_copy(node, value)
            else:
                source = node.all_input_nodes[0]
                first = places.start - self._first_rows.get(source, 0)
                rows = (value(source), node.args[1], first, len(places))
                values[self._names[node]] = graph.call_function(torch.narrow, rows)
        graph.output(tuple(values[name] for name in makes))
        module = fx.GraphModule(self._program.module, graph, class_name=name)
        return _without_gradients(module), reads, makes

    def _is_kept(self, node: fx.Node) -> bool:
        """Whether anything after its stage needs a tensor."""
        at = self._stage_of[node]
        return any(
            user.op == "output" or user.target is send or self._stage_of[user] != at
            for user in node.users
        )

    def _receives(self) -> list[tuple[StageMessage, ...]]:
        """Messages that each stage waits for; a later one of a part comes after all before it."""
        received: list[list[StageMessage]] = [[] for _ in prepare(self._program).forward]
        first_read = {
            _number(node): self._stage_of[node] for node in self._nodes if node.target is receive
        }
        for program in self._programs.parts.values():
            sent = [
                transfer
                for transfer in map(program.transfers.get, _numbers(program.module, send))
                if transfer is not None and transfer.receiver == self._part
            ]
            stages = [first_read[transfer.number] for transfer in sent]
            by_then = [*accumulate(reversed(stages), min)][::-1]
            for transfer, at in zip(sent, by_then, strict=True):
                received[at].append(StageMessage(transfer, _names_of(transfer)))
        return [tuple(messages) for messages in received]

    def _sends(self) -> list[tuple[StageMessage, ...]]:
        """Messages that each stage sends."""
        sent: list[list[StageMessage]] = [[] for _ in prepare(self._program).forward]
        for node in self._nodes:
            if node.target is send:
                number, *tensors = node.args
                names = tuple(self._names[tensor] for tensor in tensors)
                message = StageMessage(self._program.transfers[number], names)
                sent[self._stage_of[node]].append(message)
        return [tuple(messages) for messages in sent]


def _without_gradients(module: fx.GraphModule) -> fx.GraphModule:
    """A copy whose tensors are in the same memory and require no gradients."""
    tensors: dict[int, Any] = {id(buffer): buffer.detach() for buffer in module.buffers()}
    for parameter in module.parameters():
        tensors[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(module, tensors)


def _freeing(stages: Sequence[InferenceStage], results: set[str]) -> tuple[InferenceStage, ...]:
    """The same stages, each with the tensors that nothing needs after it."""
    last: dict[str, int] = {}
    for at, stage in enumerate(stages):
        messages = [name for item in (*stage.receives, *stage.sends) for name in item.tensors]
        last.update(dict.fromkeys((*messages, *stage.reads, *stage.makes), at))
    return tuple(
        replace(
            stage,
            frees=tuple(name for name, end in last.items() if end == at and name not in results),
        )
        for at, stage in enumerate(stages)
    )


def _is_instruction(node: fx.Node) -> bool:
    return node.op == "call_module" or node.target in (receive, pack, send)


def _number(node: fx.Node) -> int:
    """Number of the transfer that a node receives or sends."""
    number = node.args[0]
    assert isinstance(number, int)
    return number


def _numbers(module: fx.GraphModule, target: Any) -> Iterator[int]:
    return (_number(node) for node in module.graph.nodes if node.target is target)


def _names_of(transfer: Transfer) -> tuple[str, ...]:
    """Names of a received message's tensors."""
    name = f"message_{transfer.number}"
    if len(transfer.tensors) == 1:
        return (name,)
    return tuple(f"{name}_{at}" for at in range(len(transfer.tensors)))


def _as_range(index: torch.Tensor) -> range | None:
    """A list of places as a range, if they lie one after the other."""
    if not len(index):
        return None
    places = range(int(index[0]), int(index[0]) + len(index))
    return places if index.tolist() == [*places] else None
