"""Comparison -> one table: a line a way, a column for each figure and number of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from hgpart.compare.columns import comparison_columns
from hgpart.compare.comparison import (
    CONTESTED,
    EPOCHS,
    NEAR,
    VERDICT_K,
    Comparison,
    cell_of,
    verdict,
    why_no_step,
    winners,
)
from hgpart.compare.outcomes import Failed, Outcome, Row
from hgpart.files.columns import Column
from hgpart.terminal import printable
from hgpart.tracing.input_shape import shape_text

BEST, BEYOND = "*", "!"
GAP = "  "

Line = tuple[str, float | None]  # a strategy, with an eps


@dataclass(frozen=True)
class _Group:
    """The columns of one figure, one for each k, with a cell for each line."""

    heading: str
    columns: Sequence[tuple[str, Sequence[str]]]

    @property
    def widths(self) -> list[int]:
        """Widths of the columns; the first makes room for a long heading."""
        widths = [max(map(len, (heading, *cells))) for heading, cells in self.columns]
        widths[0] += max(0, len(self.heading) - sum(widths) - len(widths) + 1)
        return widths

    @property
    def width(self) -> int:
        """Width of all columns, with the gap before them."""
        return len(GAP) + sum(self.widths) + len(self.columns) - 1


def print_comparison(
    comparison: Comparison, console: Console, unit: str, *, wide: bool = False
) -> None:
    """Print the verdict, then one table of the figures that there is room for.

    A figure has a column for each k or, where that is too wide, for the k of the verdict alone.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    wide : bool
        Whether all figures are printed, however wide the console is.
    """
    console.print(verdict(comparison), style="bold")
    console.print(_settings(comparison))
    if not comparison.rows:
        return
    ks = sorted({row.k for row in comparison.rows})
    lines = list(dict.fromkeys((row.strategy, row.eps) for row in comparison.rows))
    names = [printable(_name(comparison, line)) for line in lines]
    margin = max(map(len, names))
    known = [
        column
        for column in comparison_columns(comparison)[3:]
        if column.key != "imbalance" and any(map(column.figure, comparison.outcomes))
    ]
    main = VERDICT_K if VERDICT_K in ks else ks[-1]
    groups: list[_Group] = []
    for column in known:
        room = console.width - margin - sum(group.width for group in groups)
        choices = [_group(comparison, lines, column, some, unit) for some in (ks, [main])]
        group = next((group for group in choices if wide or group.width <= room), None)
        if group is None and groups:
            break
        groups.append(group or choices[1])
    reasons = {} if len(ks) > 1 else _reasons(comparison)
    console.print()
    for text in _table(names, margin, groups, [reasons.get(line) for line in lines]):
        console.print(text, soft_wrap=True)
    if missing := known[len(groups) :]:
        headings = ", ".join(column.heading for column in missing)
        console.print(f"More columns with --wide: {headings}")
    for note in _notes(comparison, len(ks) > 1):
        console.print(note)


def _settings(comparison: Comparison) -> str:
    element = comparison.bytes_per_element
    spent = sum(row.seconds for row in comparison.outcomes)
    facts = [
        f"{comparison.model} at {shape_text(comparison.input_shape)}",
        f"batch {comparison.batch_size}",
        *([] if element is None else [f"{element} bytes per element"]),
        f"work {comparison.work_source}",
        f"eps {', '.join(f'{eps:g}' for eps in comparison.epss)}",
        f"seed {comparison.seed}",
        f"epoch of {comparison.dataset_size:,} samples",
        f"found in {spent:.0f} s",
    ]
    return ", ".join(facts)


def _name(comparison: Comparison, line: Line) -> str:
    name, eps = line
    return name if eps is None or len(comparison.epss) == 1 else f"{name} {eps:g}"


def _group(
    comparison: Comparison,
    lines: Sequence[Line],
    column: Column[Outcome],
    ks: Sequence[int],
    unit: str,
) -> _Group:
    rows = {cell_of(row): row for row in comparison.rows}
    best = winners(comparison, column.key) if column.key in CONTESTED else set()
    columns = []
    for k in ks:
        cells = []
        for name, eps in lines:
            row = rows.get((name, k, eps))
            if row is None:  # interrupted before it was its turn
                cells.append("")
                continue
            is_known = column.key in EPOCHS or row in comparison.steps
            figure = column.shown(row, unit) if is_known and isinstance(row, Outcome) else None
            if not (isinstance(row, Outcome) and isinstance(figure, int | float)):
                cells.append("- ")
                continue
            beyond = not comparison.is_balanced(row)
            mark = BEST if (name, k, eps) in best else BEYOND if beyond else " "
            cells.append(three_digits(figure) + mark)
        columns.append((f"k={k} ", cells))
    return _Group(column.title(unit), columns)


def _table(
    names: Sequence[str], margin: int, groups: Sequence[_Group], reasons: Sequence[str | None]
) -> list[Text]:
    """The lines of the table; a reason stands in place of figures."""
    headings, ks, rule = Text(" " * margin), Text(" " * margin), Text("-" * margin)
    lines = [Text(f"{name:<{margin}}") for name in names]
    for group in groups:
        headings.append(f"{GAP}{group.heading:^{group.width - len(GAP)}}", style="bold")
        rule.append(GAP + "-" * (group.width - len(GAP)))
        for at, ((heading, cells), width) in enumerate(
            zip(group.columns, group.widths, strict=True)
        ):
            gap = " " if at else GAP
            ks.append(f"{gap}{heading:>{width}}")
            for line, cell in zip(lines, cells, strict=True):
                line.append(f"{gap}{cell:>{width}}", style="bold" if BEST in cell else "")
    for at, reason in enumerate(reasons):
        if reason is not None:
            lines[at] = Text(f"{names[at]:<{margin}}{GAP}{reason}")
    table = [headings, ks, rule, *lines]
    for line in table:
        line.rstrip()
    return table


def _reasons(comparison: Comparison) -> dict[Line, str]:
    """Why rows have no figures of a step."""
    return {
        (row.strategy, row.eps): reason
        for row in comparison.rows
        if (reason := _reason(row, comparison)) is not None
    }


def _reason(row: Row, comparison: Comparison) -> str | None:
    if isinstance(row, Outcome):
        return why_no_step(row, comparison)
    return printable(f"failed: {row.why}" if isinstance(row, Failed) else row.why)


def _notes(comparison: Comparison, several: bool) -> Iterator[str]:
    """How the best were chosen, and why there is no figure where there is none."""
    smallest = " (the smallest eps)" if len(comparison.epss) > 1 else ""
    yield (
        f"{BEST} best of its k to {NEAR:.1%}; {BEYOND} beyond max/avg {1 + comparison.eps:g}"
        f"{smallest}: such a split is best in load alone"
    )
    if any(row.strategy == "layerwise" for row in comparison.rows):
        yield "layerwise: the cut between layers whose largest load is least, whatever it sends"
    yield from _notes_on_slices(comparison)
    if not several:
        return
    named: dict[tuple[int, str], list[str]] = {}
    for row in comparison.rows:
        if (reason := _reason(row, comparison)) is not None:
            name = _name(comparison, (row.strategy, row.eps))
            named.setdefault((row.k, reason), []).append(name)
    for (k, why), strategies in sorted(named.items(), key=lambda item: item[0][0]):
        yield f"- at k={k}, {', '.join(strategies)}: {why}"


def _notes_on_slices(comparison: Comparison) -> Iterator[str]:
    """In how many slices each way divides the batch, those with the same numbers together."""
    numbers: dict[Line, dict[int, int]] = {}
    divided = {row.strategy for row in comparison.outcomes if row.smallest_batch > 1}
    for row in comparison.outcomes:
        if row.strategy in divided:
            numbers.setdefault((row.strategy, row.eps), {})[row.k] = row.smallest_batch
    named: dict[str, list[str]] = {}
    for line, of_k in numbers.items():
        counts = set(of_k.values())
        by_k = ", ".join(f"{slices} at k={k}" for k, slices in of_k.items())
        text = str(*counts) if len(counts) == 1 else by_k
        named.setdefault(text, []).append(_name(comparison, line))
    if named:
        yield "Slices of the batch: " + "; ".join(
            f"{', '.join(names)} {text}" for text, names in named.items()
        )


def three_digits(value: float) -> str:
    """Write a whole number in full, others with three digits and no more than three decimals.

    >>> [three_digits(value) for value in (140123, 31.25, 0.031249, 1.0, 0.0, 2e-9)]
    ['140,123', '31.2', '0.031', '1.00', '0', '<0.001']
    """
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    if value < 5e-4:
        return "<0.001"
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.9995 else 3
    return f"{value:,.{decimals}f}"
