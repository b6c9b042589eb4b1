"""PartitionedModel, Plan, Placement -> the HTML page that the command line writes of a plan."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from hgpart.errors import ArgumentError
from hgpart.files.writing import write_text
from hgpart.partition import Partition
from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
from hgpart.placement import Placement, restored
from hgpart.plan import Plan, PlanFile
from hgpart.report.page.plan import plan_page
from hgpart.report.partition.record import Report
from hgpart.specs.models import is_user_code
from hgpart.tracing.arguments import Arguments
from hgpart.tracing.input_shape import InputShape
from hgpart.zoo import load_model


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
        shape = _sample_shape(found.traced.arguments)
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
    shape = _sample_shape(programs.arguments)
    return _report(programs.partition, programs.arguments.model, shape)


def _report(partition: Partition, model: str, shape: InputShape | None) -> Report:
    asked = partition.problem
    cut = evaluate_layerwise(
        asked.graph, asked.work, asked.modelling, asked.k, asked.speeds, asked.eps
    )
    return Report(partition, model, shape, cut, {})


def _sample_shape(arguments: Arguments) -> InputShape | None:
    """The inputs that the model takes for each sample, unless that can't be written."""
    try:
        return arguments.sample_shape()
    except ArgumentError:
        return None
