"""Memory of parts: what they hold by its definition, and limits as they are written."""

from __future__ import annotations

import math

import numpy as np
import pytest
from partitioned_models import MODELS, chain, graph_of

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import partition_graph
from hgpart.partition.problem.memory import (
    MemoryLimits,
    memory_limits,
    number_of_bytes,
    part_memory,
)
from hgpart.partition.problem.objectives import LARGEST
from hgpart.work.figures import flops


@pytest.mark.parametrize("name", MODELS)
def test_coarse_grain_memory_by_its_definition(name: str) -> None:
    graph, modelling = graph_of(name), Modelling(batch_size=3)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    parts = np.random.default_rng(1).integers(0, 3, model.hypergraph.vertices).astype(np.int32)
    received = evaluate(model.hypergraph, parts, 3).received
    expected = [float(sent) for sent in received]
    for layer, layout in zip(graph.layers, model.layouts, strict=True):
        if layout is None:
            continue
        vertices = len(layout.row_columns)
        for at in range(vertices):
            part = int(parts[layout.finish + at])
            tasks = layer.tasks / vertices
            in_bytes = sum(one.elements * one.element_bytes for one in layer.own_parameters)
            expected[part] += tasks * in_bytes / layer.tasks * 2.5
            expected[part] += tasks * graph.map_bytes(layer, 3, None)
    found = part_memory(model, parts, 3, 2.5)
    slack = sum(layer.bytes_per_element * 2.5 for layer in graph.layers)  # uneven shares, rounded
    assert found == pytest.approx(expected, abs=slack)


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_a_partition_keeps_its_limits(grain: str) -> None:
    graph, modelling = graph_of("residual"), Modelling(grain=grain)
    options = {"modelling": modelling, "backend": "native", "effort": 0.05}
    free = partition_graph(graph, flops(graph), 3, 0.3, **options)
    needed = part_memory(free.model, free.parts, 3, 4)
    limits = MemoryLimits((int(needed.max() - 1),) * 3)
    found = partition_graph(graph, flops(graph), 3, 0.3, memory=limits, **options)
    assert found.feasible
    assert found.memory_bytes.tolist() == (part_memory(found.model, found.parts, 3, 4).tolist())
    assert found.memory_bytes.max() <= limits.bytes[0]
    assert found.evaluation.imbalance <= 0.3


@pytest.mark.full
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_batches_in_flight_have_maps_and_weights_of_their_own(grain: str) -> None:
    graph, modelling = graph_of("residual"), Modelling(grain=grain)
    options = {"modelling": modelling, "backend": "native", "effort": 0.05}
    free = partition_graph(graph, flops(graph), 3, 0.3, **options)
    one, kept = (part_memory(free.model, free.parts, 3, copies) for copies in (2, 0))
    weights = (one - kept) // 2
    needed = part_memory(free.model, free.parts, 3, 2, in_flight=4)
    assert needed.tolist() == (8 * weights + 4 * kept).tolist()
    limits = MemoryLimits((int(needed.max() - 1),) * 3, 2, in_flight=4)
    found = partition_graph(graph, flops(graph), 3, 0.3, memory=limits, **options)
    assert found.memory_bytes.tolist() == limits.needed(found.model, found.parts).tolist()
    assert found.memory_bytes.max() <= limits.bytes[0]
    with pytest.raises(
        InfeasibleError, match="1 more version of them with gradients, and the maps of 2"
    ):
        tight = MemoryLimits((10,) * 3, 1, in_flight=2)
        partition_graph(graph, flops(graph), 3, 0.3, memory=tight, **options)
    with pytest.raises(ArgumentError, match="batches in flight 0: accepted is 1 to 1000"):
        MemoryLimits((10,), in_flight=0)


def test_a_limit_that_does_not_matter_does_not_matter() -> None:
    """Balance that only single tasks can bring was not looked for where memory was limited."""
    graph, work = chain([8, 5, 5, 5], [416, 110, 45, 25], [3, 2, 1, 1])
    options = {"backend": "native", "effort": 0.1}
    free = partition_graph(graph, work, 4, 0.01, **options)
    found = partition_graph(graph, work, 4, 0.01, memory=MemoryLimits((2**40,) * 4), **options)
    assert free.feasible
    assert found.feasible


def test_what_does_not_fit_is_said() -> None:
    graph = graph_of("residual")
    options = {"backend": "native", "effort": 0.01}
    with pytest.raises(InfeasibleError, match=r"memory limits .* needs [\d.]+ kB of 10 B, and all"):
        partition_graph(graph, flops(graph), 2, 0.3, memory=MemoryLimits((10, 10)), **options)


def test_only_native_keeps_limits_and_has_objectives() -> None:
    graph = graph_of("residual")
    with pytest.raises(ArgumentError, match="backend 'kahypar' takes no memory limit: native does"):
        partition_graph(graph, flops(graph), 2, 0.3, backend="kahypar", memory=MemoryLimits((9, 9)))
    with pytest.raises(ArgumentError, match="takes no objective 'largest': native does"):
        partition_graph(graph, flops(graph), 2, 0.3, backend="kahypar", objective=LARGEST)
    with pytest.raises(ArgumentError, match="3 memory limits for k=2"):
        partition_graph(
            graph, flops(graph), 2, 0.3, backend="native", memory=MemoryLimits((9, 9, 9))
        )


def test_limits_as_they_are_written() -> None:
    assert memory_limits(["1kB", "2KiB"], 2, 3).bytes == (1000, 2048)
    assert memory_limits(["1.5 GiB"], 3).bytes == (3 * 2**29,) * 3
    with pytest.raises(ArgumentError, match="2 memory limits for k=3"):
        memory_limits(["1", "2"], 3)


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 gb", "1e9", "nan"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="accepted is a number with a unit of B, kB"):
        number_of_bytes(text)


@pytest.mark.parametrize("copies", [-1, math.inf, math.nan])
def test_copies_that_are_none_are_refused(copies: float) -> None:
    with pytest.raises(ArgumentError, match="copies of parameters"):
        MemoryLimits((1,), copies)
