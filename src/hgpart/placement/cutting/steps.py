"""One layer's share in one part -> Step: its GraphModule, and the slices that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution.batch_norms import normalised, statistics_of
from hgpart.layers.channel_graph import STATISTICS, Read
from hgpart.operators.composites.channel_norms import combined_channels
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.cut_graph import CutGraph, CutValue
from hgpart.placement.cutting.layouts import apart, merge, spread
from hgpart.placement.cutting.products import (
    Rectangle,
    add_bias,
    in_order,
    partial_sums,
    product_of,
)
from hgpart.placement.cutting.same_index import partial_statistics, sum_of_rows
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.cutting.step_graph import Box, StepGraph
from hgpart.tracing.traced_nodes import first_result

aten = torch.ops.aten


class PartialSum(NamedTuple):
    """A partial sum of some tasks, or a statistic of some of their channels.

    Attributes
    ----------
    name : str
        Its placeholder.
    tasks : int64 array
        Tasks, ascending.
    counts : int64 array or None
        The number of features of each task, where what is summed is a statistic of these.
    """

    name: str
    tasks: Int64
    counts: Int64 | None

    @property
    def key(self) -> bytes:
        """What is equal for sums of as many channels of the same tasks."""
        return self.tasks.tobytes() + (b"" if self.counts is None else self.counts.tobytes())


@dataclass(frozen=True, eq=False)
class Step:
    """One layer's share in one part.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Module that is called with `operands` and returns `outputs`, as a tuple if there are
        several.
    operands : tuple of str
        Names of its placeholders: pieces of maps, random masks, the batch size.
    outputs : int
        Number of tensors that it returns.
    slices : mapping of str to Slice
        Slices of parameters and buffers by attribute of the module, on the meta device until they
        are loaded.
    """

    module: fx.GraphModule
    operands: tuple[str, ...]
    outputs: int
    slices: Mapping[str, Slice]


def finishing_step(
    step: CutGraph,
    results: Sequence[fx.Node],
    updates: Mapping[fx.Node, fx.Node],
    sums: Sequence[PartialSum] | None = None,
) -> Step:
    """Make the step that computes the maps of its tasks.

    Parameters
    ----------
    step : CutGraph
        A new step.
    results : sequence of fx.Node
        Tensors that the layer makes for others.
    updates : mapping of fx.Node to fx.Node
        Buffers that the step changes, and their new values.
    sums : sequence of PartialSum, optional
        If tasks are split, their partial sums.
    """
    if sums is not None:
        begin_with_sums(step, sums)
    outputs = step.returned(own_results(step, results), results)
    new_values = [(buffer, step.value(new)) for buffer, new in updates.items()]
    for buffer, value in new_values:
        if step.facts.parameters_of(updates[buffer]):  # a buffer has no gradient
            value = step.call(aten.detach.default, value)
        step.call(aten.copy_.default, step.whole(buffer), value)
    return finished_step(step, outputs)


def own_results(step: CutGraph, results: Sequence[fx.Node]) -> list[fx.Node]:
    """What a step computes of the tensors that its layer makes for others."""
    if step.layer.operators and not results:  # only the statistics of a norm are used
        step.own(first_result(_operator(step, -1)))
    return [_own_result(step, node) for node in results]


def partial_step(step: CutGraph, read: Read, rectangles: Sequence[Rectangle]) -> Step:
    """Make the step that computes what a part's cells add to their tasks, in order of tasks."""
    head = _operator(step, 0)
    if read.is_statistic:
        sums = partial_statistics(step, head, read, rectangles)
    else:
        product = product_of(step, head)
        assert product is not None
        sums = partial_sums(step, head, product, read, rectangles)
    return finished_step(step, step.returned([sums], [head]))


def sums_of_rows_step(step: CutGraph, rectangles: Sequence[Rectangle]) -> Step:
    """Make the step that computes partial sums of a part's rows, in order of tasks."""
    node, axis = summing_of(step)
    sums = []
    for rectangle in rectangles:
        rows = rectangle.positions
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        terms = [sum_of_rows(step, node, axis, rectangle.tasks, run) for run in runs]
        total = terms[0]
        for term in terms[1:]:
            total = step.call(aten.add.Tensor, total, term)
        sums.append(total)
    result = in_order(step, sums, [rectangle.tasks for rectangle in rectangles], axis)
    return finished_step(step, step.returned([result], [node]))


def summing_of(step: StepGraph) -> tuple[fx.Node, int]:
    """The operator whose partial sums are added up, and the dimension of its tasks."""
    head = _operator(step, 0)
    if step.layer.kind == STATISTICS:
        return head, next(iter(step.facts.varying(head)), 0)
    if step.layer.parameter_names and (product := product_of(step, head)) is not None:
        return head, product.axis
    total = step.graph.layer_rows[step.at].total
    assert total is not None
    node = _operator(step, step.layer.operators.index(total.operator))
    return node, next(iter(step.facts.varying(node)), 0)


