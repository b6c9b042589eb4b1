"""Plan or plan file + the ChannelGraph of its model -> Partition, if it is for that model."""

from __future__ import annotations

from hgpart.errors import ArgumentError, HgpartError, PlanError
from hgpart.files.json_files import quoted
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.plan.plan import Plan
from hgpart.plan.plan_file import PlanFile
from hgpart.tracing.input_shape import shape_text


def another_model(plan: Plan | PlanFile, error: HgpartError) -> PlanError:
    """Error for a model that can't be traced with a plan's samples."""
    return untraceable(plan.words, plan.model, shape_text(plan.input_shape), error)


def untraceable(plan: str, name: str, sample: str, error: HgpartError) -> PlanError:
    """Error for a model that can't be traced with the samples of the plan of a model."""
    return PlanError(
        f"{plan} is for {quoted(name)} and samples of {sample}, with which this model "
        f"can't be traced, so it is another one, or has changed: {error}"
    )


def check_is_for(name: str, planned: ChannelGraph | Plan | PlanFile, graph: ChannelGraph) -> None:
    """Raise a PlanError if what was planned for a model of some name is not for this graph."""
    plan = "the plan" if isinstance(planned, ChannelGraph) else planned.words
    if planned.fingerprint != graph.fingerprint:
        raise PlanError(
            f"{plan} is for {quoted(name)} with fingerprint {quoted(planned.fingerprint)}, "
            f"this model's is {graph.fingerprint}: it is another one or it has changed, partition "
            "it anew"
        )


def restore(plan: Plan | PlanFile, graph: ChannelGraph) -> Partition:
    """Return the partition of a plan, after checking that it is for the model of this graph.

    The figures of a plan file are recomputed.

    Raises
    ------
    PlanError
        If the model has changed since, or the file's figures are not those of its partition.
    """
    check_is_for(plan.model, plan, graph)
    return plan.partition if isinstance(plan, Plan) else _restored(plan, graph)


def _restored(plan: PlanFile, graph: ChannelGraph) -> Partition:
    try:
        problem = Problem(
            graph,
            plan.work,
            plan.modelling,
            plan.k,
            plan.eps,
            plan.speeds,
            plan.objective,
            plan.memory,
            constraints=plan.constraints,
        )
        model = problem.hypergraph(plan.blocks)
    except ArgumentError as error:
        raise PlanError(f"{plan.words} is not one of this model: {error}") from None
    if plan.k > problem.tasks:
        raise PlanError(
            f"{plan.words} has k={plan.k}, this model has {problem.tasks} tasks: it was changed"
        )
    if len(plan.parts) != model.vertices:
        slices = plan.modelling.slices
        raise PlanError(
            f"{plan.words} has parts for {len(plan.parts)} blocks, expected one for each of "
            f"{model.vertices}" + (f" in {slices} slices of the batch" if slices > 1 else "")
        )
    partition = evaluated(
        problem,
        model,
        plan.parts,
        seed=plan.seed,
        backend=plan.backend,
        start=plan.start,
        bound=max(lower_bound(problem), plan.lower_bound_bytes),
        interrupted=plan.interrupted,
    )
    if partition.evaluation.volume != plan.volume_bytes:
        raise PlanError(
            f"{plan.words} says that {plan.volume_bytes} bytes travel, its partition's volume is "
            f"{partition.evaluation.volume}: the file was changed"
        )
    if partition.feasible and plan.lower_bound_bytes > plan.volume_bytes:
        raise PlanError(
            f"{plan.words} says that at least {plan.lower_bound_bytes} bytes travel, its "
            f"partition's volume is {plan.volume_bytes}: the file was changed"
        )
    if partition.evaluation.imbalance != plan.imbalance:
        raise PlanError(
            f"{plan.words} says that its imbalance is {plan.imbalance}, its partition's is "
            f"{partition.evaluation.imbalance}: the file was changed"
        )
    if plan.feasible and partition.broken:
        raise PlanError(
            f"{plan.words} says that it keeps to its constraints, its partition does not keep to "
            f"{'; '.join(partition.broken)}: the file was changed"
        )
    return partition
