"""nn.Module -> PartitionedModel: all stages in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hgpart.blocks import Modelling, layer_blocks
from hgpart.grains import cnn_hypergraph
from hgpart.graph import ChannelGraph
from hgpart.layering import channel_graph
from hgpart.metrics import Evaluation, evaluate
from hgpart.partition import Partition, partition_graph
from hgpart.partition.layerwise import layerwise
from hgpart.tracing import TracedModel, trace
from hgpart.work import Work, flops


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
        What the best contiguous layer-wise split costs, for comparison.
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
) -> Evaluation:
    """Evaluate the best contiguous layer-wise split into k parts (see `layerwise`)."""
    coarse = Modelling(
        batch_size=modelling.batch_size,
        bytes_per_element=modelling.bytes_per_element,
        input_vertex=modelling.input_vertex,
        output_vertex=modelling.output_vertex,
    )
    model = cnn_hypergraph(graph, work, layer_blocks(graph, coarse), coarse)
    part_of_layer = layerwise(graph, work, coarse, k, speeds).astype(np.int32)
    return evaluate(model.hypergraph, part_of_layer[model.vertex_layers], k, speeds)


def partition_model(
    model: nn.Module,
    example: torch.Tensor | Sequence[Any],
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    work: Work | Callable[[ChannelGraph], Work] = flops,
    backend: str = "kahypar",
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    time_limit: float | None = None,
    best_effort: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> PartitionedModel:
    """Trace a model, build its hypergraph and partition it.

    The same as calling `trace`, `channel_graph`, `flops` and `partition_graph` one after the other;
    see those for arguments and errors. `on_stage` is told the name of each stage as it begins.

    >>> import hgpart
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> result = hgpart.partition_model(model, torch.zeros(2, 3, 16, 16), k=2, eps=0.1)
    >>> result.partition.feasible, result.partition.evaluation.imbalance <= 0.1
    (True, True)
    """
    modelling = modelling or Modelling()
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
            backend=backend,
            seed=seed,
            speeds=speeds,
            time_limit=time_limit,
            best_effort=best_effort,
        )
    with stage("layer-wise"):
        compared = evaluate_layerwise(graph, measured, modelling, k, speeds)
    return PartitionedModel(traced, graph, measured, found, compared, seconds)