def statistics_step(
    step: CutGraph,
    operand: fx.Node,
    box: Box,
    counted: Mapping[int, Int64],
    sums: Sequence[PartialSum] | None = None,
) -> tuple[Step, str | None]:
    """Make the step that computes a norm's operand and its statistics, for some tasks and rows.

    Parameters
    ----------
    box : mapping of int to int64 array
        Box of the operand that is computed.
    counted : mapping of int to int64 array
        The rows within it that the statistics are of, if not of all of it.

    Returns
    -------
    Step and str or None
        The str is the placeholder of the operand, if the operand need not be computed: then the
        step computes only statistics.
    """
    if sums is not None:
        begin_with_sums(step, sums)
    result = own = step.value(operand, box)
    for dim, rows in counted.items():
        own = step.take(result, dim, rows - box[dim][0], len(box[dim]))
    statistics = step.call(statistics_of, own)
    if result.op == "placeholder":
        return finished_step(step, [statistics]), str(result.target)
    return finished_step(step, [statistics, result]), None


def _operator(step: StepGraph, at: int) -> fx.Node:
    nodes: Sequence[fx.Node] = list(step.traced.graph_module.graph.nodes)
    return next(node for node in nodes if node.name == step.layer.operators[at])


def begin_with_sums(step: CutGraph, sums: Sequence[PartialSum]) -> None:
    """Add up partial sums and the bias, or put statistics together."""
    node, axis = summing_of(step)
    if step.layer.kind == STATISTICS:
        total, positions = _combined(step, axis, sums), step.tasks
    else:
        total, positions = _added_up(step, node, axis, sums)
    single = step.layer.tasks == 1
    step.cuts[node, None] = CutValue(total) if single else CutValue(total, axis, positions)


def _combined(step: CutGraph, axis: int, sums: Sequence[PartialSum]) -> fx.Node:
    """Statistics of all channels of the step's tasks."""
    terms, counts = list[fx.Node](), np.zeros((len(sums), len(step.tasks)), dtype=np.int64)
    for (name, tasks, own_counts), of_tasks in zip(sums, counts, strict=True):
        places, term = np.searchsorted(step.tasks, tasks), step.placeholder(name)
        assert own_counts is not None  # these are of statistics
        of_tasks[places] = own_counts
        if len(tasks) < len(step.tasks):
            term = step.call(spread, term, axis, step.index(places), len(step.tasks))
        terms.append(term)
    if len(terms) == 1:
        return terms[0]
    numbers = step.index(counts.ravel())
    return step.call(combined_channels, terms, numbers, axis, len(step.tasks))


def _added_up(
    step: CutGraph, node: fx.Node, axis: int, sums: Sequence[PartialSum]
) -> tuple[fx.Node, Int64]:
    """The sum and a product's bias, and the places of its tasks along `axis`."""
    total: fx.Node | None = None
    for name, tasks, _ in sums:
        term = step.placeholder(name)
        if len(tasks) < len(step.tasks):
            index = step.index(np.searchsorted(step.tasks, tasks))
            if total is None:
                total = step.call(spread, term, axis, index, len(step.tasks))
            else:
                total = step.call(aten.index_add.default, total, axis, index, term)
        else:
            total = term if total is None else step.call(aten.add.Tensor, total, term)
    assert total is not None
    product, positions = product_of(step, node), step.tasks
    if product is None:
        positions = step.facts.layout(step.at, node).positions(step.tasks)
    else:
        total = add_bias(step, node, product, total)
    return total, positions


def _own_result(step: CutGraph, node: fx.Node) -> fx.Node:
    if node.op == "placeholder" or not step.is_own(node):
        return step.value(node)
    layout, rows = step.facts.layout(step.at, node), step.own_rows
    if not layout.axes:
        return step.value(node, rows)
    positions = layout.positions(step.tasks)
    if layout.axis is not None:
        return step.value(node, {layout.axis: positions, **rows})
    whole = step.value(node, rows)
    if layout.merged:
        whole = step.call(apart, whole, dict(layout.merged))
    whole = step.call(merge, whole, list(layout.axes))
    return step.take(whole, layout.axes[0], positions, len(layout.channels))


def _activate_in_place(graph: fx.Graph) -> None:
    """Save the memory of a map that only an activation reads, like models do."""
    for node in graph.nodes:
        if in_place := operator_of(node).in_place:
            operand = node.all_input_nodes[0]
            frees = operator_of(operand).frees_result or operand.target is normalised
            if frees and len(operand.users) == 1:
                node.target = in_place


def _join_at_once(graph: fx.Graph) -> None:
    """Join all tensors at once where joins follow each other, as in a dense block."""
    for node in graph.nodes:
        if operator_of(node).cut == "join":
            tensors: list[fx.Node] = []
            inner = []
            for tensor in node.args[0]:
                alike = tensor.target is node.target and tensor.args[1:] == node.args[1:]
                if alike and tensor.kwargs == node.kwargs and len(tensor.users) == 1:
                    tensors += tensor.args[0]
                    inner.append(tensor)
                else:
                    tensors.append(tensor)
            node.args = (tensors, *node.args[1:])
            for join in dict.fromkeys(inner):
                graph.erase_node(join)


def finished_step(step: CutGraph, outputs: Sequence[fx.Node]) -> Step:
    """The finished step, with its outputs."""
    step.fx_graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
    _join_at_once(step.fx_graph)
    _activate_in_place(step.fx_graph)
    module = fx.GraphModule(step.root, step.fx_graph, class_name=f"Step{step.at}")
    return Step(module, tuple(step.placeholders), len(outputs), dict(step.slices))
