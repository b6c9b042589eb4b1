"""nn.Module -> PartitionedModel: all stages in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from hgpart.errors import PlanError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.backends import Backend
from hgpart.partition.baselines.layerwise import layerwise, layerwise_within
from hgpart.partition.given_parts import Parts, number_of_parts, partition_of_parts
from hgpart.partition.partition import MB
from hgpart.partition.problem.constraints import Constraints
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.problem import Problem
from hgpart.plan import Plan, save_plan
from hgpart.summary import Summary
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.figures import Work, flops


@dataclass(frozen=True)
class PartitionedModel:
    """The results of every stage for a model.

    Attributes
    ----------
    layerwise : Evaluation
        Figures of the best split between layers, for comparison; within eps where it can be.
    seconds : dict of str to float
        Wall time of each stage.
    name : str
        Name of the model's class.
    """

    traced: TracedModel
    partition: Partition
    layerwise: Evaluation
    seconds: dict[str, float]
    name: str = "model"

    @property
    def graph(self) -> ChannelGraph:
        """The model's ChannelGraph."""
        return self.partition.problem.graph

    @property
    def work(self) -> Work:
        """Work of the model's tasks."""
        return self.partition.problem.work

    def __repr__(self) -> str:
        """Short, without its graphs and arrays."""
        return f"PartitionedModel({self.name}, {self.partition!r})"

    def summary(self) -> Summary:
        """Table of the parts, with the best cut between layers for comparison."""
        own, cut = self.partition.summary(), self.layerwise
        volume = f"{cut.volume / MB:,.4g} MB"
        line = f"Cut between layers instead: imbalance {cut.imbalance:.3f}, {volume}"
        return replace(own, lines=(f"{self.name} in {own.lines[0]}", line))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, path: Path | str | None = None) -> str:
        """Return its page, and write that to `path` if given; see `hgpart.plot`."""
        from hgpart import plot

        return plot(self, path)

    def save(self, path: Path | str, model: str | None = None) -> None:
        """Write a plan file, for `load_plan` and the command line.

        Parameters
        ----------
        model : str, optional
            Spec by which `load_model` builds the model, such as ``net.py:make``, for commands that
            are given no other. Default: the name of its class.

        Raises
        ------
        ArgumentError
            If the model is called with anything but tensors of samples, such as a list.
        OutputError
            If the file can't be written.
        """
        shape = self.traced.arguments.sample_shape()
        save_plan(Plan(self.partition, model or self.name, shape), path)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled: it holds results of torch.export, which can't be."""
        raise PlanError(
            "a PartitionedModel can't be pickled: accepted are result.save(path), to be read by "
            "hgpart.files.load_plan(path), and to pickle result.partition"
        )


def evaluate_layerwise(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    k: int,
    speeds: Sequence[float] | None = None,
    eps: float | None = None,
) -> Evaluation:
    """Evaluate the best split between layers, into k runs of consecutive layers.

    With an eps it is the split of least volume within eps, if there is one (`layerwise_within`);
    otherwise that of smallest largest load (`layerwise`). The batch is not divided, whatever the
    slices; loads are in the same unit as with these.
    """
    coarse = replace(modelling, grain="coarse", linear="neuron", slices=1)
    problem = Problem(graph, work, coarse, k, eps or 0.0, speeds)
    model = problem.hypergraph(layer_blocks(problem.views))
    cut = None if eps is None else layerwise_within(problem)
    if cut is None:
        cut = layerwise(problem)
    result = evaluate_parts(model, cut.astype(np.int32)[model.vertex_layers], k, speeds)
    return replace(result, loads=result.loads * sum(modelling.slice_work))


