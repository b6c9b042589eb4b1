"""Report -> its page: the answer, who computes what, loads, memory, traffic."""

from __future__ import annotations

from collections.abc import Iterator

from hgpart.partition.problem.memory import COPIES, MemoryLimits, part_memory
from hgpart.report import UNITS, Report
from hgpart.report.page.document import Drawn, graph, grid, header, page, plot
from hgpart.report.page.drawing.figures import Figure, load_figure
from hgpart.report.page.drawing.grids import layer_grid, slices_grid, traffic_grid
from hgpart.report.page.drawing.memory import memory_figure
from hgpart.report.page.drawing.network import network
from hgpart.report.page.modelled import settings_of, shape_text, slices_text
from hgpart.report.page.planned_step import step_figure, step_section
from hgpart.report.page.tables.plan import part_table, step_table, summary_table
from hgpart.report.partition.printing import answer
from hgpart.report.tables import even_decimals
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Schedule


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
        f"input {shape_text(report.input_shape)}",
        *settings_of(report.partition.modelling),
        *slices_text(report.partition.modelling),
        f"work: {report.partition.problem.work.source}",
        *([] if report.made_by is None else [f"by {report.made_by}"]),
    ]
    sections, figures = plan_sections(report, unit)
    if planned is not None:
        figures["step"] = step = step_figure(*planned)
        sections += step_section(*planned, step)
    name = f"{report.model} on {report.partition.k} device{'s' * (report.partition.k > 1)}"
    lines = [name, *answer(report, unit)]
    return page(name, [header(subject, lines, [*_key_figures(report, unit)]), *sections], figures)


def _key_figures(report: Report, unit: str) -> Iterator[tuple[str, str]]:
    """What decides whether a plan is any good, and what it is."""
    found = report.partition.evaluation
    step = None if report.partition.problem.objective.in_seconds else report.step_seconds
    if report.partition.problem.objective.in_seconds:
        yield f"{report.partition.objective_value:.3g} s", "a step, by the search's estimate"
    elif step is not None and step.seconds:
        yield f"{step.one_device / step.seconds:.2f} times", "as fast as one device (an estimate)"
    volume = even_decimals([found.volume / UNITS[unit]])[0]
    yield f"{volume} {unit}", f"between devices in {report.time}"
    eps = report.partition.problem.eps
    allowed = f"{100 * eps:g} % {'allowed' if report.partition.feasible else 'was asked for'}"
    yield f"{100 * found.imbalance:.1f} %", f"more work on the busiest than its share ({allowed})"


def plan_sections(report: Report, unit: str) -> tuple[list[str], dict[str, Drawn]]:
    """What every page of a plan has, and what is drawn in it."""
    load, memory = load_figure(report), _memory_figure(report, unit)
    figures: dict[str, Drawn] = {
        "network": network(report, unit),
        "load": load,
        "memory": memory,
        "traffic": traffic_grid(report, unit),
        "layers": layer_grid(report),
    }
    sections = [
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
        *_memory_section(report, memory),
        "<section><h2>Beside a cut between layers</h2>",
        f"<p>The other way gives every device whole, consecutive layers: the cut of least traffic "
        f"within eps {report.partition.problem.eps:g}, or of the smallest largest load where none "
        "is within it. "
        "(The strategy layerwise of a comparison is always that of the smallest largest load.)"
        "</p>",
        summary_table(report, unit),
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
    if report.partition.modelling.slices > 1 and (slices := slices_grid(report)) is not None:
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


def _memory_figure(report: Report, unit: str) -> Figure:
    """What each part needs, as it was limited, or as it would be by default."""
    if report.partition.problem.memory is not None and report.partition.memory_bytes is not None:
        return memory_figure(
            report.partition.memory_bytes.tolist(), report.partition.problem.memory.bytes, unit
        )
    needed = part_memory(report.partition.model, report.partition.parts, report.partition.k, COPIES)
    return memory_figure(needed.tolist(), (), unit)


def _memory_section(report: Report, figure: Figure) -> list[str]:
    counted = (report.partition.problem.memory or MemoryLimits(())).counted
    limited = (
        "The dashed line is what it may have."
        if report.partition.problem.memory is not None
        else "No limit was asked for (--memory sets one)."
    )
    return [
        "<section><h2>Memory of each part</h2>",
        f"<p>{counted[0].upper()}{counted[1:]}, and the feature maps that it makes or receives. "
        f"{limited}</p>",
        plot("memory", figure, "Memory of each part against its limit"),
        "</section>",
    ]
