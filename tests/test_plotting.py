"""The page of a result, a plan and a placement is that of `hgpart show --html`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from partitioned_models import built

import hgpart
from hgpart.errors import ArgumentError, PlanError
from hgpart.partitioned_model import PartitionedModel, partition_model
from hgpart.placement import place
from hgpart.plan import Plan, load_plan, save_plan

MODEL, EXAMPLE = built("plain")


@cache
def divided() -> PartitionedModel:
    return partition_model(MODEL, EXAMPLE, k=2)


@cache
def planned() -> Plan:
    return Plan(divided().partition, "net.py:make", tuple(EXAMPLE[0].shape[1:]))


def described(page: str) -> str:
    """What a page says in paragraphs and tables."""
    return re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)


def test_all_of_them_draw_one_page(tmp_path: Path) -> None:
    result = divided().plot(tmp_path / "result.html")
    assert (tmp_path / "result.html").read_text(encoding="utf-8") == result
    placed = place(MODEL, divided()).plot()
    plan = hgpart.plot(planned(), model=MODEL)
    save_plan(planned(), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").plot(model=MODEL) == plan
    assert f"{divided().partition.evaluation.imbalance:.3f}" in described(result)
    assert described(placed) == described(result)
    assert described(plan) == described(result).replace("Sequential", "net.py:make")


def test_code_that_a_plan_names_is_not_called() -> None:
    with pytest.raises(ArgumentError, match=r"^the plan names code as its model, net\.py:make"):
        hgpart.plot(planned())


def test_a_built_in_model_is_known_by_its_name() -> None:
    model, shape = hgpart.load_model("lenet5", device="meta")
    found = partition_model(model, hgpart.example_inputs(model, shape), k=2, effort=0)
    plan = Plan(found.partition, "lenet5", shape or ())
    assert "lenet5" in described(hgpart.plot(plan))


def test_a_model_is_for_a_plan_and_the_one_that_was_divided() -> None:
    with pytest.raises(ArgumentError, match=r"^plot with a model"):
        hgpart.plot(divided(), model=MODEL)
    with pytest.raises(PlanError):
        hgpart.plot(planned(), model=torch.nn.Conv2d(3, 8, 3))
