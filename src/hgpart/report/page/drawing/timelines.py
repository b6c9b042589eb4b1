"""Events -> plotly figure: a row a part, a box for what it does, planned over measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hgpart.execution.records.events import Doing, Event
from hgpart.report.page.drawing.figures import (
    PART_HEIGHT,
    TICKS_DOWN,
    Figure,
    axis,
    bars,
    part_ticks,
    shortened,
)
from hgpart.report.partition.looks import GREY, part_marker, tinted
from hgpart.schedules.schedule import Action, Direction

# Names, and the share of white (or black) that the colour of the part is mixed with.
LOOKS = {
    Direction.FORWARD: ("forward", 0.0),
    Direction.BACKWARD: ("backward", 0.6),
    Direction.MAPS: ("backward, gradients of maps", 0.6),
    Direction.WEIGHTS: ("backward, gradients of weights", 0.85),
    Direction.UPDATE: ("update", -0.6),
    Direction.SPREAD: ("sends weights", 0.92),
    Direction.GATHER: ("takes weights in", 0.92),
    Direction.REDUCE: ("sends gradients of weights", 0.75),
    Direction.COLLECT: ("adds up gradients of weights", 0.75),
}
SHORTEST = 0.002  # share of a step from which on a wait or a gap is drawn
BOTH_HEIGHT = 56  # pixels of a row with two lanes
NUMBERED = 0.025  # share of a step from which on a box has its number in it
WAIT_WIDTH = 0.08  # share of a row
# As thin as the waits are drawn.
WAITS_LEGEND = {
    "type": "scatter",
    "mode": "lines",
    "name": "waits for a message",
    "x": [None],
    "y": [None],
    "line": {"color": GREY, "width": 3},
}


class Strip(NamedTuple):
    """Where in a part's row something is drawn: from its middle down, and how high."""

    name: str
    offset: float
    width: float


ALONE = 0.0, 0.85
PLANNED, MEASURED = Strip("planned", -0.31, 0.2), Strip("measured", 0.1, 0.5)


class Box(NamedTuple):
    """Chunks of one micro-batch, one behind the other without a gap; times are in milliseconds."""

    first: Action
    last_chunk: int
    begin: float
    end: float

    @property
    def label(self) -> str:
        """The label of the same box in drawings in text: ``F0.0-3``."""
        more = f"-{self.last_chunk}" if self.last_chunk > self.first.chunk else ""
        return f"{self.first}{more}"


def timeline_figure(
    k: int,
    measured: Sequence[Event],
    planned: Sequence[Event],
    title: str,
    *,
    is_stretched: bool = False,
) -> Figure:
    """Draw what parts did when, or are to do, or the one over the other; both begin at 0.

    Parameters
    ----------
    k : int
        Number of parts.
    measured, planned : sequence of Event
        Events of a step or a stream; one of them may be empty.
    title : str
        Title of the time axis.
    is_stretched : bool
        Whether planned events are drawn as long as the measured step, not with their own times.
    """
    both = bool(measured and planned)
    room = NUMBERED * max(map(milliseconds_of, (measured, planned)))
    data, shown = list[dict[str, Any]](), set[Direction]()
    for events, strip in ((planned, PLANNED), (measured, MEASURED)):
        if events:
            least = SHORTEST * milliseconds_of(events) if events is measured else 0.0
            drawn = boxes(events, least)
            shown |= {box.first.direction for box in drawn}
            timed = events is measured or not is_stretched
            data.append(_boxes(drawn, strip if both else Strip(strip.name, *ALONE), room, timed))
    data += [_legend(*LOOKS[direction]) for direction in LOOKS if direction in shown]
    if waits := long_waits(measured, SHORTEST * milliseconds_of(measured)):
        offset = MEASURED.offset if both else ALONE[0]
        data += [_waits(waits, _begin(measured), offset), WAITS_LEGEND]
    layout = {
        "barmode": "overlay",
        "xaxis": axis(title, from_zero=True),
        "yaxis": {
            "range": [k - 0.5, -0.5],
            "automargin": True,
            **(
                _lane_ticks(k)
                if both and k <= TICKS_DOWN
                else {"title": {"text": "part"}, **part_ticks(k, TICKS_DOWN)}
            ),
        },
        "legend": {"itemclick": False, "itemdoubleclick": False},
        "meta": {"legend": "above"},
    }
    return Figure(data, layout, height=(BOTH_HEIGHT if both else PART_HEIGHT) * k + 150)


