"""Runs of `hgpart bench`, the cheapest first, each within its time; what is there is not run again.

A run is a model, a batch and ways that take turns; a cell is one of its ways. Each run has the file
of `hgpart bench --json`, and `runs.jsonl` beside it has a line for each time that one was started:
the ways that began, seconds, the load before it, and why it ended early, if it did.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ENDING = 60.0  # seconds that `hgpart bench` has to end when it is interrupted


@dataclass(frozen=True)
class Run:
    """One `hgpart bench`; `cost` is what runs are ordered by, multiply-accumulates of a step."""

    name: str
    model: str
    ways: tuple[str, ...]
    batch_size: int
    cost: float
    processes: int = 2
    input_shape: tuple[int, ...] | None = None
    data: str = "synthetic"


@dataclass(frozen=True)
class Cell:
    """One way of a run.

    `row` is what `hgpart bench` wrote of it. `spent` are its shares of the seconds of all starts
    that it was in, `over` the seconds a cell that these were allowed and that were too few, 0 if
    they were enough. `why` is what ended the last one and left no row.
    """

    run: Run
    way: str
    row: Mapping[str, Any] | None = None
    spent: float = 0.0
    over: float = 0.0
    why: str | None = None

    @property
    def name(self) -> str:
        """What --only looks at."""
        return f"{self.run.name}/{self.way}"

    @property
    def median(self) -> float | None:
        """Seconds of a step, where it was measured."""
        return None if self.row is None else self.row.get("median_seconds")

    @property
    def turns(self) -> int:
        """That it has had."""
        return 0 if self.row is None else self.row.get("rounds", 0)

    @property
    def reason(self) -> str | None:
        """Why it has no figures, or no further turn, if that is known."""
        if self.turns:
            return None if self.row is None else self.row.get("ended")
        if self.row is not None:
            return str(self.row["why"])
        return self.why or (f"no turn ended in {self.over:g} s" if self.over else None)

    def left(self, asked: argparse.Namespace) -> float:
        """Seconds that it may have; 0 if it is to have no more turns."""
        is_refused = self.row is not None and not self.row.get("failed", True)
        if self.turns >= asked.rounds or is_refused:
            return 0.0
        if self.reason is not None and asked.retry:
            return asked.cell_seconds
        if self.row is not None and (not self.turns or self.reason is not None):
            return 0.0
        enough = self.why is None and self.over < asked.cell_seconds
        return max(0.0, asked.cell_seconds - self.spent) if enough else 0.0


class Results:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._log = folder, folder / "runs.jsonl"
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, run: Run) -> Path:
        """What `hgpart bench` writes of a run."""
        return self.folder / f"{run.name.replace('/', '_')}.json"

    def cells(self, run: Run) -> list[Cell]:
        """All of a run, in the order of its ways."""
        path = self.file(run)
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        by_way = {row["way"]: row for row in rows}
        starts = [one for one in self._starts() if one["run"] == run.name]
        found = []
        for way in run.ways:
            own = [one for one in starts if way in one["ways"]]
            spent = sum(one["seconds"] / len(one["ways"]) for one in own)
            over = own[-1]["over"] if own else 0.0
            why = own[-1]["why"] if own and way not in by_way else None
            found.append(Cell(run, way, by_way.get(way), spent, over, why))
        return found

    def note(self, start: Mapping[str, Any]) -> None:
        """Keep what became of a run that was started."""
        with self._log.open("a") as file:
            file.write(json.dumps(start) + "\n")

    def _starts(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]


def run_all(
    runs: Iterable[Run],
    results: Results,
    asked: argparse.Namespace,
    prepare: Callable[[Run], None] = lambda run: None,
) -> None:
    """Give all cells that are asked for the turns that they lack, in the time that there is."""
    wanted = re.compile(asked.only)
    end = time.monotonic() + 60 * asked.minutes
    for run in sorted(runs, key=lambda run: run.cost):
        left = {
            cell.way: seconds
            for cell in results.cells(run)
            if wanted.search(cell.name) and (seconds := cell.left(asked))
        }
        if not left:
            continue
        prepare(run)
        if time.monotonic() >= end:
            say(f"{asked.minutes:g} minutes are over: {run.name} and what is dearer is left")
            return
        try:
            start(run, left, end, results, asked)
        except KeyboardInterrupt:
            say(f"interrupted in {run.name}")
            return


def start(
    run: Run, left: Mapping[str, float], end: float, results: Results, asked: argparse.Namespace
) -> None:
    """Run some ways until they have had their turns, or until their time or all time is over."""
    begin, load = time.monotonic(), os.getloadavg()[0]
    limit, rest = sum(left.values()), end - begin
    say(f"{run.name}: {', '.join(left)}; at most {min(limit, rest):.0f} s")
    over, why, begun = 0.0, None, [*left]
    process = subprocess.Popen(
        command(run, [*left], results.file(run), asked),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = process.communicate(timeout=min(limit, rest))
        lines = said.strip().splitlines() or [f"it ended with status {process.returncode}"]
        why = lines[-1].removeprefix("hgpart: error: ") if process.returncode else None
    except subprocess.TimeoutExpired:
        over, why = (asked.cell_seconds if limit <= rest else 0.0), None
        process.send_signal(signal.SIGINT)  # what is measured is in the file
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=ENDING)
        ended = [cell.way for cell in results.cells(run) if cell.way in left and cell.turns]
        begun = ended + [way for way in left if way not in ended][:1]  # the others had no time
    finally:
        process.kill()
        process.wait()
        seconds = time.monotonic() - begin
        results.note(
            {"run": run.name, "ways": begun, "seconds": round(seconds, 1), "over": over}
            | {"why": why, "load": round(load, 2), "at": time.strftime("%Y-%m-%d %H:%M")}
        )
    medians = ", ".join(
        f"{cell.way} {'-' if cell.median is None else f'{cell.median:.3g} s'}"
        for cell in results.cells(run)
        if cell.way in left
    )
    say(f"{run.name}: {medians}, after {seconds:.0f} s{f'; {why}' if why else ''}")


def command(run: Run, ways: Sequence[str], file: Path, asked: argparse.Namespace) -> list[str]:
    """What a user would type."""
    shape = run.input_shape
    return [
        *(
            str(Path(sys.executable).with_name("hgpart")),
            "bench",
            run.model,
            "--ways",
            ",".join(ways),
        ),
        *("--processes", f"{run.processes}", "--batch-size", f"{run.batch_size}"),
        *("--steps", f"{asked.steps}", "--rounds", f"{asked.rounds}", "--data", run.data),
        *(() if shape is None else ("--input-shape", ",".join(map(str, shape)))),
        *("--timeout", f"{asked.cell_seconds:g}", "--json", f"{file.resolve()}", "--resume"),
    ]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options(description: str | None, results: str) -> argparse.ArgumentParser:
    """What is asked for of all runs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="Of the names of cells.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="Of all that is run now.")
    parser.add_argument(
        "--cell-seconds", type=float, default=120.0, help="Of a cell, and of any wait in it."
    )
    parser.add_argument("--steps", type=int, default=2, help="That are timed in a turn, after two.")
    parser.add_argument("--rounds", type=int, default=2, help="Turns of each cell.")
    parser.add_argument("--retry", action="store_true", help="Try again what failed.")
    parser.add_argument("--table", action="store_true", help="Run nothing, print Markdown.")
    folder = Path(__file__).parent / "results" / results
    parser.add_argument("--results", type=Path, default=folder, metavar="FOLDER")
    return parser


def print_markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table whose first column is text and whose others are figures, to be pasted."""
    alignments = ["---", *("---:" for _ in headings[1:])]
    for cells in (headings, alignments, *rows):
        print(f"| {' | '.join(cells)} |")
