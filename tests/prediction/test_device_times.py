"""What devices are reckoned by: speeds of a machine, or times of each kind of device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from placed_models import model_of, placed
from toy_times import in_proportion

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Device, Link, Machine
from hgpart.prediction.device_times import at_speeds, timed_devices
from hgpart.prediction.measured_costs import Overheads
from hgpart.prediction.predict import predict
from hgpart.run.scheduling import schedule

NO_OVERHEADS = Overheads(0.0, 0.0, 0.0)
LINK = Link.of(latency=0.0, bandwidth=1e18)


def machine_of(*devices: Device) -> Machine:
    return Machine("lab", devices, (len(devices),), LINK)


def test_a_part_takes_as_long_as_its_device_is_slow() -> None:
    placement = placed(*model_of("residual"))
    times = in_proportion(placement.programs.blueprint.graph, update=1e-3)
    made = schedule(placement, "gpipe", 2, recompute=True)
    alike = predict(placement, made, machine_of(*[Device("a")] * 3), times, 4)
    differ = (Device("a"), Device("b", speed=0.25), Device("c", speed=2.0))
    found = predict(placement, made, machine_of(*differ), times, 4)
    assert found.busy == pytest.approx(alike.busy / [1.0, 0.25, 2.0])
    slow = predict(placement, made, machine_of(*[Device("b", speed=0.25)] * 3), times, 4)
    assert slow.update_seconds == pytest.approx(4 * alike.update_seconds)
    assert (found.sent_bytes == alike.sent_bytes).all()


def test_times_of_each_kind_say_what_speeds_say() -> None:
    placement = placed(*model_of("residual"))
    graph = placement.programs.blueprint.graph
    made = schedule(placement, "gpipe", 2)
    times = {"a": in_proportion(graph), "b": in_proportion(graph, scale=4.0)}
    # Where kinds have times, speeds say nothing more.
    devices = Device("a"), Device("b", speed=9.0), Device("a")
    kinds = predict(placement, made, machine_of(*devices), times, 4, NO_OVERHEADS)
    by_speed = machine_of(Device("a"), Device("b", speed=0.25), Device("a"))
    speeds = predict(placement, made, by_speed, times["a"], 4, NO_OVERHEADS)
    assert np.allclose(kinds.busy, speeds.busy) and kinds.seconds == pytest.approx(speeds.seconds)
    machine, first = at_speeds(machine_of(*devices), times, 4)
    assert first is times["a"]
    assert machine.speeds == pytest.approx((1.0, 0.25, 1.0))
    assert machine_of(*[Device("a", speed=3.0)] * 2).speeds is None


def test_the_most_that_neighbours_slow_down_counts() -> None:
    placement = placed(*model_of("residual"))
    times = in_proportion(placement.programs.blueprint.graph)
    beside = replace(times, neighbours=2, beside=3.0)
    made = schedule(placement, "gpipe", 2)
    slowed = replace(machine_of(Device("a"), Device("b"), Device("a")), together=(1.0, 1.1))
    both = predict(placement, made, slowed, {"a": times, "b": beside}, 4)
    assert both.seconds == predict(placement, made, slowed, beside, 4).seconds


def test_a_kind_without_times_is_refused() -> None:
    graph = placed(*model_of("residual")).programs.blueprint.graph
    with pytest.raises(ArgumentError, match=r"no layer times of 'b': accepted .* given are a"):
        timed_devices(machine_of(Device("a"), Device("b")), {"a": in_proportion(graph)})
