"""Problem + parts -> Partition: the parts, and what they cost by hgpart's own metrics."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import part_shares, work_of_layers
from hgpart.partition.bounds.lower_bound import lower_bound, relative_gap
from hgpart.partition.problem.balance import within
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.problem import Problem
from hgpart.summary import Summary

MB = 10**6


@dataclass(frozen=True)
class Partition:
    """A k-way partition of a model, and what it costs by hgpart's own metrics.

    Attributes
    ----------
    model : CnnHypergraph
        The blocks that the parts are of.
    modelling : Modelling
    parts : int32 array, shape (model.vertices,)
    k, eps, seed, backend, speeds
        What was asked for; `speeds` is None for equal devices.
    start : str
        What the best partition was found from: the backend's, or "layerwise", the cut between
        layers of least volume within eps.
    evaluation : Evaluation
    feasible : bool
        Whether every part's load is at most (1 + eps) times its share, and its memory within its
        limit.
    lower_bound : int
        Bytes that every partition whose loads are within eps sends at least: of
        `bounds.lower_bound`, or more where the backend proves more.
    objective : Objective
        What the search was for.
    memory : MemoryLimits or None
        What each part may need.
    memory_bytes : int64 array, shape (k,), or None
        What it needs, where that is limited; see `memory`.
    interrupted : bool
        Whether Ctrl-C ended the search: it is the best that had been found by then.
    """

    model: CnnHypergraph
    modelling: Modelling
    parts: Int32
    k: int
    eps: float
    seed: int
    backend: str
    start: str
    speeds: tuple[float, ...] | None
    evaluation: Evaluation
    feasible: bool
    lower_bound: int
    objective: Objective = VOLUME
    memory: MemoryLimits | None = None
    memory_bytes: Int64 | None = None
    interrupted: bool = False

    def __repr__(self) -> str:
        """Short, without its hypergraph and arrays."""
        return (
            f"Partition(k={self.k}, {self.modelling.grain}-grain, "
            f"imbalance={self.evaluation.imbalance:.3f}, volume={self.evaluation.volume:,} bytes)"
        )

    def summary(self) -> Summary:
        """What each part has of the work and the parameters, and sends in a forward pass.

        With slices of the batch, in each way of a training step.
        """
        found, modelling = self.evaluation, self.modelling
        shares = part_shares(self.model, self.parts, self.k)
        total = max(1, int(found.loads.sum()))
        allowed = "allowed" if found.imbalance <= self.eps else "more than the allowed"
        slices = f", {modelling.slices} slices of the batch" if modelling.slices > 1 else ""
        line = (
            f"{self.k} parts, {modelling.grain}-grain{slices}: imbalance {found.imbalance:.3f} "
            f"({allowed} {self.eps:g}), {found.volume / MB:,.4g} MB between them for a batch of "
            f"{modelling.batch_size}"
        )
        rows = tuple(
            (
                str(part),
                f"{100 * int(found.loads[part]) / total:.1f}",
                f"{int(shares.parameters[part]):,}",
                f"{int(found.sent[part]) / MB:,.4g}",
                f"{int(found.received[part]) / MB:,.4g}",
            )
            for part in range(self.k)
        )
        return Summary((line,), ("part", "work %", "parameters", "sends MB", "receives MB"), rows)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def objective_value(self) -> float:
        """What was to be little: bytes, their costs, or estimated seconds of a step."""
        work = work_of_layers(self.model, self.parts, self.k)
        return self.objective.value(self.evaluation.traffic, work)

    @property
    def gap(self) -> float:
        """Share of the objective that a better partition within eps might do without; 0.0: none.

        Negative where it is less than the lower bound, which only an infeasible one can be.
        """
        least = self.objective.least(self.lower_bound, self.k)
        return relative_gap(self.objective_value, least)


def uninterrupted(found: Partition) -> Partition:
    """What a search found, unless Ctrl-C has ended it: raises a KeyboardInterrupt then."""
    if found.interrupted:
        raise KeyboardInterrupt
    return found


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
    """Put a partition, whoever made it, together with its figures by hgpart's own metrics.

    `bound` is a lower bound of the volume within eps, where one is known.
    """
    if bound is None:
        bound = lower_bound(problem)
    k, memory = problem.k, problem.memory
    evaluation = evaluate_parts(model, parts, k, problem.speeds)
    needed = None if memory is None else memory.needed(model, parts)
    is_held = memory is None or needed is None or memory.hold(needed)
    return Partition(
        model=model,
        modelling=problem.modelling,
        parts=parts,
        k=k,
        eps=problem.eps,
        seed=seed,
        backend=backend,
        start=start,
        speeds=None if problem.speeds is None else tuple(problem.speeds),
        evaluation=evaluation,
        feasible=within(evaluation.loads, problem.rates, problem.eps) and is_held,
        lower_bound=bound,
        objective=problem.objective,
        memory=memory,
        memory_bytes=needed,
        interrupted=interrupted,
    )
