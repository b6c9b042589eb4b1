"""CnnHypergraph + parts -> SliceShares: which part has which filters of which slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.sequences import equal_rows

MOST_RUNS = 8  # runs of slices told apart in a line

WHOLE, BY_FILTERS, BY_SLICES, BY_BOTH = "whole", "filters", "slices", "both"


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


def way_divided(groups: Sequence[SliceShares]) -> str:
    """How a layer is divided: not at all, by its filters alone, by slices alone, or by both."""
    whole = all(len(group.parts) == 1 for group in groups)
    if len(groups) == 1:
        return WHOLE if whole else BY_FILTERS
    return BY_SLICES if whole else BY_BOTH


def who_has(groups: Sequence[SliceShares], samples: Sequence[int], unit: str = "sample") -> str:
    """Slices, of so many samples each, and the parts that have them, in a line.

    For bands, `samples` takes the rows of each and `unit` is "row".

    >>> who_has([SliceShares((0, 1, 2, 3), (5,), (1.0,), (64,))], [8] * 4)
    '5'
    >>> who_has([SliceShares((0, 1), (0, 3), (0.25, 0.75), (16, 48))], [16] * 2)
    '0 25%, 3 75%'
    >>> one = SliceShares((0, 1), (0,), (1.0,), (64,))
    >>> who_has([one, SliceShares((2,), (1,), (1.0,), (64,))], [10, 11, 11])
    '0-1: 0; 2: 1'
    >>> who_has([SliceShares((at,), (at,), (1.0,), (64,)) for at in range(8)], [4] * 8)
    '4 samples each: parts 0-7'
    """
    if len(groups) == 1:
        return _filters(groups[0])
    runs = _runs(groups)
    if all(len(group.parts) == 1 for _, _, group in runs):
        lengths = {last - first for first, last, _ in runs}
        holders = [group.parts[0] for _, _, group in runs]
        if len(lengths) == 1 and len(runs) > 2 and len(set(holders)) == len(holders):
            return f"{_samples_each(groups, samples, unit)}: parts {ranges(holders)}"
    if len(runs) > MOST_RUNS:
        held = sorted({part for group in groups for part in group.parts})
        if way_divided(groups) == BY_BOTH:
            return f"in {len(groups)} ways: parts {ranges(held)}"
        return f"{_samples_each(groups, samples, unit)}: parts {ranges(held)}"
    return "; ".join(
        f"{first if first == last else f'{first}-{last}'}: {_filters(group)}"
        for first, last, group in runs
    )


def _samples_each(groups: Sequence[SliceShares], samples: Sequence[int], one: str) -> str:
    """Samples of each part, where each has slices that lie alike."""
    counts = {sum(samples[at] for at in group.slices) for group in groups}
    unit = one if counts == {1} else f"{one}s"
    return f"{'-'.join(map(str, sorted({min(counts), max(counts)})))} {unit} each"


def _runs(groups: Sequence[SliceShares]) -> list[tuple[int, int, SliceShares]]:
    """First slice, last slice and how they lie, slice by slice."""
    of_slice = {at: group for group in groups for at in group.slices}
    runs = []
    for _, members in groupby(sorted(of_slice), key=lambda at: of_slice[at].slices):
        run = list(members)
        runs.append((run[0], run[-1], of_slice[run[0]]))
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
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
