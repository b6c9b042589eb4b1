"""Comparison -> tables: a line a strategy, a group of columns a figure, a column a k."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from hgpart.compare.comparison import (
    CONTESTED,
    EPOCHS,
    NEAR,
    Comparison,
    cell_of,
    verdict,
    why_no_step,
    winners,
)
from hgpart.compare.outcomes import Failed, Outcome, Row
from hgpart.report.tables import UNITS
from hgpart.terminal import printable

MARK = "*"
GAP = "  "
MOST_JOINED = 2  # names of equal lines

# An epoch is thousands of steps: what it moves is printed in the next larger unit.
_EPOCH_UNITS = {
    "MB": ("GB", 10**9),
    "GB": ("TB", 10**12),
    "MiB": ("GiB", 2**30),
    "GiB": ("TiB", 2**40),
}

Line = tuple[str, float | None]  # a strategy, with an eps


@dataclass(frozen=True)
class _Figure:
    """A figure of each row: its key in the record, its heading, its unit, and its decimals."""

    key: str
    heading: str
    size: float = 1
    decimals: int | None = None

    def text(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.decimals is not None:
            return f"{value / self.size:,.{self.decimals}f}"
        return three_digits(value / self.size)


@dataclass(frozen=True)
class _Group:
    """A figure's columns, one for each k, with a cell for each line."""

    heading: str
    columns: Sequence[tuple[str, Sequence[str]]]

    @property
    def widths(self) -> list[int]:
        """Of the columns; the first makes room for a long heading."""
        found = [max(map(len, (heading, *cells))) for heading, cells in self.columns]
        found[0] += max(0, len(self.heading) - sum(found) - len(found) + 1)
        return found

    @property
    def width(self) -> int:
        return sum(self.widths) + len(self.columns) - 1


