"""nn.Module -> PartitionedModel: all stages in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.baselines.layerwise import layerwise, layerwise_within
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, WIDE, Objective
from hgpart.partition.problem.problem import Problem
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.figures import Work, flops


@dataclass(frozen=True)
class PartitionedModel:
    """What every stage made of a model.

    Attributes
    ----------
    traced : TracedModel
    graph : ChannelGraph
    work : Work
    partition : Partition
    layerwise : Evaluation
        What the best split between layers costs, for comparison; within eps where it can be.
    seconds : dict of str to float
        Wall time of each stage.
    """

    traced: TracedModel
    graph: ChannelGraph
    work: Work
    partition: Partition
    layerwise: Evaluation
    seconds: dict[str, float]


def evaluate_layerwise(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    k: int,
    speeds: Sequence[float] | None = None,
    eps: float | None = None,
) -> Evaluation:
    """Evaluate the best split between layers, into k runs of consecutive layers.

    With an eps, the one of least volume within it, where there is one (`layerwise_within`);
    else the one of smallest largest load (`layerwise`). The batch is whole, whatever its slices;
    loads are in the unit of theirs.
    """
    coarse = replace(modelling, grain="coarse", linear="neuron", slices=1)
    problem = Problem(graph, work, coarse, k, eps or 0.0, speeds)
    model = problem.hypergraph(layer_blocks(problem.views))
    found = None if eps is None else layerwise_within(problem)
    if found is None:
        found = layerwise(problem)
    result = evaluate_parts(model, found.astype(np.int32)[model.vertex_layers], k, speeds)
    return replace(result, loads=result.loads * sum(modelling.slice_work))


def partition_model(
    model: nn.Module,
    example: torch.Tensor | Sequence[Any],
    k: int,
    eps: float | None = None,
    *,
    grain: str | None = None,
    modelling: Modelling | None = None,
    slices: int | Literal["auto"] | None = None,
    work: Work | Callable[[ChannelGraph], Work] = flops,
    backend: str = "native",
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    time_limit: float | None = None,
    best_effort: bool = False,
    effort: float = 1.0,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> PartitionedModel:
    """Trace a model, build its hypergraph and partition it, by default as `hgpart partition` does.

    The same as calling `trace`, `channel_graph`, `flops` and `partition_graph` one after the other;
    see those for arguments and errors. An eps left out is 0.1, or 1 for the objective "time"; a
    `grain` goes before that of the `modelling`. `on_stage` is told the name of each stage as it
    begins.

    >>> import hgpart
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> result = hgpart.partition_model(model, torch.zeros(2, 3, 16, 16), k=2)
    >>> result.partition.feasible, result.partition.evaluation.imbalance <= 0.1
    (True, True)
    """
    modelling = modelling or Modelling()
    if grain is not None:
        modelling = replace(modelling, grain=grain)
    if eps is None:
        eps = WIDE if objective.name == "time" else 0.1
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        on_stage(name)
        start = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - start

    with stage("trace"):
        traced = trace(model, example)
    with stage("graph"):
        graph = channel_graph(traced)
    with stage("work"):
        measured = work if isinstance(work, Work) else work(graph)
    with stage("partition"):
        found = partition_graph(
            graph,
            measured,
            k,
            eps,
            modelling=modelling,
            slices=slices,
            backend=backend,
            seed=seed,
            speeds=speeds,
            objective=objective,
            memory=memory,
            time_limit=time_limit,
            best_effort=best_effort,
            effort=effort,
        )
    with stage("layer-wise"):
        compared = evaluate_layerwise(graph, measured, found.modelling, k, speeds, eps)
    return PartitionedModel(traced, graph, measured, found, compared, seconds)
