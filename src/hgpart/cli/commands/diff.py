"""hgpart diff: two plans of a model -> what lies elsewhere, and what that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import hgpart
from hgpart.cli.named_model import PlanModel
from hgpart.cli.outputs import Page, plain_console, unit_of
from hgpart.cli.stages import Stages
from hgpart.cli.timing import Simulator


def diff(
    context: typer.Context,
    first: Annotated[
        Path, typer.Argument(metavar="PLAN", help="Plan file, which names the model.")
    ],
    second: Annotated[
        Path, typer.Argument(metavar="OTHER", help="Plan file of the same model to compare with.")
    ],
    of_model: PlanModel,
    simulator: Simulator,
    results: Page,
) -> None:
    """Compare two plans of a model: what lies elsewhere, and what that changes.

    Where all devices are alike, those of the second plan are renumbered so that least work moves.

    Examples
    --------
    $ hgpart diff plan.json other.json
    """
    results.check()
    with Stages() as stage:
        with stage("import"):
            from hgpart.explanation.differing import check_one_model, difference
            from hgpart.files.json_files import quoted
            from hgpart.report.explanation.differences import (
                DifferenceReport,
                difference_json,
                print_difference,
            )
            from hgpart.report.page.differences import difference_page
        with stage("read"):
            loaded = [hgpart.files.load_plan(path) for path in (first, second)]
        names = [
            f"{path} (of {quoted(own.model)})"
            for path, own in zip((first, second), loaded, strict=True)
        ]
        check_one_model([own.fingerprint for own in loaded], names)
        named, known = of_model.known(stage, loaded[0], first)
        with stage("evaluate"):
            before, after = (hgpart.restore(own, known.graph) for own in loaded)
        simulators = [
            simulator.steps(stage, known, partition, own.scheduling)
            for partition, own in zip((before, after), loaded, strict=True)
        ]
        with stage("compare"):
            compared = difference(before, after, *simulators)
    report = DifferenceReport(named, (str(first), str(second)), compared)
    unit = unit_of(context)
    results.draw(difference_page, report, unit)
    if results.want_tables(difference_json(report)):
        print_difference(report, plain_console(), unit)
