"""Report -> its page: the answer, who computes what, loads, memory, traffic, a step."""

from __future__ import annotations

from collections.abc import Iterator

from hgpart.compare.comparison import Comparison
from hgpart.execution.records.events import planned_events
from hgpart.files.columns import UNITS
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.problem.memory import COPIES, MemoryLimits, part_memory
from hgpart.recommendation.of_partition import Simulated
from hgpart.report.page.document import Drawings, header, page, section
from hgpart.report.page.drawing.figures import Figure, load_figure, memory_figure
from hgpart.report.page.drawing.grids import layer_grid, slices_grid, traffic_grid
from hgpart.report.page.drawing.network import network
from hgpart.report.page.drawing.timelines import timeline_figure
from hgpart.report.page.table import records_table
from hgpart.report.partition.columns import (
    both,
    load_columns,
    part_columns,
    per,
    step_columns,
    volume_columns,
)
from hgpart.report.partition.divided_layers import (
    divided_columns,
    divided_layers,
    divided_legend,
)
from hgpart.report.partition.printing import answer
from hgpart.report.partition.record import Report
from hgpart.report.tables import counted, even_decimals
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import bubble, times_of
from hgpart.tracing.input_shape import shape_text


def plan_page(
    report: Report, unit: str = "MB", planned: tuple[Schedule, Costs] | None = None
) -> str:
    """The page of one plan: the answer, loads, traffic, and what each part has of each layer.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    planned : (Schedule, Costs), optional
        What each part is to do when in a step, drawn by these costs.
    """
    partition = report.partition
    subject = [
        report.model,
        f"input {shape_text(report.input_shape or ())}",
        *settings_of(partition.modelling),
        *slices_text(partition.modelling),
        f"work: {partition.problem.work.source}",
    ]
    if partition.backend is not None:
        subject.append(f"by {partition.backend}, seed {partition.seed}")
    drawn = Drawings()
    sections = plan_sections(report, unit, drawn)
    if planned is not None:
        sections.append(_step_section(*planned, drawn))
    name = f"{report.model} on {counted(partition.k, 'device')}"
    lines = [name, *answer(report, unit)]
    return page(name, [header(subject, lines, [*_key_figures(report, unit)]), *sections], drawn)


def _key_figures(report: Report, unit: str) -> Iterator[tuple[str, str]]:
    """What decides whether a plan is any good, and what it is."""
    partition = report.partition
    if partition.problem.objective.name == "time":
        yield f"{partition.objective_value:.3g} s", "a step, by the search's estimate"
    elif (step := report.step_seconds) is not None and step.seconds:
        how = "simulated" if isinstance(step, Simulated) else "an estimate"
        yield f"{step.one_device / step.seconds:.2f} times", f"as fast as one device ({how})"
    volume = even_decimals([partition.evaluation.volume / UNITS[unit]])[0]
    yield f"{volume} {unit}", f"between devices in {report.time}"
    said = "allowed" if partition.feasible else "was asked for"
    share = f"more work on the busiest than its share ({100 * partition.problem.eps:g} % {said})"
    yield f"{100 * partition.evaluation.imbalance:.1f} %", share


def plan_sections(report: Report, unit: str, drawn: Drawings) -> list[str]:
    """What every page of a plan has; what is drawn in it is added to `drawn`."""
    columns = [*load_columns(report), *volume_columns(report)[1:]]
    parts, when = range(report.partition.k), per(report)
    traffic = traffic_grid(report, unit)
    sections = [
        section(
            "The network, and who computes what of it",
            "A box is a layer, as wide as its work, in the colours of the parts that compute it; "
            f"{_grid_text(report.partition.modelling)}a "
            "line is as thick as the maps that travel along it between parts in a forward pass, "
            "and thin where none do. A map that several layers of a part read travels to it once, "
            "along the line to the first of them. Point at one for its figures.",
            drawn.graph(
                "network", network(report, unit), "The layers, who computes them, and what travels"
            ),
        ),
        section(
            "Load of each part",
            "A part is what one device computes. The busiest sets the pace.",
            drawn.plot("load", load_figure(report), "Load of each part"),
        ),
        _memory_section(report, unit, drawn),
        section(
            "Beside a cut between layers",
            "The layer cut gives every device whole, consecutive layers: the cut of least traffic "
            f"within eps {report.partition.problem.eps:g}, or of the smallest largest load where "
            "none is within it. (The way layerwise of a comparison is always that of the smallest "
            "largest load.)",
            records_table("summary", columns, both(report), unit),
        ),
        section(
            "Traffic between parts",
            f"What each part (row) sends to each other part (column) {when}, in {unit}; an empty "
            "cell is none.",
            drawn.grid("traffic", traffic, "Traffic from each part to each other"),
        ),
    ]
    if report.each_way:
        sections.append(
            section(
                "What a training step sends",
                "Maps go forward, and their gradients back. Where several parts have parameters of "
                "a filter, one of them sums its gradients, and sends the new weights; in the same "
                "way sums for the statistics of norms go there and back.",
                records_table("step", step_columns(report), report.step, unit),
            )
        )
    sections += [
        section(
            "What each part holds and sends",
            "",
            records_table("parts", part_columns(report), parts, unit),
        ),
        section(
            "Who computes which layer",
            "The share of each layer (row, in the order of the model) that each part (column) "
            "computes, in percent of its work, or of its channels where there is no work; an empty "
            "cell is none.",
            drawn.grid("layers", layer_grid(report), "Share of each layer that each part computes"),
        ),
    ]
    return [*sections, *_tiles_sections(report, unit, drawn)]


