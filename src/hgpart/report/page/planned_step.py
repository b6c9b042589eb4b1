"""Schedule + Costs -> the section of a page that draws a step, or a stream, as it is planned."""

from __future__ import annotations

from hgpart.execution.records.events import planned_events
from hgpart.report.page.document import plot, section
from hgpart.report.page.drawing.figures import Figure
from hgpart.report.page.drawing.timelines import timeline_figure
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import bubble, times


def step_figure(schedule: Schedule, costs: Costs) -> Figure:
    """When each part is to do what, by estimated costs."""
    when = times(schedule.outlines, schedule.order, costs)
    planned = planned_events(schedule.order, when)
    return timeline_figure(schedule.k, (), planned, "ms, by estimated costs")


def step_section(schedule: Schedule, costs: Costs, figure: Figure) -> str:
    """What is drawn, and how long parts have nothing to do."""
    count = schedule.micro_batches
    divided = f"the batch in {count} micro-batches" if count > 1 else "the batch at once"
    return section(
        "What each part does when",
        f"A step of training by {schedule.rule}, {divided}, simulated with estimated costs: parts "
        f"have nothing to do in {100 * bubble(schedule, costs):.0f} % of the time. A row is a "
        "part, in its colour, a box what it does of one micro-batch, whose number is in it, where "
        "there is room.",
        plot("step", figure, "What each part does when in a step"),
    )
