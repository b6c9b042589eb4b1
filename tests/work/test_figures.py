from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from hgpart.errors import ArgumentError, FormatError, HgpartError, OutputError, PlanError
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import FEMTOSECONDS, Work, flops, load_work, measured, save_work


def traced_graph() -> ChannelGraph:
    model = nn.Sequential()
    model.add_module("0", nn.Linear(4, 8))
    model.add_module("act", nn.ReLU())
    model.add_module("tasks", nn.Linear(8, 3))
    return channel_graph(trace(model, torch.zeros(2, 4)))


GRAPH = traced_graph()
INPUT, FIRST, SECOND, OUTPUT = GRAPH.layers
WORK = Work(np.array([0, 125, 7, 0], dtype=np.int64), "s", FEMTOSECONDS, "profile cpu, a test")
LARGEST = 2**63 - 1


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "work.json"
    save_work(WORK, GRAPH, path)
    return path


def test_flops_are_the_multiply_accumulates_of_a_task() -> None:
    work = flops(GRAPH)
    assert work.per_task.tolist() == [0, 4, 8, 0]
    assert (work.unit, work.units, work.source) == ("MAC", 1, "flops")


def test_flops_of_more_than_64_bits_are_refused() -> None:
    """NumPy raised OverflowError for one layer, and the sum of several wrapped."""
    for macs in (2**60, 2**64):
        large = replace(GRAPH, layers=(INPUT, replace(FIRST, macs=macs), SECOND, OUTPUT))
        with pytest.raises(ArgumentError, match=f"{8 * macs + 24} multiply-accumulates per sample"):
            flops(large)


# ------------------------------------------------------------------ measured seconds


