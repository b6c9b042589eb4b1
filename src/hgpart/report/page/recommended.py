"""Recommendation -> its page: the ways side by side, and memory against its limit."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hgpart.recommendation.ranking import Ranked, Recommendation
from hgpart.report import UNITS
from hgpart.report.page.document import Drawn, header, page, paragraphs, plot
from hgpart.report.page.drawing.figures import Figure, shortened
from hgpart.report.page.drawing.memory import memory_figure
from hgpart.report.page.tables.table import Column, cell, head_cell, table
from hgpart.report.partition.looks import COLOURS
from hgpart.report.recommendation.words import answer, reasons, way

MOST_WAYS = 8  # of a chart
BAR_HEIGHT = 40  # of a way, in pixels


def recommendation_page(
    found: Recommendation, limits: Sequence[int | None], unit: str = "MB"
) -> str:
    """The page of a recommendation: the best way, all ways side by side, the best one's memory.

    Parameters
    ----------
    found : Recommendation
    limits : sequence of int or None
        Bytes that each device may be given; None where that is not known.
    unit : str
        What bytes are shown in, one of `hgpart.report.UNITS`.
    """
    ways = found.ranked[:MOST_WAYS]
    figures: dict[str, Drawn] = {"ways": (bars := _ways_figure(ways))}
    subject = [
        found.model,
        f"steps of {found.batch_size} samples",
        found.machine.name,
        f"{found.devices} devices",
        f"times: {found.times}",
    ]
    body = [
        header(subject, [answer(found, unit), *reasons(found, unit)]),
        *paragraphs(list(found.notes)),
        "<section><h2>Seconds a step</h2>",
        f"<p>Simulated, of the best {len(ways)} of {len(found.ranked)} ways: the whole bar is the "
        "step, and the dark one in it what the device computes that computes longest. A diamond is "
        "what was measured. Less is better.</p>",
        plot("ways", bars, "Seconds a step of each way"),
        "</section>",
        "<section><h2>Every way, side by side</h2>",
        _ways_table(found, unit),
        "</section>",
    ]
    needed = [one for one in found.best.needed_bytes if one is not None]
    if needed and len(needed) == len(found.best.needed_bytes):
        figures["memory"] = memory = memory_figure(needed, limits[: len(needed)], unit)
        body += [
            "<section><h2>Memory of the best way</h2>",
            "<p>What each device needs in a step, beside what it may have, where that is known."
            "</p>",
            plot("memory", memory, "Memory of each device against its limit"),
            "</section>",
        ]
    if found.dropped:
        said = [f"{one.what}: {one.why}" for one in found.dropped]
        body += ["<section><h2>No ways</h2>", *paragraphs(said), "</section>"]
    return page(f"{found.model}: how to train it", body, figures)


def _ways_figure(ways: Sequence[Ranked]) -> Figure:
    names = [f"{at + 1}. {escape(one.division.text)}" for at, one in enumerate(ways)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [shortened(seconds) for seconds in several],
            "width": width,
            "marker": {"color": colour},
            "hovertemplate": f"<b>%{{y}}</b><br>{name}: %{{x:.4~g}} s<extra></extra>",
        }
        for name, several, width, colour in (
            ("step", [one.simulated_seconds for one in ways], 0.8, COLOURS[5]),
            ("computes", [one.computing_seconds for one in ways], 0.4, COLOURS[0]),
        )
    ]
    measured = [one.measured_seconds for one in ways]
    if any(one is not None for one in measured):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured",
                "y": names,
                "x": measured,
                "marker": {"symbol": "diamond", "size": 11, "color": COLOURS[1]},
                "hovertemplate": "<b>%{y}</b><br>measured: %{x:.4~g} s<extra></extra>",
            }
        )
    layout = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": "seconds a step"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=BAR_HEIGHT * len(ways) + 130)


def _ways_table(found: Recommendation, unit: str) -> str:
    size = UNITS[unit]
    columns = [
        Column("simulated", "a step", "Simulated.", "s"),
        Column("measured", "measured", "Median of a step, where it was run.", "s"),
        Column("speed_up", "times one device", "By simulation.", decimals=2),
        Column("computes", "computes", "The device that computes longest.", "s"),
        Column("waits", "waits", "In the mean of all devices.", "s"),
        Column("sends", "sends", "All devices together.", unit, size),
        Column("needs", "needs", "The device that needs most.", unit, size),
    ]
    alone = found.one_device.simulated_seconds
    rows = []
    for one in found.ranked:
        record = {
            "simulated": one.simulated_seconds,
            "measured": one.measured_seconds,
            "speed_up": alone / one.simulated_seconds,
            "computes": one.computing_seconds,
            "waits": one.waiting_seconds,
            "sends": one.sent_bytes,
            "needs": one.largest_bytes,
        }
        cells = "".join(cell(column, record[column.key]) for column in columns)
        rows.append(f"<tr>{head_cell(way(one))}{cells}</tr>")
    return table("ways", "way", columns, rows)
