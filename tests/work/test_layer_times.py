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
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from hgpart.errors import ArgumentError, FormatError, HgpartError, OutputError, PlanError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import FEMTOSECONDS, flops, load_work, save_work
from hgpart.work.layer_times import (
    LayerTimes,
    Pass,
    ShareTimes,
    load_any_work,
    load_layer_times,
    save_layer_times,
    training_work,
)


def traced_graph() -> ChannelGraph:
    model = nn.Sequential()
    model.add_module("0", nn.Linear(4, 8))
    model.add_module("act", nn.ReLU())
    model.add_module("tasks", nn.Linear(8, 3))
    return channel_graph(trace(model, torch.zeros(2, 4)))


GRAPH = traced_graph()
INPUT, FIRST, SECOND, OUTPUT = GRAPH.layers


@st.composite
def rising_tables(draw: st.DrawFn, rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
    steps = st.lists(st.floats(0, 100), min_size=columns, max_size=columns)
    table = np.array(draw(st.lists(steps, min_size=rows, max_size=rows)))
    return tuple(map(tuple, table.cumsum(0).cumsum(1).tolist()))


@st.composite
def share_times(draw: st.DrawFn, samples: int, tasks: int) -> ShareTimes:
    some = draw(st.sets(st.integers(1, tasks), max_size=4))
    counts = tuple(sorted({*some, tasks}))
    seconds = {
        which: draw(rising_tables(len(counts), 1 if which is Pass.UPDATE else samples))
        for which in Pass
    }
    return ShareTimes(counts, seconds)


@st.composite
def layer_times(draw: st.DrawFn) -> LayerTimes:
    """Of `GRAPH`."""
    samples = tuple(sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=4))))
    shares = [draw(share_times(len(samples), tasks)) for tasks in (8, 3)]
    source = draw(st.text(st.characters(codec="utf-8"), max_size=5))
    neighbours, beside = draw(st.integers(0, 7)), draw(st.floats(1, 9))
    disturbed = draw(st.sampled_from(["", "other programs took 50 % of the cores' time"]))
    return LayerTimes(samples, (None, *shares, None), source, neighbours, beside, disturbed)


passes = st.sampled_from(Pass)
some_share, some_samples = st.floats(1e-3, 1), st.floats(0.1, 100)

TABLE = {which: ((1.0, 2.0), (3.0, 4.5)) for which in Pass if which is not Pass.UPDATE}
TIMES = LayerTimes(
    (2, 6),
    (
        None,
        ShareTimes((1, 8), {**TABLE, Pass.UPDATE: ((0.5,), (0.75,))}),
        ShareTimes(
            (3,), {which: rows[:1] for which, rows in TABLE.items()} | {Pass.UPDATE: ((0.0,),)}
        ),
        None,
    ),
    "a test",
)


def test_what_was_disturbed_says_so_wherever_it_is_named() -> None:
    times = replace(TIMES, disturbed="others ran")
    assert times.caution.startswith("The times of layers can't be trusted: others ran while")
    assert training_work(times, GRAPH, 6).source == "a test, batch 6, disturbed: others ran"
    assert TIMES.caution == ""


# ------------------------------------------------------------------ between the points


@given(layer_times(), passes, st.data())
def test_exact_at_each_measured_point(times: LayerTimes, which: Pass, data: st.DataObject) -> None:
    layer = data.draw(st.sampled_from([1, 2]))
    shares = times.layers[layer]
    assert shares is not None
    for row, tasks in zip(shares.seconds[which], shares.tasks, strict=True):
        for column, samples in enumerate(times.samples):
            found = times.seconds(layer, which, tasks / shares.tasks[-1], samples)
            expected = row[0 if which is Pass.UPDATE else column]
            assert math.isclose(found, expected, rel_tol=1e-12)
            if tasks == shares.tasks[-1]:  # a whole layer
                assert found == expected


