"""Way + traced model -> its layout: a plan of a partition, tiles, or where a pipeline is cut."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.bench.ways.tiles import fused_tiles, nothing_to_fuse
from hgpart.bench.ways.way import FUSED, PIPELINES, Head, Layout, TrainingWay
from hgpart.errors import ArgumentError, PlacementError
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.partition import uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.needs import layers_that_compute
from hgpart.plan import Plan, check_is_for
from hgpart.tracing.input_shape import InputShape
from hgpart.tracing.traced_model import TracedModel

HEADS = ("dense", "linear", "grouped", "depthwise")  # layers that begin with an operator of weights


@dataclass(frozen=True, eq=False)
class Subject:
    """A traced model, and what its partitions are to be.

    Attributes
    ----------
    input_shape : InputShape
    problem : Problem
        With a part for each process, and the batch of a step.
    effort : float
        How long partitions are searched for, relative to the default.
    """

    model: str
    input_shape: InputShape
    traced: TracedModel
    problem: Problem
    seed: int
    effort: float = 1.0

    def check(self, way: TrainingWay) -> None:
        """Raise an ArgumentError if the model can't be divided that way among the processes.

        A PlanError if the way is a plan of another model.
        """
        why = None
        if way.plan is not None:
            if self.traced.training:  # a plan may be for either mode; processes find out
                check_is_for(way.plan.model, way.plan, self.problem.graph)
        elif way.name == FUSED:
            why = nothing_to_fuse(self.problem.graph)
        elif way.division is not None:
            own = way.division.problem(self.problem)
            why = way.division.needs(own)
            if why is None and own.k > own.tasks:
                why = f"{self.model} has {own.tasks} tasks, accepted are as many processes"
        elif way.name in PIPELINES:
            why = layers_that_compute(self.problem)
        if why is not None:
            raise ArgumentError(f"{way.text} with {self.problem.k} processes: {why}")


def layout_of(way: TrainingWay, subject: Subject) -> Layout:
    """Find what the processes of a way must know of its cuts.

    Raises
    ------
    HgpartError
        If the model can't be divided that way; says why.
    """
    if way.plan is not None:
        return way.plan
    if way.division is not None:
        problem, search = subject.problem, Search(subject.seed, subject.effort)
        partition = uninterrupted(way.division.partition(problem, search))
        return Plan(partition, subject.model, subject.input_shape)
    if way.name == FUSED:
        problem = subject.problem
        samples = problem.modelling.batch_size
        return fused_tiles(problem.graph, problem.work, problem.rates, samples)
    return _heads(subject) if way.name in PIPELINES else None


def _heads(subject: Subject) -> tuple[Head, ...]:
    """Where torch's pipelining is to cut: where the layers of the layer-wise split begin.

    A stage begins with its first operator that has weights: what stands between that and the cut
    before it (a pooling, say) goes with the stage before.
    """
    parts = layerwise(subject.problem)
    calls = [str(node.target) for node in subject.traced.graph_module.graph.nodes]
    names = [node.name for node in subject.traced.graph_module.graph.nodes]
    stages: list[Head] = []
    for part in range(1, subject.problem.k):
        heads = [
            layer.operators[0]
            for layer, own in zip(subject.problem.graph.layers, parts.tolist(), strict=True)
            if own == part and layer.kind in HEADS
        ]
        if not heads:
            raise PlacementError(
                f"stage {part} of the layer-wise split begins with no operator that has weights: "
                "torch's pipelining is cut in front of these"
            )
        at = min(names.index(name) for name in heads)
        stages.append(Head(calls[at], calls[:at].count(calls[at])))
    return tuple(stages)
