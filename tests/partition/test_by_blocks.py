"""General partitioners take blocks of slices as they take blocks."""

from __future__ import annotations

import numpy as np
import pytest
from partitioned_models import graph_of

from hgpart.errors import ArgumentError
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import partition_graph
from hgpart.work.figures import flops


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("backend", ["kahypar", "mtkahypar"])
def test_slices_send_less_than_filters_alone(backend: str, grain: str) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    graph, k = graph_of("plain"), 2
    modelling = Modelling(grain=grain, batch_size=64)
    whole, found = (
        partition_graph(
            graph, flops(graph), k, 0.1, modelling=modelling, slices=slices, backend=backend
        )
        for slices in (1, 2)
    )
    assert found.feasible
    assert found.modelling.slices == 2
    hypergraph = found.model.hypergraph
    assert found.evaluation.volume == communication_volume(hypergraph, found.parts, k)
    loads = part_loads(hypergraph, found.parts, k)
    assert (loads == found.evaluation.loads).all()
    assert loads.max() <= 1.1 * loads.sum() / k
    assert found.evaluation.volume < whole.evaluation.volume


@pytest.mark.parametrize("slices", [2, "auto"])
def test_what_counts_tasks_takes_no_slices(slices: int) -> None:
    graph = graph_of("plain")
    with pytest.raises(ArgumentError, match="'exact' takes no slices of the batch: native"):
        partition_graph(graph, flops(graph), 2, 0.1, slices=slices, backend="exact")


def test_one_device_has_one_slice() -> None:
    """It had two, which send nothing either."""
    graph = graph_of("plain")
    found = partition_graph(graph, flops(graph), 1, 0.1, slices="auto", effort=0)
    assert found.modelling.slices == 1


def test_a_batch_of_one_has_one_slice() -> None:
    graph = graph_of("plain")
    one, found = (
        partition_graph(
            graph, flops(graph), 2, 0.1, modelling=Modelling(batch_size=1), slices=slices, effort=0
        )
        for slices in (1, "auto")
    )
    assert found.modelling == one.modelling
    assert np.array_equal(found.parts, one.parts)
