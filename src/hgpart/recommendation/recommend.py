"""nn.Module, devices -> Recommendation: all stages in one call, measuring what is not given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from hgpart.cores import threads_of_each
from hgpart.errors import ArgumentError
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Machine
from hgpart.partition.problem.constraints import Constraints
from hgpart.prediction.device_times import Times
from hgpart.recommendation.measured_here import machine_here, times_here
from hgpart.recommendation.ranking import Recommendation, check_goal, trains
from hgpart.recommendation.ways import TIME_LIMIT, check_asked, rank_ways
from hgpart.tracing.arguments import Inputs
from hgpart.tracing.traced_model import trace


def recommend(
    model: nn.Module,
    example: Inputs,
    devices: int | None = None,
    *,
    batch_size: int = 32,
    machine: Machine | None = None,
    times: Times | None = None,
    goal: str = "time",
    memory: int | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    time_limit: float = TIME_LIMIT,
    seed: int = 0,
    name: str | None = None,
    on_progress: Callable[[str, float], None] = lambda what, done: None,
) -> Recommendation:
    """Find the best way to train a model on some devices, or to infer, by simulation.

    Where no machine is given, the links between processes of this one are measured, and where no
    times are, layers are measured here, with as many threads as a process has: briefly, in some
    twenty seconds. Then the ways are simulated; only the command `hgpart recommend` also runs some.
    Stage by stage it is `trace`, `channel_graph`, `time_layers`, `load_machine` and `rank_ways`.

    Parameters
    ----------
    model : nn.Module
        In training mode; for a goal of inference in either.
    example : tensor, sequence or mapping
        The model's input, as `trace` takes it; one tensor, as plans have no other inputs.
    devices : int, optional
        Number of devices that may be used. Default: all of the machine's.
    batch_size : int
        Samples of a step, of all devices.
    machine : Machine, optional
        A machine of as many devices, or more. Default: devices like this one.
    times : LayerTimes, or mapping of str to LayerTimes, optional
        Times of the model's layers on such a device, or on each kind of device. Default: they are
        measured here, on a device of speed 1.
    goal, memory, constraints, time_limit, seed, on_progress
        The same as in `rank_ways`.
    name : str, optional
        The model, as `load_model` takes it, for the plans. Default: the name of its class.

    Raises
    ------
    ArgumentError
        If neither devices nor a machine are given, or a number or the goal is out of range; if the
        model is in evaluation mode, and the goal one of training.
    RunError
        If links can't be measured.
    PlanError, InfeasibleError
        For the reasons of `rank_ways`.
    """
    check_goal(goal)
    if trains(goal) and not model.training:
        raise ArgumentError("the model is in evaluation mode: accepted is model.train()")
    k = machine.k if devices is None and machine is not None else devices
    if k is None:
        raise ArgumentError("neither devices nor a machine: accepted is devices=4, say")
    check_asked(k, batch_size, time_limit, memory, machine, goal)
    threads = threads_of_each(k) if machine is None else machine.devices[0].threads
    traced = trace(model, example)
    graph = channel_graph(traced)
    notes: tuple[str, ...] = ()
    if machine is None:
        machine, said = machine_here(k, threads, "machine=... for others", on_progress)
        notes = (said,)
    if times is None:
        times = times_here(model, traced, graph, batch_size, threads)
    recommendation = rank_ways(
        model,
        traced,
        graph,
        times,
        machine,
        devices=k,
        batch_size=batch_size,
        goal=goal,
        memory=memory,
        constraints=constraints,
        time_limit=time_limit,
        seed=seed,
        name=name or type(model).__name__,
        on_progress=on_progress,
    )
    return replace(recommendation, notes=(*notes, *recommendation.notes))
