"""A placed model beside the original: outputs, gradients, state, coverage, bytes on the wire."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import partitioned_models as models
import torch
from torch import nn

from hgpart import Placement, place
from hgpart.arrays import Int32
from hgpart.execution.held_memory import memory_counted
from hgpart.hypergraph.blocks import Blocks, full_vertices
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate, traffic
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.operators.calls import has_gradients
from hgpart.partition import Partition
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.accounting import peak_bytes
from hgpart.run.measuring import mean_square
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.arguments import Inputs, as_called
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.figures import flops

CLOSE = 1e-10  # largest difference in float64, relative


def partitioned(
    traced: TracedModel,
    graph: ChannelGraph,
    modelling: Modelling,
    k: int,
    model: CnnHypergraph,
    parts: Int32,
) -> PartitionedModel:
    """A partition that no partitioner made."""
    evaluation = evaluate(model.hypergraph, parts, k)
    partition = Partition(
        problem=Problem(graph, flops(graph), modelling, k, 0.1),
        model=model,
        parts=parts,
        seed=0,
        backend="test",
        start="test",
        evaluation=evaluation,
        feasible=False,
        lower_bound=0,
    )
    return PartitionedModel(traced, partition, evaluation, {})


def of_single_tasks(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    """Every task, and fine-grain every channel of every task, in a part at random."""
    count = full_vertices(modelling.views(graph))
    parts = np.random.default_rng(seed).integers(0, k, count * modelling.slices).astype(np.int32)
    model, parts = blocks_of_parts(graph, flops(graph), modelling, parts)
    return partitioned(traced, graph, modelling, k, model, parts)


def of_random_blocks(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    """Up to four blocks of rows, and of columns, a layer, each in a part at random."""
    rng = np.random.default_rng(seed)
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    for at, layer in enumerate(graph.layers):
        read = modelling.split_read(layer)
        if layer.tied_to != at:
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        whole = modelling.is_solid(layer)
        rows.append(np.array([0, layer.tasks]) if whole else _cuts(rng, layer.tasks))
        columns.append(np.array([0, 1]) if read is None else _cuts(rng, len(read.channels)))
    blocks = Blocks(tuple(rows), tuple(columns))
    model = cnn_hypergraph(graph, flops(graph), blocks, modelling)
    parts = rng.integers(0, k, model.hypergraph.vertices).astype(np.int32)
    return partitioned(traced, graph, modelling, k, model, parts)


def of_shared_layers(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    """Random blocks, for which the slices of each layer have one of two ways to lie."""
    drawn = of_random_blocks(traced, graph, modelling, k, seed).partition
    ways = drawn.parts.reshape(modelling.slices, -1)
    layers = drawn.model.vertex_layers[: ways.shape[1]]
    rng, parts = np.random.default_rng(seed), ways.copy()
    for at in np.unique(layers):
        parts[:, layers == at] = ways[rng.integers(0, 2, modelling.slices)][:, layers == at]
    return partitioned(traced, graph, modelling, k, drawn.model, parts.ravel())


def of_whole_tiles(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int
) -> PartitionedModel:
    """All tasks of a layer in a slice and a band together, in a part at random."""
    blocks = Blocks(
        tuple(np.array([0, layer.tasks]) for layer in graph.layers),
        tuple(np.array([0, 1]) for _ in graph.layers),
    )
    model = cnn_hypergraph(graph, flops(graph), blocks, modelling)
    parts = np.random.default_rng(seed).integers(0, k, model.vertices).astype(np.int32)
    return partitioned(traced, graph, modelling, k, model, parts)


def of_data_parallel(
    traced: TracedModel, graph: ChannelGraph, modelling: Modelling, k: int, seed: int = 0
) -> PartitionedModel:
    """The whole model on each part, for a run of slices."""
    model, parts = data_parallel(Problem(graph, flops(graph), modelling, k, 0.1))
    return partitioned(traced, graph, modelling, k, model, parts)


def check_peak_bytes(placement: Placement, inputs: Sequence[torch.Tensor], order: Schedule) -> None:
    """Assert that a step holds as much at most as is computed."""
    with memory_counted():
        placement.step(inputs, None, lambda result, _: mean_square(result), order)
    assert placement.runtime.last.peak_bytes == peak_bytes(placement, order, len(inputs[0]))


def _cuts(rng: np.random.Generator, count: int) -> np.ndarray:
    inner = rng.choice(np.arange(1, count), min(count - 1, int(rng.integers(0, 4))), replace=False)
    return np.concatenate([[0], np.sort(inner), [count]]).astype(np.int64)


def check_equal(
    model: nn.Module, inputs: Inputs, plan: PartitionedModel, seed: int = 0
) -> Placement:
    """Assert that the placed model is the model, and that its table is what happens."""
    placed = place(model, plan)
    check_as(copy.deepcopy(model), placed, inputs, seed)
    return placed


def check_as(original: nn.Module, placed: Placement, inputs: Inputs, seed: int = 0) -> None:
    """Assert the same of a model that is placed, of whose state the original has a copy."""
    args, kwargs = as_called(inputs)
    torch.manual_seed(seed)
    expected = tensors(original(*args, **kwargs))
    torch.manual_seed(seed)
    found = tensors(placed(*args, **kwargs))
    assert [one.requires_grad for one in found] == [one.requires_grad for one in expected]
    for wanted, one in zip(expected, found, strict=True):
        assert wanted.dtype == one.dtype
        assert has_gradients(wanted.dtype) or torch.equal(wanted, one)
    _check_close({str(n): one for n, one in enumerate(expected)}, enumerate(found))
    generator = torch.Generator().manual_seed(seed)
    chosen = [at for at, one in enumerate(expected) if one.requires_grad]
    gradients = [
        torch.randn(expected[at].shape, generator=generator, dtype=expected[at].dtype)
        for at in chosen
    ]
    for results in (expected, found):
        if chosen:
            torch.autograd.backward([results[at] for at in chosen], gradients)
    _check_gradients(original, placed)
    _check_close(
        {name: one for name, one in original.state_dict().items() if has_gradients(one.dtype)},
        placed.state_dict().items(),
    )
    _check_traffic(placed, len(placed.programs.tensors_of(inputs)[0]), learns=bool(chosen))


def tensors(results: object) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    assert isinstance(results, (tuple, list))
    return list(results)


def _check_close(expected: dict[str, torch.Tensor], found: object) -> None:
    """Close to each tensor's own size; what is zero up to rounding is measured by the others."""
    expected = {name: one for name, one in expected.items() if has_gradients(one.dtype)}
    largest = max(
        (float(one.detach().abs().max()) for one in expected.values() if one.numel()), default=1
    )
    for name, one in found:  # type: ignore[attr-defined]
        if (wanted := expected.get(str(name))) is not None and wanted.numel():
            size = max(float(wanted.detach().abs().max()), 1e-3 * largest, 1e-300)
            assert float((wanted - one).detach().abs().max()) <= CLOSE * size, name


