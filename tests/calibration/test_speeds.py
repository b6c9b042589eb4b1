"""Seconds of devices -> their speeds, without a clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hgpart.calibration.speeds import with_speeds
from hgpart.machines.machine import Device


class Processes:
    """A connection and its operation's timer in one, whose operations take the seconds given."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.measured = seconds

    def gather(self, own: float) -> list[float]:
        assert own == self.measured[0]
        return [*self.measured]

    def alone(self) -> float:
        return self.measured[0]

    def seconds(self) -> float:
        return self.measured[0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((0.100, 0.101, 0.114), (1.0, 1.0, 1.0)),  # equal devices, and some noise
        ((0.100, 0.200, 0.080), (1.0, 0.5, 1.25)),
        ((0.300, 0.100, 0.300), (1.0, 3.0, 1.0)),
    ],
)
def test_speeds_where_devices_differ(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    processes = Processes(seconds)
    monkeypatch.setattr("hgpart.calibration.speeds.OperationTimer", lambda *_: processes)
    devices = [Device("board")] * len(seconds)
    found = with_speeds(processes, (3,), devices, lambda: None)  # type: ignore[arg-type]
    assert tuple(device.speed for device in found) == expected
