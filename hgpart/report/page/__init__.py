"""Comparison, Bench, Report -> one self-contained HTML file; computes nothing but layout."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from hgpart.bench.races import Races
from hgpart.bench.results import Bench
from hgpart.compare.comparison import Comparison, verdict
from hgpart.files.writing import replacing
from hgpart.hypergraph.modelling import Modelling
from hgpart.report import UNITS, Report
from hgpart.report.benches import fastest, settings
from hgpart.report.page.figures import (
    MOST_LINES,
    Figure,
    lines_figure,
    load_figure,
)
from hgpart.report.page.grids import Grid, layer_grid, slices_grid, traffic_grid
from hgpart.report.page.network import Network, network
from hgpart.report.page.planned_step import step_figure
from hgpart.report.page.tables import (
    comparison_glossary,
    comparison_table,
    k_buttons,
    part_table,
    step_table,
    summary_table,
)
from hgpart.report.page.ways import (
    race_figure,
    races_table,
    way_columns,
    ways_figure,
    ways_glossary,
    ways_table,
)
from hgpart.report.partition.printing import answer
from hgpart.report.races import race_settings, winner
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import bubble

Drawn = Figure | Grid | Network
PLOTS, LAYOUT = "bundles/plotly-basic.min.js", "bundles/dagre.min.js"
# Nothing outside the file is asked for, whatever it holds.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def comparison_page(comparison: Comparison, plan: Report | None = None, unit: str = "MB") -> str:
    """The page of a comparison: the verdict, the table, traffic and load against k.

    Parameters
    ----------
    comparison : Comparison
    plan : Report, optional
        A plan to show below it, as `plan_page` does.
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    """
    subject = [
        comparison.model,
        f"input {_shape(comparison.input_shape)}",
        *_settings(comparison),
        f"epoch of {comparison.dataset_size:,} samples",
        f"work: {comparison.work_source}",
        f"seed {comparison.seed}",
    ]
    figures = {
        "step-bytes": lines_figure(
            comparison, "step_bytes", f"{unit} per training step", UNITS[unit]
        ),
        "max-over-average": lines_figure(comparison, "max_over_average", "max/avg load", 1),
    }
    hollow = f"Hollow points are beyond eps {comparison.eps:g}: one device has too much to do."
    body = [
        _header(subject, [verdict(comparison)]),
        "<section><h2>Every strategy, side by side</h2>",
        "<p>Less is better in every column. ★ marks the best of its k, for all but load among the "
        f"splits within max/avg load {1 + comparison.eps:g}; those beyond eps {comparison.eps:g} "
        "are grey. Click a heading to sort; point "
        "at a figure for all its digits.</p>",
        k_buttons(comparison),
        comparison_table(comparison, unit),
        comparison_glossary(comparison, unit),
        "</section>",
        "<section><h2>Traffic against the number of devices</h2>",
        "<p>Bytes that all devices together send in a training step: forward, backward and, where "
        "parameters are replicated, their synchronisation. Lower is better. Of more than "
        f"{MOST_LINES} lines those of least are drawn: click a name to draw or hide one, twice "
        f"to see it alone. {hollow}</p>",
        _plot("step-bytes", figures["step-bytes"], "Traffic of each strategy against k"),
        "</section>",
        "<section><h2>Load against the number of devices</h2>",
        "<p>Work of the busiest device over the average: 1 is a perfect balance, 2 means that it "
        "takes twice as long as it would if all had the same. Lower is better. "
        f"{hollow}</p>",
        _plot("max-over-average", figures["max-over-average"], "Load of each strategy against k"),
        "</section>",
    ]
    drawn: dict[str, Drawn] = {**figures}
    if plan is not None:
        first, *others = answer(plan, unit)
        parts, more = _plan_sections(plan, unit)
        lines = [*_plan_settings(plan, comparison), *others]
        body += [f"<section><h2>A plan: {escape(first)}</h2>", *_paragraphs(lines), "</section>"]
        body += parts
        drawn |= more
    return _page(f"{comparison.model}: strategies compared", body, drawn)


def plan_page(
    report: Report, unit: str = "MB", planned: tuple[Schedule, Costs] | None = None
) -> str:
    """The page of one plan: the answer, loads, traffic, and what each part has of each layer.

    Parameters
    ----------
    report : Report
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    planned : (Schedule, Costs), optional
        What each part is to do when in a step, drawn by these costs.
    """
    subject = [
        report.model,
        f"input {_shape(report.input_shape)}",
        *_settings(report.modelling),
        *_slices(report.modelling),
        f"work: {report.work.source}",
        *([] if report.backend is None else [f"by {report.backend}, seed {report.seed}"]),
    ]
    sections, figures = _plan_sections(report, unit)
    if planned is not None:
        figures["step"] = step = step_figure(*planned)
        sections += _step_section(*planned, step)
    body = [_header(subject, answer(report, unit)), *sections]
    return _page(f"{report.model} on {report.k} devices", body, figures)


def bench_page(bench: Bench, unit: str = "MB") -> str:
    """The page of ways of training on the clock: which is fastest, the table, bars.

    Parameters
    ----------
    bench : Bench
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    """
    figures = {"ways": ways_figure(bench)}
    body = [
        _header(settings(bench), [fastest(bench)]),
        "<section><h2>Every way, side by side</h2>",
        "<p>Training, forward and backward with an update. Each way had the machine to itself, in "
        "turns. Click a heading to sort; point at a figure for all its digits.</p>",
        ways_table(bench, unit),
        ways_glossary(bench.rows, way_columns(bench, unit)),
        "</section>",
        "<section><h2>Seconds a step</h2>",
        "<p>The median of all timed steps, and a line from the lower to the upper quartile. Lower "
        "is better.</p>",
        _plot("ways", figures["ways"], "Seconds a step of each way"),
        "</section>",
    ]
    return _page(f"{bench.model}: ways of training on the clock", body, figures)


def race_page(races: Races) -> str:
    """The page of ways of training to an accuracy: which is first, the table, the curves."""
    figures = {"races": race_figure(races)}
    body = [
        _header(race_settings(races), [winner(races)]),
        "<section><h2>Every way, side by side</h2>",
        "<p>All begin with the same weights, and see the same batches in the same order. Each had "
        "the machine to itself.</p>",
        races_table(races),
        ways_glossary(races.rows),
        "</section>",
        "<section><h2>Accuracy against time</h2>",
        _plot("races", figures["races"], "Accuracy of each way against seconds of training"),
        "</section>",
    ]
    return _page(f"{races.model}: ways of training to an accuracy", body, figures)


def write_page(html: str, path: Path | str) -> None:
    """Write a page to a file.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    with replacing(path) as file:
        file.write(html)


