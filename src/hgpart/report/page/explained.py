"""ExplanationReport -> its page: the bottleneck, the nets that pay most, and all layers."""

from __future__ import annotations

from hgpart.report.explanation.explained import (
    ExplanationReport,
    bottleneck_answer,
    explanation_notes,
    first_of,
    layer_columns,
    layer_sentences,
    layers_title,
    legend,
    payment_columns,
    way_of,
)
from hgpart.report.page.document import Drawings, header, page, paragraphs, section
from hgpart.report.page.drawing.figures import bars, seconds_figure, shortened
from hgpart.report.page.table import glossary, records_table
from hgpart.report.partition.looks import part_marker
from hgpart.report.tables import counted

MOST_PAYMENTS = 30  # rows of the table of nets
MOST_LAYERS = 300  # layers that have sentences


def explanation_page(report: ExplanationReport, unit: str = "MB") -> str:
    """The page of an explanation.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    explanation, partition = report.explanation, report.partition
    subject = [report.model, counted(partition.k, "device"), f"{partition.modelling.grain}-grain"]
    lines = [bottleneck_answer(report, unit), *explanation_notes(report, unit)]
    drawn = Drawings()
    body = [header(subject, lines)]
    if explanation.step is not None:
        parts = [*range(partition.k)]
        busy = [shortened(1000 * float(seconds)) for seconds in explanation.step.busy]
        hover = "device %{y} computes %{x:.4~g} ms, simulated"
        trace = bars("computes, simulated", parts, busy, part_marker(parts), hover)
        figure = seconds_figure(partition.k, "ms a step", trace)
        body.append(
            section(
                "What each device computes in a step",
                f"Simulated, for {explanation.step.assumed}; the step takes "
                f"{1000 * explanation.step.seconds:,.4g} ms.",
                drawn.plot("seconds", figure, "What each device computes in a step"),
            )
        )
    columns = layer_columns(report)
    payments = explanation.payments[:MOST_PAYMENTS]
    body += [
        section(
            "What pays most",
            f"Maps, partial sums, gradients and statistics that travel {way_of(partition)}: "
            f"{first_of(len(payments), len(explanation.payments))}.",
            records_table("payments", payment_columns(report), payments, unit),
        ),
        section(
            layers_title(report),
            legend(report),
            records_table("layers", columns, explanation.layers, unit),
            glossary("What the columns are", columns, ()),
        ),
        section(
            "Layer by layer",
            "",
            *(
                line
                for layer in explanation.layers[:MOST_LAYERS]
                for line in paragraphs([" · ".join(layer_sentences(report, layer, unit))])
            ),
        ),
    ]
    return page(f"{report.model}: why it is divided so", body, drawn)
