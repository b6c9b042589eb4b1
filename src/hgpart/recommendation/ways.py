"""TracedModel, LayerTimes, Machine -> Recommendation: the best way to train on some devices."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from torch import nn

from hgpart.errors import ArgumentError, HgpartError, PlanError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Machine
from hgpart.partition.baselines.spatial import heights_of
from hgpart.partition.problem.checks import check_search
from hgpart.partition.problem.constraints import Constraints, constraints_of
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.steering.feasible import least_eps
from hgpart.prediction.device_times import Times, at_speeds
from hgpart.recommendation.memory import limits_of
from hgpart.recommendation.orders import orders
from hgpart.recommendation.ranking import Dropped, Recommendation, check_goal, trains
from hgpart.recommendation.simulating import Asked, Simulations, Tell
from hgpart.recommendation.trials import Trial, trials
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.figures import Work
from hgpart.work.layer_times import WHOLE_STEP, Pass, training_work

EFFORT = 0.1  # of searches: what they find is simulated, and there are many
TIME_LIMIT = 120.0


def rank_ways(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    times: Times,
    machine: Machine,
    *,
    devices: int | None = None,
    batch_size: int = 32,
    goal: str = "time",
    memory: int | None = None,
    time_limit: float = TIME_LIMIT,
    seed: int = 0,
    micro_batches: int | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    name: str = "model",
    on_progress: Tell = lambda what, done: None,
) -> Recommendation:
    """Find the best way to train a model on some devices, or to infer; see `recommend`.

    Ways are divisions of the model and the batch, each by several schedules. They are simulated
    without being placed, and the memory of the best is found out by placing these; for the least
    memory all are placed, first by their likeliest schedules.
    A way that a device has no memory for is dropped, or tried once more with maps recomputed or
    offloaded.
    Ctrl-C ends the search with the ways simulated by then, if there is one at least.

    Parameters
    ----------
    model : nn.Module
        What was traced, in training mode; on the meta device, too.
    graph : ChannelGraph
        The layers of `traced`.
    times : LayerTimes, or mapping of str to LayerTimes
        Times of its layers on a device of speed 1, or on each kind of device.
    machine : Machine
        A machine of as many devices, or more. Of devices that differ in speed, ways for fewer take
        the fastest.
    devices : int, optional
        Number of devices that may be used. Default: all of the machine's.
    batch_size : int
        Samples of a step.
    goal : {"time", "memory", "throughput", "latency", "inference-throughput"}
        Seconds of a step with the optimizer's, bytes of the device that needs most, or samples a
        second: for the last one also training without a stop, whose weights are older. Of
        inference, seconds from a batch to its result, or samples a second of batches that follow
        each other.
    memory : int, optional
        Bytes of each device; those that the machine says when left out.
    time_limit : float
        Seconds after which no further way is begun; how many are left out is said.
    seed : int
        Seed of the searches.
    micro_batches : int, optional
        Micro-batches of all ways of several devices. Default: several numbers are tried.
    constraints : Constraints or mapping, optional
        Where layers must lie, as `partition_graph` takes them. Ways that break any are left out;
        one device is what all are compared with. Where constraints leave no room for the usual eps
        of a search, it gets the smallest that they do.
    name : str
        The model, as `load_model` takes it, for the plans.
    on_progress : callable
        Told what is simulated next, and the share of all that is done.

    Raises
    ------
    ArgumentError
        If a number or the goal is out of range, the machine has fewer devices, or one of its kinds
        of device has no times.
    PlanError
        If the times are not of so many layers.
    InfeasibleError
        If no way fits in memory, and then it says what the one needs that needs least; or if the
        constraints contradict each other.
    """
    k = machine.k if devices is None else devices
    check_asked(k, batch_size, time_limit, memory, machine, goal)
    check_search(seed)
    if micro_batches is not None:
        Scheduling(micro_batches=micro_batches).sizes(batch_size)
        mixing = graph.mixing.of_norms("slice")
        if micro_batches > 1 and mixing:
            raise ArgumentError(f"{micro_batches} micro-batches: {mixing}: accepted is 1")
    machine, first = at_speeds(machine, times, batch_size)
    if len(first.layers) != len(graph.layers):
        raise PlanError(
            f"times of {len(first.layers)} layers: accepted are those of the model's "
            f"{len(graph.layers)}"
        )
    passes = WHOLE_STEP if trains(goal) else (Pass.FORWARD,)
    work = _picoseconds(training_work(first, graph, batch_size, passes))
    modelling = Modelling(batch_size=batch_size, training=trains(goal))
    demands = constraints_of(constraints)
    speeds = machine.of_fastest(k).speeds
    problem = Problem(graph, work, modelling, k, speeds=speeds, constraints=demands)
    asked = Asked(
        module=model,
        name=name,
        traced=traced,
        problem=problem,
        times=times,
        machine=machine,
        goal=goal,
        limits=limits_of(machine, memory),
        search=Search(seed, EFFORT),
        orders=partial(
            orders, goal=goal, divides_batch=problem.divides_batch, micro_batches=micro_batches
        ),
    )
    listed = trials(k, heights_of(graph), has_heads=graph.has_heads)
    dropped: list[Dropped] = []
    notes: list[str] = []
    if demands:
        listed = tuple(_steered(listed, problem, machine, dropped, notes))
    deadline = time.monotonic() + time_limit
    recommendation = Simulations(asked, listed, deadline, on_progress, dropped=dropped).run()
    return replace(recommendation, notes=(*notes, *recommendation.notes))


def _steered(
    listed: Sequence[Trial],
    problem: Problem,
    machine: Machine,
    dropped: list[Dropped],
    notes: list[str],
) -> dict[Trial, None]:
    """Trials with an eps that constraints leave room for; adds what is to be said of others."""
    kept: dict[Trial, None] = {}
    for k in dict.fromkeys(trial.k for trial in listed):
        own = [trial for trial in listed if trial.k == k]
        if k == 1:  # others are compared with it
            kept.update(dict.fromkeys(own))
            continue
        usual = min(trial.eps for trial in own)
        try:
            least = least_eps(replace(problem, k=k, eps=usual, speeds=machine.of_fastest(k).speeds))
        except HgpartError as error:
            if k == problem.k:
                raise
            dropped.append(Dropped(f"all ways on {k} devices", str(error)))
            continue
        if least > usual:
            notes.append(
                f"Constraints leave room for eps {least:g} or more on {k} devices: searches get it"
            )
        for trial in own:
            kept[replace(trial, eps=max(least, trial.eps)) if trial.way.searches else trial] = None
    return kept


def check_asked(
    k: int,
    batch_size: int,
    time_limit: float,
    memory: int | None,
    machine: Machine | None,
    goal: str,
) -> None:
    """Raise an ArgumentError for what no recommendation can be of."""
    check_goal(goal)
    if machine is not None and not 1 <= k <= machine.k:
        raise ArgumentError(
            f"{k} devices of a machine of {machine.k}: accepted are 1 to {machine.k}"
        )
    if k < 1:
        raise ArgumentError(f"{k} devices: accepted is 1 or more")
    if batch_size < 1:
        raise ArgumentError(f"batch size {batch_size}: accepted is 1 or more")
    if not 0 <= time_limit < inf:
        raise ArgumentError(f"time limit {time_limit}: accepted is 0 s or more")
    if memory is not None and memory < 1:
        raise ArgumentError(f"memory {memory}: accepted is 1 byte or more")


def _picoseconds(work: Work) -> Work:
    """Femtoseconds of all slices of a large batch are too many for 64 bits."""
    femtoseconds = 1000
    return replace(
        work, per_task=-(-work.per_task // femtoseconds), units=work.units // femtoseconds
    )