@given(layer_times(), passes, some_share, some_share, some_samples, some_samples)
def test_more_of_a_layer_or_more_samples_take_no_less(
    times: LayerTimes, which: Pass, share: float, other: float, samples: float, others: float
) -> None:
    for layer in range(4):
        low = times.seconds(layer, which, min(share, other), min(samples, others))
        high = times.seconds(layer, which, max(share, other), max(samples, others))
        assert 0 <= low <= high * (1 + 1e-12)


@given(layer_times(), some_share, some_samples, st.data())
def test_bilinear_within_the_points(
    times: LayerTimes, share: float, samples: float, data: st.DataObject
) -> None:
    """By NumPy, samples before tasks; where that has no points, in proportion."""
    shares = times.layers[1]
    assert shares is not None
    tasks = np.clip(share * 8, shares.tasks[0], 8)
    size = np.clip(samples, times.samples[0], times.samples[-1])
    rows = [np.interp(size, times.samples, row) for row in shares.seconds[Pass.MAPS]]
    expected = np.interp(tasks, shares.tasks, rows) * (share * 8 / tasks) * (samples / size)
    found = times.seconds(1, Pass.MAPS, share, samples)
    assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


@given(layer_times(), some_share, some_samples)
def test_an_update_takes_as_long_whatever_the_samples(
    times: LayerTimes, share: float, samples: float
) -> None:
    seconds = times.seconds(1, Pass.UPDATE, share, samples)
    assert seconds == times.seconds(1, Pass.UPDATE, share, 1)


def test_layers_that_compute_nothing_take_no_time() -> None:
    assert {TIMES.seconds(at, which, 0.3, 4) for at in (0, 3) for which in Pass} == {0.0}


def test_a_tile_without_rows_takes_no_time() -> None:
    """A slice's second band of a layer with one row: estimates refused its 0 samples."""
    assert TIMES.seconds(1, Pass.FORWARD, 0.3, 0) == 0.0


