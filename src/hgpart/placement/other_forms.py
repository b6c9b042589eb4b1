"""Programs of one form -> those of another: other mode, or other sizes of inputs or batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from hgpart.arrays import Int32, Int64
from hgpart.errors import PlacementError, TraceError
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.partition.partition import evaluated
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.mode_programs import (
    build_programs,
    owners_blueprint,
    share_blueprints,
)
from hgpart.placement.programs import Programs
from hgpart.tracing.batches import at_batch
from hgpart.tracing.forms import Form, said_of
from hgpart.tracing.traced_model import TracedModel, trace_call
from hgpart.tracing.traced_nodes import holds_tensors
from hgpart.work.figures import Work


def retraced(model: nn.Module, before: TracedModel, form: Form, dtype: torch.dtype) -> TracedModel:
    """Trace a model in a form, called as before; its floats become of this type.

    The model must be in the form's mode and settings. A trace for a batch of one sample is for no
    other batch size.

    Raises
    ------
    PlacementError
        If it does not take inputs or batches of these sizes, but took others before.
    """
    arguments = before.arguments
    tensors = [
        torch.empty(
            (form.batch_size, *size) if is_batch else (*tensor.shape[:1], *size),
            dtype=dtype if tensor.is_floating_point() else tensor.dtype,
            device="meta",
        )
        for tensor, size, is_batch in zip(
            arguments.tensors, form.sizes, arguments.batches, strict=True
        )
    ]

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    model._apply(converted)  # type: ignore[no-untyped-call]  # `to` would make complex ones real
    try:
        traced = trace_call(model, arguments.with_tensors(tensors), any_batch=form.batch_size > 1)
        return replace(traced, settings=form.settings)
    except TraceError as error:
        if form.sizes != before.form.sizes:
            received, accepted = f"inputs of {said_of(form.sizes)}", said_of(before.form.sizes)
        elif form.batch_size != before.batch_size:
            received, accepted = f"a batch of {form.batch_size}", str(before.batch_sizes)
        else:
            raise
        raise PlacementError(
            f"{received}: accepted are {accepted}, and others that the model takes: {error}"
        ) from error


def does_the_same(known: TracedModel, traced: TracedModel) -> bool:
    """Whether a model does in one trace, for the batch of another, the same as in that other."""
    batch_size = traced.batch_size
    if known.batch_sizes.fixed is not None:
        return False
    return _calls(known, batch_size) == _calls(traced, batch_size)


def _calls(traced: TracedModel, batch_size: int) -> list[object]:
    """Calls of a graph's operators with their arguments, for a batch; nodes are numbered."""
    numbers: dict[fx.Node, int] = {}
    calls: list[object] = []

    def given(value: object) -> object:
        if isinstance(value, fx.Node) and not holds_tensors(value):
            value = value.meta["val"]
        return (
            f"node {numbers[value]}" if isinstance(value, fx.Node) else at_batch(value, batch_size)
        )

    for node in traced.graph_module.graph.nodes:
        if holds_tensors(node) or node.op == "output":
            numbers[node] = len(numbers)
            called = node.name if node.op == "placeholder" else node.target
            arguments = pytree.tree_map(given, (list(node.args), dict(node.kwargs)))
            calls.append((called, *arguments))
    return calls


def programs_of(traced: TracedModel, base: Programs, held: Sequence[int]) -> Programs:
    """Programs for the form of a trace: each layer stays on the parts that have it in another form.

    Raises
    ------
    PlacementError
        If the model has other layers although only sizes of inputs differ.
    """
    first, graph = base.blueprint, channel_graph(traced)
    form, before = traced.form, first.traced.form
    own = form._replace(sizes=before.sizes, batch_size=before.batch_size)
    if own == before and form.sizes != before.sizes:
        check_same_layers(first.graph, graph, said_of(traced.form.sizes))
    facts, carried = NodeFacts(traced, graph), []
    for blueprint in base.blueprints:
        partition, work = carried_over(blueprint.partition, blueprint.work, blueprint.graph, graph)
        carried.append((blueprint.share, partition))
    blueprints = share_blueprints(facts, carried, work, first.trainable, first.norms)
    owners = None
    if blueprints[0].has_tiles:
        owners, _ = carried_over(base.owners.partition, first.work, first.graph, graph)
    return build_programs(blueprints, owners_blueprint(blueprints, owners), held, base.dtype)