# ------------------------------------------------------------------ what pages are made of


def _plan_sections(report: Report, unit: str) -> tuple[list[str], dict[str, Drawn]]:
    load = load_figure(report)
    figures: dict[str, Drawn] = {
        "network": network(report, unit),
        "load": load,
        "traffic": traffic_grid(report, unit),
        "layers": layer_grid(report),
    }
    sections = [
        "<section><h2>Beside a cut between layers</h2>",
        f"<p>The other way gives every device whole, consecutive layers: the cut of least traffic "
        f"within eps {report.eps:g}, or of the smallest largest load where none is within it. "
        "(The strategy layerwise of a comparison is always that of the smallest largest load.)"
        "</p>",
        summary_table(report, unit),
        "</section>",
        "<section><h2>The network, and who computes what of it</h2>",
        "<p>A box is a layer, as wide as its work, in the colours of the parts that compute it; a "
        "line is as thick as the maps that travel along it between parts in a forward pass, and "
        "thin where none do. Point at one for its figures.</p>",
        _network("network", "The layers, who computes them, and what travels"),
        "</section>",
        "<section><h2>Load of each part</h2>",
        "<p>A part is what one device computes. The busiest sets the pace.</p>",
        _plot("load", load, "Load of each part"),
        "</section>",
        "<section><h2>Traffic between parts</h2>",
        f"<p>What each part (row) sends to each other part (column) in {report.time}, in "
        f"{unit}; an empty cell is none.</p>",
        _grid("traffic", "Traffic from each part to each other"),
        "</section>",
        "<section><h2>What each part holds and sends</h2>",
        part_table(report, unit),
        "</section>",
        "<section><h2>Who computes which layer</h2>",
        "<p>The share of each layer (row, in the order of the model) that each part (column) "
        "computes, in percent of its work, or of its channels where there is no work; an empty "
        "cell is none.</p>",
        _grid("layers", "Share of each layer that each part computes"),
        "</section>",
    ]
    if report.modelling.slices > 1:
        figures["slices"] = slices_grid(report)
        sections += [
            "<section><h2>Who computes which slices of the batch</h2>",
            "<p>Of each layer (row) the slices of which a part (column) computes filters, as dark "
            "as its share of the layer. Point at one for the share of its filters.</p>",
            _grid("slices", "Slices of each layer that each part computes"),
            "</section>",
        ]
    if report.each_way:
        at = sections.index("<section><h2>What each part holds and sends</h2>")
        sections[at:at] = [
            "<section><h2>What a training step sends</h2>",
            "<p>Maps go forward, and their gradients back. Where several parts have parameters of "
            "a filter, one of them sums its gradients, and sends the new weights.</p>",
            step_table(report, unit),
            "</section>",
        ]
    return sections, figures


def _step_section(schedule: Schedule, costs: Costs, figure: Figure) -> list[str]:
    count = schedule.micro_batches
    divided = f"the batch in {count} micro-batches" if count > 1 else "the batch at once"
    return [
        "<section><h2>What each part does when</h2>",
        f"<p>A step of training by {escape(schedule.rule)}, {divided}, simulated with estimated "
        f"costs: parts have nothing to do in {100 * bubble(schedule, costs):.0f} % of the time. A "
        "row is a part, a box what it does of one micro-batch, whose number is in it, where there "
        "is room.</p>",
        _plot("step", figure, "What each part does when in a step"),
        "</section>",
    ]