@pytest.mark.parametrize(
    ("share", "samples", "message"),
    [
        (0.0, 1, "share 0.0 of a layer: accepted is more than 0, at most 1"),
        (1.5, 1, "share 1.5 of a layer"),
        (math.nan, 1, "share nan of a layer"),
        (0.5, -3, "-3 samples: accepted are 0 or more"),
        (0.5, math.inf, "inf samples"),
        (0.5, math.nan, "nan samples"),
    ],
)
def test_what_is_no_share_or_no_batch(share: float, samples: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        TIMES.seconds(1, Pass.FORWARD, share, samples)


# ------------------------------------------------------------------ as work


def test_a_layers_work_is_what_all_of_it_takes_in_a_step() -> None:
    work = training_work(TIMES, GRAPH, 6)
    first, second = 2 * 4.5 + 0.75, 2 * 2.0
    assert work.per_task.tolist() == [
        0, round(first / 8 * FEMTOSECONDS), round(second / 3 * FEMTOSECONDS), 0
    ]  # fmt: skip
    assert (work.unit, work.source) == ("s", "a test, batch 6")


def test_work_comes_from_either_file(tmp_path: Path) -> None:
    of_layers, of_shares = tmp_path / "work.json", tmp_path / "times.json"
    save_work(flops(GRAPH), GRAPH, of_layers)
    save_layer_times(TIMES, GRAPH, of_shares)
    assert load_any_work(of_layers, GRAPH, 3).unit == "MAC"
    found, expected = load_any_work(of_shares, GRAPH, 3), training_work(TIMES, GRAPH, 3)
    assert found.per_task.tolist() == expected.per_task.tolist()
    assert found.source == expected.source
    of_shares.write_text('{"format": "hgpart plan 1"}')
    accepted = r'accepted: "format": "hgpart work 1" or "hgpart layer times 2"'
    with pytest.raises(FormatError, match=accepted):
        load_any_work(of_shares, GRAPH, 3)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_work_of_no_batch(batch_size: int) -> None:
    with pytest.raises(ArgumentError, match=f"a batch of {batch_size} samples"):
        training_work(TIMES, GRAPH, batch_size)


# ------------------------------------------------------------------ files


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "times.json"
    save_layer_times(TIMES, GRAPH, path)
    return path


@given(layer_times())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_saved_is_loaded_exactly(tmp_path: Path, times: LayerTimes) -> None:
    save_layer_times(times, GRAPH, tmp_path / "times.json")
    shares = [one for one in times.layers if one is not None]
    assume(sum(one.seconds[Pass.FORWARD][-1][0] for one in shares) >= 1e-9)
    assert load_layer_times(tmp_path / "times.json", GRAPH) == times


def test_the_file_is_for_people_too(saved: Path) -> None:
    content = json.loads(saved.read_text())
    assert content["fingerprint"] == GRAPH.fingerprint
    assert content["layers"][1] == {
        "layer": "0",
        "tasks": [1, 8],
        "forward": [[1.0, 2.0], [3.0, 4.5]],
        "backward": [[1.0, 2.0], [3.0, 4.5]],
        "maps": [[1.0, 2.0], [3.0, 4.5]],
        "weights": [[1.0, 2.0], [3.0, 4.5]],
        "update": [[0.5], [0.75]],
    }
    assert len(saved.read_text().splitlines()) == 15  # one line for each layer


def test_saving_needs_the_times_of_the_graph(tmp_path: Path) -> None:
    times = replace(TIMES, layers=TIMES.layers[:2])
    with pytest.raises(ArgumentError, match="times of 2 layers: accepted are those of 4"):
        save_layer_times(times, GRAPH, tmp_path / "times.json")
    assert not any(tmp_path.iterdir())


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't write"):
        save_layer_times(TIMES, GRAPH, tmp_path / "nowhere" / "times.json")


def test_the_times_of_another_model(saved: Path) -> None:
    other = ChannelGraph((INPUT, replace(FIRST, macs=5), SECOND, OUTPUT), {})
    with pytest.raises(PlanError, match="times of another model") as found:
        load_layer_times(saved, other)
    assert GRAPH.fingerprint in str(found.value)
    assert other.fingerprint in str(found.value)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("hgpart layer times 2", "hgpart layer times 9", 2, 'found "format": "hgpart layer ti'),
        ('"source": "a test"', '"source": 5', 3, 'found "source": 5; accepted: "source": a text'),
        ('"unit": "s"', '"unit": "ms"', 5, 'accepted: "unit": "s"'),
        ('"samples": [2, 6]', '"samples": []', 8, "at least one number"),
        ('"samples": [2, 6]', '"samples": [0, 6]', 8, "ascending whole numbers, at least 1"),
        ('"samples": [2, 6]', '"samples": [6, 2]', 8, "ascending whole numbers, at least 1"),
        ('"samples": [2, 6]', '"samples": [2.5, 6]', 8, "whole numbers"),
        ('"samples": [2, 6]', '"samples": [2, 6, 8]', 11, "2 lists of 3 numbers from 0"),
        ('"tasks": [1, 8]', '"tasks": [1, 9]', 11, "whole numbers, the last one 8"),
        ('"tasks": [1, 8]', '"tasks": [8, 1]', 11, "ascending whole numbers"),
        ('"tasks": [1, 8]', '"tasks": []', 11, "whole numbers, the last one 8"),
        ('"tasks": [1, 8]', '"tasks": [1, 4, 8]', 11, '"forward": a list of 3'),
        ('"layer": "input", "tasks": []', '"layer": "input", "tasks": [1]', 10, "none"),
        ('[[0.5], [0.75]]', "[[0.5], [0.25]]", 11, "none less than the one before or above it"),
        ('[[0.5], [0.75]]', "[[-0.5], [0.25]]", 11, "2 lists of 1 numbers from 0"),
        ('[[0.5], [0.75]]', "[[0.5], [NaN]]", 11, 'update": a list of 2'),
        ('[[0.5], [0.75]]', "[[0.5], [Infinity]]", 11, 'update": a list of 2'),
        ('[[0.5], [0.75]]', "[[0.5], [true]]", 11, 'update": a list of 2'),
        ('[[0.5], [0.75]]', "[[0.5], 0.75]", 11, 'update": a list of 2'),
        ('[[0.5], [0.75]]', "[[0.5], [0.75, 1]]", 11, "2 lists of 1 numbers"),
        ('[[0.5], [0.75]]', "[[0.5]]", 11, '"update": a list of 2'),
        ('[[0.5], [0.75]]', "{}", 11, '"update": a list of 2'),
        ('"forward": [[1.0, 2.0]], ', "", 12, '.forward"; accepted'),
        ('"layer": "tasks"', '"layer": "other"', 12, 'accepted: "layer": "tasks"'),
        ('[[0.5], [0.75]]', "[[0.5], [1e307]]", 11, "2 lists of 1 numbers from 0 to 1e+06"),
        ('"beside": 1.0', '"beside": 1e308', 7, 'accepted: "beside": 1 to 1e+06'),
        ('"neighbours": 0', '"neighbours": -1', 6, 'found "neighbours": -1'),
        ('"beside": 1.0', '"beside": 0.5', 7, 'accepted: "beside": 1 to 1e+06'),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_line(
    saved: Path, old: str, new: str, line: int, message: str
) -> None:
    text = saved.read_text()
    assert text.count(old) == 1
    saved.write_text(text.replace(old, new))
    with pytest.raises(FormatError) as found:
        load_layer_times(saved, GRAPH)
    assert str(found.value).startswith(f"{saved}, line {line}: found ")
    assert message in str(found.value)


@pytest.mark.parametrize("seconds", [0.0, 5e-324])
def test_layers_that_take_nothing(tmp_path: Path, seconds: float) -> None:
    """There was no work to have a share of: NaN, or a ZeroDivisionError."""
    table = {which: ((seconds,),) for which in Pass}
    layers = None, ShareTimes((8,), table), ShareTimes((3,), table), None
    save_layer_times(LayerTimes((1,), layers, "nothing"), GRAPH, tmp_path / "times.json")
    with pytest.raises(FormatError, match=r"\"layers\": those of a step of 1e-09 s or more"):
        load_layer_times(tmp_path / "times.json", GRAPH)


def test_a_row_that_falls(saved: Path) -> None:
    saved.write_text(saved.read_text().replace("[3.0, 4.5]", "[3.0, 2.5]"))
    with pytest.raises(FormatError, match=r"line 11: .* none less than the one before"):
        load_layer_times(saved, GRAPH)


def test_truncations_are_found(saved: Path) -> None:
    whole = saved.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        saved.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"line \d+: "):
            load_layer_times(saved, GRAPH)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_are_refused_or_harmless(saved: Path, data: st.DataObject) -> None:
    save_layer_times(TIMES, GRAPH, saved)
    content: dict[str, Any] = json.loads(saved.read_text())
    record = data.draw(st.sampled_from([content, *content["layers"]]))
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(values)
    saved.write_text(json.dumps(content))
    try:
        times = load_layer_times(saved, GRAPH)
    except HgpartError as error:
        assert isinstance(error, (FormatError, PlanError))
        assert "\n" not in str(error)
    else:
        assert all(times.seconds(1, which, 0.4, 3) >= 0 for which in Pass)


def test_work_of_layers_alone_is_not_of_shares(tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    save_work(flops(GRAPH), GRAPH, path)
    with pytest.raises(FormatError, match='line 2: found "format": "hgpart work 1"'):
        load_layer_times(path, GRAPH)
    assert load_work(path, GRAPH).unit == "MAC"
