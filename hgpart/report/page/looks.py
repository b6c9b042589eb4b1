"""Part -> its colour and hatching; lines -> colours, dashes and symbols."""

from __future__ import annotations

# Okabe and Ito's colours for the colour-blind (https://jfly.uni-koeln.de/color/), without the
# yellow and black that vanish on a light or a dark page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"),
    *("pentagon", "hexagram", "bowtie", "hourglass", "triangle-left", "triangle-right", "hexagon"),
    *("star-square", "diamond-wide", "octagon", "star-triangle-up", "star-triangle-down"),
    *("star-diamond", "diamond-tall", "hexagon2"),
)
GREY = COLOURS[-1]
# As plotly names them, and page.js draws them: of the parts that share a colour.
HATCHES = ("", "/", "\\", "x", "-", "|", "+", ".")


def part_colour(part: int) -> str:
    """Each device has one colour on all that is drawn by device; the colour-blind can tell them.

    >>> part_colour(0), part_colour(7)
    ('#0072b2', '#0072b2')
    """
    return COLOURS[part % len(COLOURS)]


def hatch_of(part: int) -> str:
    """What tells it from the parts of the same colour.

    >>> hatch_of(0), hatch_of(7)
    ('', '/')
    """
    return HATCHES[part // len(COLOURS) % len(HATCHES)]
