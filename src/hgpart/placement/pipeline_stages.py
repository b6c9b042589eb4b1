"""Placement -> modules of tensors: its parts as stages of torch's pipelines."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import compress
from typing import Any

from torch import Tensor, fx

from hgpart.errors import PlacementError
from hgpart.execution.program import Transfer, receive, send
from hgpart.placement.placement import Placement
from hgpart.tracing.forms import said_of

BATCH_SIZE = "batch_size"  # an operand of programs


def to_pipeline_stages(placement: Placement) -> list[fx.GraphModule]:
    """The parts as stages, for `torch.distributed.pipelining.PipelineStage`.

    A stage takes what the one before it returns; the first takes the model's inputs, and the last
    returns the model's results. A stage hands on tensors for later stages. Parameters and buffers
    are the placement's own in its present mode, and inputs of its present sizes. The k stages are
    in the order in which parts follow each other, which may differ from their numbers. A
    `PipelineStage` without `input_args` and `output_args` runs its module once on zeros to find
    shapes, and running statistics of norms see these, as with any module.

    Raises
    ------
    PlacementError
        If parts send to each other in both directions, as in partitions inside layers: such parts
        are not stages, but `Placement.step` runs them. If the result is not on the last stage, or
        if the model mixes samples or changes a buffer that it reads. If this process does not hold
        all parts, the plan is over slices or bands, random masks are drawn, or norms are updated
        per batch.

    >>> import hgpart, torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3))
    >>> images = torch.randn(2, 3, 8, 8)
    >>> placed = hgpart.place(model, k=2, example=images)
    >>> values = images
    >>> for stage in hgpart.to_pipeline_stages(placed):
    ...     values = stage(values)
    >>> torch.allclose(values, model(images), atol=1e-6)
    True
    """
    if placement.programs.has_copies:
        raise PlacementError(
            "the plan is over slices or bands: accepted are plans without, in which no part has "
            "copies of another's weights"
        )
    if placement.programs.norms == "batch":
        raise PlacementError("norms of the batch: accepted are norms of each micro-batch")
    placement.programs.check_micro_batches(2)
    follow: dict[int, set[int]] = {part: set() for part in range(placement.k)}
    for transfer in placement.programs.transfers:
        follow[transfer.receiver].add(transfer.sender)
    readers = [part for part in placement.programs.parts if placement.programs.shares_read(part)]
    try:
        order = [*TopologicalSorter(follow).static_order()]
    except CycleError as error:
        between = " and ".join(map(str, sorted(set(error.args[1]))))
        raise PlacementError(
            f"parts {between} send to each other both ways, so they are not stages: accepted are "
            "plans of cuts between layers, as of hgpart partition --way layerwise"
        ) from None
    # Parts without work come in between; the sort keeps the order of the rest.
    order.sort(key=lambda part: (part not in readers, part == placement.programs.output_part))
    at = {part: stage for stage, part in enumerate(order)}
    crossing = [
        [
            transfer
            for transfer in placement.programs.transfers
            if at[transfer.sender] < stage <= at[transfer.receiver]
        ]
        for stage in range(placement.k + 1)
    ]
    backward = [
        transfer
        for transfer in placement.programs.transfers
        if at[transfer.sender] >= at[transfer.receiver]
    ]
    if order[-1] != placement.programs.output_part or readers[1:] or backward:
        raise PlacementError(
            f"parts {', '.join(map(str, readers))} read inputs, "
            f"part {placement.programs.output_part} has the result: accepted are plans whose first "
            "stage alone reads, and whose last has it"
        )
    return [
        _function(placement, part, crossing[stage], crossing[stage + 1])
        for stage, part in enumerate(order)
    ]


def _function(
    placement: Placement,
    part: int,
    arriving: Sequence[Transfer],
    leaving: Sequence[Transfer],
) -> fx.GraphModule:
    """A part's program with arguments instead of `receive`, and results instead of `send`."""
    module = placement.programs.submodule(part)
    operands = [node.target for node in module.graph.find_nodes(op="placeholder")]
    drawn = [name for name in operands if name not in (*placement.programs.inputs, BATCH_SIZE)]
    if drawn:
        raise PlacementError(
            f"part {part} takes random masks ({drawn[0]}): accepted is evaluation, in which none "
            "are drawn"
        )
    graph = fx.Graph()
    inputs = {
        name: graph.placeholder(name) for name in placement.programs.inputs if name in operands
    }
    batches = [
        inputs[name]
        for name in compress(placement.programs.inputs, placement.programs.arguments.batches)
        if name in inputs
    ]
    travelling: dict[int, list[fx.Node]] = {
        transfer.number: [
            graph.placeholder(f"transfer_{transfer.number}_{at}")
            for at in range(len(transfer.tensors))
        ]
        for transfer in arriving
    }
    for name, size in zip(placement.programs.inputs, placement.forms.present.sizes, strict=True):
        if name in inputs:
            graph.call_function(check_size, (inputs[name], name, size))
    accepted = placement.programs.blueprint.traced.batch_sizes
    if not accepted.are_all:
        samples = _batch_size(graph, batches, arriving, travelling)
        graph.call_function(accepted.check, (samples,))
    values: dict[fx.Node, Any] = {}
    results: list[fx.Node] = []
    for node in module.graph.nodes:
        called: Any = node.target
        if node.op == "placeholder":
            values[node] = inputs.get(called) or _batch_size(graph, batches, arriving, travelling)
        elif called is receive:
            arrived = travelling[node.args[0]]
            values[node] = arrived if len(arrived) > 1 else arrived[0]
        elif called is operator.getitem and isinstance(values[node.args[0]], list):
            values[node] = values[node.args[0]][node.args[1]]
        elif called is send:
            number, *sent = node.args
            travelling[number] = [values[node] for node in sent]
        elif node.op == "output":
            results = [values[result] for result in node.args[0]]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    departing = [tensor_node for transfer in leaving for tensor_node in travelling[transfer.number]]
    returned: fx.Node | tuple[fx.Node, ...]
    if not leaving and results:
        returned = graph.call_function(placement.programs.build_results, (tuple(results),))
    elif len(departing) == 1:
        returned = departing[0]
    else:
        returned = (*departing, *results)
    graph.output(returned)
    return fx.GraphModule(module, graph, class_name=f"Part{part}")


def check_size(tensor: Tensor, name: str, size: Sequence[int]) -> None:
    """Raise a PlacementError if an input has another size than the part's graph is for."""
    received, accepted = tuple(tensor.shape[1:]), tuple(size)
    if received != accepted:
        raise PlacementError(
            f"{name} of {said_of([received])} for a stage: accepted is "
            f"{said_of([accepted])}, or stages that were made after Placement.for_inputs"
        )


def _batch_size(
    graph: fx.Graph,
    batches: Sequence[fx.Node],
    arriving: Sequence[Transfer],
    travelling: dict[int, list[fx.Node]],
) -> fx.Node:
    """The number of samples, by the first tensor whose first dimension is the batch."""
    for node in batches:
        return graph.call_method("size", (node, 0))
    for transfer in arriving:
        pairs = zip(transfer.tensors, travelling[transfer.number], strict=True)
        for tensor, node in pairs:
            if (tensor.per_sample[:1], tensor.fixed[:1]) == ((1,), (0,)):
                return graph.call_method("size", (node, 0))
    raise PlacementError("no tensor that arrives has a dimension for samples: at least one must")
