"""Way + traced model -> its layout: a plan of a partition, or where a pipeline is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32
from hgpart.bench.ways.layout import Head, Layout
from hgpart.bench.ways.way import OF_TRANSFORMED, PIPELINES, Way
from hgpart.errors import ArgumentError, PlacementError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.baselines.by_slices import data_parallel, hybrid, opposed_replicas, replica
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise, uncuttable_runs
from hgpart.partition.baselines.one_weird_trick import one_weird_trick
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.partition import evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices
from hgpart.plan import Plan
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.figures import Work

RULES = {
    "filterwise": incremental,
    "halves": horizontal,
    OF_TRANSFORMED: transformed_parts,
}
HEADS = ("dense", "linear", "grouped", "depthwise")  # layers that begin with an operator of weights


@dataclass(frozen=True)
class Subject:
    """A traced model, and what its partitions are to be.

    Attributes
    ----------
    model : str
    input_shape : tuple of int
    traced : TracedModel
    graph : ChannelGraph
    work : Work
    batch_size : int
    k : int
        Parts.
    eps : float
        Imbalance that searches are allowed.
    seed : int
    effort : float
        How long they search, relative to their default.
    """

    model: str
    input_shape: tuple[int, ...]
    traced: TracedModel
    graph: ChannelGraph
    work: Work
    batch_size: int
    k: int
    eps: float
    seed: int
    effort: float = 1.0

    def problem(self, grain: str = "coarse", slices: int = 1) -> Problem:
        """What is to be partitioned."""
        modelling = Modelling(grain=grain, batch_size=self.batch_size, slices=slices)
        return Problem(self.graph, self.work, modelling, self.k, self.eps)

    def most_processes(self, way: Way) -> int:
        """More can't all have something to do: a stage is of layers that compute, a part of tasks.

        Each replica has as many of these. Those that share out samples need one each, and are asked
        by `Way.why_not`.
        """
        if way.name in PIPELINES or way.name in ("layerwise", "gems"):
            runs = uncuttable_runs(self.graph)
            busy = [
                run
                for run, layer, each in zip(
                    runs.tolist(), self.graph.layers, self.work.per_task.tolist(), strict=True
                )
                if layer.tasks and each
            ]
            return len(set(busy))
        return (way.replicas or 1) * self.problem().tasks if way.has_plan else self.k

    def check(self, way: Way) -> None:
        """Raise an ArgumentError if there are more processes than it can use."""
        if self.k > (most := self.most_processes(way)):
            raise ArgumentError(
                f"{way.text} with {self.k} processes: {self.model} has work for {most} of them, "
                "accepted are as many"
            )


def layout_of(way: Way, subject: Subject) -> Layout:
    """Find what the processes of a way must know of its cuts.

    Raises
    ------
    HgpartError
        If the model can't be divided that way; says why.
    """
    if way.has_plan:
        return Plan(partition_of(way, subject), subject.model, subject.input_shape)
    return _heads(subject) if way.name in PIPELINES else None


def partition_of(way: Way, subject: Subject) -> Partition:
    """Divide the model, and where the way does that the batch."""
    search = Search(subject.seed, subject.effort)
    if way.name in ("coarse", "fine"):
        return uninterrupted(solve(subject.problem(way.name), search))
    if way.name == "sliced":
        return uninterrupted(solve_in_slices(subject.problem(), search))
    problem = subject.problem()
    if way.name == "layerwise":
        model = problem.hypergraph(layer_blocks(problem.views))
        parts = layerwise(problem).astype(np.int32)[model.vertex_layers]
    elif way.name in RULES:
        model, parts = RULES[way.name](problem)
    else:
        problem, model, parts = _of_slices(way, subject, search)
    return evaluated(problem, model, parts, seed=subject.seed, backend=way.name, start=way.name)


def _of_slices(way: Way, subject: Subject, search: Search) -> tuple[Problem, CnnHypergraph, Int32]:
    if way.name == "weird-trick":
        problem = subject.problem(slices=subject.k)
        return problem, *one_weird_trick(problem)
    if way.name == "gems":
        problem = subject.problem(slices=2)
        return problem, *opposed_replicas(problem)
    assert way.replicas is not None
    problem = subject.problem(slices=way.replicas)
    if way.replicas == subject.k:
        return problem, *data_parallel(problem)
    found = uninterrupted(solve(replica(problem, way.replicas), search, best_effort=True))
    return problem, *hybrid(problem, way.replicas, found.model, found.parts)


def _heads(subject: Subject) -> tuple[Head, ...]:
    """Where torch's pipelining is to cut: where the layers of the layer-wise split begin.

    A stage begins with its first operator that has weights: what stands between that and the cut
    before it (a pooling, say) goes with the stage before.
    """
    parts = layerwise(subject.problem())
    calls = [str(node.target) for node in subject.traced.graph_module.graph.nodes]
    names = [node.name for node in subject.traced.graph_module.graph.nodes]
    found: list[Head] = []
    for part in range(1, subject.k):
        heads = [
            layer.operators[0]
            for layer, own in zip(subject.graph.layers, parts.tolist(), strict=True)
            if own == part and layer.kind in HEADS
        ]
        if not heads:
            raise PlacementError(
                f"stage {part} of the layer-wise split begins with no operator that has weights: "
                "torch's pipelining is cut in front of these"
            )
        at = min(names.index(name) for name in heads)
        found.append(Head(calls[at], calls[:at].count(calls[at])))
    return tuple(found)