def boxes(events: Sequence[Event], least: float = 0.0) -> list[Box]:
    """What each part does, from one change to the next, without what takes no time.

    A wait or a gap is a change where it is longer than `least` milliseconds.
    """
    origin, drawn = _begin(events), list[Box]()
    waits: dict[int, list[Event]] = {}
    for wait in long_waits(events, least):
        waits.setdefault(wait.action.part, []).append(wait)
    runs = (event for event in events if event.doing is Doing.RUN)
    for event in sorted(runs, key=lambda run: (run.action.part, run.begin, run.end)):
        action = event.action._replace(piece=None)
        for begin, end in between(event, waits.get(action.part, [])):
            if action.is_of_weights and end <= begin:
                continue
            box = Box(action, action.chunk, (begin - origin) / 1e6, (end - origin) / 1e6)
            before = drawn[-1] if drawn else None
            if (
                before is not None
                and before.first[:3] == action[:3]
                and action.chunk - before.last_chunk in (0, 1)
                and box.begin - before.end <= least
            ):
                drawn[-1] = before._replace(last_chunk=action.chunk, end=box.end)
            else:
                drawn.append(box)
    return [box for box in drawn if box.end > box.begin]


def long_waits(events: Sequence[Event], least: float) -> list[Event]:
    """Waits for messages longer than `least` milliseconds."""
    waits = (event for event in events if event.doing is Doing.WAIT)
    return [wait for wait in waits if wait.end - wait.begin > 1e6 * least]


def between(run: Event, waits: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """The times of an action without the waits in it."""
    at = run.begin
    for wait in sorted(waits, key=lambda wait: wait.begin):
        if run.begin <= wait.begin and wait.end <= run.end:
            yield at, wait.begin
            at = wait.end
    yield at, run.end


def _begin(events: Sequence[Event]) -> int:
    return min((event.begin for event in events), default=0)


def milliseconds_of(events: Sequence[Event]) -> float:
    """Milliseconds from the first event's begin to the last one's end."""
    return (max((event.end for event in events), default=0) - _begin(events)) / 1e6


def _boxes(drawn: Sequence[Box], strip: Strip, room: float, timed: bool) -> dict[str, Any]:
    looks = [LOOKS[box.first.direction] for box in drawn]
    parts = [box.first.part for box in drawn]
    numbers = {
        "text": [str(box.first.micro_batch) if box.end - box.begin > room else "" for box in drawn],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
    }
    when = ": from %{base:.4~g} to %{customdata[3]} ms" if timed else ""
    return bars(
        strip.name,
        [part + strip.offset for part in parts],
        [shortened(box.end - box.begin) for box in drawn],
        part_marker(parts, [white for _, white in looks]),
        f"part %{{customdata[0]}}, {strip.name}: %{{customdata[1]}}<br>%{{customdata[2]}}{when}",
        showlegend=False,
        width=strip.width,
        base=[shortened(box.begin) for box in drawn],
        customdata=[
            [box.first.part, name, box.label, f"{box.end:.4g}"]
            for box, (name, _) in zip(drawn, looks, strict=True)
        ],
        **(numbers if strip.width >= MEASURED.width else {"textposition": "none"}),
    )


def _waits(waits: Sequence[Event], origin: int, offset: float) -> dict[str, Any]:
    return bars(
        "waits for a message",
        [wait.action.part + offset for wait in waits],
        [shortened((wait.end - wait.begin) / 1e6) for wait in waits],
        {"color": GREY},
        "waits for a message of %{customdata}: %{x:.4~g} ms from %{base:.4~g}",
        showlegend=False,
        width=WAIT_WIDTH,
        base=[shortened((wait.begin - origin) / 1e6) for wait in waits],
        customdata=[str(wait.action) for wait in waits],
    )


def _legend(name: str, white: float) -> dict[str, Any]:
    """The look of boxes of one kind, in no part's colour."""
    marker = {"color": tinted(GREY, white), "line": {"color": GREY, "width": 1}}
    return {"type": "bar", "name": name, "x": [None], "y": [None], "marker": marker}


def _lane_ticks(k: int) -> dict[str, Any]:
    lanes = PLANNED, MEASURED
    return {
        "tickvals": [part + strip.offset for part in range(k) for strip in lanes],
        "ticktext": [
            strip.name if strip is PLANNED else f"<b>{part}</b> {strip.name}"
            for part in range(k)
            for strip in lanes
        ],
    }