def carried_over(
    partition: Partition, work: Work, graph: ChannelGraph, other: ChannelGraph
) -> tuple[Partition, Work]:
    """Give each layer of another graph of the same model to the parts that have it in this one.

    Layers are identified by name. A layer that only the other graph has follows the first layer
    that it reads: task by task if that has as many tasks, else whole. If its parameters are not
    used in this graph, it goes whole to part 0, which holds what is not used here. Its work is not
    known and counts as none.
    """
    views = partition.modelling.views(other)
    index = {layer.name: at for at, layer in enumerate(graph.layers)}
    used = {name for layer in graph.layers for name in layer.parameter_names}
    divided: list[_LayerParts] = []
    per_task = np.zeros(len(other.layers), dtype=np.int64)
    for at, view in enumerate(views):
        layer = view.layer
        known = index.get(layer.name)
        is_sized = (
            known is not None and view.total is None and _is_resized(graph.layers[known], layer)
        )
        if known is not None and not is_sized and not _alike(graph.layers[known], layer):
            known = None
        if known is not None and (partition.model.views[known].total is None) != (
            view.total is None
        ):
            raise PlacementError(
                f"{layer.name} sums all rows for inputs of some sizes and not for those of others: "
                "accepted are inputs as the plan was made for, or a plan without bands"
            )
        if known is not None:
            per_task[at] = work.per_task[known]
        if not view.is_first:
            divided.append(replace(divided[view.first], parts=np.zeros((1, 0), np.int32)))
        elif known is not None:
            as_it_is = _as_it_is(partition, known)
            divided.append(as_it_is.resized(layer.tasks) if is_sized else as_it_is)
        else:
            idle = bool(layer.parameter_names) and used.isdisjoint(layer.parameter_names)
            sources = () if idle else other.sources(layer)
            divided.append(_with_source(sources, other, view, divided))
    carried = Work(per_task, work.unit, work.units, work.source)
    blocks = Blocks(
        tuple(own.rows for own in divided),
        tuple(own.columns for own in divided),
    )
    problem = replace(partition.problem, graph=other, work=carried)
    of_bands = [
        layer_parts.of_band(band, len(view.row_cuts) - 1)
        for band in range(partition.modelling.bands)
        for view, layer_parts in zip(views, divided, strict=True)
        if band < view.bands
    ]
    new_partition = evaluated(
        problem,
        problem.hypergraph(blocks),
        np.concatenate(of_bands),
        seed=partition.seed,
        backend=partition.backend,
        start=partition.start,
        bound=0,
    )
    return new_partition, carried


def check_same_layers(graph: ChannelGraph, other: ChannelGraph, sizes: str) -> None:
    """Raise a PlacementError unless a model has the same layers, except for sizes of maps.

    A layer without parameters may have a task for each place of a map, such as a token.
    """
    sized = {
        at
        for at, (known, layer) in enumerate(zip(graph.layers, other.layers, strict=False))
        if known.channels != layer.channels and not known.parameter_names
    }
    for at, (known, layer) in enumerate(zip_longest(graph.layers, other.layers)):
        if known is None or layer is None or _facts(graph, at, sized) != _facts(other, at, sized):
            name = (layer or known).name
            raise PlacementError(
                f"inputs of {sizes}, with which layer {name} differs from the placed one: "
                "accepted are sizes for which it has the same layers, channels and parameters"
            )


def _facts(graph: ChannelGraph, at: int, sized: Set[int]) -> object:
    """Facts about a layer that do not depend on the sizes of maps, nor on the tasks of `sized`."""
    layer = graph.layers[at]
    own = [(parameter.name, parameter.elements) for parameter in layer.own_parameters]
    parameters = own, layer.weights, layer.parameter_names
    counts = None if at in sized else (layer.tasks, layer.channels)
    reads = [_read_facts(graph, read, at in sized, sized) for read in layer.reads]
    return layer.name, layer.kind, counts, layer.tied_to, parameters, reads


