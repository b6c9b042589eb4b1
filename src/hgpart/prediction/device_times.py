"""Machine, times of layers -> the times that each device is reckoned by, and how fast it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Machine
from hgpart.work.layer_times import LayerTimes, step_seconds

# Times on one device, which machines give speeds relative to; or on one of each kind.
Times = LayerTimes | Mapping[str, LayerTimes]


class TimedDevice(NamedTuple):
    """What a device's seconds are reckoned by: those of layers, divided by its speed."""

    times: LayerTimes
    speed: float


def timed_devices(machine: Machine, times: Times) -> tuple[TimedDevice, ...]:
    """The times and the speed of each device; where kinds have times of their own, these say all.

    Raises
    ------
    ArgumentError
        If a kind of device has no times.
    """
    if isinstance(times, LayerTimes):
        return tuple(TimedDevice(times, device.speed) for device in machine.devices)
    for device in machine.devices:
        if device.kind not in times:
            raise ArgumentError(
                f"no layer times of {device.kind!r}: accepted are those of each kind of "
                f"{machine.name}, given are {', '.join(times)}"
            )
    return tuple(TimedDevice(times[device.kind], 1.0) for device in machine.devices)


def at_speeds(machine: Machine, times: Times, batch_size: int) -> tuple[Machine, LayerTimes]:
    """The machine with the speeds of its devices, relative to that of the times returned.

    Where kinds have times of their own, these are the first device's, and a speed is what steps of
    the whole model say.

    Raises
    ------
    ArgumentError
        If a kind of device has no times.
    """
    timed = timed_devices(machine, times)
    if isinstance(times, LayerTimes):
        return machine, times
    first = step_seconds(timed[0].times, batch_size)
    devices = tuple(
        replace(device, speed=first / step_seconds(own.times, batch_size))
        for device, own in zip(machine.devices, timed, strict=True)
    )
    return replace(machine, devices=devices), timed[0].times


def cautions(machine: Machine, times: Times) -> tuple[str, ...]:
    """Why figures by these times on this machine can't be trusted, if anything is known."""
    said = (own.times.caution for own in timed_devices(machine, times))
    return tuple(dict.fromkeys(filter(None, (*said, machine.caution))))


def sources(machine: Machine, times: Times) -> str:
    """Where the times come from: those of the machine's kinds, in their order."""
    return "; ".join(dict.fromkeys(own.times.source for own in timed_devices(machine, times)))
