"""All stages in one call are the stages one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from partitioned_models import built

from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import partition_graph
from hgpart.partition.problem.objectives import WIDE, step_time
from hgpart.partitioned_model import evaluate_layerwise, partition_model
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work, flops

STAGES = ["trace", "graph", "work", "partition", "layer-wise"]


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_one_call_is_stage_by_stage(grain: str) -> None:
    model, example = built("residual")
    modelling = Modelling(grain=grain, batch_size=4)
    seen: list[str] = []
    result = partition_model(
        model,
        example,
        3,
        0.2,
        modelling=modelling,
        seed=3,
        speeds=[1, 1, 2],
        on_stage=seen.append,
        effort=0,
    )
    assert seen == STAGES
    assert list(result.seconds) == STAGES
    assert min(result.seconds.values()) >= 0

    graph = channel_graph(trace(model, example))
    work = flops(graph)
    found = partition_graph(
        graph, work, 3, 0.2, modelling=modelling, seed=3, speeds=[1, 1, 2], effort=0
    )
    compared = evaluate_layerwise(graph, work, modelling, 3, [1, 1, 2])
    assert result.graph.fingerprint == graph.fingerprint
    assert result.work.per_task.tolist() == work.per_task.tolist()
    assert result.traced.batch_size == 2
    assert result.partition.parts.tolist() == found.parts.tolist()
    assert result.partition.problem.speeds == found.problem.speeds
    assert result.partition.modelling == modelling
    assert result.partition.evaluation.volume == found.evaluation.volume
    assert result.layerwise.loads.tolist() == compared.loads.tolist()
    assert result.layerwise.volume == compared.volume
    assert result.layerwise.imbalance == compared.imbalance


def test_a_single_tensor_is_an_example() -> None:
    model, (image,) = built("plain")
    result = partition_model(model, image, 2, 0.1, effort=0)
    assert result.partition.modelling == Modelling()
    assert result.partition.feasible


def test_defaults_are_those_of_the_command() -> None:
    model, example = built("plain")
    left_out = partition_model(model, example, k=2).partition
    assert (left_out.problem.eps, left_out.modelling) == (0.1, Modelling())
    said = partition_model(model, example, 2, 0.1).partition
    assert left_out.parts.tolist() == said.parts.tolist()


def test_least_time_has_its_own_default() -> None:
    model, example = built("plain")
    objective = step_time(np.full((2, 2), 1e-9), 0.001, 1)
    result = partition_model(model, example, 2, objective=objective, effort=0)
    assert result.partition.problem.eps == WIDE


def test_grain_goes_before_that_of_the_modelling() -> None:
    model, example = built("plain")
    found = partition_model(
        model, example, 2, grain="fine", modelling=Modelling(batch_size=4), effort=0
    )
    assert found.partition.modelling == Modelling(grain="fine", batch_size=4)
    with pytest.raises(ArgumentError, match=r"^grain 'x'"):
        partition_model(model, example, 2, grain="x")


def test_work_is_given_or_computed_from_the_graph() -> None:
    model, example = built("plain")
    given = Work(np.array([0, 1, 2, 3, 0]), "MAC", 1, "mine")

    def twice(graph: ChannelGraph) -> Work:
        return Work(2 * flops(graph).per_task, "MAC", 1, "twice")

    assert partition_model(model, example, 2, 0.1, work=given, effort=0).work is given
    doubled = partition_model(model, example, 2, 0.1, work=twice, effort=0)
    assert doubled.work.source == "twice"
    loads = doubled.partition.evaluation.loads
    assert loads.sum() == 2 * 16 * (1728 + 2304 + 256)


@pytest.mark.full
def test_best_effort_reaches_the_driver() -> None:
    model, example = built("heavy")
    with pytest.raises(InfeasibleError):
        partition_model(model, example, 2, 0, effort=0)
    assert not partition_model(model, example, 2, 0, best_effort=True).partition.feasible


def test_a_failing_stage_is_the_last_that_was_announced() -> None:
    model, example = built("plain")
    seen: list[str] = []
    with pytest.raises(ArgumentError, match=r"^k is 0"):
        partition_model(model, example, 0, 0.1, on_stage=seen.append)
    assert seen == STAGES[:4]
    with pytest.raises(ArgumentError, match=r"^backend 'x'"):
        partition_model(model, example, 2, 0.1, backend="x")
    with pytest.raises(ArgumentError, match="no batch"):
        partition_model(model, torch.zeros(()), 2, 0.1)


def test_layer_wise_is_always_coarse_grain() -> None:
    """Whole layers: there are no partial sums to send."""
    graph = channel_graph(trace(*built("plain")))
    work = flops(graph)
    coarse, fine = (
        evaluate_layerwise(graph, work, Modelling(grain=grain, linear=linear), 2)
        for grain, linear in (("coarse", "neuron"), ("fine", "layer"))
    )
    assert coarse.volume == fine.volume
    assert coarse.loads.tolist() == fine.loads.tolist()