def _read_facts(graph: ChannelGraph, read: Read, is_sized: bool, sized: Set[int]) -> object:
    sources = graph.layer_of_channel(read.channels)
    places = read.channels - graph.first_channel[sources]
    places = np.where(np.isin(sources, [*sized]), 0, places)
    channels = list(zip(sources.tolist(), places.tolist(), strict=True))
    if is_sized or sized & {*sources.tolist()}:
        return [*dict.fromkeys(channels)], read.kind
    return channels, read.groups, read.partial


@dataclass(frozen=True)
class _LayerParts:
    """Blocks of a layer's tasks and channels, and parts of its vertices.

    Attributes
    ----------
    finish : int32 array, shape (bands, rows)
        The part that finishes each row's tasks.
    parts : int32 array, shape (bands, vertices)
        The part of each vertex.
    """

    rows: Int64
    columns: Int64
    finish: Int32
    parts: Int32

    def resized(self, tasks: int) -> _LayerParts:
        """The same shares of a layer with another number of tasks, each of them a vertex."""
        ends = np.round(self.rows[1:] * (tasks / self.rows[-1])).astype(np.int64)
        kept = np.diff(ends, prepend=0) > 0
        rows, finish = np.array([0, *ends[kept]]), self.finish[:, kept]
        return _LayerParts(rows, self.columns, finish, finish)

    def of_band(self, band: int, finished: int) -> Int32:
        """The part of each vertex of a band, without those that finish tasks from `finished` on."""
        own: Int32 = self.parts[min(band, len(self.parts) - 1)]
        return own if band < finished else own[: len(own) - self.finish.shape[1]]


def _alike(first: Layer, second: Layer) -> bool:
    def split(layer: Layer) -> list[tuple[int, int]]:
        return [(len(read.channels), read.groups) for read in layer.reads if read.partial]

    return (first.kind, first.tasks, split(first)) == (second.kind, second.tasks, split(second))


def _is_resized(first: Layer, second: Layer) -> bool:
    """Whether layers have a task for each place of a map, of one size and of another."""
    several = first.tasks > 1 and second.tasks > 1 and first.tasks != second.tasks
    parameters = first.parameter_names or second.parameter_names
    return several and not parameters and first.kind == second.kind


def _as_it_is(partition: Partition, at: int) -> _LayerParts:
    model = partition.model
    rows, columns, layout = model.blocks.rows[at], model.blocks.columns[at], model.layouts[at]
    if layout is None:  # it has no vertices
        nothing = np.zeros((1, 0), np.int32)
        return _LayerParts(rows, columns, nothing, nothing)
    end = layout.finish + len(rows) - 1
    in_bands = model.in_bands[: model.views[at].bands]
    in_bands = np.where(in_bands >= 0, in_bands, in_bands[:1])  # of what adds up sums over rows
    return _LayerParts(
        rows,
        columns,
        partition.parts[in_bands[:, layout.finish : end]],
        partition.parts[in_bands[:, layout.row_starts[0] : end]],
    )


def _with_source(
    sources: Iterable[int], graph: ChannelGraph, view: LayerVertices, divided: list[_LayerParts]
) -> _LayerParts:
    tasks = view.layer.tasks
    rows, finish = np.array([0, tasks]), np.zeros((1, 1), dtype=np.int32)
    for source in sources:
        of_source = divided[source]
        if of_source.finish.size:
            finish = of_source.finish[:, :1]
            if graph.layers[source].tasks == tasks and not view.is_solid:
                rows, finish = of_source.rows, of_source.finish
            break
    columns = np.array([0, view.columns])
    # All cells of a row are on the part that finishes it.
    parts = np.concatenate([finish, finish], axis=1) if view.has_cells else finish
    return _LayerParts(rows, columns, finish, parts)
