"""What a step would take about: nothing is counted that does not travel, or can't be placed."""

from __future__ import annotations

import numpy as np
import pytest
from builtin_graphs import full_size_graph

from hgpart.compare.step_seconds import step_seconds
from hgpart.hypergraph.modelling import Modelling
from hgpart.work.figures import flops

NONE = np.zeros((2, 2), dtype=np.int64)


def test_forward_passes_have_no_gradients_to_send() -> None:
    """It counted each byte twice, there and back."""
    bytes_ = np.array([[0, 10**6], [10**5, 0]], dtype=np.int64)
    graph = full_size_graph("lenet5")
    nothing = np.zeros((len(graph.layers), 2), dtype=np.int64)
    training, inference = (
        step_seconds(graph, flops(graph), Modelling(training=one), bytes_, nothing)
        for one in (True, False)
    )
    assert training is not None and inference is not None
    assert inference.seconds == pytest.approx(training.seconds / 2)


@pytest.mark.parametrize(("slices", "most"), [(1, 8), (8, 4), (16, 2), (32, 1)])
def test_each_micro_batch_has_samples_of_all_slices(slices: int, most: int) -> None:
    """It was in as many as the batch without slices can have, which are refused."""
    graph = full_size_graph("lenet5")
    in_turn = np.zeros((len(graph.layers), 2), dtype=np.int64)
    in_turn[np.arange(len(in_turn)), np.arange(len(in_turn)) % 2] = 1  # the more, the faster
    found = step_seconds(graph, flops(graph), Modelling(slices=slices), NONE, in_turn)
    assert found is not None
    assert found.micro_batches == most
