"""Bench -> table: what a step takes each way, and what could not be run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console

from hgpart.bench.results import Bench, Measured
from hgpart.bench.row_files import NotRun
from hgpart.bench.ways.way import APART, SINGLE
from hgpart.report.tables import counted, even_decimals, in_unit, print_table, ruled_table


def print_bench(bench: Bench, console: Console, unit: str) -> None:
    """Print the fastest way first, then all of them in the order asked for, then the reasons.

    Parameters
    ----------
    bench : Bench
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    console.print(fastest(bench), style="bold")
    console.print(" · ".join(settings(bench)))
    if bench.measured:
        console.print()
        _print_rows(bench, bench.measured, console, unit)
    print_refused(bench.rows, console)


def print_refused(rows: Iterable[object], console: Console) -> None:
    """Print why ways could not be run, or not to the end, if there are any."""
    reasons = []
    for row in rows:
        if isinstance(row, NotRun):
            reasons.append(f"{row.way} {row.what}: {row.why}")
        elif isinstance(row, Measured) and row.ended is not None:
            reasons.append(f"{row.way} failed after {counted(row.rounds, 'turn')}: {row.ended}")
    if reasons:
        console.print()
    for reason in reasons:
        for line in textwrap.wrap(
            reason, console.width, subsequent_indent="  ", break_on_hyphens=False
        ):
            console.print(line, soft_wrap=True)


def fastest(bench: Bench) -> str:
    """Which way of training one model is the fastest, and by how much: one line."""
    trained = [row for row in bench.measured if row.way != APART]
    if not trained:
        return f"{bench.model}: no way could be measured"
    best, *others = sorted(trained, key=lambda row: row.quartiles[1])
    seconds, gain = best.quartiles[1], bench.speed_up(best)
    said = [f"{bench.batch_size / seconds:,.1f} samples/s"]
    if gain is not None and best.way != SINGLE:
        threads = counted(bench.threads, "thread")
        said.insert(0, f"{gain:.2f} times as fast as one process of {threads}")
    if others:
        said.append(f"{others[0].quartiles[1] / seconds:.2f} times {others[0].way}, the next")
    for limit in bench.measured:
        if limit.way == APART:
            share = 100 * limit.quartiles[1] / seconds
            said.append(f"{share:.0f} % of processes that never talk")
    return f"{best.way}: {', '.join(said)}"


def settings(bench: Bench) -> list[str]:
    """What was measured."""
    rounds = max((row.rounds for row in bench.measured), default=0)
    return [
        bench.model,
        f"input {' x '.join(map(str, bench.input_shape))}",
        f"batch of {bench.batch_size}",
        f"{bench.processes} processes of {counted(bench.threads, 'thread')}",
        f"{counted(rounds, 'turn')} of {counted(bench.steps, 'step')}",
        bench.data,
        f"work: {bench.work_source}",
        f"seed {bench.seed}",
        *([bench.machine] if bench.machine else []),
    ]


def _print_rows(bench: Bench, rows: Sequence[Measured], console: Console, unit: str) -> None:
    quartiles = [row.quartiles for row in rows]
    times = even_decimals([seconds for row in quartiles for seconds in row])
    gains = [bench.speed_up(row) for row in rows]
    sent = [None if row.sent_bytes is None else round(row.sent_bytes) for row in rows]
    columns = [
        [row.way for row in rows],
        ["-" if gain is None else f"{gain:.2f}" for gain in gains],
        times[1::3],
        times[0::3],
        times[2::3],
        even_decimals([bench.batch_size / middle for _, middle, _ in quartiles]),
        [f"{100 * row.busy_share:.0f}" for row in rows],
        [f"{100 * (1 - row.busy_share):.0f}" for row in rows],
        in_unit(sent, unit),
        in_unit([max(row.peak_bytes) for row in rows], unit),
    ]
    table = ruled_table(
        [
            *("way", "speed-up", "s a step", "lower", "upper", "samples/s"),
            *("busy %", "waiting %", f"sent {unit}", f"peak {unit}"),
        ]
    )
    for cells in zip(*columns, strict=True):
        table.add_row(*cells)
    print_table(console, "Training, median and quartiles of a step", table)
    over = f"over {SINGLE}, one process of {counted(bench.threads, 'thread')}"
    if gains[0] is None:
        over = f"over {SINGLE}, which is not among these ways"
    console.print(
        f"speed-up: {over}; busy: CPU time of all processes, of that which their threads had; "
        "sent: by all of them in a step; peak: memory of the process that has most, libraries "
        "included"
    )
