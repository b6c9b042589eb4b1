"""How many cores a process may keep busy: by its affinity, and by quotas of control groups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hgpart import cores

V2 = "0::/box/job\n"
V1 = "9:name=systemd:/\n4:cpu,cpuacct:/box/job\n3:cpuset:/elsewhere\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight cores, and folders for control groups."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "groups")
    return tmp_path


def write(machine: Path, own: str, files: dict[str, str]) -> None:
    (machine / "own").write_text(own)
    for name, text in files.items():
        file = machine / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (V2, {"box/job/cpu.max": "max 100000\n"}, 8),
        (V2, {"box/job/cpu.max": "300000 100000\n"}, 3),
        (V2, {"box/job/cpu.max": "150000 100000\n"}, 2),
        (V2, {"box/job/cpu.max": "1000 100000\n"}, 1),
        (V2, {"box/job/cpu.max": "9900000 100000\n"}, 8),
        (V2, {"box/cpu.max": "200000 100000\n", "box/job/cpu.max": "max 100000\n"}, 2),
        (V2, {"cpu.max": "400000 100000\n"}, 4),  # the container's group is mounted as the root
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/../other\n", {"cpu.max": "400000 100000\n"}, 4),
        (V2, {"box/job/cpu.max": "many\n"}, 8),
        (V1, {"cpu/box/job/cpu.cfs_quota_us": "-1\n", "cpu/box/job/cpu.cfs_period_us": "1"}, 8),
        (V1, {"cpu/box/job/cpu.cfs_quota_us": "500", "cpu/box/job/cpu.cfs_period_us": "200"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "400", "cpu/cpu.cfs_period_us": "200"}, 2),
        (V1, {"box/job/cpu.max": "100000 100000\n"}, 8),  # no group of this process
    ],
)
def test_quotas_of_containers_count(
    machine: Path, own: str, files: dict[str, str], expected: int
) -> None:
    write(machine, own, files)
    assert cores.usable_cores() == expected


def test_affinity_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(machine, V2, {"box/job/cpu.max": "600000 100000\n"})
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5})
    assert cores.usable_cores() == 2


def test_without_affinity_or_control_groups_all_cores_count(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert cores.usable_cores() == 6
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert cores.usable_cores() == 1


@pytest.mark.parametrize(
    ("usable", "processes", "threads", "expected"),
    [
        ({0, 1}, 2, 1, [[0], [1]]),
        ({1, 3, 4, 6, 7}, 2, 2, [[1, 3], [4, 6]]),
        ({2, 5}, 1, 2, [[2, 5]]),
        ({0, 1}, 3, 1, []),
        ({0, 1}, 2, 2, []),  # each had two threads on one core
    ],
)
def test_processes_share_the_cores(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    usable: set[int],
    processes: int,
    threads: int,
    expected: list[list[int]],
) -> None:
    bound = list[list[int]]()
    monkeypatch.setattr(cores, "CORES", machine)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: usable)
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: bound.append([*cores]))
    for process in range(processes):
        cores.take_own_cores(process, processes, threads)
    assert bound == expected


def test_hardware_threads_of_a_core_belong_to_one_process(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = list[list[int]]()
    monkeypatch.setattr(cores, "CORES", machine)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr("os.sched_setaffinity", lambda process, own: bound.append([*own]))
    for core in range(4):
        (machine / f"cpu{core}/topology").mkdir(parents=True)
        siblings = machine / f"cpu{core}/topology/thread_siblings_list"
        siblings.write_text(f"{core % 2},{core % 2 + 2}\n")
    for process in range(2):
        cores.take_own_cores(process, 2, 2)
    assert bound == [[0, 2], [1, 3]]


def test_processes_with_a_quota_of_time_share_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(machine, V2, {"box/job/cpu.max": "300000 100000\n"})
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: pytest.fail("bound"))
    cores.take_own_cores(0, 2, 1)


def test_nothing_else_counts_cores() -> None:
    """Annealing took all cores of the machine, the partitioners beside it those of the affinity."""
    assert cores.__file__ is not None
    counting = [
        file.name
        for file in Path(cores.__file__).parent.rglob("*.py")
        if {"cpu_count", "sched_getaffinity"} & set(re.findall(r"\w+", file.read_text()))
    ]
    assert counting == ["cores.py"]