def _plan_settings(plan: Report, comparison: Comparison) -> list[str]:
    """What a plan was made with, and where that differs from the comparison above it."""
    own = _all_settings(plan.modelling)
    others = _all_settings(comparison)
    differences = [f"{own[name]}, not {others[name]}" for name in own if own[name] != others[name]]
    if plan.eps not in comparison.epss:
        asked = ", ".join(f"{eps:g}" for eps in comparison.epss)
        differences.append(f"eps {plan.eps:g}, not {asked}")
    made = "another tool" if plan.backend is None else f"{plan.backend}, seed {plan.seed}"
    slices = _slices(plan.modelling)
    lines = [" · ".join(["This plan", *own.values(), *slices, f"eps {plan.eps:g}", f"by {made}"])]
    if differences:
        lines.append(
            "Its figures can't be compared one to one with the strategies' above: it has "
            f"{'; '.join(differences)}."
        )
    return lines


def _all_settings(chosen: Comparison | Modelling) -> dict[str, str]:
    element = chosen.bytes_per_element
    return {
        "batch_size": f"batch of {chosen.batch_size}",
        "linear": f"a linear layer is {'one task' if chosen.linear == 'layer' else 'its neurons'}",
        "bytes_per_element": (
            "the model's own element size" if element is None else f"{element} bytes per element"
        ),
        "input_vertex": f"inputs {'' if chosen.input_vertex else 'not '}counted",
        "output_vertex": f"result {'' if chosen.output_vertex else 'not '}counted",
    }


def _header(subject: list[str], lines: list[str]) -> str:
    first, *others = lines
    about = " · ".join(map(escape, subject))
    return "\n".join(
        [
            f'<header><p class="subject">{about}</p>',
            f"<h1>{escape(first)}</h1>",
            *_paragraphs(others),
            "</header>",
        ]
    )


def _settings(chosen: Comparison | Modelling) -> list[str]:
    """What decides what counts as traffic; only the batch size where the rest is as always."""
    element = chosen.bytes_per_element
    said = {
        f"batch of {chosen.batch_size}": True,
        f"{element} bytes per element": element is not None,
        "a linear layer is one task": chosen.linear == "layer",
        "inputs not counted": not chosen.input_vertex,
        "result not counted": not chosen.output_vertex,
    }
    return [text for text, holds in said.items() if holds]


def _slices(modelling: Modelling) -> list[str]:
    said = {
        f"{modelling.slices} slices of the batch": modelling.slices > 1,
        "nothing is trained": not modelling.training,
    }
    return [text for text, holds in said.items() if holds]


def _shape(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


def _paragraphs(lines: list[str]) -> list[str]:
    return [f"<p>{escape(line)}</p>" for line in lines]


def _plot(name: str, figure: Figure, label: str) -> str:
    size = f"height: {figure.height}px; min-width: {figure.least_width}px"
    return (
        f'<div class="wide"><div class="plot" id="{name}" role="img" aria-label="{escape(label)}" '
        f'style="{size}"></div></div>'
    )


def _grid(name: str, label: str) -> str:
    """A table that page.js fills."""
    return (
        f'<div class="wide"><table class="grid" id="{name}" aria-label="{escape(label)}"></table>'
        "</div>"
    )


def _network(name: str, label: str) -> str:
    return (
        f'<figure class="network" id="{name}" role="img" aria-label="{escape(label)}">'
        '<ul class="legend" aria-label="Parts"></ul><div class="wide"></div></figure>'
    )


def _page(title: str, body: list[str], drawn: Mapping[str, Drawn]) -> str:
    kinds: dict[str, dict[str, Any]] = {"figures": {}, "grids": {}, "networks": {}}
    for name, one in drawn.items():
        if isinstance(one, Figure):
            kinds["figures"][name] = {"data": one.data, "layout": one.layout}
        else:
            kind = "grids" if isinstance(one, Grid) else "networks"
            kinds[kind][name] = dataclasses.asdict(one)
    bundles = [PLOTS, *([LAYOUT] if kinds["networks"] else [])]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{_text('page.css')}</style>",
            "</head>",
            "<body>",
            "<main>",
            "<noscript>The tables are complete as they are; the plots need JavaScript.</noscript>",
            *body,
            "</main>",
            f"<footer>hgpart {version('hgpart')}</footer>",
            f'<script type="application/json" id="figures">{_script_json(kinds)}</script>',
            *(f"<script>{_text(bundle)}</script>" for bundle in bundles),
            f"<script>\n{_text('page.js')}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _script_json(value: Any) -> str:
    """Write JSON that can't end the script element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _text(name: str) -> str:
    return files("hgpart.report.page").joinpath(*name.split("/")).read_text(encoding="utf-8")


__all__ = ["bench_page", "comparison_page", "plan_page", "race_page", "write_page"]
