"""Report -> lines of a terminal: who computes what of each layer, in colours or in letters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from string import ascii_letters, digits
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from hgpart.arrays import Float64
from hgpart.report.partition.looks import ink_on, part_colour
from hgpart.report.partition.record import Report, layer_shares, work_of_layer
from hgpart.terminal import printable

MOST_ROWS = 20
WIDTH, NAME_WIDTH = 80, 30  # characters of a line, and of a name in it
SAME = 0.005  # share of a layer in other places up to which it lies as its neighbour does
SYMBOLS = digits + ascii_letters


class LayerRun(NamedTuple):
    """Layers that follow each other.

    Attributes
    ----------
    first, last : str
        Names of the first and the last of them.
    work : float
        Share of all layers' work.
    shares : float64 array, shape (k,)
        Each part's share of their work.
    """

    first: str
    last: str
    layers: int
    work: float
    shares: Float64

    def differs(self, other: LayerRun) -> float:
        """Share of the layers that lies on other parts than that of another run."""
        return float(np.abs(self.shares - other.shares).sum()) / 2

    def moves(self, other: LayerRun) -> float:
        """Share of all work that is drawn on other parts, if one run is drawn as the other."""
        return self.differs(other) * min(self.work, other.work)

    def with_next(self, other: LayerRun) -> LayerRun:
        """Both runs as one."""
        work = self.work + other.work
        by = self.work / work if work else 0.5
        shares = by * self.shares + (1 - by) * other.shares
        return LayerRun(self.first, other.last, self.layers + other.layers, work, shares)


def print_bars(report: Report, console: Console) -> None:
    """Print a bar for each layer, with as many of each part's characters as it has of the layer.

    On a terminal with colours a part's characters are its colour, with its symbol in front.
    """
    runs = rows(report)
    together = -(-report.partition.k // len(SYMBOLS))  # parts with one symbol
    console.print(_title(report.partition.k, together), style="bold")
    names = [name_of(row) for row in runs]
    wide = max(map(len, names))
    colours = console.color_system is not None and not console.no_color
    cells = min(WIDTH, console.width) - wide - 9
    for name, row in zip(names, runs, strict=True):
        shares = np.add.reduceat(row.shares, range(0, report.partition.k, together))
        line = Text(f"{name:{wide}} {100 * row.work:5.1f} % ")
        for symbol, count in enumerate(lengths(shares, max(1, cells))):
            line.append_text(_segment(symbol, count, colours))
        console.print(line, soft_wrap=True)


def rows(report: Report) -> list[LayerRun]:
    """Layers with work; those that lie alike are one row, and of many rows the most alike."""
    shown = [view for view in report.partition.model.views if view.exists]
    work = [float(work_of_layer(report, view).sum()) for view in shown]
    total = sum(work)
    layers = [
        LayerRun(name, name, 1, own / (total or 1.0), np.array(layer_shares(report, view)))
        for view, own in zip(shown, work, strict=True)
        for name in [view.layer.name]
        if own or not total
    ]
    alike = merged(layers, LayerRun.differs, lambda least, count: least < SAME)
    return merged(alike, LayerRun.moves, lambda least, count: count > MOST_ROWS)


def merged(
    runs: Sequence[LayerRun],
    cost: Callable[[LayerRun, LayerRun], float],
    goes_on: Callable[[float, int], bool],
) -> list[LayerRun]:
    """Merge the neighbours of least cost, while that cost and the number of rows say so."""
    shown = list(runs)
    costs = [cost(*pair) for pair in itertools.pairwise(shown)]
    while costs and goes_on(min(costs), len(shown)):
        at = int(np.argmin(costs))
        shown[at : at + 2] = [shown[at].with_next(shown[at + 1])]
        del costs[at]
        for beside in (at - 1, at):
            if 0 <= beside < len(costs):
                costs[beside] = cost(*shown[beside : beside + 2])
    return shown


def lengths(shares: Float64, cells: int) -> list[int]:
    """Characters for each share; `cells` in all.

    >>> lengths(np.array([0.5, 0.25, 0.25]), 10)
    [5, 3, 2]
    """
    ends = np.floor(np.cumsum(shares) / shares.sum() * cells + 0.5).astype(int)
    counts: list[int] = np.diff(ends, prepend=0).tolist()
    return counts


def name_of(row: LayerRun) -> str:
    """The layer, or the first and the last one; where these are long, the modules that differ.

    >>> name_of(LayerRun("stage.0.conv", "stage.1.conv", 4, 0.5, np.ones(1)))
    'stage.0.conv to 1.conv'
    >>> name_of(LayerRun("inception3a.branch1.conv", "inception3b.branch2.0", 9, 0.5, np.ones(1)))
    'inception3a to inception3b'
    """
    if row.layers == 1:
        return shortened(row.first, NAME_WIDTH)
    first, last = row.first.split("."), row.last.split(".")
    pairs = zip(first, last, strict=False)
    both = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    whole = f"{row.first} to {'.'.join(last[both:]) or row.last}"
    if len(whole) <= NAME_WIDTH:
        return printable(whole)
    end = shortened(last[min(both, len(last) - 1)], NAME_WIDTH // 2)
    return f"{shortened('.'.join(first[: both + 1]), NAME_WIDTH - len(f' to {end}'))} to {end}"


def shortened(name: str, width: int) -> str:
    """A long name's last modules, or the end of its last one, which say most.

    >>> shortened("features.denselayer1.conv1", 20), shortened("convolution", 6)
    ('…denselayer1.conv1', '…ution')
    """
    name = printable(name)
    if len(name) <= width:
        return name
    while len(name) >= width and "." in name:
        name = name.partition(".")[2]
    return f"…{name[max(0, len(name) + 1 - width) :]}"


def _title(k: int, each: int) -> str:
    """The heading, with the meaning of the symbols.

    >>> _title(4, 1)
    'Layers: share of the work, and the devices 0 to 3 that do it'
    >>> _title(32, 1).partition("do it ")[2]
    '(0 to 9, a: 10, b: 11, ..., v: 31)'
    >>> _title(128, 3).partition("do it ")[2]
    '(0: 0 to 2, 1: 3 to 5, ...)'
    """
    symbols = SYMBOLS[: -(-k // each)]
    text = "Layers: share of the work, and the devices"
    if each > 1:
        return f"{text} that do it ({symbols[0]}: {_run(0, each, k)}, 1: {_run(1, each, k)}, ...)"
    if k <= len(digits):
        return f"{text} 0 to {k - 1} that do it"
    return f"{text} that do it (0 to 9, a: 10, b: 11, ..., {symbols[-1]}: {k - 1})"


def _run(symbol: int, each: int, k: int) -> str:
    return f"{symbol * each} to {min(k, (symbol + 1) * each) - 1}"


def _segment(symbol: int, cells: int, colours: bool) -> Text:
    if not colours:
        return Text(SYMBOLS[symbol] * cells)
    colour = part_colour(symbol)
    return Text(SYMBOLS[symbol][:cells].ljust(cells), f"{ink_on(colour)} on {colour}")
