"""What devices need: of a placement that is counted by hand, against limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from placed_models import placed
from recommended import LINK, machine, network, recommended
from torch import nn

from hgpart import Modelling
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Device, Machine
from hgpart.partition.problem.memory import MemoryLimits, in_words
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.placement import place
from hgpart.placement.accounting import account
from hgpart.recommendation.memory import (
    STEP_BYTES,
    PlanInMemory,
    TrainingWanted,
    limits_of,
    plan_in_memory,
    process_bytes,
    what_is_over,
)
from hgpart.run.processes.lanes import lane_bytes
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops

FLOAT = 4


def test_one_device_needs_weights_momentum_and_what_a_step_takes_with_gradients() -> None:
    found = recommended(machine(1)).best
    parameters = sum(one.numel() for one in network().parameters()) * FLOAT
    assert found.needed_bytes == (2 * parameters + found.prediction.step_bytes[0],)
    assert found.prediction.step_bytes > found.prediction.peak_bytes  # with what operators drop
    # A batch of 8: the input and what the first convolution, the ReLU and the second one return.
    maps = 8 * (3 * 64 + 8 * 36 + 8 * 36 + 8 * 16)
    assert found.prediction.peak_bytes[0] >= maps * FLOAT - 8 * 8 * 36 * FLOAT


def test_processes_among_several_take_lanes_and_what_python_has_of_their_steps() -> None:
    model, inputs = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)), [torch.zeros(2, 3, 4, 4)]
    alone, first, second = (
        process_bytes(placed(model, inputs, "layers", k=k), part)
        for k, part in ((1, 0), (2, 0), (2, 1))
    )
    assert alone == 0
    assert first == second == lane_bytes(2) + STEP_BYTES


def test_limits_are_those_given_or_those_of_the_devices() -> None:
    devices = (Device("a", 5), Device("b", None))
    unequal = Machine("two", devices, (2,), LINK)
    assert limits_of(unequal, None) == (5, None)
    assert limits_of(unequal, 7) == (7, 7)


def test_the_device_that_is_short_of_most_is_named() -> None:
    assert what_is_over((10, 20), (10, 20)) is None
    assert what_is_over((None, 20), (1, None)) is None
    assert what_is_over((11, 25), (10, 20)) == "device 1 needs 25 bytes of 20 bytes"


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("share", "bands"),
    [(None, 1), (0.7, 2), pytest.param(0.4, None, marks=pytest.mark.full)],
)
def test_one_large_image_is_divided_by_rows_where_a_device_has_no_room_for_it(share, bands) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model, shape = nn.Sequential(*layers, nn.Conv2d(8, 2, 3, padding=1)).to("meta"), (3, 48, 16)
    traced = trace(model, [torch.zeros(1, *shape, device="meta")])
    graph = channel_graph(traced)
    wanted, search = TrainingWanted(model, "tall", shape), Search(effort=0.1)

    def planned(k: int, limit: int | None) -> PlanInMemory:
        memory = None if limit is None else MemoryLimits((limit,) * k, copies=3)
        problem = Problem(graph, flops(graph), Modelling(batch_size=1), k, 0.1, memory=memory)
        return plan_in_memory(wanted, problem, search)

    alone = planned(1, None)
    if share is None:
        placed = place(model, alone.plan, ["meta"])
        assert alone.needed_bytes[0] > account(placed).parts[0].memory_bytes("sgd with momentum")
        return
    limit = round(share * alone.needed_bytes[0])
    if bands is None:
        with pytest.raises(
            InfeasibleError, match=r"^no plan for 2 devices of .* kB was found: the"
        ):
            planned(2, limit)
        return
    found = planned(2, limit)
    assert found.plan.partition.modelling.bands == bands
    assert max(found.needed_bytes) <= limit
    assert found.text.startswith("Plan: 2 devices, 2 bands of rows; a step needs most memory on de")


def in_memory(
    limits: tuple[int, ...] | None,
    scheduling: Scheduling | None,
    devices: tuple[str, ...] | None = None,
    autocast: torch.dtype | None = None,
) -> PlanInMemory:
    """A plan of a small model with a norm, for a sample on two devices."""
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)]
    model, shape = nn.Sequential(*layers).to("meta"), (3, 16, 8)
    graph = channel_graph(trace(model, [torch.zeros(1, *shape, device="meta")]))
    memory = None if limits is None else MemoryLimits(limits, copies=3)
    problem = Problem(graph, flops(graph), Modelling(batch_size=1), 2, 0.1, memory=memory)
    wanted = TrainingWanted(model, "norm", shape, scheduling, devices=devices, autocast=autocast)
    return plan_in_memory(wanted, problem, Search(effort=0))


@pytest.mark.full
def test_a_stream_that_bands_refuse_gets_a_plan_without_them() -> None:
    """Such a plan was made, and its training refused, as copies have no older weights then."""
    assert in_memory(None, Scheduling("async")).plan.partition.modelling.bands > 1
    asked = Scheduling("async", stash=False)
    found = in_memory(None, asked)
    assert found.plan.partition.modelling.bands == 1
    assert found.plan.scheduling == asked


@pytest.mark.full
def test_norms_that_refuse_bands_under_autocast_get_a_plan_without_them() -> None:
    found = in_memory(None, Scheduling(), autocast=torch.bfloat16)
    assert found.plan.partition.modelling.bands == 1


@pytest.mark.full
def test_a_gpu_packs_no_maps() -> None:
    on_gpu, on_cpu = in_memory(None, Scheduling(), ("cpu", "cuda")).needed_bytes[::-1]
    there, here = in_memory(None, Scheduling()).needed_bytes[::-1]
    assert on_gpu < there and on_cpu == here


@pytest.mark.full
def test_what_nothing_is_left_for_is_refused_as_it_is_known() -> None:
    with pytest.raises(ArgumentError, match=r"^3 micro-batches"):
        in_memory(None, Scheduling("greedy", 3))


def test_a_device_is_short_by_its_own_limit() -> None:
    """The one that needs most was named, which may have most."""
    found = in_memory(None, Scheduling())
    small, large = min(found.needed_bytes), max(found.needed_bytes)
    limited = replace(
        found.plan.partition.problem, memory=MemoryLimits((small + 1, 10 * large), copies=3)
    )
    own = replace(found.plan, partition=replace(found.plan.partition, problem=limited))
    roomy = PlanInMemory(own, (small, large))
    assert roomy.fullest == 0 and roomy.over.tolist() == [-1, -9 * large]
    assert f"on device 0, {in_words(small)} of {in_words(small + 1)}" in roomy.text


@pytest.mark.full
@pytest.mark.long
def test_the_limits_of_unequal_devices_are_in_the_refusal() -> None:
    with pytest.raises(
        InfeasibleError, match=r"^no plan for 2 devices of 1 kB, 8 MB was .* on device 0 of 1 kB;"
    ):
        in_memory((1000, 8_000_000), Scheduling())