def partition_model(
    model: nn.Module,
    example: Inputs,
    k: int,
    eps: float | None = None,
    *,
    grain: str | None = None,
    modelling: Modelling | None = None,
    slices: int | Literal["auto"] | None = None,
    bands: int | Literal["auto"] | None = None,
    work: Work | Callable[[ChannelGraph], Work] = flops,
    backend: str | Backend = "native",
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    time_limit: float | None = None,
    best_effort: bool = False,
    effort: float = 1.0,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> PartitionedModel:
    """Trace a model, build its hypergraph and partition it, by default as `hgpart partition` does.

    This calls `trace`, `channel_graph`, `flops` and `partition_graph` one after the other; see
    those for arguments and errors. Without an eps it is 0.1, or 1 for the objective "time". A
    `grain` overrides that of the `modelling`. `on_stage` is called with the name of each stage as
    it begins.

    >>> import hgpart, torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> result = hgpart.partition_model(model, torch.zeros(2, 3, 16, 16), k=2)
    >>> result.partition.feasible, result.partition.evaluation.imbalance <= 0.1
    (True, True)
    """
    modelling = modelling or Modelling()
    if grain is not None:
        modelling = replace(modelling, grain=grain)
    if eps is None:
        eps = objective.default_eps

    def divide(graph: ChannelGraph, work: Work) -> Partition:
        return partition_graph(
            graph,
            work,
            k,
            eps,
            modelling=modelling,
            slices=slices,
            bands=bands,
            backend=backend,
            seed=seed,
            speeds=speeds,
            objective=objective,
            constraints=constraints,
            memory=memory,
            time_limit=time_limit,
            best_effort=best_effort,
            effort=effort,
        )

    return _divided(model, example, work, divide, on_stage)


def partitioned_as(
    model: nn.Module,
    example: Inputs,
    parts: Parts | Mapping[str, int | Parts],
    k: int | None = None,
    eps: float = 0.1,
    *,
    modelling: Modelling | None = None,
    work: Work | Callable[[ChannelGraph], Work] = flops,
    speeds: Sequence[float] | None = None,
    memory: MemoryLimits | None = None,
) -> PartitionedModel:
    """Divide a model as you say, to evaluate, save or place it.

    Parameters
    ----------
    example : tensor, sequence or mapping
        Inputs of the model, as `trace` takes them.
    parts : sequence or array of int, or mapping of such by layer
        The part of each vertex, in the order of ``hgpart export``; or, by the name of each layer
        (``hgpart trace`` lists them), the part of each filter or one part for all filters. Model
        inputs and outputs can be left out: they go to the part of the first filter and to that of
        the last.
    k : int, optional
        Number of parts; when left out, one more than the largest part.
    eps : float
        Imbalance up to which the partition counts as feasible.
    modelling, work, speeds, memory
        The same as in `partition_graph`.

    Raises
    ------
    ArgumentError
        If parts are not whole numbers from 0 to k - 1, or not as many as vertices. If a layer has
        no parts, or there is no layer of a name.

    >>> import hgpart, torch
    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    >>> example = torch.zeros(1, 3, 8, 8)
    >>> result = hgpart.partitioned_as(model, example, {"0": [0, 0, 1, 1], "2": [0, 1]})
    >>> result.partition.k, result.partition.evaluation.imbalance
    (2, 0.0)
    >>> hgpart.partitioned_as(model, example, [0, 0, 1, 1, 0, 1]).partition.parts.tolist()
    [0, 0, 1, 0, 1, 1]
    """
    count = number_of_parts(parts) if k is None else k
    asked = modelling or Modelling()

    def divide(graph: ChannelGraph, work: Work) -> Partition:
        problem = Problem(graph, work, asked, count, eps, speeds, memory=memory)
        return partition_of_parts(problem, parts)

    return _divided(model, example, work, divide)


def _divided(
    model: nn.Module,
    example: Inputs,
    work: Work | Callable[[ChannelGraph], Work],
    divide: Callable[[ChannelGraph, Work], Partition],
    on_stage: Callable[[str], None] = lambda stage: None,
) -> PartitionedModel:
    """Trace a model, divide it, and evaluate the best split between layers beside it."""
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
        partition = divide(graph, measured)
    with stage("layer-wise"):
        asked = partition.problem
        layerwise = evaluate_layerwise(
            graph, measured, asked.modelling, asked.k, asked.speeds, asked.eps
        )
    return PartitionedModel(traced, partition, layerwise, seconds, type(model).__name__)
