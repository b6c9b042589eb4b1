"""TracedModel -> ChannelGraph: which operators make up a layer, and what its tasks read."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.layers.channel_graph import (
    INPUT,
    LINEAR,
    OUTPUT,
    PARAMETER,
    WHOLE,
    ChannelGraph,
    Layer,
    Read,
)
from hgpart.layers.constants import integers, of_rows, rows_of, values_of
from hgpart.layers.element_owners import (
    channel_axis,
    cross,
    distinct_places,
    owned_by_one_task,
)
from hgpart.layers.holdings import (
    Use,
    agree,
    count_needed,
    tasks_met,
    tasks_of_channels,
    tasks_of_slices,
)
from hgpart.layers.operations import operations_of
from hgpart.operators.calls import argument, module_of, only_updated
from hgpart.operators.effects import (
    Call,
    Channels,
    Constant,
    Effect,
    Mix,
    Reindex,
    SameIndex,
    Whole,
    constants_of,
    operands_of,
)
from hgpart.operators.ids import NO_CHANNEL, compact, constant_along, core, mix_all
from hgpart.operators.table import effect_of, operator_of
from hgpart.sequences import distinct
from hgpart.tracing.batches import elements_of_shape, has_dynamic_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    all_tensors,
    computed_nodes,
    concrete,
    described,
    elements_of,
    first_tensor,
    is_norms_statistic,
    is_tensor,
    multiply_accumulates,
    results_read,
    shape_of,
    updated_buffers,
)

Int64 = NDArray[np.int64]

REDUCE = "reduce"


def channel_graph(traced: TracedModel) -> ChannelGraph:
    """Group the operators of a traced model into layers and say what each task reads.

    An operator that works channel by channel joins the layer of an operand that nothing else
    reads; otherwise it is a layer of its own. What no rule knows
    is one task that reads everything.

    >>> from torch import nn
    >>> from hgpart.tracing.traced_model import example_inputs, trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> graph = channel_graph(trace(model, example_inputs(model, (3, 16, 16))))
    >>> [(layer.name, layer.kind, layer.tasks) for layer in graph.layers]
    [('input', 'input', 1), ('0', 'dense', 8), ('2', 'dense', 4), ('output', 'output', 1)]
    """
    exceptions = _Exceptions()
    while True:
        layering = _Layering(traced, exceptions)
        layering.run()
        found = layering.exceptions_for_sharers()
        if found == exceptions:
            return layering.finish()
        exceptions = found


@dataclass(frozen=True)
class _Exceptions:
    """What is not done as usual, as layers use one parameter in ways that don't fit together."""

    unfused: frozenset[str] = frozenset()  # operators that join no layer
    undivided: frozenset[str] = frozenset()  # operators whose tasks fine-grain does not split
    data: frozenset[str] = frozenset()  # parameters that one task holds and sends
    whole: frozenset[str] = frozenset()  # operators that are one task


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
    fixed_elements: int = 0
    sum_bytes: int = 0  # an element of what the head computes
    macs: int = 0
    weights: int = 0
    weight_names: frozenset[str] = frozenset()  # parameters that make up those weights
    columns: bytes = b""  # which columns of those weights multiply the same channel
    operators: list[str] = field(default_factory=list)
    # of each parameter, and each buffer that the layer updates
    uses: dict[str, list[Use]] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)  # those of them that came with an operator
    reads: list[Read] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        return 1 if self.single else self.channels


