"""Problem + parts -> Partition: the parts, and what they cost by hgpart's own metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import PartShares, part_shares
from hgpart.partition.bounds.lower_bound import lower_bound, relative_gap
from hgpart.partition.problem.balance import within
from hgpart.partition.problem.problem import Problem
from hgpart.partition.steering.checking import broken
from hgpart.summary import Summary

MB = 10**6
ANOTHER_TOOL = "file"  # backend of a partition that no search of hgpart made


@dataclass(frozen=True)
class Partition:
    """A k-way partition of a model, and what it costs by hgpart's own metrics.

    Attributes
    ----------
    problem : Problem
        The model, and what was asked for.
    model : CnnHypergraph
        The hypergraph of the blocks that the parts are of.
    parts : int32 array, shape (model.vertices,)
        Part of each block, 0 to k - 1.
    backend : str
        What made the partition: a partitioner, or a way to divide the model.
    start : str
        What the partition was found from: the backend's own start, or "layerwise", the cut between
        layers of least volume within eps. Where no backend searched, the way, or "file".
    feasible : bool
        Whether every part's load is at most (1 + eps) times its share, its memory within its limit,
        and no constraint is broken.
    lower_bound : int
        Bytes that every partition within eps sends at least: by `bounds.lower_bound`, or more where
        `bounds.part_bound` or the backend proves more.
    memory_bytes : int64 array, shape (k,), or None
        Bytes that each part needs, where memory is limited; see `memory`.
    interrupted : bool
        Whether Ctrl-C ended the search, so that this is only the best found by then.
    broken : tuple of str
        Names of the constraints that it breaks, checked task by task.
    """

    problem: Problem
    model: CnnHypergraph
    parts: Int32
    seed: int
    backend: str
    start: str
    evaluation: Evaluation
    feasible: bool
    lower_bound: int
    memory_bytes: Int64 | None = None
    interrupted: bool = False
    broken: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Short, without its hypergraph and arrays."""
        return (
            f"Partition(k={self.k}, {self.modelling.grain}-grain, "
            f"imbalance={self.evaluation.imbalance:.3f}, volume={self.evaluation.volume:,} bytes)"
        )

    @property
    def k(self) -> int:
        """Number of parts."""
        return self.problem.k

    @property
    def modelling(self) -> Modelling:
        """Grain, batch, slices and what else counts."""
        return self.problem.modelling

    @cached_property
    def shares(self) -> PartShares:
        """What each part holds of the layers, parameters and maps."""
        return part_shares(self.model, self.parts, self.k)

    def with_parts(self, model: CnnHypergraph, parts: Int32) -> Partition:
        """The same partition with other parts, perhaps of other blocks; its figures are new."""
        return evaluated(
            self.problem,
            model,
            parts,
            seed=self.seed,
            backend=self.backend,
            start=self.start,
            bound=self.lower_bound,
            interrupted=self.interrupted,
        )

    def summary(self) -> Summary:
        """Table of each part's work, parameters and bytes sent and received.

        The bytes are those of a forward pass; with the batch in slices, those of each way of a
        training step.
        """
        evaluation, modelling, eps = self.evaluation, self.modelling, self.problem.eps
        total = max(1, int(evaluation.loads.sum()))
        allowed = "allowed" if evaluation.imbalance <= eps else "more than the allowed"
        slices = f", {modelling.slices} slices of the batch" if modelling.slices > 1 else ""
        line = (
            f"{self.k} parts, {modelling.grain}-grain{slices}: imbalance "
            f"{evaluation.imbalance:.3f} ({allowed} {eps:g}), {evaluation.volume / MB:,.4g} MB "
            f"between them for a batch of {modelling.batch_size}"
        )
        rows = tuple(
            (
                str(part),
                f"{100 * int(evaluation.loads[part]) / total:.1f}",
                f"{int(self.shares.parameters[part]):,}",
                f"{int(evaluation.sent[part]) / MB:,.4g}",
                f"{int(evaluation.received[part]) / MB:,.4g}",
            )
            for part in range(self.k)
        )
        return Summary((line,), ("part", "work %", "parameters", "sends MB", "receives MB"), rows)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def objective_value(self) -> float:
        """Value of the objective: bytes, their costs, or estimated seconds of a step."""
        return self.problem.objective.value(self.evaluation.traffic, self.shares.layer_work)

    @property
    def gap(self) -> float:
        """Share of the objective that a better partition within eps might save; 0.0 when optimal.

        Negative where the objective is below the lower bound, which happens only when infeasible.
        """
        least = self.problem.objective.least(self.lower_bound, self.k)
        return relative_gap(self.objective_value, least)


def uninterrupted(partition: Partition) -> Partition:
    """Return the partition, or raise a KeyboardInterrupt if Ctrl-C ended its search."""
    if partition.interrupted:
        raise KeyboardInterrupt
    return partition


def evaluated(
    problem: Problem,
    model: CnnHypergraph,
    parts: Int32,
    *,
    seed: int,
    backend: str,
    start: str,
    bound: int | None = None,
    interrupted: bool = False,
) -> Partition:
    """Compute the figures of a partition, whoever made it, by hgpart's own metrics.

    `bound` is a lower bound of the volume within eps, where one is known.
    """
    if bound is None:
        bound = lower_bound(problem)
    memory = problem.memory
    evaluation = evaluate_parts(model, parts, problem.k, problem.speeds)
    needed = None if memory is None else memory.needed(model, parts)
    is_held = memory is None or needed is None or memory.hold(needed)
    constraints = broken(model, parts, problem.constraints)
    return Partition(
        problem=problem,
        model=model,
        parts=parts,
        seed=seed,
        backend=backend,
        start=start,
        evaluation=evaluation,
        feasible=within(evaluation.loads, problem.rates, problem.eps)
        and is_held
        and not constraints,
        lower_bound=bound,
        memory_bytes=needed,
        interrupted=interrupted,
        broken=constraints,
    )
