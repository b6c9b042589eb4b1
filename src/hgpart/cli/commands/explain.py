"""hgpart explain: a plan -> what each layer costs where it is, and what other places would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hgpart
from hgpart.cli.named_model import known_model
from hgpart.cli.outputs import Page, plain_console, unit_of
from hgpart.cli.stages import Stages
from hgpart.cli.timing import Simulator


def explain(
    context: typer.Context,
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, written by 'hgpart partition -o'.")
    ],
    simulator: Simulator,
    results: Page,
    layer: Annotated[
        str,
        typer.Argument(
            metavar="LAYER",
            help="Layer to explain, or a pattern such as 'layer4.*'. Default: all layers.",
            show_default=False,
        ),
    ] = "",
    model: str | None = None,
    trust: bool = False,
) -> None:
    """Explain a plan: what each layer costs where it is, what holds it, what is the bottleneck.

    All other places of each layer are tried, by bytes, load and memory; the best is simulated.

    Parameters
    ----------
    model : MODEL
        The plan's model. Default: the one that the plan names; required, or --trust, if that is
        your own code.
    trust
        Import and call the code that the plan names.

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
        named, known = known_model(stage, loaded, plan, model, trust)
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
