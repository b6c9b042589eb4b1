"""hgpart bench: Model, ways -> seconds a step of each, or to an accuracy, side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from hgpart.bench.ways.way import MEANINGS, check_ways, chosen_ways
from hgpart.cli.command_lines import typed
from hgpart.cli.options import (
    Eps,
    HtmlFile,
    InputShape,
    JsonFile,
    Model,
    Timeout,
    Unit,
    Wide,
    WorkSource,
    checked_unit,
    names,
    one_of,
    work_of,
)
from hgpart.cli.outputs import (
    check_outputs,
    lead_on,
    plain_console,
    tables_wanted,
)
from hgpart.cli.stages import Stages, classes_of, traced_model
from hgpart.cores import processor, threads_of_each, usable_cores
from hgpart.errors import ArgumentError, RunError
from hgpart.terminal import progress_bar

if TYPE_CHECKING:
    from hgpart.bench.plans import Subject
    from hgpart.bench.ways.job import Job
    from hgpart.bench.ways.way import Way
    from hgpart.files.row_files import KeptRows

LARGEST_RATE = 1e30  # as `hgpart train` takes it
Tell = Callable[[float, str], None]  # the share that is done, and what is under way


def bench(
    context: typer.Context,
    model: Model,
    ways: Annotated[
        Any,
        typer.Option(
            parser=names,
            metavar="W,W,...",
            help=f"Only these of {', '.join(MEANINGS)}; all when left out. NAME:RULE:M for the "
            "schedule and micro-batches of a partition, pipeline-...:M, ps-...:distributed.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(help="That share a step; a parameter server is one more.")
    ] = 2,
    steps: Annotated[
        int | None, typer.Option(help="That are timed in a turn, after two; 3 by default.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Turns of each way; 3 by default.")] = None,
    batch_size: Annotated[int, typer.Option(help="Samples of a step, of all processes.")] = 32,
    data: Annotated[
        str,
        one_of(
            words=("synthetic", "digits"),
            besides="imagefolder:PATH",
            help="What is trained on; synthetic is the same batch in each step.",
        ),
    ] = "synthetic",
    until: Annotated[
        float | None,
        typer.Option(
            metavar="ACCURACY",
            help="Train once, until this share of the test samples is given its class.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="At most, with --until; 50 by default.")
    ] = None,
    input_shape: InputShape = None,
    eps: Eps = 0.1,
    effort: Annotated[
        float, typer.Option(min=0, help="How long partitions are searched for, 1 by default.")
    ] = 1.0,
    work: WorkSource = "flops",
    lr: Annotated[float, typer.Option(help="Learning rate of plain gradient descent.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Of weights, data and partitions.")] = 0,
    timeout: Timeout = 300.0,
    unit: Unit = "MB",
    wide: Wide = False,
    json: JsonFile = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="The figures, line by line.")
    ] = None,
    html: HtmlFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from what --json FILE has already.")
    ] = False,
) -> None:
    """Train a few steps each way, torch's and hgpart's, in turns: which is fast on this machine."""
    check_outputs({"--json": json, "--csv": csv, "--html": html})
    if resume and json in (None, "-"):
        raise ArgumentError("--resume needs the file that --json FILE wrote, and writes again")
    counts = {"steps": steps, "rounds": rounds, "batch-size": batch_size, "epochs": epochs}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ArgumentError(f"--{name} {value}: accepted is 1 or more")
    if not 0 <= lr <= LARGEST_RATE:
        raise ArgumentError(f"--lr {lr}: accepted is a number from 0 to {LARGEST_RATE:g}")
    if until is not None and not 0 < until <= 1:
        raise ArgumentError(f"--until {until}: accepted is a number above 0 and up to 1")
    if until is None and epochs is not None:
        raise ArgumentError(f"--epochs {epochs}: accepted is with --until")
    for name in ("steps", "rounds"):
        if until is not None and counts[name] is not None:
            raise ArgumentError(
                f"--{name} {counts[name]}: accepted is without --until, for which each way trains "
                "once"
            )
    if until is not None and data == "synthetic":
        raise ArgumentError(
            "--until needs data to test on: accepted are --data digits and imagefolder:PATH"
        )
    checked_unit(unit)
    chosen = chosen_ways(ways, processes)
    if ways is not None:
        check_ways(chosen, processes, batch_size)
    with Stages() as stage:
        with stage("import"):
            from hgpart.bench.plans import Subject
            from hgpart.bench.ways.job import Job
            from hgpart.compare.comparison import work_digest
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.run.processes.connection import check_timeout
        check_request(processes, eps)
        check_search(seed, effort)
        check_timeout(timeout)
        measure = work_of(work, None, batch_size)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        classes = classes_of(module, shape)
        with stage("work", spinner=False):
            done = measure(module, traced, graph)
    subject = Subject(
        *(model, shape, traced, graph, done, batch_size, processes, eps, seed, effort)
    )
    if ways is not None:
        for way in chosen:
            subject.check(way)
    threads = threads_of_each(processes)
    job = Job(model, shape, classes, batch_size, processes, threads, seed, lr, timeout, data)
    about = {
        "model": model,
        "input_shape": shape,
        "fingerprint": graph.fingerprint,
        "batch_size": batch_size,
        "processes": processes,
        "threads": threads,
        "eps": eps,
        "effort": effort,
        "lr": lr,
        "seed": seed,
        "work_source": done.source,
        "work_digest": work_digest(done),
        "data": data,
        "machine": _machine(),
    }
    same = typed(context, "input_shape", "batch_size")
    then = f"hgpart recommend {quote(model)}{same} --devices {processes}"
    wanted = _Wanted(chosen, subject, job, unit, wide, json, csv, html, resume, then)
    if until is None:
        wanted.turns(about, steps or 3, rounds or 3)
    else:
        wanted.race(about, until, epochs or 50)


@dataclass(frozen=True)
class _Wanted:
    """What was asked for, checked."""

    ways: Sequence[Way]
    subject: Subject
    job: Job
    unit: str
    wide: bool
    json: str | None
    csv: Path | None
    html: Path | None
    resume: bool
    then: str

    def turns(self, about: Mapping[str, Any], steps: int, rounds: int) -> None:
        """Seconds a step."""
        from hgpart.bench.results import Bench, bench_csv, bench_json, rows_done
        from hgpart.bench.turns import take_turns
        from hgpart.report.benches import print_bench
        from hgpart.report.page.bench import bench_page

        empty = Bench(**about, steps=steps)
        self.job.batches()  # which says what is wrong with the data
        before = rows_done(self.json, empty) if self.resume and self.json else {}
        turns, begun = rounds * len(self.ways), count()

        def run(tell: Tell, on_row: Callable[[Any], None]) -> None:
            def on_turn(number: int, way: Way) -> None:
                tell(next(begun) / turns, f"round {number + 1}: {way.text}")

            options = self.subject, self.job, steps, rounds, before
            take_turns(self.ways, *options, on_turn, on_row)

        self._run(
            run,
            self._kept(empty, before, bench_json),
            bench_csv,
            lambda found: bench_page(found, self.unit),
            lambda found: print_bench(found, plain_console(), self.unit, wide=self.wide),
        )

    def race(self, about: Mapping[str, Any], until: float, epochs: int) -> None:
        """Seconds to an accuracy."""
        from hgpart.bench.races import Races, race, races_csv, races_done, races_json
        from hgpart.report.page.race import race_page
        from hgpart.report.races import print_races

        empty = Races(**about, until=until, epochs=epochs)
        data = self.job.opened_data()
        before = races_done(self.json, empty) if self.resume and self.json else {}

        def run(tell: Tell, on_row: Callable[[Any], None]) -> None:
            def on_epoch(way: Way, epoch: int, accuracy: float) -> None:
                at = self.ways.index(way) + epoch / epochs
                said = f"{way.text}: {100 * accuracy:.1f} % after {epoch} epochs"
                tell(at / len(self.ways), said)

            options = self.subject, self.job, data, until, epochs, before
            race(self.ways, *options, on_epoch, on_row)

        self._run(
            run,
            self._kept(empty, before, races_json),
            races_csv,
            race_page,
            lambda found: print_races(found, plain_console(), wide=self.wide),
        )

    def _kept(
        self, empty: Any, before: Mapping[str, Any], as_json: Callable[[Any], str]
    ) -> KeptRows[Any, Any]:
        from hgpart.files.row_files import KeptRows

        order = [way.text for way in self.ways]
        return KeptRows(empty, before, order, lambda row: row.way, as_json, self.json)

    def _run(
        self,
        run: Callable[[Tell, Callable[[Any], None]], None],
        rows: KeptRows[Any, Any],
        as_csv: Callable[[Any], str],
        as_page: Callable[[Any], str],
        show: Callable[[Any], None],
    ) -> None:
        """Keep what comes, whatever ends it; then write the other files, and print."""
        from hgpart.bench.turns import is_failed
        from hgpart.files.writing import replacing
        from hgpart.report.page.document import write_page

        interrupted = False
        try:
            with _progress() as tell:
                run(tell, rows.add)
        except KeyboardInterrupt:
            interrupted = True
        found = rows.record
        if found.rows:
            if self.csv is not None:
                with replacing(self.csv) as file:
                    file.write(as_csv(found))
            if self.html is not None:
                write_page(as_page(found), self.html)
            if tables_wanted(self.json, rows.as_json(found)):
                show(found)
                lead_on(self.then)
            sys.stdout.flush()
        if interrupted:
            raise KeyboardInterrupt(f"with {len(found.rows)} of {len(self.ways)} ways begun")
        if failed := [row.way for row in rows.added.values() if is_failed(row)]:
            again = "" if self.json in (None, "-") else "; --resume tries again"
            raise RunError(f"{', '.join(failed)} failed, the others are measured{again}")


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal, told what share is done and what is under way."""
    with progress_bar(TaskProgressColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("measuring", total=1.0)
        yield lambda done, said: bar.update(task, completed=done, description=said)


def _machine() -> str:
    """What figures are of besides the model and the settings."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "hgpart"))
    return f"{usable_cores()} cores of {processor()}, {versions}"
