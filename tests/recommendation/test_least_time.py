"""The choice by simulated time: best of all that is tried, the same again, within its limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_times import in_proportion

from hgpart import Modelling, Placement, load_model, place
from hgpart.errors import ArgumentError, InfeasibleError, PlanError
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Link, Machine
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import time_objective
from hgpart.partition.stages import solve
from hgpart.partition.ways.catalogue import way_named
from hgpart.plan import Plan, load_plan, restore, save_plan
from hgpart.prediction.predict import predict
from hgpart.recommendation.least_time import least_time, partition_of
from hgpart.recommendation.ranking import Recommendation
from hgpart.run.scheduling import schedule
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.layer_times import training_work

K, BATCH, SHAPE = 2, 8, (1, 32, 32)
COUNTS = (1, 4)
SLOW, FAST = 1e6, 1e10  # bytes a second


@pytest.fixture(scope="module")
def lenet() -> tuple[Any, Any, Any]:
    """The model, its layers and what they take."""
    module, shape = load_model("lenet5", device="meta")
    assert shape == SHAPE
    graph = channel_graph(trace(module, example_inputs(module, shape)))
    return module, graph, in_proportion(graph, update=1e-5)


def machine_of(bandwidth: float, k: int = K) -> Machine:
    return Machine("toy", (Device("toy"),) * k, (k,), Link.of(1e-5, bandwidth))


def problem_of(lenet: Any, machine: Machine, eps: float, **limits: Any) -> Problem:
    _, graph, times = lenet
    work = training_work(times, graph, BATCH)
    seconds = float(sum(work.per_task * [layer.tasks for layer in graph.layers])) / work.units
    objective = time_objective(machine, K, seconds, 1)
    return Problem(graph, work, Modelling(batch_size=BATCH), K, eps, objective=objective, **limits)


def chosen(lenet: Any, machine: Machine, eps: float = 0.3, **limits: Any) -> Recommendation:
    problem = problem_of(lenet, machine, eps, **limits)
    return least_time(
        *(lenet[0], SHAPE, problem, machine, lenet[2], Search(0, 0.02)), micro_batches=COUNTS
    )


@pytest.fixture(scope="module")
def found(lenet: Any) -> dict[float, Recommendation]:
    """What is chosen over links of each bandwidth."""
    return {bandwidth: chosen(lenet, machine_of(bandwidth)) for bandwidth in (SLOW, FAST)}


def placed(lenet: Any, partition: Any) -> Placement:
    return place(lenet[0].train(), Plan(partition, "m", SHAPE), ["meta"] * K)


def simulated(lenet: Any, placement: Placement, machine: Machine, many: int) -> float:
    made = schedule(placement, "greedy", many, backward=True, batch_size=BATCH)
    found = predict(placement, made, machine, lenet[2], BATCH)
    return found.period + found.update_seconds


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("bandwidth", [SLOW, FAST])
def test_nothing_that_is_known_is_faster(lenet: Any, found: Any, bandwidth: float) -> None:
    machine = machine_of(bandwidth)
    partition, best = partition_of(found[bandwidth]), found[bandwidth].best
    assert partition.feasible
    assert partition.evaluation.imbalance <= 0.3
    assert (partition.problem.objective.name, partition.start) == ("time", best.trial.name)
    many = best.scheduling.micro_batches
    assert partition.problem.objective.micro_batches == many
    seconds = simulated(lenet, placed(lenet, partition), machine, many)
    assert seconds == pytest.approx(best.seconds, rel=1e-3)
    problem = problem_of(lenet, machine, 0.3)
    whole = replace(problem, objective=VOLUME)
    names = ("layerwise-volume", "incremental", "horizontal", "data-parallel", "one-weird-trick")
    ways = [way_named(name).partition(whole, Search()) for name in names]
    ways.append(solve(whole, Search(0, 0.02)))
    within = [way for way in ways if way.feasible]
    assert within
    for placement in (placed(lenet, way) for way in within):
        for count in COUNTS:
            assert best.seconds <= 1.001 * simulated(lenet, placement, machine, count)


@pytest.mark.full
@pytest.mark.long
def test_it_is_the_same_again(lenet: Any, found: Any) -> None:
    one, other = found[FAST], chosen(lenet, machine_of(FAST))
    assert (partition_of(one).parts == partition_of(other).parts).all()
    assert [way.trial.name for way in one.ranked] == [way.trial.name for way in other.ranked]
    assert [way.seconds for way in one.ranked] == [way.seconds for way in other.ranked]
    assert one.dropped == other.dropped


@pytest.mark.full
@pytest.mark.long
def test_memory_limits_hold_and_what_none_can_hold_is_said(lenet: Any) -> None:
    machine = machine_of(FAST)
    free = chosen(lenet, machine, memory=MemoryLimits((10**9,) * K, 2.0))
    needed = partition_of(free).memory_bytes
    assert needed is not None
    limit = int(needed.max()) - 1
    try:
        least = chosen(lenet, machine, memory=MemoryLimits((limit,) * K, 2.0))
    except InfeasibleError as error:
        assert "\n" not in str(error)
    else:
        memory = partition_of(least).memory_bytes
        assert memory is not None
        assert memory.max() <= limit
        assert least.best.seconds >= free.best.seconds * (1 - 1e-9)
    with pytest.raises(InfeasibleError, match="no way to divide the model among 2 devices"):
        chosen(lenet, machine, memory=MemoryLimits((1,) * K, 2.0))


@pytest.mark.full
def test_a_plan_of_it_comes_back_whole(lenet: Any, found: Any, tmp_path: Path) -> None:
    partition = partition_of(found[FAST])
    save_plan(Plan(partition, "lenet5", SHAPE), tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    again = restore(plan, lenet[1])
    assert again.objective_value == partition.objective_value
    assert (again.problem.objective.seconds, again.problem.objective.micro_batches) == (
        partition.problem.objective.seconds,
        partition.problem.objective.micro_batches,
    )
    with pytest.raises(PlanError, match="expected k=2"):
        restore(replace(plan, objective=time_objective(machine_of(1, 3), 3, 1.0, 1)), lenet[1])


def test_a_machine_of_too_few_devices_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of 2 devices for k=3"):
        time_objective(machine_of(1.0), 3, 1.0, 1)
