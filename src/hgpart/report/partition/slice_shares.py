"""CnnHypergraph + parts -> SliceShares: which part has which filters of which slices and bands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.sequences import equal_rows

MOST_RUNS = 8  # runs of slices, or of bands, told apart in a line

WHOLE = "whole"

Value = TypeVar("Value")


@dataclass(frozen=True)
class SliceShares:
    """Slices of a layer whose filters lie alike: the same of each on the same part.

    Where the layer has bands of rows, these are tiles: slice by slice, band by band.

    Attributes
    ----------
    slices : tuple of int
        Ascending.
    parts : tuple of int
        Parts that have any of the filters, ascending.
    shares : tuple of float
        Each part's share of the work of such a slice or, where there is none, of its tasks.
    tasks : tuple of int
        Tasks that each part finishes in such a slice.
    """

    slices: tuple[int, ...]
    parts: tuple[int, ...]
    shares: tuple[float, ...]
    tasks: tuple[int, ...]


def slice_shares(model: CnnHypergraph, parts: Int32) -> tuple[tuple[SliceShares, ...], ...]:
    """For each layer its slices, those that lie alike together; none where it has no vertices."""
    by_slice = parts.reshape(model.modelling.slices, -1)
    layers = model.vertex_layers[: model.in_bands.shape[1]]
    weights = model.weights[: len(layers)]
    layers_shares: list[tuple[SliceShares, ...]] = []
    for at, (view, layout) in enumerate(zip(model.views, model.layouts, strict=True)):
        if layout is None:
            layers_shares.append(())
            continue
        first, last = np.searchsorted(layers, [view.first, view.first + 1])
        sizes = np.diff(model.blocks.rows[at])
        if view.total is not None:  # its cells alone: what adds them up has no work
            last = layout.finish
        finish = slice(last - first - len(sizes), last - first)
        by_tile = by_slice[:, model.in_bands[: view.bands, first:last]].reshape(-1, last - first)
        alike, examples = equal_rows(by_tile.astype(np.int64))
        groups = []
        for number, example in enumerate(examples.tolist()):
            own = by_tile[example]
            work = np.bincount(own, weights=weights[first:last])
            tasks = np.bincount(own[finish], weights=sizes, minlength=len(work)).astype(np.int64)
            held = np.flatnonzero(np.bincount(own))
            shares = work if work.any() else tasks
            groups.append(
                SliceShares(
                    tuple(np.flatnonzero(alike == number).tolist()),
                    tuple(held.tolist()),
                    tuple((shares[held] / shares.sum()).tolist()),
                    tuple(tasks[held].tolist()),
                )
            )
        layers_shares.append(tuple(sorted(groups, key=lambda group: group.slices)))
    return tuple(layers_shares)


def arranged(groups: Sequence[SliceShares], bands: int) -> list[list[SliceShares]]:
    """How each tile of a layer lies: a row for each slice, a column for each of its bands."""
    of_tile = {at: group for group in groups for at in group.slices}
    return [
        [of_tile[at] for at in range(first, first + bands)]
        for first in range(0, len(of_tile), bands)
    ]


def way_divided(groups: Sequence[SliceShares], bands: int = 1) -> str:
    """What a layer of so many bands is divided by: slices, bands, filters, or nothing (whole)."""
    tiles = arranged(groups, bands)
    ways = {
        "slices": any(own != tiles[0] for own in tiles),
        "bands": any(group != own[0] for own in tiles for group in own),
        "filters": any(len(group.parts) > 1 for group in groups),
    }
    return ", ".join(way for way, holds in ways.items() if holds) or WHOLE


def who_has(
    groups: Sequence[SliceShares], samples: Sequence[int], rows: Sequence[int] = (1,)
) -> str:
    """Slices, of so many samples each, bands, of so many rows, and who has them, in a line.

    >>> who_has([SliceShares((0, 1, 2, 3), (5,), (1.0,), (64,))], [8] * 4)
    '5'
    >>> who_has([SliceShares((0, 1), (0, 3), (0.25, 0.75), (16, 48))], [16] * 2)
    '0 25%, 3 75%'
    >>> one = SliceShares((0, 1), (0,), (1.0,), (64,))
    >>> who_has([one, SliceShares((2,), (1,), (1.0,), (64,))], [10, 11, 11])
    '0-1: 0; 2: 1'
    >>> who_has([SliceShares((at,), (at,), (1.0,), (64,)) for at in range(8)], [4] * 8)
    '4 samples each: parts 0-7'
    >>> who_has([SliceShares((at,), (at,), (1.0,), (64,)) for at in range(4)], [1], [56] * 4)
    '56 rows each: parts 0-3'
    >>> who_has([one, SliceShares((2,), (1,), (1.0,), (64,)), SliceShares((3,), (2,), (1.0,), (64,))
    ... ], [16] * 2, [112] * 2)
    'slice 0 (0); slice 1 (0: 1; 1: 2)'
    """
    tiles = arranged(groups, len(rows))
    if all(own == tiles[0] for own in tiles):
        return _in_turn(tiles[0], rows, "row")
    if all(group == own[0] for own in tiles for group in own):
        return _in_turn([own[0] for own in tiles], samples, "sample")
    runs = _runs(tiles)
    if len(runs) > MOST_RUNS:
        return _in_ways(groups)
    return "; ".join(
        f"slice{'s' * (last > first)} {_span(first, last)} ({_in_turn(own, rows, 'row')})"
        for first, last, own in runs
    )


def _in_turn(groups: Sequence[SliceShares], sizes: Sequence[int], unit: str) -> str:
    """Slices or bands, one after the other, and who has them."""
    runs = _runs(groups)
    if len(runs) == 1:
        return _filters(groups[0])
    is_whole = all(len(group.parts) == 1 for group in groups)
    lengths = {last - first for first, last, _ in runs}
    holders = [group.parts[0] for _, _, group in runs]
    if is_whole and len(lengths) == 1 and len(runs) > 2 and len(set(holders)) == len(holders):
        return f"{_sizes(groups, sizes, unit)}: parts {ranges(holders)}"
    if len(runs) > MOST_RUNS and not is_whole:
        return _in_ways(groups)
    if len(runs) > MOST_RUNS:
        return f"{_sizes(groups, sizes, unit)}: parts {ranges(_parts(groups))}"
    return "; ".join(f"{_span(first, last)}: {_filters(group)}" for first, last, group in runs)


def _in_ways(groups: Sequence[SliceShares]) -> str:
    return f"in {len(set(groups))} ways: parts {ranges(_parts(groups))}"


def _parts(groups: Sequence[SliceShares]) -> list[int]:
    return sorted({part for group in groups for part in group.parts})


def _sizes(groups: Sequence[SliceShares], sizes: Sequence[int], unit: str) -> str:
    """Samples or rows of each part, where each has slices or bands that lie alike."""
    counts = Counter[SliceShares]()
    for group, size in zip(groups, sizes, strict=True):
        counts[group] += size
    fewest, most = min(counts.values()), max(counts.values())
    return f"{_span(fewest, most)} {unit if most == 1 else f'{unit}s'} each"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _runs(values: Sequence[Value]) -> list[tuple[int, int, Value]]:
    """First and last index of equal neighbours, and their value."""
    runs, first = list[tuple[int, int, Value]](), 0
    for value, run in groupby(values):
        count = len([*run])
        runs.append((first, first + count - 1, value))
        first += count
    return runs


def _filters(group: SliceShares) -> str:
    """Parts and their shares; neighbours with equal shares together."""
    if len(group.parts) == 1:
        return str(group.parts[0])
    texts = [f"{100 * share:.0f}%" if share >= 0.005 else "<1%" for share in group.shares]
    pairs = zip(group.parts, texts, strict=True)
    alike = [
        (text, [part for part, _ in run]) for text, run in groupby(pairs, lambda pair: pair[1])
    ]
    return ", ".join(
        f"{ranges(held)} {text}{' each' if len(held) > 1 else ''}" for text, held in alike
    )


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as text, with ranges where each is one more than the one before.

    >>> ranges([0, 1, 2, 5, 7, 8]), ranges([3, 2, 4, 5])
    ('0-2, 5, 7-8', '3, 2, 4-5')
    """
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(_span(*span) for span in spans)
