"""Schedule + Costs -> plotly figure: a row a part, a box for what it does at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hgpart.report.page.figures import Figure, part_ticks, shortened
from hgpart.report.page.looks import COLOURS
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Action, Direction, Schedule
from hgpart.schedules.simulation import times

# Names, colours and patterns: dark, light and between, so that they differ without colours, too.
LOOKS = {
    Direction.FORWARD: ("forward", COLOURS[0], ""),
    Direction.BACKWARD: ("backward", COLOURS[4], ""),
    Direction.MAPS: ("backward, gradients of maps", COLOURS[4], ""),
    Direction.WEIGHTS: ("backward, gradients of weights", COLOURS[6], "/"),
}
PART_HEIGHT = 34  # in pixels


class Box(NamedTuple):
    """Chunks of one micro-batch, one behind the other without a gap."""

    first: Action
    last_chunk: int
    begin: float
    end: float

    @property
    def label(self) -> str:
        """As a drawing in text has it: ``F0.0-3``."""
        more = f"-{self.last_chunk}" if self.last_chunk > self.first.chunk else ""
        return f"{self.first}{more}"


def step_figure(schedule: Schedule, costs: Costs) -> Figure:
    """When each part does what, by estimated costs."""
    shown = [*boxes(schedule, costs)]
    data: list[dict[str, Any]] = []
    for direction, (name, colour, pattern) in LOOKS.items():
        own = [box for box in shown if box.first.direction is direction]
        if own:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": name,
                    "y": [box.first.part for box in own],
                    "base": [shortened(box.begin) for box in own],
                    "x": [shortened(box.end - box.begin) for box in own],
                    "text": [str(box.first.micro_batch) for box in own],
                    "customdata": [[box.label, f"{box.end:.4g}"] for box in own],
                    "textposition": "inside",
                    "insidetextanchor": "middle",
                    "textangle": 0,
                    "constraintext": "none",
                    "marker": {
                        "color": colour,
                        "pattern": {"shape": pattern},
                        "line": {"width": 1, "color": "#ffffff"},
                    },
                    "hovertemplate": f"part %{{y}}, {name}<br>micro-batch %{{text}}: "
                    "%{customdata[0]}<br>from %{base:.4~g} to %{customdata[1]} s<extra></extra>",
                }
            )
    layout = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "seconds, by estimated costs"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "part"},
            "range": [schedule.k - 0.5, -0.5],
            **part_ticks(schedule.k),
        },
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=PART_HEIGHT * schedule.k + 150)


def boxes(schedule: Schedule, costs: Costs) -> Iterator[Box]:
    """What each part does, from one change or gap to the next; nothing that takes no time."""
    when = times(schedule.outlines, schedule.order, costs)
    under_way: dict[int, Box] = {}
    for action, (begin, end) in zip(schedule.order, when, strict=True):
        box = under_way.get(action.part)
        if box is not None and (box.end, box.first[:3], box.last_chunk + 1) == (
            begin,
            action[:3],
            action.chunk,
        ):
            under_way[action.part] = box._replace(last_chunk=action.chunk, end=end)
            continue
        if box is not None and box.end > box.begin:
            yield box
        under_way[action.part] = Box(action, action.chunk, begin, end)
    yield from (box for box in under_way.values() if box.end > box.begin)
