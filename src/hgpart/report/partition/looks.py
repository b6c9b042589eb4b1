"""Part -> its colour and hatching; lines -> colours, dashes and symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours for the colour-blind (https://jfly.uni-koeln.de/color/), without the
# yellow and black that vanish on a light or a dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "cross",
    "x",
    "star",
    "pentagon",
    "hexagram",
    "bowtie",
    "hourglass",
    "triangle-left",
    "triangle-right",
    "hexagon",
    "star-square",
    "diamond-wide",
    "octagon",
    "star-triangle-up",
    "star-triangle-down",
    "star-diamond",
    "diamond-tall",
    "hexagon2",
)
GREY = COLOURS[-1]
# Hatching of parts that share a colour, by plotly's names; page.js draws them, too.
HATCHES = ("", "/", "\\", "x", "-", "|", "+", ".")


def part_colour(part: int) -> str:
    """The colour of a device in all drawings; the colour-blind can tell them apart.

    >>> part_colour(0), part_colour(7)
    ('#0072b2', '#0072b2')
    """
    return COLOURS[part % len(COLOURS)]


def hatch_of(part: int) -> str:
    """The hatching that tells a part from others of the same colour.

    >>> hatch_of(0), hatch_of(7)
    ('', '/')
    """
    return HATCHES[part // len(COLOURS) % len(HATCHES)]


def tinted(colour: str, white: float) -> str:
    """A colour mixed with a share of white; with black, where the share is negative.

    >>> tinted("#0072b2", 0.5), tinted("#0072b2", -0.5)
    ('#80b8d8', '#003959')
    """
    end = 255 if white > 0 else 0
    channels = bytes.fromhex(colour.removeprefix("#"))
    mixed = (round(channel + abs(white) * (end - channel)) for channel in channels)
    return "#" + bytes(mixed).hex()


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on a colour.

    >>> ink_on("#0072b2"), ink_on("#e69f00")
    ('#ffffff', '#000000')
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 95 else "#ffffff"


def part_marker(parts: Sequence[int], whites: Sequence[float] | None = None) -> dict[str, Any]:
    """Plotly's marker of bars, each in the look of its part, mixed with shares of white."""
    faint = whites is not None  # numbers stand in these
    whites = whites or [0.0] * len(parts)
    colours = [part_colour(part) for part in parts]
    marker: dict[str, Any] = {
        "color": [tinted(*look) for look in zip(colours, whites, strict=True)],
        "line": {"color": [tinted(colour, -0.3) for colour in colours], "width": 1},
    }
    if any(map(hatch_of, parts)):
        # Lines over each bar's own colour, black or white as it needs; plotly wants one background
        # by name where colours are several, and does not use it.
        marker["pattern"] = {
            "shape": [*map(hatch_of, parts)],
            "fillmode": "overlay",
            "bgcolor": "#ffffff",
            "fgopacity": 0.4 if faint else 1,
            "size": 8,
        }
    return marker
