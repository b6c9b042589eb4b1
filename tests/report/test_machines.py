"""Tables of a machine: the figures of its file, in units that people read."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from hgpart.machines.machine import AllReduce, Device, Link, Machine, Slowdown
from hgpart.machines.named import named_machine
from hgpart.report.machines import print_machine
from hgpart.terminal import PlainConsole

MACHINE = Machine(
    name="m",
    devices=(Device("CPU one", 2 * 10**9), Device("CPU two", threads=4)),
    nodes=(2,),
    inside=Link.of(1e-4, 1e9),
    pairs={(0, 1): Link.of(1e-4, 1e9, both_ways=5e8)},
    all_reduce=AllReduce((0, 2**26), (0.001, 0.065)),
    together=(1.0, 1.25),
    memory_bound=Slowdown((1.0, 2.0)),
    handling=8e-10,
    stall=2.5e-4,
    note="as measured",
)


def printed(machine: Machine) -> str:
    text = io.StringIO()
    print_machine(machine, PlainConsole(file=text, width=100))
    return text.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return line.removeprefix(name).split()


def test_links_slowdowns_and_devices() -> None:
    text = printed(MACHINE)
    megabyte = 2**20 / 1e9 + 1e-4, 2**20 / 5e8 + 1e-4
    figures = [1.0, 0.5, 100.0, 1000 * megabyte[0], 1000 * megabyte[1]]
    assert [*map(float, row(text, "0 to 1"))] == pytest.approx(figures, rel=1e-3)
    assert "2 devices: 1 ms of 1 KiB, 2 ms of 1 MiB, 65 ms of 64 MiB" in text
    assert row(text, "2 devices of a node") == ["1.25", "2.00"]
    assert "Messages take 0.80 s of computing a GB, and 0.25 ms each, of the device that" in text
    assert "1 x CPU one, 1 thread, 2.0 GB\n1 x CPU two, 4 threads\nas measured\n" in text


def test_what_disturbed_the_measurement_comes_first() -> None:
    text = printed(replace(MACHINE, disturbed="others ran"))
    assert text.startswith("The machine's figures can't be trusted: others ran while they were")


def test_what_is_not_known_is_not_printed() -> None:
    text = printed(replace(MACHINE, all_reduce=None, memory_bound=None, note=""))
    assert "All-reduce" not in text
    assert row(text, "2 devices of a node") == ["1.25"]
    assert text.endswith("4 threads\n")


def test_without_measured_pairs_links_are_those_of_nodes() -> None:
    text = printed(named_machine("nvlink-8:1024"))
    assert float(row(text, "inside a node")[0]) == 300
    assert float(row(text, "between nodes")[0]) < 12.5
    assert "1024 x NVIDIA A100 40GB, 1 thread, 40.0 GB" in text
    assert "inside a node" not in printed(named_machine("10gbe:4"))
    assert "between nodes" not in printed(named_machine("nvlink-8:8"))