@given(st.lists(st.floats(0, 100), min_size=4, max_size=4))
def test_measured_seconds_add_up_to_within_rounding(seconds: list[float]) -> None:
    work = measured(GRAPH, seconds, "here")
    assert work.per_task.dtype == np.int64
    for value, units, item in zip(seconds, work.per_task.tolist(), GRAPH.layers, strict=True):
        error = abs(units * item.tasks - value * FEMTOSECONDS)
        assert error <= item.tasks / 2 + 1e-15 * value * FEMTOSECONDS
    assert (work.unit, work.units, work.source) == ("s", FEMTOSECONDS, "here")


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ([1.0], "seconds of 1 layers: accepted is one for each of 4"),
        ([0.0, -1.0, 0.0, 0.0], "layer '0' takes -1.0 s: accepted is 0 or more"),
        ([0.0, math.nan, 0.0, 0.0], "layer '0' takes nan s: accepted is 0 or more"),
        ([0.0, 0.0, math.inf, 0.0], "layer 'tasks' takes inf s: accepted is 0 or more"),
        ([0.0, 5000.0, 5000.0, 0.0], "all layers take 10000 s: accepted is up to 9223 s"),
    ],
)
def test_seconds_that_are_no_measurement(seconds: list[float], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        measured(GRAPH, seconds, "here")


# ------------------------------------------------------------------ round trip


@given(
    per_task=st.tuples(
        st.integers(0, LARGEST // 4),
        st.integers(0, LARGEST // 32),
        st.integers(0, LARGEST // 16),
        st.integers(0, LARGEST // 4),
    ),
    unit=st.text(st.characters(codec="utf-8")),
    units=st.integers(1, LARGEST),
    source=st.text(st.characters(codec="utf-8")),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_saved_is_loaded_exactly(
    tmp_path: Path, per_task: tuple[int, ...], unit: str, units: int, source: str
) -> None:
    work = Work(np.array(per_task, dtype=np.int64), unit, units, source)
    save_work(work, GRAPH, tmp_path / "work.json")
    loaded = load_work(tmp_path / "work.json", GRAPH)
    assert loaded.per_task.tolist() == list(per_task)
    assert loaded.per_task.dtype == np.int64
    assert (loaded.unit, loaded.units, loaded.source) == (unit, units, source)


def test_the_file_is_for_people_too(saved: Path) -> None:
    content = json.loads(saved.read_text())
    assert content["fingerprint"] == GRAPH.fingerprint
    assert content["layers"][1] == {"layer": "0", "tasks": 8, "per_task": 125, "total": 1e-12}
    assert len(saved.read_text().splitlines()) == 13  # one line for each layer


def test_saving_needs_the_work_of_the_graph(tmp_path: Path) -> None:
    work = replace(WORK, per_task=WORK.per_task[:2])
    with pytest.raises(ArgumentError, match="work of 2 layers: accepted is that of 4"):
        save_work(work, GRAPH, tmp_path / "work.json")
    assert not any(tmp_path.iterdir())


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't write"):
        save_work(WORK, GRAPH, tmp_path / "nowhere" / "work.json")


# ------------------------------------------------------------------ bad files


@pytest.mark.parametrize(
    "layers",
    [
        GRAPH.layers[:3],
        (INPUT, replace(FIRST, macs=5), SECOND, OUTPUT),
        (INPUT, replace(FIRST, tasks=9), SECOND, OUTPUT),
        (INPUT, replace(FIRST, name="zero"), SECOND, OUTPUT),
    ],
    ids=["fewer layers", "other sizes", "other tasks", "other names"],
)
def test_the_work_of_another_model(saved: Path, layers: tuple[Layer, ...]) -> None:
    other = ChannelGraph(layers, {})
    with pytest.raises(PlanError, match="another model") as found:
        load_work(saved, other)
    assert GRAPH.fingerprint in str(found.value)
    assert other.fingerprint in str(found.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("hgpart work 1", "hgpart work 9", 2, 'found "format": "hgpart work 9"'),
        ('"profile cpu, a test"', "5", 3, 'found "source": 5; accepted: "source": a text'),
        ('  "source": "profile cpu, a test",\n', "", 1, 'found no "source"'),
        ('"unit": "s"', '"unit": null', 5, 'found "unit": null'),
        ('"units": 1000000000000000', '"units": 0', 6, 'found "units": 0'),
        ('"units": 1000000000000000', '"units": true', 6, 'found "units": true'),
        ('"per_task": 125', '"per_task": -125', 9, 'per_task": -125'),
        ('"per_task": 125', '"per_task": NaN', 9, 'per_task": NaN'),
        ('"per_task": 125', '"per_task": 1.5', 9, 'per_task": 1.5'),
        ('"per_task": 125', '"per_task": "125"', 9, 'per_task": "125"'),
        ('"per_task": 125', f'"per_task": {2**63}', 9, f'per_task": {2**63}'),
        ('"per_task": 125', f'"per_task": {2**61}', 9, f"{LARGEST} in all tasks together"),
        ('"per_task": 125', '"per_task": 250', 9, '"total": 2e-12, as per_task x tasks'),
        ('"per_task": 125, ', "", 9, '.per_task"; accepted: "per_task": a whole number'),
        ('"total": 1e-12', '"total": NaN', 9, 'total": NaN'),
        ('"total": 1e-12', '"total": Infinity', 9, 'total": Infinity'),
        ('"total": 1e-12', '"total": [[]]', 9, 'total": a list of 1'),
        ('"layer": "tasks"', '"layer": "other"', 10, 'accepted: "layer": "tasks"'),
        ('"tasks": 3', '"tasks": 4', 10, 'tasks": 4; accepted: "tasks": 3'),
        ('"tasks": 3,', '"tasks": 3,,', 10, "accepted: JSON"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    saved: Path, old: str, new: str, line: int, message: str
) -> None:
    text = saved.read_text()
    assert text.count(old) == 1
    saved.write_text(text.replace(old, new))
    with pytest.raises(FormatError) as found:
        load_work(saved, GRAPH)
    assert str(found.value).startswith(f"{saved}, line {line}: found ")
    assert message in str(found.value)


def test_a_missing_layer(saved: Path) -> None:
    content = json.loads(saved.read_text())
    del content["layers"][1]
    saved.write_text(json.dumps(content))
    with pytest.raises(FormatError, match='"layers": a list of 3; accepted: "layers": a list of 4'):
        load_work(saved, GRAPH)


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{}", '{"format": []}'])
def test_json_that_is_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "work.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"line 1: found .*; accepted: .*"):
        load_work(path, GRAPH)


def test_every_truncation_is_found(saved: Path) -> None:
    whole = saved.read_bytes().rstrip()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"line \d+: "):
            load_work(saved, GRAPH)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"[" * 100_000, b"9" * 5000, b'{"a":' * 100_000, b""],
    ids=["no UTF-8", "deep lists", "long number", "deep objects", "empty"],
)
def test_what_is_no_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "work.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="line 1: ") as found:
        load_work(path, GRAPH)
    assert "\n" not in str(found.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"can't read .*No such file"):
        load_work(tmp_path / "work.json", GRAPH)
    with pytest.raises(FormatError, match=r"can't read .*directory"):
        load_work(tmp_path, GRAPH)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_refused_or_harmless(saved: Path, data: st.DataObject) -> None:
    content: dict[str, Any] = json.loads(_text_of_a_sound_file())
    record = data.draw(st.sampled_from([content, *content["layers"]]))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(values)
    text = json.dumps(content)
    at = data.draw(st.integers(0, len(text)))
    text = data.draw(st.sampled_from([text, text[:at], text[:at] + "\0" + text[at:]]))
    saved.write_text(text)
    try:
        work = load_work(saved, GRAPH)
    except HgpartError as error:
        assert isinstance(error, (FormatError, PlanError))
        assert "\n" not in str(error)
    else:
        assert (work.per_task >= 0).all()
        assert work.units >= 1


def _text_of_a_sound_file() -> str:
    layers = [
        {
            "layer": item.name,
            "tasks": item.tasks,
            "per_task": units,
            "total": units * item.tasks / 4,
        }
        for item, units in zip(GRAPH.layers, [0, 125, 7, 0], strict=True)
    ]
    head = {"format": "hgpart work 1", "source": "x", "unit": "s", "units": 4}
    return json.dumps({**head, "fingerprint": GRAPH.fingerprint, "layers": layers})