class _Layering:
    def __init__(self, traced: TracedModel, exceptions: _Exceptions) -> None:
        self.traced = traced
        self.exceptions = exceptions
        self.batch = traced.batch_size
        self.any_batch = has_dynamic_batch(traced)
        self.values: dict[fx.Node, Any] = {}
        self.layers: list[_OpenLayer] = []
        self.width = 0  # channels so far
        self.starts: list[int] = []  # first channels, ascending, and the layers that make them
        self.makers: list[_OpenLayer] = []
        self.parameter_layers: dict[frozenset[str], _OpenLayer] = {}
        self.moved: set[fx.Node] = set()  # nodes that only pass on what they read
        self.names: dict[str, int] = {}
        self.live = computed_nodes(traced.graph_module.graph, traced.results)
        self.placeholders = {
            node.name: node for node in traced.graph_module.graph.find_nodes(op="placeholder")
        }
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
        layer.map_elements, layer.fixed_elements = self._elements(node, 1)
        layer.partial_elements = layer.map_elements
        self.values[node] = Channels(_numbered(layer.start, layer.channels, shape))

    def _parameter_or_buffer(self, node: fx.Node) -> Constant:
        value = node.meta["val"]
        shape = concrete(value.shape) if isinstance(value, torch.Tensor) else ()
        new = self.traced.updates.get(node.name)
        updated = new is not None and is_norms_statistic(new)
        if updated or node.name in self.traced.parameters:
            rows = torch.arange(shape[0] if shape else 1, dtype=torch.int32)
            rows = rows.reshape(-1, *[1] * (len(shape) - 1)).expand(shape) if shape else rows[0]
            return Constant(shape, frozenset({node.name}), rows=None if updated else rows)
        known = self.traced.values.get(node.name) if new is None else None  # in every pass
        return Constant(shape, value=integers(known))

    def _call(self, node: fx.Node) -> Any:
        unread = only_updated(node)

        def value_of(operand: fx.Node) -> Any:
            return None if operand in unread else self.values[operand]

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
        if not isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            self.moved.add(node)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        known = operator_of(node)
        if known.cut == "size":
            return self._size(*args)
        call = Call(node, args, kwargs, shape_of(node))
        if known.makes or not operands_of(call):
            return self._constant(call, shape_only=bool(known.makes))
        undivided = node.name in self.exceptions.whole or self._makes_weights(node)
        effect: Effect = Whole() if undivided else effect_of(call)
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

    def _makes_weights(self, node: fx.Node) -> bool:
        """Whether a product makes the weight of another, as a mixture of experts' filters.

        Its elements are no neurons: all of them go to the one task that multiplies by them.
        """
        product = operator_of(node).product
        if product is None or not product.is_matrix:
            return False
        met, waiting = {node}, [node]
        while waiting:
            value = waiting.pop()
            for user in self.live.intersection(value.users) - met:
                if _is_weight(value, user):
                    return True
                if _passes_on(user, elements_of(node)):
                    met.add(user)
                    waiting.append(user)
        return False

    @staticmethod
    def _size(value: Any, dim: Any) -> int:
        shape = value.ids.shape if isinstance(value, Channels) else value.shape
        return int(shape[dim])

    def _results(self, node: fx.Node, ids: torch.Tensor) -> Any:
        """Hand the ids to every result of an operator that returns several."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return Channels(ids)

        def part_ids(part: torch.Tensor) -> torch.Tensor:
            shape = concrete(part.shape)
            found = _shared_out(ids, shape)
            # Where tasks can't share it out and anything reads it, one task makes all.
            return core(ids).flatten()[:1].expand(shape) if found is None else found

        return [Channels(part_ids(part)) if is_tensor(part) else part for part in value]

    def _divides(self, node: fx.Node, numbers: torch.Tensor) -> bool:
        """Whether tasks that share out the first result by number share out all that is read."""
        parts = [part.meta["val"] for part in results_read(node, self.traced.results)]
        shared = [_shared_out(numbers, concrete(part.shape)) for part in parts]
        return all(part is not None for part in shared)

    def _constant(self, call: Call, shape_only: bool) -> Any:
        node, sources = call.node, [] if shape_only else self._constants(call)
        made = Constant(
            shape=call.shape,
            origins=frozenset(name for source in sources for name in source.origins),
            computed=not operator_of(node).moves_only or any(source.computed for source in sources),
            moves=(*(m for source in sources for m in source.moves), described(node)),
        )
        value = node.meta["val"]
        known = values_of(call, self.traced.values.get(node.name))
        if isinstance(value, torch.Tensor):
            (rows,) = rows_of(call, sources, [call.shape])
            return replace(made, rows=rows, value=known[0])
        if isinstance(value, (list, tuple)):
            shapes = [concrete(part.shape) if is_tensor(part) else () for part in value]
            all_rows, values = rows_of(call, sources, shapes), iter(known)
            return [
                replace(
                    made,
                    shape=shapes[at],
                    moves=(*made.moves, str(at)),
                    rows=all_rows[at],
                    value=next(values),
                )
                if is_tensor(part)
                else part
                for at, part in enumerate(value)
            ]
        return value

    # -------------------------------------------------------------- the four effects

    def _same_index(self, call: Call, effect: SameIndex) -> torch.Tensor:
        operands = [ids.expand(call.shape) for ids in effect.operands]
        held: list[tuple[Constant, torch.Tensor]] = []
        for constant, elements in effect.constants:
            if self._is_held(constant, elements, operands):
                held.append((constant, elements))
            else:
                operands.append(self._parameter_layer(constant).expand(call.shape))
        tuples, labels, counts = distinct_places(operands)
        met: dict[int, Int64] = {}  # operand of a single task -> all its channels: each is met
        if cross(tuples):
            met = self._single_tasks(tuples)
            for column, channels in met.items():
                operands[column] = torch.full((), int(channels[0]), dtype=torch.int32)
                operands[column] = operands[column].expand(call.shape)
            tuples, labels, counts = distinct_places(operands)
        numbers = torch.from_numpy(labels).to(torch.int32)
        # Nobody would compute what is made of constants alone, such as the sigmoid of padding.
        equal = len(counts) > 0 and bool((counts == counts[0]).all() and (numbers >= 0).all())
        if not equal or cross(tuples) or not self._divides(call.node, numbers.expand(call.shape)):
            return self._whole(call, known=False)
        joined = self._join(call.node, tuples)
        if joined is not None:
            owner, own = joined
            tuples = tuples[np.argsort(tuples[:, own])]
            ids = operands[own]
        else:
            owner, own = self._open("same index", call.node, len(tuples), single=False), -1
            owner.partial_elements = self._per_sample(int(counts[0]))
            ids = (numbers + owner.start).expand(call.shape)
        for other in range(tuples.shape[1]):
            channels = tuples[:, other]
            if own >= 0:  # what a task makes itself it does not read
                channels = np.where(channels == tuples[:, own], NO_CHANNEL, channels)
            if other in met:
                owner.reads.append(Read(met[other], _ones(len(met[other]))))
            elif (channels != NO_CHANNEL).any():
                self._same_index_read(owner, channels)
        numbers = (core(ids) - owner.start).expand(call.shape)
        uses = [(one, None if owner.single else tasks_met(one, at, numbers)) for one, at in held]
        self._append(owner, call.node, uses, ids)
        return ids

    def _is_held(
        self, constant: Constant, elements: torch.Tensor, operands: Sequence[torch.Tensor]
    ) -> bool:
        """Whether every task holds what it needs of a constant, and no other task needs it."""
        if constant.origins & self.exceptions.data:
            return False
        if constant.computed:
            if constant.rows is None or (constant.rows < 0).any():
                return False
            elements = constant.rows.flatten()[elements.long()]
        return owned_by_one_task(elements.expand(operands[0].shape), operands)

    def _single_tasks(self, tuples: Int64) -> dict[int, Int64]:
        """Operands that one task makes alone, whatever its channels: those that are met."""
        return {
            column: distinct(tuples[:, column])
            for column in range(tuples.shape[1])
            if tuples[:, column].min() >= 0
            and (maker := self._maker(int(tuples[0, column]))).single
            and self._belongs(tuples[:, column], maker)
        }

    def _same_index_read(self, owner: _OpenLayer, channels: Int64) -> None:
        if owner.single:
            channels = np.unique(channels[channels != NO_CHANNEL])
            owner.reads.append(Read(channels, _ones(len(channels))))
        else:
            owner.reads.append(Read(channels, _ones(len(channels)), len(channels)))

    def _mix(self, call: Call, mix: Mix) -> torch.Tensor:
        tasks = 1 if mix.axis is None else call.shape[mix.axis]
        if not self._divides(call.node, _numbered(0, tasks, call.shape, mix.axis)):
            return self._whole(call, known=False)
        partial = mix.partial and call.node.name not in self.exceptions.undivided
        partial = partial and self._elements(call.node, tasks)[1] == 0
        product = operator_of(call.node).product
        if product is not None and product.is_matrix:
            kind = LINEAR
        elif mix.groups == 1:
            kind = "dense"
        elif mix.groups == len(mix.channels):
            kind = "depthwise"
        else:
            kind = "grouped"
        owner = self._open(kind, call.node, tasks, single=False)
        owner.reads.append(Read(mix.channels, mix.sizes, mix.groups, partial))
        owner.macs = -(-(_multiply_accumulates(call) // max(1, tasks)) // self.batch)
        if partial:
            owner.columns = _columns(operands_of(call)[0].ids)
            constants = [value for value in call.args if isinstance(value, Constant)]
            weight = max(constants, key=lambda constant: math.prod(constant.shape))
            owner.weights = math.prod(weight.shape)
            owner.weight_names = weight.origins & self.traced.parameters.keys()
        owner.partial_elements = self._per_sample(math.prod(call.shape)) // tasks
        owner.sum_bytes = first_tensor(call.node.meta["val"]).element_size()
        for constant in filter(_has_parameters, mix.shared):
            held_by_one = mix_all(self._parameter_layer(constant))[0]
            owner.reads.append(Read(held_by_one, _ones(len(held_by_one))))
        axes = {id(call.argument(name)): axis for name, axis in mix.slices.items()}
        held = [
            (one, tasks_of_slices(one, axes[id(one)], tasks) if id(one) in axes else None)
            for one in self._constants(call)
            if all(one is not shared for shared in mix.shared)
        ]
        ids = _numbered(owner.start, tasks, call.shape, mix.axis)
        self._append(owner, call.node, held, ids)
        return ids

    def _whole(self, call: Call, known: bool) -> torch.Tensor:
        ids = [operand.ids for operand in operands_of(call)]
        channels = [mix_all(operand)[0] for operand in ids]
        values = all_tensors(call.node.meta["val"])
        axis = channel_axis(call.shape, ids)
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
            self._number(owner, width)
        else:
            owner = self._open(REDUCE if known else WHOLE, call.node, width, single=True)
            owner.partial_elements = sum(
                self._per_sample(math.prod(concrete(value.shape))) for value in values
            )
            read = channels
        for found in read:
            owner.reads.append(Read(found, _ones(len(found))))
        owner.macs += _multiply_accumulates(call) // self.batch
        made = _numbered(owner.start, width, call.shape, axis)
        self._append(owner, call.node, [(one, None) for one in self._constants(call)], made)
        return made

    # -------------------------------------------------------------- parameters read as data

    def _parameter_layer(self, constant: Constant) -> torch.Tensor:
        """Ids of a constant that several tasks read: one task holds it and sends it."""
        layer = self.parameter_layers.get(constant.origins)
        if layer is None:
            nodes = [node for node in self.values if node.name in constant.origins]
            layer = self._open(PARAMETER, nodes[0], 1, single=True)
            layer.map_elements = layer.partial_elements = sum(map(elements_of, nodes))
            for node in nodes:
                layer.uses[node.name] = [Use(self.values[node], node, PARAMETER, None)]
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

    @staticmethod
    def _constants(call: Call) -> list[Constant]:
        return [constant for constant in constants_of(call) if constant.origins]

    # -------------------------------------------------------------- fusion

    def _join(self, node: fx.Node, tuples: Int64) -> tuple[_OpenLayer, int] | None:
        """The layer that a same-index operator joins, and which operand is that layer's map.

        Not one whose task j would read what task i makes: another operand may be the map again,
        channel for channel as in ``x * x``, but not in another order as in ``x + x.flip(1)``.
        """
        if node.name in self.exceptions.unfused:
            return None
        found = []
        for column in range(tuples.shape[1]):
            ids = tuples[:, column]
            owner = self._sole_owner(ids, node)
            if owner is None or not len(ids) == owner.channels == len(distinct(ids)):
                continue
            own = (tuples >= owner.start) & (tuples < owner.start + owner.channels)
            if (own <= (tuples == ids[:, None])).all():
                found.append((owner, column))
        return max(found, key=lambda pair: pair[0].position) if found else None

    def _sole_owner(self, ids: Int64, node: fx.Node) -> _OpenLayer | None:
        """The layer that all ids belong to, if `node` is the only reader of its map."""
        if len(ids) == 0 or ids.min() < 0:
            return None
        owner = self._maker(int(ids[0]))
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

    def _maker(self, channel: int) -> _OpenLayer:
        return self.makers[bisect_right(self.starts, channel) - 1]

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
            start=self.width,
            channels=channels,
            single=single,
            position=0 if kind in (INPUT, PARAMETER) else self.position,
            output=node,
            map_elements=0,
            partial_elements=0,
            bytes_per_element=first_tensor(node.meta["val"]).element_size(),
        )
        self._number(layer, channels)
        self.layers.append(layer)
        return layer

    def _append(
        self,
        layer: _OpenLayer,
        node: fx.Node,
        held: Iterable[tuple[Constant, torch.Tensor | None]],
        ids: torch.Tensor,
    ) -> None:
        """Let a layer compute an operator too: with constants, and the task of each element."""
        before = set(layer.uses)
        target = str(node.target)
        makers = {id(self.values.get(one)): one for one in node.all_input_nodes}
        for constant, tasks in held:
            use = Use(constant, makers[id(constant)], target, tasks)
            for name in sorted(constant.origins & self.traced.parameters.keys()):
                layer.uses.setdefault(name, []).append(use)
        for buffer in updated_buffers(node):
            statistic = Constant(concrete(buffer.meta["val"].shape), frozenset({buffer.name}))
            tasks = None if layer.single else tasks_of_channels(ids, layer.start, statistic.shape)
            layer.uses[buffer.name] = [Use(statistic, buffer, target, tasks)]
        if layer.operators:
            layer.fused.update(dict.fromkeys(layer.uses.keys() - before, node.name))
        layer.operators.append(node.name)
        layer.position = self.position
        layer.output = node
        results = results_read(node, self.traced.results)
        if not results:  # a norm of which only its statistics are of use
            layer.map_elements = layer.fixed_elements = 0
            return
        sizes = [result.meta["val"].element_size() for result in results]
        layer.bytes_per_element = sizes[0]
        elements = np.array([self._elements(result, layer.tasks) for result in results])
        in_bytes = (elements * np.array(sizes)[:, None]).sum(axis=0).tolist()
        layer.map_elements, layer.fixed_elements = (-(-count // sizes[0]) for count in in_bytes)

    def _number(self, layer: _OpenLayer, channels: int) -> None:
        """Give a layer so many new channels, in place of those that it had."""
        layer.start, layer.channels = self.width, channels
        self.starts.append(layer.start)
        self.makers.append(layer)
        self.width += channels

    def _name(self, node: fx.Node) -> str:
        name = module_of(node) or self.traced.parameters.get(node.name, node.name)
        self.names[name] = self.names.get(name, 0) + 1
        return name if self.names[name] == 1 else f"{name}#{self.names[name]}"

    def _per_sample(self, elements: int) -> int:
        return -(-elements // self.batch)

    def _elements(self, node: fx.Node, tasks: int) -> tuple[int, int]:
        """Elements of a tensor that each of the tasks makes: for every sample, and besides."""
        found = elements_of_shape(first_tensor(node.meta["val"]).shape) if self.any_batch else None
        if found is None:  # as in the traced example
            return divmod(elements_of(node) // tasks, self.batch)
        return found[0] // tasks, found[1] // tasks

    def _output(self) -> None:
        values = [self.values[node] for node in dict.fromkeys(self.traced.results)]
        known = [value.ids for value in values if isinstance(value, Channels)]
        known += [self._parameter_layer(value) for value in values if _has_parameters(value)]
        channels = [mix_all(ids)[0] for ids in known]
        read = np.unique(np.concatenate([np.zeros(0, np.int64), *channels]))
        self.position += 1
        self.layers.append(
            _OpenLayer(
                name=OUTPUT if OUTPUT not in self.names else f"{OUTPUT}#",
                kind=OUTPUT,
                start=self.width,
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

    def _users(self) -> dict[str, list[_OpenLayer]]:
        """The layers that have each parameter, and each buffer that they update."""
        users: dict[str, list[_OpenLayer]] = {}
        for layer in self.layers:
            for name in layer.uses:
                users.setdefault(name, []).append(layer)
        return users

    def exceptions_for_sharers(self) -> _Exceptions:
        """What to do otherwise where tasks of several numbers need one element of a parameter.

        A convolution is not kept from being divided by what is fused behind it: a shared batch
        norm is then a layer of its own wherever it stands; and if even these differ, its
        parameters are data, which one task sends. Weights whose rows fit together but whose
        columns don't, or of which a layer needs rows as well, are not divided; otherwise they
        have but the last resort: whole tasks.
        """
        now = self.exceptions
        unfused, undivided = set(now.unfused), set(now.undivided)
        data, whole = set(now.data), set(now.whole)
        for name, layers in self._users().items():
            rows_fit = self._rows_fit(name, layers)
            if rows_fit and self._columns_fit(name, layers):
                continue
            pointwise = [at for at in layers if name in at.fused or at.kind == "same index"]
            fused = {layer.fused[name] for layer in layers if name in layer.fused}
            shared = len(layers) > 1 and not any(layer.kind == PARAMETER for layer in layers)
            if shared and fused - now.unfused:
                unfused |= fused
            elif rows_fit:
                undivided |= {layer.operators[0] for layer in layers}
            elif pointwise and name in self.traced.parameters and name not in now.data:
                data.add(name)
            else:
                whole |= {layer.operators[0] for layer in layers if layer.operators}
        return _Exceptions(
            frozenset(unfused), frozenset(undivided), frozenset(data), frozenset(whole)
        )

    def _rows_fit(self, name: str, layers: Sequence[_OpenLayer]) -> bool:
        """Whether each element of a parameter is needed by tasks of one number alone."""
        if any(layer.single for layer in layers):
            return all(layer.single for layer in layers)
        uses = [use for layer in layers for use in layer.uses[name]]
        return len({layer.tasks for layer in layers}) == 1 and agree(uses, *self._origin(name))

    @staticmethod
    def _columns_fit(name: str, layers: Sequence[_OpenLayer]) -> bool:
        """Whether channel i of task j needs the same elements of a parameter in all layers."""

        def columns(layer: _OpenLayer) -> object:
            return [read.groups for read in layer.reads if read.partial], layer.columns

        if any(columns(layer) != columns(layers[0]) for layer in layers):
            return False
        manners = {use.manner for layer in layers for use in layer.uses[name]}
        return len(manners) == 1 or all(name not in layer.weight_names for layer in layers)

    def _origin(self, name: str) -> tuple[fx.Node, tuple[int, ...]]:
        """The placeholder of a parameter or buffer, and its shape."""
        node = self.placeholders[name]
        return node, concrete(node.meta["val"].shape)

    def finish(self) -> ChannelGraph:
        self.layers.sort(key=lambda layer: layer.position)
        renumber = np.full(self.width + 1, NO_CHANNEL, dtype=np.int64)  # the last one is -1's
        first = 0
        for layer in self.layers:
            renumber[layer.start : layer.start + layer.channels] = first + np.arange(layer.channels)
            first += layer.channels
        index = {id(layer): at for at, layer in enumerate(self.layers)}
        tied = list(range(len(self.layers)))
        for layers in self._users().values():
            group = {tied[index[id(layer)]] for layer in layers}
            tied = [min(group) if at in group else at for at in tied]
        owned, sizes = self._owned(), self._sizes()
        operations = operations_of(
            self.traced, [(x.name, x.kind, x.operators) for x in self.layers]
        )
        table = torch.from_numpy(renumber.astype(np.int32))
        return ChannelGraph(
            layers=tuple(
                Layer(
                    name=layer.name,
                    kind=layer.kind,
                    operators=tuple(layer.operators),
                    operations=operations[at],
                    tasks=layer.tasks,
                    channels=layer.channels,
                    map_elements=layer.map_elements,
                    fixed_elements=layer.fixed_elements,
                    partial_elements=layer.partial_elements,
                    bytes_per_element=layer.bytes_per_element,
                    macs=layer.macs,
                    parameters=sum(sizes[name] for name in owned[at]),
                    weights=layer.weights if layer.weight_names & owned[at] else 0,
                    parameter_names=tuple(
                        self.traced.parameters[name] for name in layer.uses if name in sizes
                    ),
                    reads=tuple(
                        Read(
                            renumber[read.channels],
                            read.sizes,
                            read.groups,
                            # A sum that is fused into another type travels in a size of its own.
                            read.partial and layer.sum_bytes == layer.bytes_per_element,
                        )
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
            rows={
                node.name: compact(value.rows)
                for node, value in self.values.items()
                if isinstance(value, Constant) and value.origins and of_rows(value.rows)
            },
        )

    def _owned(self) -> list[frozenset[str]]:
        """Parameters of each layer that no layer before it has: each element counts once."""
        seen: frozenset[str] = frozenset()
        owned = []
        for layer in self.layers:
            owned.append(frozenset(layer.uses.keys() & self.traced.parameters.keys()) - seen)
            seen |= owned[-1]
        return owned

    def _sizes(self) -> dict[str, int]:
        """Elements of each parameter that any layer needs."""
        return {
            name: count_needed(
                [use for one in layers for use in one.uses[name]], *self._origin(name)
            )
            for name, layers in self._users().items()
            if name in self.traced.parameters
        }


def _is_weight(value: fx.Node, user: fx.Node) -> bool:
    """Whether a node is the weight that a convolution or linear layer multiplies its input by.

    The second matrix of other products may be a map just as the first one.
    """
    product = operator_of(user).product
    named = product is not None and product.weight == "weight"
    return named and argument(user, "weight") is value


def _passes_on(user: fx.Node, elements: int) -> bool:
    """Whether a node moves what it reads, or changes each of so many elements by itself."""
    known = operator_of(user)
    if known.cut == "join" or known.moves_only or user.target is operator.getitem:
        return True
    pointwise = torch.Tag.pointwise in getattr(user.target, "tags", ())
    return pointwise and elements_of(user) == elements


def _multiply_accumulates(call: Call) -> int:
    """Multiply-accumulates of a call: as the table says, else as torch counts them."""
    macs = operator_of(call.node).macs
    found = macs(call) if macs else None
    return multiply_accumulates(call.node) if found is None else found


def _has_parameters(value: Any) -> bool:
    return isinstance(value, Constant) and bool(value.origins)


def _ones(count: int) -> Int64:
    return np.ones(count, dtype=np.int64)


# ------------------------------------------------------------------ ids of results


def _numbered(
    start: int, channels: int, shape: Sequence[int], axis: int | None = 1
) -> torch.Tensor:
    """Ids of a fresh result: its channels along `axis`."""
    if channels == 1 or axis is None or len(shape) <= axis:
        return torch.full((), start, dtype=torch.int32).expand(tuple(shape))
    numbers = torch.arange(start, start + channels, dtype=torch.int32)
    view = [1] * len(shape)
    view[axis] = -1
    return numbers.reshape(view).expand(tuple(shape))


def _shared_out(ids: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Ids of another result of the operator whose first result has `ids`; None if unknown."""
    if len(shape) == ids.dim():
        reduced = [dim for dim in range(ids.dim()) if shape[dim] != ids.shape[dim]]
        if all(shape[dim] == 1 and constant_along(ids, dim) for dim in reduced):
            for dim in reduced:
                ids = ids.narrow(dim, 0, 1)
            return ids
    distinct = core(ids).flatten()  # one number per channel, such as its mean
    return distinct.reshape(shape) if len(distinct) == math.prod(shape) else None


def _columns(ids: torch.Tensor) -> bytes:
    """Which features along the only dimension that ids vary along have the same id."""
    _, first, same = np.unique(
        core(compact(ids)).flatten().numpy(), return_index=True, return_inverse=True
    )
    return first[same].tobytes()
