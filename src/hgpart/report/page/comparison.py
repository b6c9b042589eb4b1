"""Comparison -> its page: the verdict, the table, traffic and load against k; a plan below."""

from __future__ import annotations

from hgpart.compare.comparison import VERDICT_K, Comparison, verdict
from hgpart.compare.step_seconds import ASSUMED, LINKS
from hgpart.report import UNITS, Report
from hgpart.report.page.document import Drawn, header, page, paragraphs, plot, section
from hgpart.report.page.drawing.comparison import MOST_LINES, eps_figure, lines_figure
from hgpart.report.page.drawing.figures import Figure
from hgpart.report.page.modelled import all_settings, settings_of, shape_text, slices_text
from hgpart.report.page.plan import plan_sections
from hgpart.report.page.tables.comparison import comparison_glossary, comparison_table, k_buttons
from hgpart.report.partition.printing import answer

SECONDS = "s per training step, about"


def comparison_page(comparison: Comparison, plan: Report | None = None, unit: str = "MB") -> str:
    """The page of a comparison: the verdict, the table, traffic and load against k.

    Parameters
    ----------
    plan : Report, optional
        A plan to show below it, as `plan_page` does.
    unit : str
        Unit of bytes, one of `hgpart.report.UNITS`.
    """
    subject = [
        comparison.model,
        f"input {shape_text(comparison.input_shape)}",
        *settings_of(comparison),
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
    most = f"Of more than {MOST_LINES} lines those of least are drawn: click a name to draw or "
    most += "hide one, twice to see it alone."
    body = [
        header(subject, [verdict(comparison)]),
        section(
            "Every way, side by side",
            "Less is better in every column. ★ marks the best of its k, for all but load among the "
            f"splits within max/avg load {1 + comparison.eps:g}; those beyond eps "
            f"{comparison.eps:g} are grey. Click a heading to sort; point at a figure for all its "
            "digits.",
            k_buttons(comparison),
            comparison_table(comparison, unit),
            comparison_glossary(comparison),
        ),
        section(
            "Traffic against the number of devices",
            "Bytes that all devices together send in a training step: forward, backward and, where "
            f"parameters are replicated, their synchronisation. Lower is better. {most} {hollow}",
            plot("step-bytes", figures["step-bytes"], "Traffic of each way against k"),
        ),
        *_seconds(comparison, figures),
        section(
            "Load against the number of devices",
            "Work of the busiest device over the average: 1 is a perfect balance, 2 means that it "
            "takes twice as long as it would if all had the same. Lower is better. "
            f"{hollow}",
            plot("max-over-average", figures["max-over-average"], "Load of each way against k"),
        ),
        *_against_eps(comparison, unit, figures),
    ]
    drawn: dict[str, Drawn] = {**figures}
    if plan is not None:
        first, *others = answer(plan, unit)
        parts, more = plan_sections(plan, unit)
        lines = [*_plan_settings(plan, comparison), *others]
        body += [section(f"A plan: {first}", "", *paragraphs(lines)), *parts]
        drawn |= more
    return page(f"{comparison.model}: ways compared", body, drawn)


def _seconds(comparison: Comparison, figures: dict[str, Figure]) -> list[str]:
    """Estimated seconds against k, where there are any."""
    if not any(row.step_seconds for row in comparison.steps):
        return []
    assumed = ASSUMED if comparison.work_source == "flops" else LINKS
    figures["step-seconds"] = figure = lines_figure(comparison, "step_seconds", SECONDS, 1)
    return [
        section(
            "Seconds against the number of devices",
            "About what a training step takes: an estimate by the busiest device's work and bytes, "
            f"for {assumed}, in as many micro-batches as are best. Lower is better. hgpart "
            "recommend simulates, by what your machine was measured to do.",
            plot("step-seconds", figure, "Estimated seconds of each way against k"),
        )
    ]


def _against_eps(comparison: Comparison, unit: str, figures: dict[str, Figure]) -> list[str]:
    """Bytes and seconds against the imbalance that was allowed, where several were asked for."""
    ks = {row.k for row in comparison.steps if row.eps is not None}
    if len(comparison.epss) < 2 or not ks:
        return []
    k = VERDICT_K if VERDICT_K in ks else max(ks)
    size, title = UNITS[unit], f"{unit} per training step"
    figures["bytes-eps"] = figure = eps_figure(comparison, "step_bytes", title, size, k)
    plots = [plot("bytes-eps", figure, "Traffic of each way against eps")]
    if any(row.step_seconds for row in comparison.steps if row.k == k and row.eps is not None):
        figures["seconds-eps"] = figure = eps_figure(comparison, "step_seconds", SECONDS, 1, k)
        plots.append(plot("seconds-eps", figure, "Estimated seconds of each way against eps"))
    return [
        section(
            "Traffic and seconds against eps",
            f"With {k} devices: what a larger imbalance saves, of the ways that take one. "
            f"Hollow points are beyond eps {comparison.eps:g}.",
            *plots,
        )
    ]


def _plan_settings(plan: Report, comparison: Comparison) -> list[str]:
    """What a plan was made with, and where that differs from the comparison above it."""
    own = all_settings(plan.partition.modelling)
    others = all_settings(comparison)
    differences = [f"{own[name]}, not {others[name]}" for name in own if own[name] != others[name]]
    if plan.partition.problem.eps not in comparison.epss:
        asked = ", ".join(f"{eps:g}" for eps in comparison.epss)
        differences.append(f"eps {plan.partition.problem.eps:g}, not {asked}")
    made = plan.made_by or "another tool"
    slices = slices_text(plan.partition.modelling)
    lines = [
        " · ".join(
            [
                "This plan",
                *own.values(),
                *slices,
                f"eps {plan.partition.problem.eps:g}",
                f"by {made}",
            ]
        )
    ]
    if differences:
        lines.append(
            "Its figures can't be compared one to one with those of the ways above: it has "
            f"{'; '.join(differences)}."
        )
    return lines
