"""Partition + what it is compared with -> Report: all that is said about a partition of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hgpart.arrays import Float64
from hgpart.compare.step_seconds import StepSeconds, step_seconds
from hgpart.hypergraph.metrics import Evaluation, communication_volume
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.partition import Partition
from hgpart.partition.partition import ANOTHER_TOOL
from hgpart.partition.step_traffic import Flow, border_bytes, step_flows, together
from hgpart.recommendation.of_partition import Simulated
from hgpart.report.partition.slice_shares import WHOLE, SliceShares, slice_shares, way_divided
from hgpart.report.tables import counted
from hgpart.tracing.input_shape import InputShape

MOST_TELLING_GAP = 0.5  # with slices, whose bounds are weak

_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("u", 1e-6))


@dataclass(frozen=True)
class Report:
    """All that is said about a partition of a model.

    Attributes
    ----------
    model : str
        The model spec.
    input_shape : InputShape or None
        The inputs that the model takes for each sample, if that can be written.
    layerwise : Evaluation
        The best cut between layers (`evaluate_layerwise`).
    seconds : mapping
        Wall time by stage, and ``total``.
    any_slices, any_bands, untried_slices : bool
        Whether the number of slices or bands was left to hgpart, or other numbers of slices could
        have been tried.
    in_slices : int or None
        The most bytes that a partition with the batch in slices sends each way, where known.
    simulated : Simulated or None
        A training step, where it was simulated.
    moved : int or None
        Bytes of weights that change place, where a plan that exists was mended.
    """

    partition: Partition
    model: str
    input_shape: InputShape | None
    layerwise: Evaluation
    seconds: Mapping[str, float]
    any_slices: bool = False
    any_bands: bool = False
    untried_slices: bool = False
    in_slices: int | None = None
    simulated: Simulated | None = None
    moved: int | None = None

    @property
    def made_by(self) -> str | None:
        """The backend and its seed; None where another tool made the partition."""
        backend, seed = self.partition.backend, self.partition.seed
        return None if backend == ANOTHER_TOOL else f"{backend}, seed {seed}"

    @cached_property
    def flows(self) -> Mapping[str, Flow]:
        """What a training step sends, by its kind."""
        return step_flows(self.partition.model, self.partition.parts, self.partition.k)

    @property
    def step(self) -> Mapping[str, Flow]:
        """The flows of a step, and their sum, "in all"."""
        return {**self.flows, "in all": together(self.flows.values())}

    @cached_property
    def slices_of_layers(self) -> tuple[tuple[SliceShares, ...], ...]:
        """The filters of each slice that each part has, layer by layer."""
        return slice_shares(self.partition.model, self.partition.parts)

    @property
    def lies_in_layers(self) -> bool:
        """Whether no layer is divided, neither by its filters nor by slices."""
        return all(way_divided(groups) == WHOLE for groups in self.slices_of_layers if groups)

    @property
    def work_units(self) -> int:
        """Units of the loads that make one unit of work: with slices, their weights count."""
        return self.partition.problem.work.units * sum(self.partition.modelling.slice_work)

    @property
    def each_way(self) -> bool:
        """Whether the volume includes gradients of parameters, which travel there and back."""
        modelling = self.partition.modelling
        return modelling.training and modelling.slices * modelling.bands > 1

    @cached_property
    def border_bytes(self) -> int:
        """Bytes of borders in a forward pass: rows of maps that the receiver has other rows of."""
        return border_bytes(self.partition.model, self.partition.parts, self.partition.k)

    @cached_property
    def statistics_bytes(self) -> int:
        """Bytes each way that statistics of norms over the batch would add, with these parts."""
        model, k = self.partition.model, self.partition.k
        modelling = replace(self.partition.modelling, norms="batch")
        nets = replace(model, modelling=modelling).statistics_nets
        between = nets.of_parts(model.weights, self.partition.parts, k)
        own = self.flows["statistics"].volume if "statistics" in self.flows else 0
        return communication_volume(between, np.arange(k, dtype=np.int32), k) - own

    @cached_property
    def step_seconds(self) -> Simulated | StepSeconds | None:
        """About what a step takes; None for one device, or where it can't be estimated."""
        if self.simulated is not None:
            return self.simulated
        partition, problem = self.partition, self.partition.problem
        if problem.speeds is not None or partition.modelling.bands > 1:
            return None
        traffic, layer_work = partition.evaluation.traffic, partition.shares.layer_work
        divided = problem.graph, problem.work, partition.modelling
        return step_seconds(*divided, traffic, layer_work)

    @property
    def says_little(self) -> bool:
        """Whether the lower bound is too low to judge the partition by."""
        gap = self.partition.gap
        return gap == 1 or (self.partition.modelling.slices > 1 and gap > MOST_TELLING_GAP)

    @property
    def time(self) -> str:
        """When the volume travels."""
        return "each way of a training step" if self.each_way else "a forward pass"


def work_of_layer(report: Report, view: LayerVertices) -> Float64:
    """Each part's work of a layer, in the unit of loads; shape (k,).

    Layers that share a weight have their work together: this is one layer's share of that.
    """
    per_task = report.partition.problem.work.per_task
    tied = [other for other in report.partition.model.views if other.first == view.first]
    work = {other.at: float(per_task[other.at]) * other.layer.tasks for other in tied}
    held: Float64 = report.partition.shares.layer_work[view.first] * (
        work[view.at] / (sum(work.values()) or 1.0)
    )
    return held


def layer_shares(report: Report, view: LayerVertices) -> list[float]:
    """Each part's share of a layer's work, or of its tasks where there is no work."""
    held = report.partition.shares.layer_work[view.first]
    if not held.any():
        held = report.partition.shares.layer_tasks[view.at]
    shares: list[float] = (held / max(1, int(held.sum()))).tolist()
    return shares


def work_scale(report: Report) -> tuple[str, float]:
    """The unit that loads are printed in, and how many units of the loads make one of it."""
    work = report.partition.problem.work
    largest = report.partition.evaluation.max_load / report.work_units
    prefix, size = next((pair for pair in _PREFIXES if largest >= pair[1]), ("", 1.0))
    samples = counted(report.partition.modelling.batch_size, "sample")
    per = f" for {samples}, forward and backward" if work.unit == "s" else " per sample"
    return f"{prefix}{work.unit}{per}", size * report.work_units
