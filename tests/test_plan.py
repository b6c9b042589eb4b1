"""A plan file brings the same partition back, for the same model only, and never half of it."""

from __future__ import annotations

import json
import re
import resource
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, graph_of, modellings
from torch import nn

from hgpart.errors import ArgumentError, FormatError, HgpartError, OutputError, PlanError
from hgpart.hypergraph.blocks import divide
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition, partition_graph
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import (
    LARGEST,
    VOLUME,
    Objective,
    over_links,
)
from hgpart.partition.problem.problem import Problem
from hgpart.plan import Plan, PlanFile, keep_schedule, load_plan, restore, save_plan
from hgpart.plan.plan_file import LARGEST_RUNS
from hgpart.schedule_wanted import Scheduling, scheduling_of
from hgpart.schedules.outline import Stretch
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work, flops

PARTS = 3


def partition_of(
    graph: ChannelGraph, work: Work, modelling: Modelling, seed: int, **options: Any
) -> Partition:
    """Any partition, without a partitioner."""
    model = cnn_hypergraph(graph, work, divide(graph, work, modelling, 12), modelling)
    random = np.random.default_rng(seed)
    parts = random.integers(0, PARTS, model.hypergraph.vertices).astype(np.int32)
    return Partition(
        problem=Problem(graph, work, modelling, PARTS, 0.1, **options),
        model=model,
        parts=parts,
        seed=seed,
        backend="kahypar",
        start="kahypar",
        evaluation=evaluate(model.hypergraph, parts, PARTS, options.get("speeds")),
        feasible=False,
        lower_bound=0,
    )


def read(plan: Plan, path: Path) -> PlanFile:
    """What the file of a plan says."""
    save_plan(plan, path)
    return load_plan(path)


GRAPH, WORK = chain([8, 4], [80, 40], [3, 2])
PARTITION = partition_of(GRAPH, WORK, Modelling(), 1)
BLOCKS = PARTITION.model.blocks
PLAN = Plan(PARTITION, "file.py:make", (3, 8, 8))
SCHEDULED = replace(PLAN, scheduling=Scheduling("1f1b", 4, recompute=True))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    return path


