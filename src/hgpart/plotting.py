"""PartitionedModel, Plan, Placement -> the HTML page that the command line writes of a plan."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hgpart.errors import ArgumentError
from hgpart.files.writing import write_text
from hgpart.partition import Partition
from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
from hgpart.placement import Placement, restored
from hgpart.plan import Plan, PlanFile
from hgpart.report import Report
from hgpart.report.page.plan import plan_page
from hgpart.zoo import is_user_code, load_model


def plot(
    found: PartitionedModel | Plan | PlanFile | Placement,
    path: Path | str | None = None,
    *,
    model: nn.Module | None = None,
) -> str:
    """Draw what each part has, computes and sends: the page of `hgpart show --html`.

    Parameters
    ----------
    path : Path or str, optional
        A file to write the page to.
    model : nn.Module, optional
        The model that a plan is for, where it names code that is not hgpart's to call.

    Returns
    -------
    str
        The page, HTML that needs no network.

    Raises
    ------
    ArgumentError
        If a plan names code and there is no model, or there is a model and no plan. If a placement
        is at inputs of other sizes than it was placed for.
    PlanError
        If the plan is for another model.
    OutputError
        If the file can't be written.
    """
    if isinstance(found, Plan | PlanFile):
        report = _of_plan(found, model)
    elif model is not None:
        raise ArgumentError("plot with a model: accepted is one for a plan, which has none itself")
    elif isinstance(found, Placement):
        report = _of_placement(found)
    else:
        shape = _shape(found.traced.example[0])
        report = Report(found.partition, found.name, shape, found.layerwise, found.seconds)
    page = plan_page(report)
    if path is not None:
        write_text(path, page)
    return page


def _of_plan(plan: Plan | PlanFile, model: nn.Module | None) -> Report:
    if model is None:
        if is_user_code(plan.model):
            raise ArgumentError(
                f"the plan names code as its model, {plan.model}: accepted is plot(path, model=...)"
            )
        model, _ = load_model(plan.model, device="meta")
    _, _, partition = restored(model, plan)
    return _report(partition, plan.model, plan.input_shape)


def _of_placement(placed: Placement) -> Report:
    if not placed.forms.is_as_placed:
        now, first = placed.forms.present, placed.forms.first
        raise ArgumentError(
            f"plot of a placement at inputs of {now.said_beside(first)}: accepted is one at "
            f"{first.said_beside(now)}, which it was placed for, as its work is of these"
        )
    programs = placed.programs
    shape = _shape(programs.blueprint.traced.example[0])
    return _report(programs.partition, programs.arguments.model, shape)


def _report(partition: Partition, model: str, shape: tuple[int, ...]) -> Report:
    asked = partition.problem
    cut = evaluate_layerwise(
        asked.graph, asked.work, asked.modelling, asked.k, asked.speeds, asked.eps
    )
    return Report(partition, model, shape, cut, {})


def _shape(value: object) -> tuple[int, ...]:
    """Shape of one sample of the first input."""
    return tuple(value.shape[1:]) if isinstance(value, torch.Tensor) else ()
