"""TracedModel -> ChannelGraph: which operators make up a layer, and what its tasks read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import (
    INPUT,
    LINEAR,
    MATRICES,
    OUTPUT,
    PARAMETER,
    STATISTICS,
    WHOLE,
    ChannelGraph,
    Read,
)
from hgpart.layers.elements.constants import constant_of, integers, with_origins
from hgpart.layers.elements.element_owners import (
    channel_axis,
    cross,
    distinct_places,
    owned_by_one_task,
    sets_at_places,
)
from hgpart.layers.elements.holdings import Use, tasks_met, tasks_of_slices
from hgpart.layers.made_weights import elements_of_filter, makes_weights
from hgpart.layers.numbering import numbered_graph
from hgpart.layers.open_layers import OpenLayer, OpenLayers
from hgpart.layers.result_ids import columns_of, numbered, shared_out
from hgpart.layers.sharing import Exceptions, exceptions_for_sharers
from hgpart.operators.calls import has_gradients, only_updated
from hgpart.operators.effects import (
    Call,
    Channels,
    Constant,
    Effect,
    Matrices,
    Mix,
    Reindex,
    SameIndex,
    Whole,
    operands_of,
)
from hgpart.operators.ids import NO_CHANNEL, core, mix_all
from hgpart.operators.table import effect_of, operator_of
from hgpart.sequences import distinct
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    all_tensors,
    concrete,
    elements_of,
    first_tensor,
    is_norms_statistic,
    is_tensor,
    live_nodes,
    multiply_accumulates,
    results_read,
    shape_of,
)

REDUCE = "reduce"

_Set = tuple[Int64, Int64]  # channels, and the number of features of each


def channel_graph(traced: TracedModel) -> ChannelGraph:
    """Group the operators of a traced model into layers, and find what each task reads.

    An operator that works channel by channel joins the layer of an operand that nothing else
    reads; otherwise it is a layer of its own. An operator without a rule is one task that reads
    everything.

    >>> from torch import nn
    >>> from hgpart.tracing.traced_model import example_inputs, trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> graph = channel_graph(trace(model, example_inputs(model, (3, 16, 16))))
    >>> [(layer.name, layer.kind, layer.tasks) for layer in graph.layers]
    [('input', 'input', 1), ('0', 'dense', 8), ('2', 'dense', 4), ('output', 'output', 1)]
    """
    exceptions = Exceptions()
    while True:
        layering = _Layering(traced, exceptions)
        layering.run()
        needed = exceptions_for_sharers(layering.layers, exceptions)
        if needed == exceptions:
            return numbered_graph(layering.layers)
        exceptions = needed


class _Layering:
    def __init__(self, traced: TracedModel, exceptions: Exceptions) -> None:
        self.traced = traced
        self.exceptions = exceptions
        self.layers = OpenLayers(traced)
        self.parameter_layers: dict[frozenset[str], OpenLayer] = {}

    # -------------------------------------------------------------- the walk over the graph

    def run(self) -> None:
        for node in self.traced.graph_module.graph.nodes:
            self.layers.position += 1
            if node.op == "placeholder" and node.name in self.traced.inputs:
                self._input(node)
            elif node not in self.layers.live:
                continue
            elif node.op == "placeholder":
                self.layers.values[node] = self._parameter_or_buffer(node)
            elif node.op == "get_attr":
                self.layers.values[node] = Constant(())
            elif node.op == "call_function":
                self.layers.values[node] = self._call(node)
        self._output()

    def _input(self, node: fx.Node) -> None:
        shape = concrete(node.meta["val"].shape)
        layer = self.layers.begin(INPUT, node, shape[1] if len(shape) > 1 else 1, single=True)
        layer.map_elements, layer.fixed_elements = self.layers.elements(node, 1)
        layer.partial_elements = layer.map_elements
        self.layers.values[node] = Channels(numbered(layer.start, layer.channels, shape))

    def _parameter_or_buffer(self, node: fx.Node) -> Constant:
        value = node.meta["val"]
        shape = concrete(value.shape) if isinstance(value, torch.Tensor) else ()
        new = self.traced.updates.get(node.name)
        updated = new is not None and is_norms_statistic(new)
        if updated or node.name in self.traced.parameters:
            rows = torch.arange(shape[0] if shape else 1, dtype=torch.int32)
            rows = rows.reshape(-1, *[1] * (len(shape) - 1)).expand(shape) if shape else rows[0]
            is_data = node.name in self.exceptions.data  # as if each element were made of all
            known = None if updated or is_data else rows
            return Constant(shape, frozenset({node.name}), computed=is_data, rows=known)
        known = self.traced.values.get(node.name) if new is None else None  # in every pass
        return Constant(shape, value=integers(known))

    def _call(self, node: fx.Node) -> Any:
        unread = only_updated(node)

        def value_of(operand: fx.Node) -> Any:
            return None if operand in unread else self.layers.values[operand]

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
        if not isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            self.layers.moved.add(node)
            return node.target(*args, **kwargs)  # type: ignore[operator]
        known = operator_of(node)
        if known.is_size:
            return concrete((node.meta["val"],))[0]
        call = Call(node, args, kwargs, shape_of(node))
        if known.makes or not operands_of(call):
            return constant_of(call, self.traced.values.get(node.name))
        width = elements_of_filter(node, self.layers.live) or 1
        undivided = width == 1 and makes_weights(node, self.layers.live)
        undivided |= node.name in self.exceptions.whole
        effect: Effect = Whole() if undivided else effect_of(call)
        if isinstance(effect, Mix) and width > 1:
            effect = replace(effect, width=width, partial=False)
        if isinstance(effect, Mix) and any(map(self._has_buffers, effect.shared)):
            effect = Whole()
        if isinstance(effect, Reindex) and with_origins(call):
            call = self._with_parameter_layers(call)
            effect = effect_of(call)
        if isinstance(effect, Reindex):
            self.layers.moved.add(node)
            if isinstance(effect.ids, tuple):
                return [Channels(ids) for ids in effect.ids]
            return Channels(effect.ids)
        if isinstance(effect, Mix) and effect.by_place is not None:
            of_inputs = all(map(self._is_of_inputs, effect.channels.tolist()))
            effect = effect if of_inputs else effect.by_place
        if isinstance(effect, SameIndex):
            ids = self._same_index(call, effect)
        elif isinstance(effect, Matrices):
            ids = self._matrices(call, effect)
        elif isinstance(effect, Mix):
            ids = self._mix(call, effect)
        else:
            ids = self._whole(call, effect.known)
        return self._results(node, ids)

    def _results(self, node: fx.Node, ids: torch.Tensor) -> Any:
        """Hand the ids to every result of an operator with several results."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return Channels(ids)

        def part_ids(part: torch.Tensor) -> torch.Tensor:
            shape = concrete(part.shape)
            divided = shared_out(ids, shape)
            # Where tasks can't divide a result that is read, one task makes all of it.
            return core(ids).flatten()[:1].expand(shape) if divided is None else divided

        return [Channels(part_ids(part)) if is_tensor(part) else part for part in value]

    def _divides(self, node: fx.Node, numbers: torch.Tensor) -> bool:
        """Whether tasks that divide the first result by these numbers divide all that is read."""
        parts = [part.meta["val"] for part in results_read(node, self.traced.results)]
        shared = [shared_out(numbers, concrete(part.shape)) for part in parts]
        return all(part is not None for part in shared)

    # -------------------------------------------------------------- the four effects

    def _has_buffers(self, constant: Constant) -> bool:
        """Whether a constant is computed from parameters and buffers, as by a spectral norm.

        In training such buffers change with each pass. Where the parameters are, they have to be.
        """
        if not (constant.origins and constant.computed) or len(constant.shape) < 2:
            return False
        nodes = [node for node, value in self.layers.values.items() if value is constant]
        return any(
            node.op == "placeholder"
            and node.name not in self.traced.parameters
            and has_gradients(node.meta["val"].dtype)
            for node in live_nodes(nodes)
            if is_tensor(node.meta.get("val"))
        )

    def _is_of_inputs(self, channel: int) -> bool:
        """Whether a channel is that of an input, or computed from these alone, one by one."""
        maker = self.layers.maker(channel)
        return channel == NO_CHANNEL or maker.of_inputs or maker.kind == PARAMETER

    def _same_index(self, call: Call, effect: SameIndex) -> torch.Tensor:
        operands = [ids.expand(call.shape) for ids in effect.operands]
        held: list[tuple[Constant, torch.Tensor]] = []
        for constant, elements in effect.constants:
            if self._is_held(constant, elements, operands):
                held.append((constant, elements))
            else:
                operands += self._parameter_layers(constant, call.shape)
        for constant in filter(_has_parameters, effect.shared):
            operands += self._parameter_layers(constant, call.shape)
        return self._meeting(call, operands, held, {}, ())

    def _matrices(self, call: Call, effect: Matrices) -> torch.Tensor:
        operands, sets = list[torch.Tensor](), dict[int, _Set]()
        places = tuple(call.shape[dim] for dim in effect.places)
        for constant, _ in effect.constants:
            operands += self._parameter_layers(constant, places)
        for ids in effect.operands:
            numbers, sets_of_operand = sets_at_places(ids, self.layers.width + len(sets))
            operands.append(numbers)
            sets |= _equally_wide(sets_of_operand)
        return self._meeting(call, operands, [], sets, effect.within)

    def _meeting(
        self,
        call: Call,
        operands: list[torch.Tensor],
        held: Sequence[tuple[Constant, torch.Tensor]],
        sets: Mapping[int, _Set],
        within: Sequence[int],
    ) -> torch.Tensor:
        """Ids of a result with a task for each combination of ids that meet at a place.

        The places are along all dimensions of the result but those `within` a matrix. Ids of
        operands may be numbers of sets of channels.
        """
        places = tuple(operands[0].shape)
        tuples, labels, counts = distinct_places(operands)
        met: dict[int, Int64] = {}  # operand of a single task -> all its channels, as each is met
        if cross(tuples):
            met = self.layers.single_tasks(tuples)
            for single, channels in met.items():
                operands[single] = torch.full((), int(channels[0]), dtype=torch.int32)
                operands[single] = operands[single].expand(places)
            tuples, labels, counts = distinct_places(operands)
        numbers = torch.from_numpy(labels).to(torch.int32)
        divided = _in_shape(numbers.expand(places), call.shape, within)
        # No task would compute what is made from constants alone, such as the sigmoid of padding.
        equal = len(counts) > 0 and bool((counts == counts[0]).all() and (numbers >= 0).all())
        if not equal or cross(tuples) or not self._divides(call.node, divided):
            return self._whole(call, known=False)
        joining = {call.node, *self.layers.norms_by(call.node)}
        fuses = self.exceptions.unfused.isdisjoint(node.name for node in joining)
        joined = self.layers.join(call.node, tuples, sets) if fuses else None
        if joined is not None:
            owner, own = joined
            tuples = tuples[np.argsort(tuples[:, own])]
            ids = _in_shape(operands[own], call.shape, within)
        else:
            kind = MATRICES if within else "same index"
            owner, own = self.layers.begin(kind, call.node, len(tuples), single=False), -1
            owner.of_inputs = not sets and all(map(self._is_of_inputs, tuples[0].tolist()))
            elements = math.prod(call.shape) // len(tuples)
            owner.partial_elements = self.layers.per_sample(elements)
            ids = _in_shape((numbers + owner.start).expand(places), call.shape, within)
        if within or operator_of(call.node).product is not None:
            macs = multiply_accumulates(call) // self.layers.batch
            owner.macs += macs if owner.single else -(-macs // len(tuples))
        first = {tuples[:, at].tobytes(): at for at in reversed(range(tuples.shape[1]))}
        for column in sorted(first.values()):  # each once
            channels = tuples[:, column]
            if own >= 0:  # what a task makes itself it does not read
                channels = np.where(channels == tuples[:, own], NO_CHANNEL, channels)
            if column in met:
                owner.reads.append(Read(met[column], _ones(len(met[column]))))
            elif int(channels[0]) in sets:
                self._sets_read(owner, [sets[number] for number in channels.tolist()])
            elif (channels != NO_CHANNEL).any():
                self._same_index_read(owner, channels)
        numbers = (core(ids) - owner.start).expand(call.shape)
        uses = [
            (constant, None if owner.single else tasks_met(constant, elements, numbers))
            for constant, elements in held
        ]
        self.layers.append(owner, call.node, uses, ids)
        return ids

    def _is_held(
        self, constant: Constant, elements: torch.Tensor, operands: Sequence[torch.Tensor]
    ) -> bool:
        """Whether each task holds what it needs of a constant, and no two need the same element."""
        if constant.computed:
            if constant.rows is None or (constant.rows < 0).any():
                return False
            elements = constant.rows.flatten()[elements.long()]
        return owned_by_one_task(elements.expand(operands[0].shape), operands)

    def _same_index_read(self, owner: OpenLayer, channels: Int64) -> None:
        if owner.single:
            channels = np.unique(channels[channels != NO_CHANNEL])
            owner.reads.append(Read(channels, _ones(len(channels))))
            return
        groups = len(distinct(channels))  # fewer than tasks where a map is spread over several
        first = channels[:: len(channels) // groups]
        if np.array_equal(np.repeat(first, len(channels) // groups), channels):
            channels = first
        groups = len(channels)
        owner.reads.append(Read(channels, _ones(groups), groups))

    def _sets_read(self, owner: OpenLayer, sets: Sequence[_Set]) -> None:
        """A read of a set of channels by each task, in as few groups as there can be."""
        channels, sizes = (np.stack(numbers) for numbers in zip(*sets, strict=True))
        tasks, width = channels.shape
        if owner.single:
            every, first = np.unique(channels, return_index=True)
            every, first = every[every >= 0], first[every >= 0]
            owner.reads.append(Read(every, sizes.ravel()[first]))
            return
        for groups in (count for count in range(1, tasks + 1) if tasks % count == 0):
            of_groups = channels.reshape(groups, -1, width)
            if (of_groups == of_groups[:, :1]).all():
                own = sizes.reshape(groups, -1, width)[:, 0]
                owner.reads.append(Read(of_groups[:, 0].ravel(), own.ravel(), groups))
                return

    def _mix(self, call: Call, mix: Mix) -> torch.Tensor:
        tasks = 1 if mix.axis is None else call.shape[mix.axis] // mix.width
        if not self._divides(call.node, numbered(0, tasks, call.shape, mix.axis, mix.width)):
            return self._whole(call, known=False)
        product = operator_of(call.node).product
        undivided = product is None or call.node.name in self.exceptions.undivided
        partial = mix.partial and not undivided
        partial = partial and self.layers.elements(call.node, tasks)[1] == 0
        weight = None if product is None else call.argument(product.weight)
        if mix.is_statistic:
            kind = STATISTICS
        elif isinstance(weight, Constant) and product is not None and product.is_matrix:
            kind = LINEAR
        elif mix.groups == 1:
            kind = "dense"
        elif mix.groups == len(mix.channels):
            kind = "depthwise"
        else:
            kind = "grouped"
        owner = self.layers.begin(kind, call.node, tasks, single=False)
        owner.reads.append(Read(mix.channels, mix.sizes, mix.groups, partial, mix.is_statistic))
        owner.macs = -(-(multiply_accumulates(call) // max(1, tasks)) // self.layers.batch)
        if partial and weight is not None:
            owner.columns = columns_of(operands_of(call)[0].ids)
            owner.weights = math.prod(weight.shape)
            owner.weight_names = weight.origins & self.traced.parameters.keys()
        owner.partial_elements = self.layers.per_sample(math.prod(call.shape)) // tasks
        owner.sum_bytes = first_tensor(call.node.meta["val"]).element_size()
        for constant in filter(_has_parameters, mix.shared):
            for origin in _each_origin(constant):
                held_by_one = mix_all(self._parameter_layer(origin))[0]
                owner.reads.append(Read(held_by_one, _ones(len(held_by_one))))
        axes = {id(call.argument(name)): axis for name, axis in mix.slices.items()}
        held = [
            (
                constant,
                tasks_of_slices(constant, axes[id(constant)], tasks, mix.width)
                if id(constant) in axes
                else None,
            )
            for constant in with_origins(call)
            if all(constant is not shared for shared in mix.shared)
        ]
        ids = numbered(owner.start, tasks, call.shape, mix.axis, mix.width)
        self.layers.append(owner, call.node, held, ids)
        return ids

    def _whole(self, call: Call, known: bool) -> torch.Tensor:
        ids = [operand.ids for operand in operands_of(call)]
        channels = [mix_all(operand)[0] for operand in ids]
        values = all_tensors(call.node.meta["val"])
        axis = channel_axis(call.shape, ids)
        width = call.shape[axis] if axis < len(call.shape) and len(values) == 1 else 1
        joined = [
            owner
            for read_channels in channels
            if (owner := self.layers.sole_owner(read_channels, call.node)) is not None
            and owner.single
        ]
        if joined:
            owner = max(joined, key=lambda layer: layer.position)
            own = range(owner.start, owner.start + owner.channels)
            read = [c[~np.isin(c, own)] for c in channels if not self.layers.belongs(c, owner)]
            # The ids of its earlier result are never read again: it makes something else now.
            self.layers.number(owner, width)
        else:
            owner = self.layers.begin(REDUCE if known else WHOLE, call.node, width, single=True)
            owner.partial_elements = sum(
                self.layers.per_sample(math.prod(concrete(value.shape))) for value in values
            )
            read = channels
        for read_channels in read:
            owner.reads.append(Read(read_channels, _ones(len(read_channels))))
        owner.macs += multiply_accumulates(call) // self.layers.batch
        made = numbered(owner.start, width, call.shape, axis)
        self.layers.append(
            owner, call.node, [(constant, None) for constant in with_origins(call)], made
        )
        return made

    # -------------------------------------------------------------- parameters read as data

    def _parameter_layer(self, constant: Constant) -> torch.Tensor:
        """Ids of a constant that several tasks read: one task holds and sends it."""
        layer = self.parameter_layers.get(constant.origins)
        if layer is None:
            nodes = [node for node in self.layers.values if node.name in constant.origins]
            layer = self.layers.begin(PARAMETER, nodes[0], 1, single=True)
            layer.map_elements = layer.partial_elements = sum(map(elements_of, nodes))
            for node in nodes:
                layer.uses[node.name] = [Use(self.layers.values[node], node, PARAMETER, None)]
            self.parameter_layers[constant.origins] = layer
        return torch.full((), layer.start, dtype=torch.int32)

    def _parameter_layers(self, constant: Constant, shape: tuple[int, ...]) -> list[torch.Tensor]:
        """Ids in a shape of each of the parameters that a constant is made from."""
        layers = map(self._parameter_layer, _each_origin(constant))
        return [ids.expand(shape) for ids in layers]

    def _with_parameter_layers(self, call: Call) -> Call:
        def layered(value: Any) -> Any:
            if isinstance(value, Constant) and value.origins:
                return Channels(self._parameter_layer(value).expand(value.shape))
            return value

        return Call(call.node, pytree.tree_map(layered, call.args), call.kwargs, call.shape)

    def _output(self) -> None:
        values = [self.layers.values[node] for node in dict.fromkeys(self.traced.results)]
        known = [value.ids for value in values if isinstance(value, Channels)]
        returned = [
            origin for value in values if _has_parameters(value) for origin in _each_origin(value)
        ]
        known += map(self._parameter_layer, returned)
        channels = [mix_all(ids)[0] for ids in known]
        read = np.unique(np.concatenate([np.zeros(0, np.int64), *channels]))
        self.layers.position += 1
        self.layers.all.append(
            OpenLayer(
                name=OUTPUT if OUTPUT not in self.layers.names else f"{OUTPUT}#",
                kind=OUTPUT,
                start=self.layers.width,
                channels=0,
                single=True,
                position=self.layers.position,
                output=self.traced.results[-1],
                map_elements=0,
                partial_elements=0,
                bytes_per_element=0,
                reads=[Read(read, _ones(len(read)))] if len(read) else [],
            )
        )


def _in_shape(
    ids: torch.Tensor, shape: tuple[int, ...], within: Sequence[int] = ()
) -> torch.Tensor:
    """Ids of places, which lack the dimensions `within` a matrix, in all of a shape."""
    for dim in sorted(dim % len(shape) for dim in within):
        ids = ids.unsqueeze(dim)
    return ids.expand(shape)


def _equally_wide(sets: Mapping[int, _Set]) -> dict[int, _Set]:
    """Sets filled up with constants, such as those at borders of a map."""
    widest = max((len(channels) for channels, _ in sets.values()), default=0)
    filled = {}
    for number, (channels, sizes) in sets.items():
        missing = (0, widest - len(channels))
        filled[number] = (
            np.pad(channels, missing, constant_values=NO_CHANNEL),
            np.pad(sizes, missing, constant_values=1),
        )
    return filled


def _has_parameters(value: Any) -> bool:
    return isinstance(value, Constant) and bool(value.origins)


def _each_origin(constant: Constant) -> Iterator[Constant]:
    """Stand-ins for the parameters that a constant is made from: each is sent by itself."""
    for name in sorted(constant.origins):
        yield replace(constant, origins=frozenset({name}))


def _ones(count: int) -> Int64:
    return np.ones(count, dtype=np.int64)
