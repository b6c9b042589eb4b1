"""Partition + what it is compared with -> Report: all that is said about a partition of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.compare.step_seconds import StepSeconds, step_seconds
from hgpart.compare.step_traffic import Flow, step_flows, together
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import Evaluation, communication_volume
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.hypergraph.shares import PartShares, part_shares
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.bounds.lower_bound import relative_gap
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.report.partition.slice_shares import WHOLE, SliceShares, slice_shares, way_divided
from hgpart.work.figures import Work

MOST_TELLING_GAP = 0.5  # with slices, whose bounds are weak

_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("u", 1e-6))


@dataclass(frozen=True)
class Report:
    """All that is said about a partition of a model.

    Attributes
    ----------
    model : str
        The model spec.
    input_shape : tuple of int
        Shape of one sample.
    graph, work, modelling, k, eps, speeds
        What was partitioned, and what was asked for.
    backend, start, seed
        What made the partition, as in `Partition`; None where another tool did.
    blocks : CnnHypergraph
        The blocks that were partitioned.
    parts : int32 array, shape (blocks.vertices,)
    feasible : bool
    evaluation : Evaluation
    lower_bound : int
        Bytes that no partition within eps undercuts.
    shares : PartShares
    layerwise : Evaluation
        The best cut between layers (`evaluate_layerwise`).
    seconds : mapping
        Wall time by stage, and ``total``.
    objective, memory, memory_bytes
        What was searched for, and what each part may need and needs, as in `Partition`.
    interrupted : bool
        Whether Ctrl-C ended the search.
    any_slices, untried_slices : bool
        Whether the number of slices was left to hgpart, or other numbers could have been tried.
    in_slices : int or None
        The most bytes that a partition with the batch in slices sends each way, where known.
    """

    model: str
    input_shape: tuple[int, ...]
    graph: ChannelGraph
    work: Work
    modelling: Modelling
    k: int
    eps: float
    speeds: tuple[float, ...] | None
    backend: str | None
    start: str | None
    seed: int | None
    blocks: CnnHypergraph
    parts: Int32
    feasible: bool
    evaluation: Evaluation
    lower_bound: int
    shares: PartShares
    layerwise: Evaluation
    seconds: Mapping[str, float]
    objective: Objective = VOLUME
    memory: MemoryLimits | None = None
    memory_bytes: Int64 | None = None
    interrupted: bool = False
    any_slices: bool = False
    untried_slices: bool = False
    in_slices: int | None = None

    @classmethod
    def of(
        cls,
        partition: Partition,
        graph: ChannelGraph,
        work: Work,
        model: str,
        input_shape: tuple[int, ...],
        layerwise: Evaluation,
        seconds: Mapping[str, float],
    ) -> Report:
        """The report of a partition that hgpart evaluated."""
        return cls(
            model=model,
            input_shape=input_shape,
            graph=graph,
            work=work,
            modelling=partition.modelling,
            k=partition.k,
            eps=partition.eps,
            speeds=partition.speeds,
            backend=partition.backend,
            start=partition.start,
            seed=partition.seed,
            blocks=partition.model,
            parts=partition.parts,
            feasible=partition.feasible,
            evaluation=partition.evaluation,
            lower_bound=partition.lower_bound,
            shares=part_shares(partition.model, partition.parts, partition.k),
            layerwise=layerwise,
            seconds=seconds,
            objective=partition.objective,
            memory=partition.memory,
            memory_bytes=partition.memory_bytes,
            interrupted=partition.interrupted,
        )

    @cached_property
    def flows(self) -> Mapping[str, Flow]:
        """What a training step sends, by its kind."""
        return step_flows(self.blocks, self.parts, self.k)

    @property
    def step(self) -> Mapping[str, Flow]:
        """The flows of a step, and their sum, "in all"."""
        return {**self.flows, "in all": together(self.flows.values())}

    @cached_property
    def slices_of_layers(self) -> tuple[tuple[SliceShares, ...], ...]:
        """Which part has which filters of which slices, layer by layer."""
        return slice_shares(self.blocks, self.parts)

    @property
    def lies_in_layers(self) -> bool:
        """Whether no layer is divided, neither by its filters nor by slices."""
        return all(way_divided(groups) == WHOLE for groups in self.slices_of_layers if groups)

    @property
    def work_units(self) -> int:
        """Units of the loads that make one unit of work: with slices, their weights count."""
        return self.work.units * sum(self.modelling.slice_work)

    @property
    def each_way(self) -> bool:
        """Whether the volume includes gradients of parameters, which travel there and back."""
        return self.modelling.slices > 1 and self.modelling.training

    @cached_property
    def statistics_bytes(self) -> int:
        """Bytes each way of statistics of norms over the batch, with these parts."""
        modelling = replace(self.modelling, norms="batch")
        nets = replace(self.blocks, modelling=modelling).statistics_nets
        between = nets.of_parts(self.blocks.weights, self.parts, self.k)
        return communication_volume(between, np.arange(self.k, dtype=np.int32), self.k)

    @property
    def objective_value(self) -> float:
        """The value of the objective, as in `Partition`."""
        return self.objective.value(self.evaluation.traffic, self.shares.layer_work)

    @property
    def gap(self) -> float:
        """Share of the objective that a better partition within eps might save."""
        return relative_gap(self.objective_value, self.objective.least(self.lower_bound, self.k))

    @cached_property
    def step_seconds(self) -> StepSeconds | None:
        """About what a step takes; None for one device, or where devices differ."""
        if self.speeds is not None:
            return None
        traffic, layer_work = self.evaluation.traffic, self.shares.layer_work
        return step_seconds(self.graph, self.work, self.modelling, traffic, layer_work)

    @property
    def says_little(self) -> bool:
        """Whether the lower bound is too low to judge the partition by."""
        gap = self.gap
        return gap == 1 or (self.modelling.slices > 1 and gap > MOST_TELLING_GAP)

    @property
    def time(self) -> str:
        """When the volume travels."""
        return "each way of a training step" if self.each_way else "a forward pass"


def work_of_layer(report: Report, view: LayerVertices) -> Float64:
    """Each part's work of a layer, in the unit of loads; shape (k,).

    Layers that share a weight have their work together: this is one layer's share of that.
    """
    tied = [other for other in report.blocks.views if other.first == view.first]
    work = {other.at: float(report.work.per_task[other.at]) * other.layer.tasks for other in tied}
    held: Float64 = report.shares.layer_work[view.first] * (
        work[view.at] / (sum(work.values()) or 1.0)
    )
    return held


def layer_shares(report: Report, view: LayerVertices) -> list[float]:
    """Each part's share of a layer's work, or of its tasks where there is no work."""
    held = report.shares.layer_work[view.first]
    if not held.any():
        held = report.shares.layer_tasks[view.at]
    shares: list[float] = (held / max(1, int(held.sum()))).tolist()
    return shares


def work_scale(report: Report) -> tuple[str, float]:
    """The unit that loads are printed in, and how many units of the loads make one of it."""
    work = report.work
    largest = report.evaluation.max_load / report.work_units
    prefix, size = next((pair for pair in _PREFIXES if largest >= pair[1]), ("", 1.0))
    measured = f" for {samples_of(report)}, forward and backward"
    per = measured if work.unit == "s" else " per sample"
    return f"{prefix}{work.unit}{per}", size * report.work_units


def samples_of(report: Report) -> str:
    """The number of samples of the batch, as text."""
    batch = report.modelling.batch_size
    return "1 sample" if batch == 1 else f"{batch} samples"