def _grid_text(modelling: Modelling) -> str:
    """What columns and stripes of a box are."""
    pieces = {
        "a column is a slice of the batch": modelling.slices > 1,
        "a stripe is a band of its rows, from the top down": modelling.bands > 1,
    }
    texts = [text for text, exist in pieces.items() if exist]
    if not texts:
        return ""
    return f"{', '.join(texts)}, and parts that divide the filters of one stand side by side; "


def _tiles_sections(report: Report, unit: str, drawn: Drawings) -> Iterator[str]:
    """Tables of the filters that each part has of slices and bands, where there are any."""
    modelling = report.partition.modelling
    if modelling.slices == modelling.bands == 1:
        return
    yield section(
        "How layers are divided",
        f"Which parts have which filters of what; neighbours that lie alike are one row. Here "
        f"{divided_legend(report)}. Point at a box of the network for its rows and samples.",
        records_table("divided", divided_columns(), divided_layers(report), unit),
    )
    if modelling.bands == 1 and (slices := slices_grid(report)) is not None:
        yield section(
            "Who computes which slices of the batch",
            "The slices of each layer (row) of which a part (column) computes filters, as dark "
            "as its share of the layer. Point at one for the share of its filters.",
            drawn.grid("slices", slices, "Slices of each layer that each part computes"),
        )


def _memory_section(report: Report, unit: str, drawn: Drawings) -> str:
    """What each part needs, as it was limited, or as it would be by default."""
    partition, asked = report.partition, report.partition.problem.memory
    needed = partition.memory_bytes
    if needed is None:
        needed = part_memory(partition.model, partition.parts, partition.k, COPIES)
    counted = (asked or MemoryLimits(())).counted
    limited = (
        "The dashed line is what it may have."
        if asked is not None
        else "No limit was asked for (--memory sets one)."
    )
    limits = () if asked is None else asked.bytes
    figure = memory_figure(needed.tolist(), limits, unit)
    return section(
        "Memory of each part",
        f"{counted[0].upper()}{counted[1:]}, and the feature maps that it makes or receives. "
        f"{limited}",
        drawn.plot("memory", figure, "Memory of each part against its limit"),
    )


def _step_section(schedule: Schedule, costs: Costs, drawn: Drawings) -> str:
    """What each part does when, and how long parts have nothing to do."""
    count = schedule.micro_batches
    divided = f"the batch in {count} micro-batches" if count > 1 else "the batch at once"
    return section(
        "What each part does when",
        f"A step of training by {schedule.rule}, {divided}, simulated with estimated costs: parts "
        f"have nothing to do in {100 * bubble(schedule, costs):.0f} % of the time. A row is a "
        "part, in its colour, a box what it does of one micro-batch, whose number is in it, where "
        "there is room.",
        drawn.plot("step", step_figure(schedule, costs), "What each part does when in a step"),
    )


def step_figure(schedule: Schedule, costs: Costs) -> Figure:
    """When each part is to do what, by estimated costs."""
    when = times_of(schedule, costs)
    planned = planned_events(schedule.order, when)
    return timeline_figure(schedule.k, (), planned, "ms, by estimated costs")


def all_settings(chosen: Comparison | Modelling) -> dict[str, str]:
    """All that figures depend on, by name, to be compared with another's."""
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


def settings_of(chosen: Comparison | Modelling) -> list[str]:
    """What counts as traffic; only the batch size where the rest is the default."""
    element = chosen.bytes_per_element
    texts = {
        f"batch of {chosen.batch_size}": True,
        f"{element} bytes per element": element is not None,
        "a linear layer is one task": chosen.linear == "layer",
        "inputs not counted": not chosen.input_vertex,
        "result not counted": not chosen.output_vertex,
    }
    return [text for text, holds in texts.items() if holds]


def slices_text(modelling: Modelling) -> list[str]:
    """How the batch is divided, and whether the plan is for inference."""
    texts = {
        f"{modelling.slices} slices of the batch": modelling.slices > 1,
        f"{modelling.bands} bands of rows": modelling.bands > 1,
        "nothing is trained": not modelling.training,
    }
    return [text for text, holds in texts.items() if holds]