def plain(value: Any) -> Any:
    """Arrays and records as lists, to compare by value."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [type(value).__name__, *map(plain, value)]
    return value


# ------------------------------------------------------------------ there and back


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channel_graphs(),
    modellings,
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), st.lists(st.floats(1e-9, 1e9), min_size=PARTS, max_size=PARTS)),
    st.sampled_from([VOLUME, LARGEST, over_links([[0, 1, 0.1], [2, 0, 3], [4, 5.5, 0]])]),
    st.sampled_from([None, MemoryLimits((1, 2**50, 0), 1.5)]),
    st.booleans(),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["slice", "batch"]),
    st.sampled_from(
        [None, Scheduling("1f1b", 3, recompute=True), Scheduling("async", in_flight=4, stash=False)]
    ),
)
def test_any_plan_comes_back_whole(
    tmp_path: Path,
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    seed: int,
    speeds: list[float] | None,
    objective: Objective,
    memory: MemoryLimits | None,
    interrupted: bool,
    slices: int,
    training: bool,
    norms: str,
    scheduling: Scheduling | None,
) -> None:
    graph, work = graph_and_work
    speeds = speeds and tuple(speeds)
    modelling = replace(modelling, batch_size=3, slices=slices, training=training, norms=norms)
    asked = {"speeds": speeds, "objective": objective, "memory": memory}
    partition = replace(
        partition_of(graph, work, modelling, seed, **asked), interrupted=interrupted
    )
    if partition.model.hypergraph.vertices < PARTS:
        return
    plan = Plan(partition, 'timm:ä\n"x"', (3, 8, 8), scheduling)
    loaded = read(plan, tmp_path / "plan.json")
    assert (loaded.model, loaded.input_shape) == (plan.model, plan.input_shape)
    assert (loaded.scheduling, loaded.fingerprint) == (scheduling, graph.fingerprint)
    assert (loaded.imbalance, loaded.volume_bytes, loaded.lower_bound_bytes) == (
        partition.evaluation.imbalance,
        partition.evaluation.volume,
        partition.lower_bound,
    )
    restored = restore(loaded, graph)
    expected = plain(partition)
    expected["feasible"] = restored.feasible
    expected["memory_bytes"] = plain(restored.memory_bytes)
    known = lower_bound(Problem(graph, work, modelling, PARTS, 0.1, speeds))
    expected["lower_bound"] = max(known, partition.lower_bound)  # a proof is kept
    assert plain(restored) == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("speeds", [None, [1, 1, 2]])
def test_a_found_partition_comes_back(tmp_path: Path, speeds: list[float] | None) -> None:
    graph = graph_of("residual")
    options = {"modelling": Modelling(grain="fine"), "speeds": speeds, "seed": 7, "effort": 0.1}
    found = partition_graph(graph, flops(graph), 3, 0.2, **options)
    loaded = read(Plan(found, "residual", (3, 8, 8)), tmp_path / "plan.json")
    assert plain(restore(loaded, graph)) == plain(found)
    assert loaded.versions.keys() >= {"hgpart", "torch", "python"}
    assert loaded.fingerprint == graph.fingerprint


def test_a_bound_above_what_is_reached_is_refused(tmp_path: Path) -> None:
    graph = graph_of("residual")
    found = partition_graph(graph, flops(graph), 3, 0.2, effort=0.1)
    plan = read(Plan(found, "residual", (3, 8, 8)), tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"at least \d+ bytes travel, its partition's volume is"):
        restore(replace(plan, lower_bound_bytes=found.evaluation.volume + 1), graph)


def test_a_layer_that_is_one_vertex_has_one_block(tmp_path: Path) -> None:
    graph, modelling = graph_of("plain"), Modelling(linear="layer")
    partition = partition_of(graph, flops(graph), modelling, 0)
    plan = read(Plan(partition, "plain", (3, 8, 8)), tmp_path / "plan.json")
    rows = (*plan.blocks.rows[:3], np.array([0, 8, 16]), plan.blocks.rows[4])
    with pytest.raises(PlanError, match="6 is one vertex"):
        restore(replace(plan, blocks=replace(plan.blocks, rows=rows)), graph)


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    graph = graph_of("plain")
    k, seed = np.int64(2), np.int64(3)
    found = partition_graph(graph, flops(graph), k, np.float64(0.2), seed=seed, speeds=np.ones(2))
    save_plan(Plan(found, "plain", (3, 8, 8)), tmp_path / "plan.json")
    assert plain(restore(load_plan(tmp_path / "plan.json"), graph)) == plain(found)


def test_an_infeasible_partition_stays_infeasible(tmp_path: Path) -> None:
    graph = graph_of("heavy")
    found = partition_graph(graph, flops(graph), 2, 0, best_effort=True)
    save_plan(Plan(found, "heavy", (3, 4, 4)), tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert not loaded.feasible
    assert not restore(loaded, graph).feasible


def test_a_plan_from_before_searches_could_be_interrupted_is_read(saved: Path) -> None:
    text = saved.read_text()
    saved.write_text(text.replace('  "interrupted": false,\n', ""))
    assert saved.read_text() != text
    assert not load_plan(saved).interrupted


def test_the_file_is_compact_and_for_people_too(saved: Path) -> None:
    content = json.loads(saved.read_text())
    assert content["model"] == "file.py:make"
    assert content["volume_bytes"] == PARTITION.evaluation.volume
    assert content["layers"][1] == {"work": 10, "rows": [1, 8], "columns": [1, 1]}
    assert len(saved.read_text().splitlines()) == 32 + len(GRAPH.layers) + 3


# ------------------------------------------------------------------ a schedule


def test_a_plan_without_a_schedule_says_nothing_of_one(saved: Path) -> None:
    assert "schedule" not in json.loads(saved.read_text())
    assert load_plan(saved).scheduling is None


def test_what_is_asked_for_goes_before_what_the_plan_says(tmp_path: Path) -> None:
    planned = SCHEDULED.scheduling
    plans = [read(plan, tmp_path / "plan.json") for plan in (PLAN, SCHEDULED)]
    assert scheduling_of(None, None, planned=planned) == planned
    assert scheduling_of(None, 2, planned=planned) == Scheduling("1f1b", 2, recompute=True)
    assert scheduling_of("gpipe", None, planned=planned) == Scheduling("gpipe")
    assert scheduling_of(None, None) == Scheduling()
    assert [plan.schedule_for(32) for plan in plans] == [None, planned]
    assert [plan.schedule_for(3) for plan in plans] == [None, None]  # too few for its micro-batches


def test_a_plan_keeps_a_schedule_and_is_the_same_otherwise(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(saved.read_text())
    keep_schedule(path, Scheduling("greedy", 4))
    assert load_plan(path).scheduling == Scheduling("greedy", 4)
    kept, before = json.loads(path.read_text()), json.loads(saved.read_text())
    assert kept.pop("schedule")["micro_batches"] == 4
    assert kept == before
    keep_schedule(path, Scheduling("1f1b", 2))
    assert load_plan(path).scheduling == Scheduling("1f1b", 2)


def test_a_plan_keeps_what_each_part_recomputes(tmp_path: Path) -> None:
    stretches = tuple(
        (Stretch((f"conv{part}",)), Stretch(("pool", "fc"), offloaded=True))
        for part in range(PLAN.partition.k)
    )
    scheduling = Scheduling("greedy", 2, recompute=stretches)
    assert (
        read(replace(PLAN, scheduling=scheduling), tmp_path / "plan.json").scheduling == scheduling
    )
    with pytest.raises(ArgumentError, match="what 1 parts recompute or offload, for k="):
        replace(PLAN, scheduling=Scheduling(recompute=((),)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rule", "fast", "accepted are sequential"),
        ("rule", None, '"rule": a text'),
        ("micro_batches", 33, "a whole number from 1 to 32"),
        ("micro_batches", True, "a whole number from 1 to 32"),
        ("in_flight", 0, "a whole number from 1 to 1000"),
        ("in_flight", 2, "batches in flight by 1f1b"),
        ("stash", False, "stash=no with 1f1b"),
        ("recompute", 1, "true, false, or 3 lists of stretches"),
        ("recompute", [[["conv1"]]], '"schedule.recompute": a list of 1; accepted: "recompute"'),
        ("recompute", [[["conv1"]], [[]], []], 'found "schedule.recompute[1][0]": a list of 0'),
        ("recompute", [[["a"]], [], [["a"], ["b", 5]]], '"schedule.recompute[2][1][1]": 5'),
        ("recompute", [[], [], "a"], '"schedule.recompute[2]": "a"'),
        ("recompute", [[{"offload": "a"}], [], []], '"schedule.recompute[0][0]": an object'),
        ("recompute", [[], [{"keep": ["a"]}], []], '"schedule.recompute[1][0]": an object'),
    ],
)
def test_a_wrong_schedule_is_one_line(tmp_path: Path, field: str, value: Any, message: str) -> None:
    path = tmp_path / "plan.json"
    save_plan(SCHEDULED, path)
    content = json.loads(path.read_text())
    content["schedule"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(FormatError, match=re.escape(message)) as error:
        load_plan(path)
    assert "\n" not in str(error.value)


def test_a_plan_refuses_a_schedule_that_it_can_not_keep() -> None:
    with pytest.raises(ArgumentError, match="33 micro-batches of a batch of 32"):
        replace(PLAN, scheduling=Scheduling("gpipe", 33))


# ------------------------------------------------------------------ another model


def traced(width: int) -> ChannelGraph:
    model = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 3))
    return channel_graph(trace(model, torch.zeros(2, 3, 8, 8)))


def test_a_changed_model_is_refused() -> None:
    graph = traced(8)
    found = partition_of(graph, flops(graph), Modelling(), 0)
    plan = Plan(found, "mine", (3, 8, 8))
    assert restore(plan, traced(8)).parts.tolist() == found.parts.tolist()
    with pytest.raises(PlanError, match="it has changed") as raised:
        restore(plan, traced(9))
    assert graph.fingerprint in str(raised.value)
    assert traced(9).fingerprint in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": PARTITION.parts[:-1]}, "parts for 13 blocks, expected one for each of 14"),
        ({"volume_bytes": PARTITION.evaluation.volume + 1}, "bytes travel"),
        ({"imbalance": PARTITION.evaluation.imbalance + 0.01}, "imbalance"),
        ({"parts": np.roll(PARTITION.parts, 1)}, "the file was changed"),
        ({"k": 15}, "k=15, this model has 14 tasks"),
        ({"work": replace(WORK, per_task=WORK.per_task[:2])}, "work of 2 layers"),
        ({"work": replace(WORK, per_task=WORK.per_task + 2**61)}, "work of"),
        ({"blocks": replace(BLOCKS, rows=BLOCKS.rows[:2])}, "blocks of 2 layers"),
        (
            {"blocks": replace(BLOCKS, rows=(*BLOCKS.rows[:3], np.array([0])))},
            "not divide the 1 tasks of layer3",
        ),
        (
            {"blocks": replace(BLOCKS, columns=(np.array([0, 2]),) * 4)},
            "not divide the channels",
        ),
        ({"model": "two\nlines", "fingerprint": "none"}, r'"two\\nlines"'),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_the_model_is_refused(
    saved: Path, changes: dict[str, Any], message: str
) -> None:
    plan: PlanFile = replace(load_plan(saved), **changes)
    with pytest.raises(PlanError, match=message) as raised:
        restore(plan, GRAPH)
    assert "\n" not in str(raised.value)


# ------------------------------------------------------------------ bad files


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('"hgpart plan 1"', '"hgpart plan 9"', 2, 'accepted: "format": "hgpart plan 1"'),
        ('"file.py:make"', "7", 3, '"model": a text'),
        ('"input_shape": [3, 8, 8]', '"input_shape": [3, 8, "8"]', 4, '"input_shape": sizes'),
        ('"versions": {', '"version": {', 1, 'found no "versions"'),
        ('"grain": "coarse"', '"grain": "medium"', 7, "accepted are coarse and fine"),
        ('"linear": "neuron"', '"linear": "cell"', 8, "accepted are neuron and layer"),
        (
            '"linear": "neuron"',
            '"linear": "layer", "norms": "x"',
            8,
            "accepted are slice and batch",
        ),
        ('"batch_size": 32', '"batch_size": 0', 9, '"batch_size": a whole number from 1'),
        ('"batch_size": 32', '"batch_size": 9999999', 9, "from 1 to 1048576"),
        ('"bytes_per_element": null', '"bytes_per_element": -1', 10, "from 1 to 1048576"),
        ('"input_vertex": true', '"input_vertex": 1', 11, "true or false"),
        ('"k": 3', '"k": 0', 13, '"k": a whole number from 1'),
        ('"k": 3', '"k": 99999999', 13, '"k": a whole number from 1 to 16384'),
        ('"k": 3', '"k": 1', 31, '"parts": pairs of a number up to 0'),
        ('"eps": 0.1', '"eps": -1', 14, "a number >= 0"),
        ('"eps": 0.1', '"eps": NaN', 14, "a finite number"),
        ('"seed": 1', '"seed": 1.0', 15, "a whole number from 0"),
        ('"speeds": null', '"speeds": [1, 1]', 18, "a list of 3"),
        ('"speeds": null', '"speeds": [1, 1, 0]', 18, "3 numbers from 1e-09 to 1e+09"),
        ('"speeds": null', '"speeds": [1, 1, NaN]', 18, "3 numbers from"),
        (
            '"objective": "volume"',
            '"objective": "cut"',
            19,
            "accepted are volume, largest, links, time",
        ),
        ('"objective": "volume"', '"objective": "links"', 20, '"links": a list of 3'),
        ('"memory": null', '"memory": [1, 2]', 21, '"memory": a list of 3'),
        ('"memory": null', '"memory": [1, 2, 3]', 22, '"memory_copies": a number'),
        ('"feasible": false', '"feasible": null', 23, "true or false"),
        ('"interrupted": false', '"interrupted": 0', 24, "true or false"),
        ('"work_units": 1', '"work_units": 0', 30, "from 1"),
        ('"layer_count": 4', '"layer_count": 5', 33, '"layers": a list of 5'),
        ('"rows": [1, 8]', '"rows": [1, -8]', 35, "whole numbers from 0"),
        ('"rows": [1, 8]', '"rows": [1, 0]', 35, "a count from 1"),
        ('"rows": [1, 8]', '"rows": [1]', 35, "pairs of a number"),
        ('"rows": [1, 8]', f'"rows": [1, {LARGEST_RUNS}]', 35, f"{LARGEST_RUNS} in all"),
        ('"rows": [1, 8]', '"rows": [99999999999, 8]', 35, "a number up to"),
        ('"work": 10,', '"work": true,', 35, '"work": a whole number'),
    ],
)
def test_a_wrong_field_is_named_with_its_line(
    saved: Path, old: str, new: str, line: int, message: str
) -> None:
    text = saved.read_text()
    place = text.index(old)
    saved.write_text(text[:place] + text[place:].replace(old, new, 1))
    with pytest.raises(FormatError) as raised:
        load_plan(saved)
    assert f"{saved}, line {line}: found " in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_truncation_is_found(saved: Path) -> None:
    whole = saved.read_bytes().rstrip()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"line \d+: "):
            load_plan(saved)


def restored_or_refused(path: Path) -> None:
    try:
        restore(load_plan(path), GRAPH)
    except HgpartError as error:
        assert isinstance(error, (FormatError, PlanError))
        assert "\n" not in str(error)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_are_refused_or_harmless(saved: Path, data: st.DataObject) -> None:
    save_plan(PLAN, saved)
    content = bytearray(saved.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        byte = st.one_of(st.sampled_from(b'0123456789-.eE"[]{},: '), st.integers(0, 255))
        content[at : at + data.draw(st.integers(0, 2))] = bytes([data.draw(byte)])
    saved.write_bytes(bytes(content))
    restored_or_refused(saved)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
numbers = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**63)), max_size=6)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_fields_are_refused_or_harmless(saved: Path, data: st.DataObject) -> None:
    save_plan(PLAN, saved)
    content: dict[str, Any] = json.loads(saved.read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        record = data.draw(st.sampled_from([content, *content["layers"]]))
        name = data.draw(st.sampled_from(sorted(record)))
        if name != "layers":
            record[name] = data.draw(st.one_of(values, numbers, st.integers(0, 2**63 - 1)))
    saved.write_text(json.dumps(content))
    restored_or_refused(saved)


def test_a_file_can_not_ask_for_more_memory_than_a_plan_needs(saved: Path) -> None:
    """Each list is within the limit, all together are not."""
    content = json.loads(saved.read_text())
    content["layers"] = [{"work": 0, "rows": [1, LARGEST_RUNS // 9], "columns": [1, 1]}] * 200
    content["layer_count"] = 200
    saved.write_text(json.dumps(content))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=f"{LARGEST_RUNS} in all"):
        load_plan(saved)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10**6  # kB


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't write"):
        save_plan(PLAN, tmp_path / "nowhere" / "plan.json")
    assert not any(tmp_path.iterdir())


def test_a_plan_that_can_not_be_written_leaves_the_one_before(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        save_plan(replace(PLAN, partition=replace(PARTITION, seed=5)), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["plan.json"]
