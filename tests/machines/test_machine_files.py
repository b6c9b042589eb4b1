"""Machine files: what is written is read, what is wrong is named with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from random_machines import machines

from hgpart.errors import ArgumentError, FormatError
from hgpart.machines.machine import AllReduce, Device, Link, Machine, Slowdown, SlowerMemory
from hgpart.machines.machine_files import FORMAT, load_machine, save_machine
from hgpart.machines.named import NAMES, named_machine

LINK = {"latency": 1e-6, "bandwidth": 1e9}
MEASURED = {"sizes": [1, 100], "seconds": [0.5, 1], "both_ways": [0.5, 2]}


def written(path: Path, **fields: Any) -> Path:
    content = {"format": FORMAT, "nodes": [2], "inside": LINK, **fields}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()
    )
    path.write_text(f"{{{lines}}}")
    return path


@given(machine=machines())
def test_what_is_saved_is_loaded(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("machines") / "m.json"
    save_machine(machine, path)
    assert load_machine(path) == machine


def test_the_shortest_form(tmp_path: Path) -> None:
    between = {"latency": 2e-6, "bandwidth": 2e8, "both_ways": 1e8}
    machine = load_machine(written(tmp_path / "two.json", nodes=[2, 1], between=between))
    assert machine == Machine(
        name="two",
        devices=(Device("unknown"),) * 3,
        nodes=(2, 1),
        inside=Link.of(1e-6, 1e9),
        between=Link.of(2e-6, 2e8, 1e8),
    )


def test_everything_said(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.json",
        name="lab",
        note="measured by hand",
        disturbed="others ran",
        devices=[
            {"kind": "GPU", "memory": 7, "slower": {"bandwidth": 5e9, "memory": 70}},
            {"kind": "CPU", "threads": 3, "speed": 0.5, "slower": {"bandwidth": 1e9}},
        ],
        inside=MEASURED,
        pairs=[{"from": 1, "to": 0, **LINK}],
        all_reduce={"sizes": [4, 8], "seconds": [1, 2]},
        together=[1, 1.5],
        handling=1e-9,
        stall=1e-4,
        memory_bound={"together": [1, 2]},
    )
    assert load_machine(path) == Machine(
        name="lab",
        note="measured by hand",
        disturbed="others ran",
        devices=(
            Device("GPU", 7, slower=SlowerMemory(5e9, 70)),
            Device("CPU", threads=3, speed=0.5, slower=SlowerMemory(1e9)),
        ),
        nodes=(2,),
        inside=Link((1, 100), (0.5, 1.0), (0.5, 2.0)),
        pairs={(1, 0): Link.of(1e-6, 1e9)},
        all_reduce=AllReduce((4, 8), (1.0, 2.0)),
        together=(1.0, 1.5),
        handling=1e-9,
        stall=1e-4,
        memory_bound=Slowdown((1.0, 2.0)),
    )


def test_a_name_is_as_good_as_a_file() -> None:
    for name in NAMES:
        assert load_machine(name, 12) == load_machine(f"{name}:12") == named_machine(name, 12)


@pytest.mark.parametrize(
    ("fields", "line", "message"),
    [
        ({"nodes": []}, 2, r'"nodes": 1 or more devices in each, 65536 at most in all'),
        ({"nodes": [2, 0]}, 2, '"nodes": 1 or more'),
        ({"nodes": [2**40]}, 2, "65536 at most"),
        ({"nodes": [1, 1]}, 1, 'no "between"'),
        ({"inside": 3}, 3, '"inside": an object'),
        ({"inside": {}}, 3, 'no "inside.latency"'),
        (
            {"inside": {"latency": 1, "bandwidth": 0}},
            3,
            "a link .bandwidth 0.0: accepted is 1 to",
        ),
        ({"inside": {"latency": 0, "bandwidth": "1 GB"}}, 3, 'bandwidth": "1 GB"; accepted: '),
        ({"inside": {**MEASURED, "sizes": [1, 1]}}, 3, r"messages of \[1, 1\] bytes"),
        ({"inside": {**MEASURED, "seconds": [1, None]}}, 3, '"seconds": finite numbers'),
        ({"devices": [{}]}, 4, '"devices": a list of 2'),
        ({"device": {"memory": 0}}, 4, '"memory": a whole number from 1'),
        ({"device": {"threads": 0.5}}, 4, '"threads": a whole number from 1'),
        ({"device": {"slower": {"bandwidth": 0}}}, 4, '"bandwidth": 1 to 1e.18 bytes per second'),
        ({"device": {"slower": {"memory": 9}}}, 4, 'no "device.slower.bandwidth"'),
        ({"device": {"speed": 0}}, 4, '"speed": 1e-06 to 1e.06 times as fast'),
        ({"pairs": [{"from": 0, "to": 2, **LINK}]}, 4, '"to": a whole number from 0 to 1'),
        ({"pairs": [{"from": 0, "to": 0, **LINK}]}, 4, '"to": another device than 0'),
        ({"pairs": [{"from": 0, "to": 1, **LINK}] * 2}, 4, "each pair once"),
        ({"all_reduce": {"sizes": [1], "seconds": [1]}}, 4, "those of all-reduces .1 times"),
        ({"together": [2]}, 4, r'"together": 1, then 1 or more'),
        ({"handling": -1}, 4, '"handling": 0 to 1e.09 s a byte'),
        ({"stall": 1e308}, 4, '"stall": 0 to 1e.09 s a message'),
        ({"inside": {**LINK, "latency": 1e308}}, 3, 'found "inside.latency": 1e.308'),
        ({"inside": {**LINK, "both_ways": 1e-300}}, 3, 'found "inside.both_ways": 1e-300'),
        ({"stall": -1}, 4, '"stall": 0 to 1e.09 s a message'),
        ({"memory_bound": {"together": [1, 0]}}, 4, '"together": 1, then 1 or more'),
    ],
)
def test_what_is_malformed_is_named(
    fields: dict[str, Any], line: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=f"line {line}: .*{message}") as caught:
        load_machine(written(tmp_path / "m.json", **fields))
    assert "\n" not in str(caught.value)


def test_what_is_no_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"can't read nowhere: .*hgpart calibrate -o, or 10gbe, "):
        load_machine("nowhere")
    with pytest.raises(FormatError, match=r"edge-wifi; did you mean nvlink-8\?"):
        load_machine("nvlnk-8:16")
    with pytest.raises(FormatError, match='"format": "hgpart machine 1"'):
        load_machine(written(tmp_path / "m.json", format="hgpart topology 1"))
    with pytest.raises(ArgumentError, match="'10gbe' has no number of devices: accepted are 1 to"):
        load_machine("10gbe")
