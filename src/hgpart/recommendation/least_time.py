"""Problem, Machine, LayerTimes -> Recommendation: the partition whose step is simulated fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from hgpart.errors import ArgumentError, PlanError
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Machine
from hgpart.partition.partition import Partition
from hgpart.partition.problem.objectives import MICRO_BATCHES
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.recommendation.ranking import Recommendation
from hgpart.recommendation.simulating import Asked, Simulations
from hgpart.recommendation.trials import Trial, trials_within
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.input_shape import InputShape
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.work.layer_times import LayerTimes


def least_time(
    module: nn.Module,
    input_shape: InputShape,
    problem: Problem,
    machine: Machine,
    times: LayerTimes,
    search: Search,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    on_way: Callable[[str, float], None] = lambda what, done: None,
    name: str = "model",
) -> Recommendation:
    """Simulate every way to divide a model among k devices, in each number of micro-batches.

    The best is never worse, by the simulator, than any way of `trials_within` that is within eps
    and memory, such as the cut between layers and the partition of least volume. What sends longer
    than the best step takes is not placed.

    Parameters
    ----------
    module : nn.Module
        On the meta device.
    input_shape : InputShape
        The inputs that the model takes for each sample.
    problem : Problem
        With the objective "time".
    times : LayerTimes
        Seconds of the model's layers.
    search : Search
        How long all searches take; ways whose turn comes behind the deadline are left out, but for
        the first that can be.
    on_way : function of a str and a float, optional
        Told each way when its turn comes, and the share of all that is done.
    name : str
        The model, as `load_model` takes it, for the plans.

    Raises
    ------
    ArgumentError
        If there are fewer tasks than parts.
    InfeasibleError
        If no way is within eps and memory.
    PlanError
        If the problem is of another model.
    """
    if problem.k > problem.tasks:
        raise ArgumentError(
            f"k is {problem.k}, expected at most {problem.tasks}, the number of tasks"
        )
    asked = Asked(
        module=module,
        name=name,
        traced=_traced(module, input_shape, problem),
        problem=problem,
        times=times,
        machine=machine,
        goal="time",
        limits=(None,) * problem.k,  # the problem has its own
        search=search,
        orders=lambda partition: [Scheduling(micro_batches=count) for count in micro_batches],
        is_bound=True,
    )
    module.train()
    alone = Trial(way_named("single"), 1)
    listed = (alone, *trials_within(problem, micro_batches))
    return Simulations(asked, listed, search.deadline, on_way).run()


def partition_of(recommendation: Recommendation) -> Partition:
    """Return the best partition, with the objective for the micro-batches that it is best in."""
    best = recommendation.best
    problem, count = best.partition.problem, best.scheduling.micro_batches
    objective = problem.objective.in_micro_batches(count)
    return replace(
        best.partition,
        problem=replace(problem, objective=objective),
        interrupted=recommendation.interrupted,
    )


def _traced(module: nn.Module, input_shape: InputShape, problem: Problem) -> TracedModel:
    """Trace the model in the mode in which its layers are the problem's."""
    for training in (True, False):
        traced = trace(module.train(training), example_inputs(module, input_shape))
        if channel_graph(traced).fingerprint == problem.graph.fingerprint:
            return traced
    raise PlanError("the model is another one than the problem's: accepted is the same")
