"""Calibrations by real processes: a whole machine, or one line of what went wrong."""

from __future__ import annotations

import os
from pathlib import Path

import calibration_ranks
import pytest

from hgpart.cores import processor
from hgpart.errors import RunError
from hgpart.machines.machine_files import load_machine
from hgpart.run.processes.launch import launch


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread a process, which finds what the tests do."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MASTER_PORT", raising=False)


def calibrated(folder: Path, k: int, happens: str = "nothing") -> None:
    launch(calibration_ranks.__file__, [str(folder), happens], k)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("k", [2, pytest.param(3, marks=pytest.mark.full)])
def test_all_processes_find_one_machine(tmp_path: Path, k: int) -> None:
    calibrated(tmp_path, k)
    machine = load_machine(tmp_path / "0.json")
    for rank in range(1, k):
        assert load_machine(tmp_path / f"{rank}.json") == machine
    assert (machine.k, machine.nodes, machine.between) == (k, (k,), None)
    assert {device.kind for device in machine.devices} == {processor()}
    assert all(device.threads == 1 and device.memory for device in machine.devices)
    assert machine.devices[0].speed == 1.0  # the others' are those of a moment on shared cores
    assert [*machine.pairs] == [(one, other) for one in range(k) for other in range(one + 1, k)]
    for link in (*machine.pairs.values(), machine.inside):
        assert link.sizes == (2**10, 2**18, 2**26)
        assert link.latency > 0
    assert machine.all_reduce is not None
    assert machine.all_reduce.sizes == (2**10, 2**18, 2**26)
    assert machine.memory_bound is not None
    assert len(machine.together) == len(machine.memory_bound.together) == k
    assert "hgpart" in machine.note
    assert "gloo" in machine.note


@pytest.mark.full
@pytest.mark.long
def test_a_slow_process_is_a_slow_device(tmp_path: Path) -> None:
    calibrated(tmp_path, 2, "slow")
    first, second = load_machine(tmp_path / "0.json").devices
    assert first.speed == 1.0
    assert 0.002 < second.speed < 0.3


@pytest.mark.full
@pytest.mark.long
def test_computers_are_nodes(tmp_path: Path) -> None:
    calibrated(tmp_path, 2, "apart")
    machine = load_machine(tmp_path / "0.json")
    assert machine.nodes == (1, 1)
    assert machine.between == machine.inside == machine.pairs[0, 1]
    assert machine.together == (1.0,)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("happens", "said"),
    [
        ("SIGKILL", "rank 1 was ended by SIGKILL"),
        ("SIGSTOP", "rank 1 is silent, as if stopped or cut off: seen when rank 0"),
    ],
)
def test_a_process_that_dies_or_hangs_ends_all(tmp_path: Path, happens: str, said: str) -> None:
    with pytest.raises(RunError, match=said) as caught:
        calibrated(tmp_path, 2, happens)
    assert "\n" not in str(caught.value)
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"{rank}.pid").read_text()), 0)
