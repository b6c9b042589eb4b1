"""Layers of a Report -> LayerBox: a grid of slices and bands in the colours of parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Float64
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.report.partition.record import Report, layer_shares
from hgpart.report.partition.slice_shares import SliceShares, arranged

MOST_SHARES = 16  # shares of a tile; the smallest of more are drawn as one
MOST_TILES = 64  # tiles of a box that differ from their neighbours; more are drawn as one
MOST_LINES = 12  # tiles of a box that are told in words
OTHERS = -1  # the number that stands for the parts of these

Span = tuple[int, int, int, int]  # from slice, to slice, from band, to band


@dataclass(frozen=True)
class LayerBox:
    """A layer, or neighbours of one module, as a grid: a column a slice, a stripe a band.

    Attributes
    ----------
    name : str
        Name of the layer, or of what several have in common.
    work : float
        Share of the largest box's work.
    words : list of str
        Lines that say what it sends, and which part has what of it.
    columns, stripes : list of float
        Edges of slices from the left, and of bands from above, from 0 to 1 of the box.
    tiles : list of tuple
        Left, top, width and height of what a part has, from 0 to 1 of the box, and the part or
        `OTHERS`. The filters of a tile are divided from left to right.
    """

    name: str
    work: float
    words: list[str]
    columns: list[float]
    stripes: list[float]
    tiles: list[tuple[float, float, float, float, int]]


def box_of_layers(
    report: Report,
    views: Sequence[LayerVertices],
    *,
    name: str,
    sends: str,
    work: Float64,
    most_work: float,
) -> LayerBox:
    """Draw a layer tile by tile; several layers, or too many tiles, as one tile.

    Parameters
    ----------
    sends : str
        Line that says what the layers send.
    work : float64 array, shape (k,)
        Each part's work of these layers.
    most_work : float
        Work of the box that has most.
    """
    shares = work / work.sum() if work.any() else np.array(layer_shares(report, views[0]))
    of_parts = largest_shares(shares)
    words = [sends, *(f"{_who(part)}: {_percent(share)}" for part, share in of_parts)]
    columns, stripes = [0.0, 1.0], [0.0, 1.0]
    drawn = _side_by_side((0.0, 0.0, 1.0, 1.0), of_parts)
    view, *others = views
    tiles = joined_tiles(arranged(report.slices_of_layers[view.at], view.bands))
    if not others and len(tiles) > MOST_TILES:
        words.append(f"{len(tiles)} tiles or groups of tiles, drawn as one")
    elif not others:
        samples = [0, *itertools.accumulate(report.partition.modelling.samples)]
        columns = [round(sample / samples[-1], 4) for sample in samples]
        stripes = [round(row / view.cell_cuts[-1], 4) for row in view.cell_cuts]
        drawn = [
            piece
            for span, group in tiles
            for piece in _side_by_side(_place(span, columns, stripes), _shares_of(group))
        ]
        if 1 < len(tiles) <= MOST_LINES:
            words += _lines(tiles, samples, view.cell_cuts)
    share = round(float(work.sum()) / most_work, 4)
    return LayerBox(name, share, words, columns, stripes, drawn)


def joined_tiles(tiles: Sequence[Sequence[SliceShares]]) -> list[tuple[Span, SliceShares]]:
    """Rectangles of tiles that lie alike: from slice, to slice, from band, to band.

    Parameters
    ----------
    tiles : sequence of sequence of SliceShares
        How each tile lies: for each slice, each of its bands (`arranged`).
    """
    joined: list[tuple[Span, SliceShares]] = []
    above: dict[tuple[int, int, SliceShares], int] = {}
    for band, stripe in enumerate(zip(*tiles, strict=True)):
        own, first = {}, 0
        for group, run in itertools.groupby(stripe):
            last = first + len([*run])
            if (at := above.get((first, last, group))) is None:
                at = len(joined)
                joined.append(((first, last, band, band + 1), group))
            else:
                joined[at] = (*joined[at][0][:3], band + 1), group
            own[first, last, group] = at
            first = last
        above = own
    return joined


def _place(
    span: Span, columns: Sequence[float], stripes: Sequence[float]
) -> tuple[float, float, float, float]:
    """Left, top, width and height of a rectangle of tiles."""
    left, right, top, bottom = span
    return (
        columns[left],
        stripes[top],
        columns[right] - columns[left],
        stripes[bottom] - stripes[top],
    )


def _side_by_side(
    place: tuple[float, float, float, float], shares: Sequence[tuple[int, float]]
) -> list[tuple[float, float, float, float, int]]:
    """Divide a place among parts from left to right."""
    left, top, width, height = place
    pieces = []
    for part, share in shares:
        pieces.append(
            (round(left, 4), round(top, 4), round(width * share, 4), round(height, 4), part)
        )
        left += width * share
    return pieces


def _shares_of(group: SliceShares) -> list[tuple[int, float]]:
    shares = np.zeros(group.parts[-1] + 1)
    shares[list(group.parts)] = group.shares
    return largest_shares(shares)


def _lines(
    tiles: Sequence[tuple[Span, SliceShares]], samples: Sequence[int], rows: Sequence[int]
) -> Iterator[str]:
    """Say which part has which filters of which samples and rows, a line for each rectangle."""
    for (left, right, top, bottom), group in tiles:
        held = {
            "samples": (samples[left], samples[right], samples[-1]),
            "rows": (rows[top], rows[bottom], rows[-1]),
        }
        where = ", ".join(
            f"{name} {first}-{last - 1}" if last - first > 1 else f"{name[:-1]} {first}"
            for name, (first, last, count) in held.items()
            if last - first < count
        )
        shares = _shares_of(group)
        if len(shares) == 1:
            yield f"{where}: {_who(shares[0][0])}"
        else:
            filters = ", ".join(f"{_who(part)} {_percent(share)}" for part, share in shares)
            yield f"{where}: filters of {filters}"


def largest_shares(shares: Float64) -> list[tuple[int, float]]:
    """Shares of the parts that have any, in their order; the smallest of many as one.

    >>> largest_shares(np.array([0.25, 0.0, 0.75]))
    [(0, 0.25), (2, 0.75)]
    >>> largest_shares(np.full(32, 1 / 32))[-2:]
    [(14, 0.0312), (-1, 0.5312)]
    """
    parts = np.flatnonzero(shares)
    if len(parts) > MOST_SHARES:
        parts = np.sort(np.argsort(-shares, kind="stable")[: MOST_SHARES - 1])
    shown = [(part, round(float(shares[part]), 4)) for part in parts.tolist()]
    rest = float(shares.sum() - shares[parts].sum())
    return shown if rest < 1e-9 else [*shown, (OTHERS, round(rest, 4))]


def _who(part: int) -> str:
    return "other parts" if part == OTHERS else f"part {part}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
