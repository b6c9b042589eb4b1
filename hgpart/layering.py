"""TracedModel -> ChannelGraph: which operators make up a layer, and what its tasks read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from hgpart.channels import (
    NO_CHANNEL,
    SHAPE_ONLY,
    Call,
    Channels,
    Constant,
    Effect,
    Mix,
    Reindex,
    SameIndex,
    Whole,
    constant_along,
    core,
    effect_of,
    mix_all,
    moves_only,
    operands_of,
)
from hgpart.graph import INPUT, LINEAR, OUTPUT, PARAMETER, WHOLE, ChannelGraph, Layer, Read
from hgpart.tracing import TracedModel

Int64 = NDArray[np.int64]

REDUCE = "reduce"
MATRIX_PRODUCTS = (
    torch.ops.aten.linear,
    torch.ops.aten.matmul,
    torch.ops.aten.mm,
    torch.ops.aten.addmm,
)


def channel_graph(traced: TracedModel) -> ChannelGraph:
    """Group the operators of a traced model into layers and say what each task reads.

    An operator that works channel by channel joins the layer of an operand that nothing else
    reads; otherwise it is a layer of its own (design section 2, fusion rule). What no rule knows
    is one task that reads everything.

    >>> from torch import nn
    >>> from hgpart.tracing import example_inputs, trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> graph = channel_graph(trace(model, example_inputs(model, (3, 16, 16))))
    >>> [(layer.name, layer.kind, layer.tasks) for layer in graph.layers]
    [('input', 'input', 1), ('0', 'dense', 8), ('2', 'dense', 4), ('output', 'output', 1)]
    """
    whole: frozenset[str] = frozenset()
    while True:
        layering = _Layering(traced, whole)
        layering.run()
        mismatched = layering.mismatched_sharers()
        if not mismatched:
            return layering.finish()
        # Layers that use one weight in different ways can't share it row by row.
        whole |= mismatched


@dataclass
class _OpenLayer:
    """A layer while operators may still join it."""

    name: str
    kind: str
    start: int  # id of its first channel
    channels: int
    single: bool  # one task makes all the channels
    position: int
    output: fx.Node
    map_elements: int
    partial_elements: int
    bytes_per_element: int
    macs: int = 0
    weights: int = 0
    weight_names: frozenset[str] = frozenset()  # parameters that make up those weights
    operators: list[str] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)  # parameter -> operators on it
    reads: list[Read] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        return 1 if self.single else self.channels


class _Layering:
    def __init__(self, traced: TracedModel, whole: frozenset[str]) -> None:
        self.traced = traced
        self.whole = whole
        self.batch = traced.batch_size
        self.values: dict[fx.Node, Any] = {}
        self.layers: list[_OpenLayer] = []
        self.width = 0  # channels so far
        self.parameter_layers: dict[frozenset[str], _OpenLayer] = {}
        self.moved: set[fx.Node] = set()  # nodes that only pass on what they read
        self.names: dict[str, int] = {}
        self.live = _live_nodes(traced.results)
        self.position = 0

    # -------------------------------------------------------------- the walk over the graph

    def run(self) -> None:
        for node in self.traced.graph_module.graph.nodes:
            self.position += 1
            if node.op == "placeholder" and node.name in self.traced.inputs:
                self._input(node)
            elif node not in self.live:
                continue
            elif node.op == "placeholder":
                self.values[node] = self._parameter_or_buffer(node)
            elif node.op == "get_attr":
                self.values[node] = Constant(())
            elif node.op == "call_function":
                self.values[node] = self._call(node)
        self._output()

    def _input(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        shape = concrete(value.shape)
        layer = self._open(INPUT, node, shape[1] if len(shape) > 1 else 1, single=True)
        layer.map_elements = layer.partial_elements = self._per_sample(math.prod(shape))
        self.values[node] = Channels(_numbered(layer, shape))

    def _parameter_or_buffer(self, node: fx.Node) -> Constant:
        value = node.meta["val"]
        shape = concrete(value.shape) if isinstance(value, torch.Tensor) else ()
        owned = node.name in self.traced.parameters or node.name in self.traced.updated
        return Constant(shape, frozenset({node.name}) if owned else frozenset())

    def _call(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, self.values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self.values.__getitem__)
        if not isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            self.moved.add(node)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        packet = getattr(node.target, "overloadpacket", None)
        if packet is torch.ops.aten.sym_size:
            return self._size(*args)
        call = Call(node, args, kwargs, concrete(_first(node.meta["val"]).shape))
        if packet in SHAPE_ONLY or not operands_of(call):
            return self._constant(node, call, packet in SHAPE_ONLY)
        effect: Effect = Whole() if node.name in self.whole else effect_of(call)
        if isinstance(effect, Reindex) and self._constants(call):
            call = self._with_parameter_layers(call)
            effect = effect_of(call)
        if isinstance(effect, Reindex):
            self.moved.add(node)
            if isinstance(effect.ids, tuple):
                return [Channels(ids) for ids in effect.ids]
            return Channels(effect.ids)
        if isinstance(effect, SameIndex):
            ids = self._same_index(call, effect)
        elif isinstance(effect, Mix):
            ids = self._mix(call, effect)
        else:
            ids = self._whole(call, effect.known)
        return self._results(node, ids)

    @staticmethod
    def _size(value: Any, dim: Any) -> int:
        shape = value.ids.shape if isinstance(value, Channels) else value.shape
        return int(shape[dim])

    def _results(self, node: fx.Node, ids: torch.Tensor) -> Any:
        """Hand the ids to every result of an operator that returns several."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return Channels(ids)
        one = core(ids).flatten()[:1]
        return [
            Channels(ids)
            if at == 0 or (part is not None and concrete(part.shape) == tuple(ids.shape))
            else (None if part is None else Channels(one.expand(concrete(part.shape))))
            if isinstance(part, torch.Tensor) or part is None
            else part
            for at, part in enumerate(value)
        ]

    def _constant(self, node: fx.Node, call: Call, shape_only: bool) -> Any:
        sources = () if shape_only else self._constants(call)
        origins = frozenset(name for source in sources for name in source.origins)
        computed = not moves_only(node.target) or any(source.computed for source in sources)
        moves = (*(m for source in sources for m in source.moves), f"{node.target}{node.args[1:]}")
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return Constant(concrete(value.shape), origins, computed, moves)
        if isinstance(value, (list, tuple)):
            return [
                Constant(concrete(part.shape), origins, computed, (*moves, str(at)))
                if isinstance(part, torch.Tensor)
                else part
                for at, part in enumerate(value)
            ]
        return value

    # -------------------------------------------------------------- the four effects

    def _same_index(self, call: Call, effect: SameIndex) -> torch.Tensor:
        operands = [ids.expand(call.shape) for ids in effect.operands]
        held: list[Constant] = []
        for constant, elements in effect.constants:
            if _owned_by_one_task(elements.expand(call.shape), operands) and not constant.computed:
                held.append(constant)
            else:
                operands.append(self._parameter_layer(constant).expand(call.shape))
        tuples, labels, counts = _distinct_places(operands)
        crossed = len(tuples) > max(len(np.unique(column)) for column in tuples.T)
        if len(counts) == 0 or crossed or (counts != counts[0]).any():
            return self._whole(call, known=False)
        elements_per_task = self._per_sample(int(counts[0]))
        layer = self._join(call.node, tuples)
        if layer is not None:
            owner, column = layer
            order = np.argsort(tuples[:, column])
            for other in range(tuples.shape[1]):
                if other != column:
                    self._epilogue_read(owner, tuples[order, other])
            ids = operands[column]
        else:
            owner = self._open("same index", call.node, len(tuples), single=False)
            owner.partial_elements = elements_per_task
            for other in range(tuples.shape[1]):
                owner.reads.append(Read(tuples[:, other], _ones(len(tuples)), len(tuples)))
            numbers = torch.from_numpy(labels).to(torch.int32)
            ids = torch.where(numbers >= 0, numbers + owner.start, NO_CHANNEL).expand(call.shape)
        self._append(owner, call.node, held)
        owner.map_elements = (
            elements_per_task * owner.channels if owner.single else elements_per_task
        )
        return ids

    def _epilogue_read(self, owner: _OpenLayer, channels: Int64) -> None:
        if owner.single:
            channels = np.unique(channels[channels != NO_CHANNEL])
            owner.reads.append(Read(channels, _ones(len(channels))))
        else:
            owner.reads.append(Read(channels, _ones(len(channels)), len(channels)))

    def _mix(self, call: Call, mix: Mix) -> torch.Tensor:
        tasks = 1 if mix.axis is None else call.shape[mix.axis]
        if getattr(call.node.target, "overloadpacket", None) in MATRIX_PRODUCTS:
            kind = LINEAR
        elif mix.groups == 1:
            kind = "dense"
        elif mix.groups == len(mix.channels):
            kind = "depthwise"
        else:
            kind = "grouped"
        owner = self._open(kind, call.node, tasks, single=False)
        owner.reads.append(Read(mix.channels, mix.sizes, mix.groups, mix.partial))
        owner.macs = -(-mix.macs // self.batch)
        if mix.partial:
            constants = [value for value in call.args if isinstance(value, Constant)]
            weight = max(constants, key=lambda constant: math.prod(constant.shape))
            owner.weights = math.prod(weight.shape)
            owner.weight_names = weight.origins & self.traced.parameters.keys()
        owner.map_elements = self._per_sample(math.prod(call.shape)) // tasks
        owner.partial_elements = owner.map_elements
        self._append(owner, call.node, self._constants(call))
        return _numbered(owner, call.shape, mix.axis)

    def _whole(self, call: Call, known: bool) -> torch.Tensor:
        ids = [operand.ids for operand in operands_of(call)]
        channels = [mix_all(operand)[0] for operand in ids]
        macs = _multiply_accumulates(call.node) // self.batch
        values = _all_tensors(call.node.meta["val"])
        elements = sum(self._per_sample(math.prod(concrete(value.shape))) for value in values)
        axis = _channel_axis(call.shape, ids)
        width = call.shape[axis] if axis < len(call.shape) and len(values) == 1 else 1
        joined = [
            owner
            for found in channels
            if (owner := self._sole_owner(found, call.node)) is not None and owner.single
        ]
        if joined:
            owner = max(joined, key=lambda layer: layer.position)
            own = range(owner.start, owner.start + owner.channels)
            read = [c[~np.isin(c, own)] for c in channels if not self._belongs(c, owner)]
            # The ids of what it made before are never read again: it makes something else now.
            owner.start, owner.channels = self._number(width), width
        else:
            owner = self._open(REDUCE if known else WHOLE, call.node, width, single=True)
            owner.partial_elements = elements
            read = channels
        for found in read:
            owner.reads.append(Read(found, _ones(len(found))))
        owner.macs += macs
        owner.map_elements = elements
        self._append(owner, call.node, self._constants(call))
        return _numbered(owner, call.shape, axis)

    # -------------------------------------------------------------- parameters read as data

    def _parameter_layer(self, constant: Constant) -> torch.Tensor:
        """Ids of a constant that several tasks read: one task holds it and sends it."""
        layer = self.parameter_layers.get(constant.origins)
        if layer is None:
            nodes = [node for node in self.values if node.name in constant.origins]
            layer = self._open(PARAMETER, nodes[0], 1, single=True)
            layer.map_elements = layer.partial_elements = sum(map(_elements, nodes))
            self._own(layer, [constant], PARAMETER)
            self.parameter_layers[constant.origins] = layer
        return torch.full((), layer.start, dtype=torch.int32)

    def _with_parameter_layers(self, call: Call) -> Call:
        def layered(value: Any) -> Any:
            if isinstance(value, Constant) and value.origins:
                return Channels(self._parameter_layer(value).expand(value.shape))
            if isinstance(value, (list, tuple)):
                return type(value)(layered(item) for item in value)
            return value

        return Call(call.node, tuple(map(layered, call.args)), call.kwargs, call.shape)

    def _constants(self, call: Call) -> list[Constant]:
        found: list[Constant] = []

        def collect(value: Any) -> None:
            if isinstance(value, Constant) and value.origins:
                found.append(value)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    collect(item)

        collect((call.args, *call.kwargs.values()))
        return found

    # -------------------------------------------------------------- fusion

    def _join(self, node: fx.Node, tuples: Int64) -> tuple[_OpenLayer, int] | None:
        """The layer that a same-index operator joins, and which operand is that layer's map."""
        found = []
        for column in range(tuples.shape[1]):
            ids = tuples[:, column]
            owner = self._sole_owner(ids, node)
            if owner is not None and len(ids) == owner.channels == len(np.unique(ids)):
                found.append((owner, column))
        return max(found, key=lambda pair: pair[0].position) if found else None

    def _sole_owner(self, ids: Int64, node: fx.Node) -> _OpenLayer | None:
        """The layer that all ids belong to, if `node` is the only reader of its map."""
        if len(ids) == 0 or ids.min() < 0:
            return None
        owner = next(layer for layer in self.layers if self._belongs(ids[:1], layer))
        if not self._belongs(ids, owner) or owner.kind in (INPUT, PARAMETER):
            return None
        waiting = [owner.output]
        while waiting:
            value = waiting.pop()
            if value in self.traced.results:
                return None
            for user in value.users:
                if user is node or user not in self.live:
                    continue
                if user not in self.moved:
                    return None
                waiting.append(user)
        return owner

    @staticmethod
    def _belongs(ids: Int64, layer: _OpenLayer) -> bool:
        return bool(len(ids)) and bool(
            ids.min() >= layer.start and ids.max() < layer.start + layer.channels
        )

    # -------------------------------------------------------------- layers

    def _open(self, kind: str, node: fx.Node, channels: int, single: bool) -> _OpenLayer:
        layer = _OpenLayer(
            name=self._name(node),
            kind=kind,
            start=self._number(channels),
            channels=channels,
            single=single,
            position=0 if kind in (INPUT, PARAMETER) else self.position,
            output=node,
            map_elements=0,
            partial_elements=0,
            bytes_per_element=_first(node.meta["val"]).element_size(),
        )
        self.layers.append(layer)
        return layer

    def _append(self, layer: _OpenLayer, node: fx.Node, constants: Iterable[Constant]) -> None:
        layer.operators.append(node.name)
        layer.position = self.position
        layer.output = node
        layer.bytes_per_element = _first(node.meta["val"]).element_size()
        self._own(layer, constants, str(node.target))

    def _own(self, layer: _OpenLayer, constants: Iterable[Constant], user: str) -> None:
        placeholders = {node.name: node for node in self.values if node.op == "placeholder"}
        for constant in constants:
            for name in sorted(constant.origins & self.traced.parameters.keys()):
                layer.parameters[name] = _elements(placeholders[name])
                layer.uses[name] = (*constant.moves, user)

    def _number(self, channels: int) -> int:
        start = self.width
        self.width += channels
        return start

    def _name(self, node: fx.Node) -> str:
        stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        path = list(stack.values())[-1][0] if stack else ""
        name = path or self.traced.parameters.get(node.name, node.name)
        self.names[name] = self.names.get(name, 0) + 1
        return name if self.names[name] == 1 else f"{name}#{self.names[name]}"

    def _per_sample(self, elements: int) -> int:
        return -(-elements // self.batch)

    def _output(self) -> None:
        values = [self.values[node] for node in dict.fromkeys(self.traced.results)]
        channels = [mix_all(value.ids)[0] for value in values if isinstance(value, Channels)]
        read = np.unique(np.concatenate([np.zeros(0, np.int64), *channels]))
        self.position += 1
        self.layers.append(
            _OpenLayer(
                name=OUTPUT if OUTPUT not in self.names else f"{OUTPUT}#",
                kind=OUTPUT,
                start=self._number(0),
                channels=0,
                single=True,
                position=self.position,
                output=self.traced.results[-1],
                map_elements=0,
                partial_elements=0,
                bytes_per_element=0,
                reads=[Read(read, _ones(len(read)))] if len(read) else [],
            )
        )

    # -------------------------------------------------------------- shared weights, final numbers

    def _sharers(self) -> dict[str, list[_OpenLayer]]:
        users: dict[str, list[_OpenLayer]] = {}
        for layer in self.layers:
            for name in layer.parameters:
                users.setdefault(name, []).append(layer)
        return {name: layers for name, layers in users.items() if len(layers) > 1}

    def mismatched_sharers(self) -> frozenset[str]:
        """Heads of layers that share a parameter but differ in tasks or in what a task uses."""

        def form(layer: _OpenLayer, name: str) -> object:
            partial = [(len(r.channels), r.groups) for r in layer.reads if r.partial]
            return None if layer.single else (layer.tasks, partial, layer.uses[name])

        return frozenset(
            layer.operators[0]
            for name, layers in self._sharers().items()
            if any(form(layer, name) != form(layers[0], name) for layer in layers)
            for layer in layers
            if layer.operators and layer.operators[0] not in self.whole
        )

    def finish(self) -> ChannelGraph:
        self.layers.sort(key=lambda layer: layer.position)
        renumber = np.full(self.width + 1, NO_CHANNEL, dtype=np.int64)  # the last one is -1's
        first = 0
        for layer in self.layers:
            renumber[layer.start : layer.start + layer.channels] = first + np.arange(layer.channels)
            first += layer.channels
        index = {id(layer): at for at, layer in enumerate(self.layers)}
        tied = list(range(len(self.layers)))
        for layers in self._sharers().values():
            group = {tied[index[id(layer)]] for layer in layers}
            tied = [min(group) if at in group else at for at in tied]
        owned = self._owned()
        table = torch.from_numpy(renumber.astype(np.int32))
        return ChannelGraph(
            layers=tuple(
                Layer(
                    name=layer.name,
                    kind=layer.kind,
                    operators=tuple(layer.operators),
                    tasks=layer.tasks,
                    channels=layer.channels,
                    map_elements=layer.map_elements,
                    partial_elements=layer.partial_elements,
                    bytes_per_element=layer.bytes_per_element,
                    macs=layer.macs,
                    parameters=sum(layer.parameters[name] for name in owned[at]),
                    weights=layer.weights if layer.weight_names & owned[at] else 0,
                    parameter_names=tuple(self.traced.parameters[p] for p in layer.parameters),
                    reads=tuple(
                        Read(renumber[read.channels], read.sizes, read.groups, read.partial)
                        for read in layer.reads
                    ),
                    tied_to=tied[at],
                )
                for at, layer in enumerate(self.layers)
            ),
            ids={
                node.name: table[core(value.ids).long()].expand(value.ids.shape)
                for node, value in self.values.items()
                if isinstance(value, Channels)
            },
        )

    def _owned(self) -> list[frozenset[str]]:
        """Parameters of each layer that no layer before it has: each element counts once."""
        seen: frozenset[str] = frozenset()
        owned = []
        for layer in self.layers:
            owned.append(frozenset(layer.parameters) - seen)
            seen |= owned[-1]
        return owned


# ------------------------------------------------------------------ pure functions


def concrete(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape with the traced example's batch size in place of symbols."""
    return tuple(size if isinstance(size, int) else int(size.node.hint) for size in shape)


def _first(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return next(part for part in value if isinstance(part, torch.Tensor))


def _elements(node: fx.Node) -> int:
    return math.prod(concrete(node.meta["val"].shape))


def _all_tensors(value: Any) -> list[torch.Tensor]:
    parts = [value] if isinstance(value, torch.Tensor) else value
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _ones(count: int) -> Int64:
    return np.ones(count, dtype=np.int64)


def _live_nodes(results: Iterable[fx.Node]) -> set[fx.Node]:
    live: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            waiting.extend(node.all_input_nodes)
    return live


def _numbered(layer: _OpenLayer, shape: Sequence[int], axis: int | None = 1) -> torch.Tensor:
    """Ids of a layer's fresh result: its channels along `axis`."""
    if layer.channels == 1 or axis is None or len(shape) <= axis:
        return torch.full((), layer.start, dtype=torch.int32).expand(tuple(shape))
    numbers = torch.arange(layer.start, layer.start + layer.channels, dtype=torch.int32)
    view = [1] * len(shape)
    view[axis] = -1
    return numbers.reshape(view).expand(tuple(shape))


def _channel_axis(shape: Sequence[int], operands: Sequence[torch.Tensor]) -> int:
    """The dimension that most likely still counts channels in what a whole task makes."""
    for ids in operands:
        if tuple(ids.shape) == tuple(shape):
            for dim in range(1, ids.dim()):
                if not constant_along(ids, dim):
                    return dim
    return 1


def _narrowed(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
    """Cut dimensions along which all tensors are expanded, and count the places cut away."""
    cut = list(tensors)
    repeats = 1
    for dim in range(cut[0].dim()):
        if cut[0].shape[dim] != 1 and all(tensor.stride(dim) == 0 for tensor in cut):
            repeats *= cut[0].shape[dim]
            cut = [tensor.narrow(dim, 0, 1) for tensor in cut]
    return cut, repeats


def _distinct_places(operands: Sequence[torch.Tensor]) -> tuple[Int64, Int64, Int64]:
    """Distinct combinations of ids at one place, in order of first appearance.

    Returns the combinations (n, operands), the combination at each place (-1 where all operands
    are constants; in the narrowed shape), and how many places each has.
    """
    cut, repeats = _narrowed(operands)
    shape = np.broadcast_shapes(*(tuple(ids.shape) for ids in cut))
    columns = [ids.expand(shape).flatten().numpy().astype(np.int64) for ids in cut]
    key = columns[0]
    for column in columns[1:]:
        key = np.unique(key, return_inverse=True)[1] * (column.max() + 2) + column + 1
    found, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    tuples = np.stack([column[first] for column in columns], axis=1)
    order = np.argsort(first)
    order = order[(tuples[order] != NO_CHANNEL).any(axis=1)]
    rank = np.full(len(found), NO_CHANNEL, dtype=np.int64)
    rank[order] = np.arange(len(order))
    return tuples[order], rank[inverse].reshape(shape), counts[order] * repeats


def _owned_by_one_task(elements: torch.Tensor, operands: Sequence[torch.Tensor]) -> bool:
    """Whether each element of a constant meets the channels of one task only."""
    cut, _ = _narrowed([elements, *operands])
    numbers = cut[0].flatten().numpy()
    for ids in cut[1:]:
        met = ids.flatten().numpy()
        of_element = np.zeros(int(numbers.max()) + 1, dtype=met.dtype)
        of_element[numbers] = met
        if (of_element[numbers] != met).any():
            return False
    return True


def _multiply_accumulates(node: fx.Node) -> int:
    """Multiply-accumulates of an operator kept whole, counted by torch where it knows how."""

    def meta(value: Any) -> Any:
        found = value.meta["val"] if isinstance(value, fx.Node) else value
        if isinstance(found, torch.Tensor):
            return torch.empty(concrete(found.shape), dtype=found.dtype, device="meta")
        return found if not isinstance(found, torch.SymInt) else concrete((found,))[0]

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), meta)
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:
        return 0  # an operator that can't run on shapes alone has no formula either
    return int(counter.get_total_flops()) // 2
