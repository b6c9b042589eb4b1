"""RunReport -> its page: what a step took, and what each part did in it."""

from __future__ import annotations

from hgpart.report.page.document import header, page
from hgpart.report.page.measured_steps import devices_text, measured_sections
from hgpart.report.running import RunReport, run_answer
from hgpart.report.tables import counted


def run_page(report: RunReport) -> str:
    """The page of a run: what a step took, and what each part did in it."""
    measured = report.measurement
    passes = "forward and backward" if measured.backward else "forward"
    subject = [
        report.model,
        f"{counted(measured.steps, 'step')} of {counted(measured.batch_size, 'sample')}, {passes}",
        devices_text(report.devices),
    ]
    body, drawn = measured_sections(
        measured.totals.timings, measured.steps, measured.timeline, measured.planned
    )
    return page(f"{report.model}: a run", [header(subject, [run_answer(report)]), *body], drawn)