def held(placed: Placement) -> Iterator[tuple[str, object, torch.Tensor]]:
    """The name, the slice and the tensor of all state that parts hold; each tensor once."""
    for part in range(placed.k):
        seen = set()
        for name, one in placed.programs.slices[part].items():
            owner, _, attribute = name.rpartition(".")
            tensor = getattr(placed.programs.submodule(part).get_submodule(owner), attribute)
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield one.name, one, tensor


def _check_gradients(original: nn.Module, placed: Placement) -> None:
    """Each element of each parameter is in one part, and its gradient is the original's."""
    parameters = dict(original.named_parameters())
    gradients = {
        name: torch.zeros_like(one) if one.grad is None else one.grad
        for name, one in parameters.items()
    }
    largest = max((float(one.abs().max()) for one in gradients.values()), default=1)
    counts = {name: torch.zeros(one.shape, dtype=torch.int8) for name, one in parameters.items()}
    for name, one, tensor in held(placed):
        if name not in parameters:
            continue
        mark = torch.zeros_like(counts[name])
        one.put(mark, torch.ones(tensor.shape, dtype=torch.int8))
        counts[name] += mark
        wanted = one.take(gradients[name])
        given = torch.zeros_like(wanted) if tensor.grad is None else tensor.grad
        size = max(float(gradients[name].abs().max()), 1e-3 * largest, 1e-300)
        if wanted.numel():
            assert float((wanted - given).abs().max()) <= CLOSE * size, name
    for name, count in counts.items():
        assert bool((count == 1).all()), f"{name}: not every element is held once"


def _check_traffic(placed: Placement, batch_size: int, learns: bool) -> None:
    """The bytes and messages that the runtime counted are the partition's."""
    table, counted = placed.programs.expected(batch_size), placed.runtime.last.traffic
    np.testing.assert_array_equal(counted.forward_bytes, table.traffic)
    np.testing.assert_array_equal(counted.forward_messages, table.messages)
    if learns:
        np.testing.assert_array_equal(counted.backward_bytes, _gradients(placed, batch_size).T)


def _gradients(placed: Placement, batch_size: int) -> np.ndarray:
    """Bytes of all nets but of inputs and of maps that are no floats, by who sends the map."""
    graph, partition = placed.programs.blueprint.graph, placed.programs.partition
    modelling = replace(partition.modelling, batch_size=batch_size)
    model = cnn_hypergraph(
        graph, placed.programs.work, partition.model.blocks, modelling
    ).hypergraph
    none = [
        at
        for at, (layer, nodes) in enumerate(
            zip(graph.layers, placed.programs.blueprint.results, strict=True)
        )
        if layer.kind == INPUT or not any(has_gradients(n.meta["val"].dtype) for n in nodes)
    ]
    costs = np.where(np.isin(model.net_layers, none), 0, model.costs)
    return traffic(replace(model, costs=costs), partition.parts, placed.k)


def traced_model(
    model: nn.Module, inputs: Sequence[torch.Tensor]
) -> tuple[TracedModel, ChannelGraph]:
    traced = trace(model, inputs)
    return traced, channel_graph(traced)


@cache
def small(name: str):
    model, examples = models.built(name)
    model = copy.deepcopy(model).double()
    torch.manual_seed(1)
    inputs = [torch.randn(3, *one.shape[1:], dtype=torch.float64) for one in examples]
    return model, inputs, *traced_model(model, inputs)
