"""What records say of themselves: short at the prompt, as text, as a table in a notebook."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from partitioned_models import built

from hgpart.errors import ArgumentError, PlacementError, PlanError
from hgpart.partitioned_model import PartitionedModel, partition_model
from hgpart.placement import Placement, place
from hgpart.plan import Plan, PlanFile, load_plan, save_plan
from hgpart.schedule_wanted import Scheduling
from hgpart.summary import Summary

MODEL, EXAMPLE = built("plain")
SHAPE = tuple(EXAMPLE[0].shape[1:])


@cache
def divided() -> PartitionedModel:
    return partition_model(MODEL, EXAMPLE, k=2)


@cache
def planned() -> Plan:
    return Plan(divided().partition, "net.py:make", SHAPE)


@pytest.fixture(scope="module")
def placed() -> Placement:
    return place(MODEL, divided(), devices="cpu")


@pytest.fixture
def plan_file(tmp_path: Path) -> PlanFile:
    save_plan(planned(), tmp_path / "plan.json")
    return load_plan(tmp_path / "plan.json")


def test_records_are_short_at_the_prompt(placed: Placement, plan_file: PlanFile) -> None:
    found = divided().partition.evaluation
    said = f"k=2, coarse-grain, imbalance={found.imbalance:.3f}, volume={found.volume:,} bytes"
    assert repr(divided().partition) == f"Partition({said})"
    assert repr(divided()) == f"PartitionedModel(Sequential, {divided().partition!r})"
    assert repr(planned()) == f"Plan('net.py:make', Partition({said}))"
    assert repr(plan_file) == f"PlanFile('net.py:make', {said})"
    assert repr(placed) == "Placement(Sequential in 2 parts on cpu, training, inputs of 3x8x8)"


@pytest.mark.full
def test_what_is_not_known_of_other_sizes_is_not_said() -> None:
    """Work and imbalance were those of the size before, beside bytes of the new one."""
    model, example = built("residual")
    placed = place(model, k=2, example=example)
    images = torch.zeros(2, example[0].shape[1], 32, 32)
    before = placed.summary()
    summary = placed.for_inputs(images).summary()
    volume = placed.programs.partition.evaluation.volume / 1e6
    assert summary.lines[0].startswith(
        f"{type(model).__name__} in 2 parts, inputs of 3x32x32 (placed for 3x8x8): {volume:,.4g} MB"
    )
    assert [*summary.columns] == [one for one in before.columns if one != "work %"]
    sent = summary.columns.index("sends MB")
    assert sum(float(row[sent]) for row in summary.rows) == pytest.approx(volume, rel=1e-3)
    assert repr(placed).endswith("training, inputs of 3x32x32)")
    with pytest.raises(ArgumentError, match=r"^plot of a placement at inputs of 3x32x32: acc"):
        placed.plot()
    assert repr(placed.for_inputs(example).summary()) == repr(before)


def test_parts_add_up(placed: Placement) -> None:
    summary = placed.summary()
    assert summary.columns[:4] == ("part", "work %", "parameters", "sends MB")
    parts, work, parameters, sent, received, devices = zip(*summary.rows, strict=True)
    assert (parts, devices) == (("0", "1"), ("cpu", "cpu"))
    assert sum(map(float, work)) == pytest.approx(100, abs=0.11)
    held = sum(one.numel() for one in MODEL.parameters())
    assert sum(int(one.replace(",", "")) for one in parameters) == held
    volume = divided().partition.evaluation.volume / 1e6
    assert sum(map(float, sent)) == pytest.approx(volume, rel=1e-3)
    assert sum(map(float, received)) == pytest.approx(volume, rel=1e-3)
    assert summary.lines[0].startswith("Sequential in 2 parts, coarse-grain: imbalance ")
    assert f"imbalance {divided().layerwise.imbalance:.3f}" in divided().summary().lines[1]


def test_a_plan_says_what_it_is_for(plan_file: PlanFile) -> None:
    rows = plan_file.summary().rows
    assert ("model", f"net.py:make, input {' x '.join(map(str, SHAPE))}") in rows
    assert ("batch", "32 samples") in rows
    scheduled = replace(plan_file, scheduling=Scheduling("1f1b", 4)).summary().rows
    assert scheduled == (*rows, ("schedule", "1f1b, 4 micro-batches"))


def test_in_a_notebook_it_is_a_table(placed: Placement, plan_file: PlanFile) -> None:
    for record in (divided().partition, divided(), plan_file, placed):
        html, summary = record._repr_html_(), record.summary()
        cells = re.findall(r"<td>(.*?)</td>", html)
        assert cells == [cell for row in summary.rows for cell in row]
        assert all(cell in repr(summary) for cell in cells)


def test_what_stands_in_a_summary_is_no_html() -> None:
    html = Summary(("a < b",), ("<i>",), (("&",),))._repr_html_()
    assert (
        html == "<p>a &lt; b</p><table><tr><th>&lt;i&gt;</th></tr><tr><td>&amp;</td></tr></table>"
    )


def test_partitions_and_plans_are_pickled() -> None:
    partition, plan = pickle.loads(pickle.dumps((divided().partition, planned())))
    assert partition.parts.tolist() == divided().partition.parts.tolist()
    assert partition.evaluation.volume == divided().partition.evaluation.volume
    assert place(MODEL, plan).programs.partition.parts.tolist() == partition.parts.tolist()


def test_what_cannot_be_pickled_says_what_to_save(placed: Placement, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"accepted are result\.save\(path\)"):
        pickle.dumps(divided())
    with pytest.raises(PlacementError, match=r"torch\.save\(placed\.state_dict\(\), path\)"):
        torch.save(placed, tmp_path / "placed.pt")


def test_a_saved_result_is_placed_again(placed: Placement, tmp_path: Path) -> None:
    divided().save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert (plan.model, plan.input_shape) == ("Sequential", tuple(EXAMPLE[0].shape[1:]))
    images = torch.randn_like(EXAMPLE[0])
    assert torch.equal(place(MODEL, plan)(images), placed(images))
    divided().save(tmp_path / "plan.json", model="net.py:make")
    assert load_plan(tmp_path / "plan.json").model == "net.py:make"


def test_a_plan_file_has_tensors_alone(tmp_path: Path) -> None:
    arguments = replace(divided().traced.arguments, given={"x": [*EXAMPLE]})
    traced = replace(divided().traced, arguments=arguments)
    with pytest.raises(ArgumentError, match="accepted"):
        replace(divided(), traced=traced).save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())
