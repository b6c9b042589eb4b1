"""hgpart explain: a plan -> what each layer costs where it is, and what other places would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hgpart
from hgpart.cli.named_model import PlanModel
from hgpart.cli.outputs import Page, plain_console, unit_of
from hgpart.cli.stages import Stages
from hgpart.cli.timing import Simulator


def explain(
    context: typer.Context,
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, written by 'hgpart partition -o'.")
    ],
    of_model: PlanModel,
    simulator: Simulator,
    results: Page,
    layer: Annotated[
        str,
        typer.Argument(
            metavar="LAYER",
            help="Layer, module, or pattern such as 'layer4.*' to explain. Default: all layers.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Explain a plan: what each layer costs where it is, what holds it, what is the bottleneck.

    All other places of each layer are tried, by bytes, load and memory; the best is simulated.

    Examples
    --------
    $ hgpart explain plan.json
    """
    results.check()
    with Stages() as stage:
        with stage("import"):
            from hgpart.explanation.explaining import explained, layers_named
            from hgpart.report.explanation.explained import (
                ExplanationReport,
                explanation_json,
                print_explanation,
            )
            from hgpart.report.page.explained import explanation_page
        with stage("read"):
            loaded = hgpart.files.load_plan(plan)
        simulator.wanted(loaded.scheduling)  # before the model is traced
        named, known = of_model.known(stage, loaded, plan)
        with stage("evaluate"):
            partition = hgpart.restore(loaded, known.graph)
        layers_named(partition, layer or "*")  # before anything is simulated
        steps = simulator.steps(stage, known, partition, loaded.scheduling)
        with stage("explain"):
            explanation = explained(partition, layer or "*", steps)
    report = ExplanationReport(named, explanation, layer)
    unit = unit_of(context)
    results.draw(explanation_page, report, unit)
    if results.want_tables(explanation_json(report)):
        print_explanation(report, plain_console(), unit)