def print_comparison(comparison: Comparison, console: Console, unit: str) -> None:
    """Print the verdict, then the tables.

    With one k all figures are there, with several the most telling ones: a column for each k, as
    many figures beside each other as the width has room for. A step is forward, backward and what
    synchronises parameters.

    Parameters
    ----------
    comparison : Comparison
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    width = console.width
    for text, style in ((verdict(comparison), "bold"), (_settings(comparison), "")):
        for line in textwrap.wrap(text, width, break_on_hyphens=False):
            console.print(line, style=style, soft_wrap=True)
    if not comparison.rows:
        return
    several = len({row.k for row in comparison.rows}) > 1
    lines = _lines(comparison)
    groups = [_group(comparison, lines, figure) for figure in _figures(unit, several)]
    names = [_name(comparison, line) for line in lines]
    reasons = {} if several else _reasons_of_lines(comparison)
    epochs = _epochs(comparison, unit)
    blocks = [
        *_bands(names, groups, width, [reasons.get(line) for line in lines]),
        *(_bands(*epochs, width) if epochs[0] else ()),
    ]
    for block in blocks:
        console.print()
        for row in block:
            console.print(row, soft_wrap=True)
    for note in _notes(comparison, several):
        for line in textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False):
            console.print(line, soft_wrap=True)


def _settings(comparison: Comparison) -> str:
    element = comparison.bytes_per_element
    spent = sum(row.seconds for row in comparison.outcomes)
    facts = [
        f"{comparison.model} at {' x '.join(map(str, comparison.input_shape))}",
        f"batch {comparison.batch_size}",
        *([] if element is None else [f"{element} bytes per element"]),
        f"work {comparison.work_source}",
        f"eps {', '.join(f'{eps:g}' for eps in comparison.epss)}",
        f"seed {comparison.seed}",
        f"epoch of {comparison.dataset_size:,} samples",
        f"found in {spent:.0f} s",
    ]
    return ", ".join(facts)


def _figures(unit: str, several: bool) -> list[_Figure]:
    size = UNITS[unit]
    if several:
        return [
            _Figure("max_over_average", "max/avg load", decimals=2),
            _Figure("step_bytes", f"{unit} per step", size),
            _Figure("largest_device_bytes", f"{unit} busiest device", size),
            _Figure("largest_parameters", "most parameters, M", 10**6),
        ]
    return [
        _Figure("max_over_average", "max/avg", decimals=2),
        _Figure("forward_bytes", f"{unit} forward", size),
        _Figure("step_bytes", f"{unit} step", size),
        _Figure("largest_device_bytes", f"{unit} busiest", size),
        _Figure("messages", "messages", decimals=0),
        _Figure("largest_parameters", "M params", 10**6),
        _Figure("largest_activation_bytes", f"{unit} maps", size),
        _Figure("seconds", "seconds", decimals=2),
    ]


def _lines(comparison: Comparison) -> list[Line]:
    return list(dict.fromkeys((row.strategy, row.eps) for row in comparison.rows))


def _name(comparison: Comparison, line: Line) -> str:
    name, eps = line
    return name if eps is None or len(comparison.epss) == 1 else f"{name} {eps:g}"


def _group(comparison: Comparison, lines: Sequence[Line], figure: _Figure) -> _Group:
    rows = {cell_of(row): row for row in comparison.rows}
    best = winners(comparison, figure.key) if figure.key in CONTESTED else set()
    columns = []
    for k in sorted({row.k for row in comparison.rows}):
        cells = []
        for name, eps in lines:
            row = rows.get((name, k, eps))
            if row is None:  # interrupted before it was its turn
                cells.append("")
                continue
            has = isinstance(row, Outcome) and why_no_step(row, comparison) is None
            value = getattr(row, figure.key) if has else None
            cells.append(figure.text(value) + (MARK if (name, k, eps) in best else " "))
        columns.append((f"k={k} ", cells))
    return _Group(figure.heading, columns)


def _epochs(comparison: Comparison, unit: str) -> tuple[list[str], list[_Group]]:
    """What an epoch moves (thesis table 5.14): names of lines, and columns for each batch size.

    Where a batch is divided among copies of the model, parameters travel once a step, whatever
    its size. Of the other strategies only those that move least at some k, and the layer-wise
    split; two equal lines are one.
    """
    name, size = _EPOCH_UNITS[unit]
    figure = _Figure("", "", size)
    ks = sorted({row.k for row in comparison.rows})
    copies = {row.strategy for row in comparison.outcomes if row.smallest_batch > 1}
    others = [
        row
        for row in comparison.outcomes
        if row.strategy not in copies and comparison.is_balanced(row)
    ]
    least = {k: min((row.step_bytes for row in others if row.k == k), default=0) for k in ks}
    shown = copies | {"layerwise"}
    shown |= {row.strategy for row in others if row.step_bytes == least[row.k]}
    best = {batch: winners(comparison, column) for column, batch in EPOCHS.items()}
    named: dict[tuple[str, ...], list[str]] = {}
    for line in _lines(comparison):
        rows = {row.k: row for row in comparison.outcomes if (row.strategy, row.eps) == line}
        if line[0] not in shown or not rows:
            continue
        cells = []
        for batch in EPOCHS.values():
            for k in ks:
                row = rows.get(k)
                value = None if row is None else row.epoch_bytes(comparison.dataset_size, batch)
                wins = row is not None and cell_of(row) in best[batch]
                cells.append(figure.text(value) + (MARK if wins else " "))
        named.setdefault(tuple(cells), []).append(_name(comparison, line))
    shown_lines = [
        (name, cells)
        for cells, known in named.items()
        for name in ([", ".join(known)] if len(known) <= MOST_JOINED else known)
    ]
    columns = list(zip(*(cells for _, cells in shown_lines), strict=True))
    groups = [
        _Group(
            f"{name} per epoch, batch {batch}",
            [(f"k={k} ", columns[at * len(ks) + of_k]) for of_k, k in enumerate(ks)],
        )
        for at, batch in enumerate(EPOCHS.values() if named else ())
    ]
    return [name for name, _ in shown_lines], groups


def _bands(
    names: Sequence[str],
    groups: Sequence[_Group],
    width: int,
    reasons: Sequence[str | None] | None = None,
) -> Iterator[list[Text]]:
    """Tables of as many groups as fit beside each other; a reason stands in place of figures."""
    margin = max(map(len, names), default=0)
    band: list[_Group] = []
    for group in groups:
        if band and margin + sum(len(GAP) + one.width for one in (*band, group)) > width:
            yield _table(names, margin, band, reasons)
            band = []
        band.append(group)
    yield _table(names, margin, band, reasons)


def _table(
    names: Sequence[str],
    margin: int,
    groups: Sequence[_Group],
    reasons: Sequence[str | None] | None,
) -> list[Text]:
    headings, ks, rule = Text(" " * margin), Text(" " * margin), Text("-" * margin)
    lines = [Text(f"{name:<{margin}}") for name in names]
    for group in groups:
        headings.append(f"{GAP}{group.heading:^{group.width}}", style="bold")
        rule.append(GAP + "-" * group.width)
        for at, ((heading, cells), width) in enumerate(
            zip(group.columns, group.widths, strict=True)
        ):
            gap = " " if at else GAP
            ks.append(f"{gap}{heading:>{width}}")
            for line, cell in zip(lines, cells, strict=True):
                line.append(f"{gap}{cell:>{width}}", style="bold" if MARK in cell else "")
    for at, reason in enumerate(reasons or ()):
        if reason is not None:
            lines[at] = Text(f"{names[at]:<{margin}}{GAP}{reason}")
    table = [headings, ks, rule, *lines]
    for line in table:
        line.rstrip()
    return table


def _reason(row: Row, comparison: Comparison) -> str | None:
    """Why a row has no figures of a step; None where it has."""
    if isinstance(row, Outcome):
        return why_no_step(row, comparison)
    return printable(f"failed: {row.why}" if isinstance(row, Failed) else row.why)


def _reasons_of_lines(comparison: Comparison) -> dict[Line, str]:
    return {
        (row.strategy, row.eps): reason
        for row in comparison.rows
        if (reason := _reason(row, comparison)) is not None
    }


def _notes(comparison: Comparison, several: bool) -> Iterator[str]:
    """How the best were chosen, and why there is no figure where there is none."""
    yield (
        f"{MARK} best of its k to {NEAR:.1%}; in all columns but load, of the splits within "
        f"max/avg {1 + comparison.eps:g}"
        + (" (the smallest eps)" if len(comparison.epss) > 1 else "")
    )
    if any(row.strategy == "layerwise" for row in comparison.rows):
        yield "layerwise: the cut between layers of the smallest largest load, whatever it moves."
    yield from _notes_on_slices(comparison)
    if not several:
        yield "Busiest: most that a device sends and receives; params, maps: most that one has."
        return
    yield "All figures are in --json, --csv and --html, or here with one k."
    names: dict[tuple[int, str], list[str]] = {}
    for row in comparison.rows:
        if (reason := _reason(row, comparison)) is not None:
            name = _name(comparison, (row.strategy, row.eps))
            names.setdefault((row.k, reason), []).append(name)
    for (k, why), strategies in sorted(names.items(), key=lambda item: item[0][0]):
        yield f"- at k={k}, {', '.join(strategies)}: {why}"


def _notes_on_slices(comparison: Comparison) -> Iterator[str]:
    """In how many slices each strategy divides the batch, those with the same numbers together."""
    numbers: dict[Line, dict[int, int]] = {}
    for row in comparison.outcomes:
        if row.smallest_batch > 1 or row.strategy == "sliced":
            numbers.setdefault((row.strategy, row.eps), {})[row.k] = row.smallest_batch
    named: dict[str, list[str]] = {}
    for line, of_k in numbers.items():
        always = set(of_k.values())
        each = (f"{slices} at k={k}" for k, slices in of_k.items())
        said = str(*always) if len(always) == 1 else ", ".join(each)
        named.setdefault(said, []).append(_name(comparison, line))
    if named:
        yield "Slices of the batch: " + "; ".join(
            f"{', '.join(names)} {said}" for said, names in named.items()
        )
    batches = EPOCHS.values()
    if any(row.smallest_batch > min(batches) for row in comparison.outcomes):
        yield "- in an epoch: the batch has fewer samples than the strategy has slices"


def three_digits(value: float) -> str:
    """Write a figure with three digits, and no more than three decimals.

    >>> [three_digits(value) for value in (140123.5, 31.25, 0.031249, 1, 0, 2e-9)]
    ['140,124', '31.2', '0.031', '1.00', '0', '<0.001']
    """
    if value == 0:
        return "0"
    if value < 5e-4:
        return "<0.001"
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:,.{decimals}f}"
