"""Comparison, Bench, Report -> the pages that commands write; computes nothing but layout."""

from __future__ import annotations

from html import escape

from hgpart.bench.races import Races
from hgpart.bench.results import Bench
from hgpart.compare.comparison import Comparison, verdict
from hgpart.hypergraph.modelling import Modelling
from hgpart.report import UNITS, Report
from hgpart.report.benches import fastest, settings
from hgpart.report.page.document import (
    Drawn,
    graph,
    grid,
    header,
    page,
    paragraphs,
    plot,
    write_page,
)
from hgpart.report.page.figures import MOST_LINES, Figure, lines_figure, load_figure
from hgpart.report.page.grids import layer_grid, slices_grid, traffic_grid
from hgpart.report.page.network import network
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
        header(subject, [verdict(comparison)]),
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
        plot("step-bytes", figures["step-bytes"], "Traffic of each strategy against k"),
        "</section>",
        "<section><h2>Load against the number of devices</h2>",
        "<p>Work of the busiest device over the average: 1 is a perfect balance, 2 means that it "
        "takes twice as long as it would if all had the same. Lower is better. "
        f"{hollow}</p>",
        plot("max-over-average", figures["max-over-average"], "Load of each strategy against k"),
        "</section>",
    ]
    drawn: dict[str, Drawn] = {**figures}
    if plan is not None:
        first, *others = answer(plan, unit)
        parts, more = _plan_sections(plan, unit)
        lines = [*_plan_settings(plan, comparison), *others]
        body += [f"<section><h2>A plan: {escape(first)}</h2>", *paragraphs(lines), "</section>"]
        body += parts
        drawn |= more
    return page(f"{comparison.model}: strategies compared", body, drawn)


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
    body = [header(subject, answer(report, unit)), *sections]
    return page(f"{report.model} on {report.k} devices", body, figures)


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
        header(settings(bench), [fastest(bench)]),
        "<section><h2>Every way, side by side</h2>",
        "<p>Training, forward and backward with an update. Each way had the machine to itself, in "
        "turns. Click a heading to sort; point at a figure for all its digits.</p>",
        ways_table(bench, unit),
        ways_glossary(bench.rows, way_columns(bench, unit)),
        "</section>",
        "<section><h2>Seconds a step</h2>",
        "<p>The median of all timed steps, and a line from the lower to the upper quartile. Lower "
        "is better.</p>",
        plot("ways", figures["ways"], "Seconds a step of each way"),
        "</section>",
    ]
    return page(f"{bench.model}: ways of training on the clock", body, figures)


def race_page(races: Races) -> str:
    """The page of ways of training to an accuracy: which is first, the table, the curves."""
    figures = {"races": race_figure(races)}
    body = [
        header(race_settings(races), [winner(races)]),
        "<section><h2>Every way, side by side</h2>",
        "<p>All begin with the same weights, and see the same batches in the same order. Each had "
        "the machine to itself.</p>",
        races_table(races),
        ways_glossary(races.rows),
        "</section>",
        "<section><h2>Accuracy against time</h2>",
        plot("races", figures["races"], "Accuracy of each way against seconds of training"),
        "</section>",
    ]
    return page(f"{races.model}: ways of training to an accuracy", body, figures)


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
        graph("network", "The layers, who computes them, and what travels"),
        "</section>",
        "<section><h2>Load of each part</h2>",
        "<p>A part is what one device computes. The busiest sets the pace.</p>",
        plot("load", load, "Load of each part"),
        "</section>",
        "<section><h2>Traffic between parts</h2>",
        f"<p>What each part (row) sends to each other part (column) in {report.time}, in "
        f"{unit}; an empty cell is none.</p>",
        grid("traffic", "Traffic from each part to each other"),
        "</section>",
        "<section><h2>What each part holds and sends</h2>",
        part_table(report, unit),
        "</section>",
        "<section><h2>Who computes which layer</h2>",
        "<p>The share of each layer (row, in the order of the model) that each part (column) "
        "computes, in percent of its work, or of its channels where there is no work; an empty "
        "cell is none.</p>",
        grid("layers", "Share of each layer that each part computes"),
        "</section>",
    ]
    if report.modelling.slices > 1 and (slices := slices_grid(report)) is not None:
        figures["slices"] = slices
        sections += [
            "<section><h2>Who computes which slices of the batch</h2>",
            "<p>Of each layer (row) the slices of which a part (column) computes filters, as dark "
            "as its share of the layer. Point at one for the share of its filters.</p>",
            grid("slices", "Slices of each layer that each part computes"),
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
        plot("step", figure, "What each part does when in a step"),
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


__all__ = ["bench_page", "comparison_page", "plan_page", "race_page", "write_page"]
