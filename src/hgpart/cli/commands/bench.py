"""hgpart bench: Model, ways -> seconds a step or a pass of each, or to an accuracy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import inf
from operator import attrgetter
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from rich.console import Console

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.forms import keyed, one_value
from hgpart.cli.grouping import Options
from hgpart.cli.groups import TIMEOUT, Counting
from hgpart.cli.options import (
    Eps,
    InputTexts,
    Model,
    Names,
    NotNegative,
    Positive,
    PositiveOrNone,
    Timeout,
)
from hgpart.cli.outputs import GrowingTable, lead_on, plain_console, unit_of
from hgpart.cli.stages import Stages, classes_of
from hgpart.cores import processor, threads_of_each, usable_cores
from hgpart.errors import ArgumentError, RunError, not_both
from hgpart.files.row_files import KeptRows
from hgpart.terminal import say, share_done

if TYPE_CHECKING:
    from hgpart.bench.plans import Subject
    from hgpart.bench.ways.job import Job
    from hgpart.bench.ways.way import TrainingWay

LARGEST_RATE = 1e30  # the largest that `hgpart train` takes, too
EPOCHS = 50
STEPS, PASSES = 3, 30  # timed in a turn


@dataclass(frozen=True, kw_only=True)
class Dividing(Options):
    """How partitions are found.

    Attributes
    ----------
    effort : TIMES
        Length of the search, relative to its default.
    work : flops|profile|FILE
        Measure of load: flops (multiply-accumulates), profile (seconds, measured now), or a file
        of 'hgpart profile'. Append ,device=DEVICE to profile on another device than the CPU, and
        ,save=FILE to keep the figures for a later --work FILE.
    """

    panel: ClassVar[str] = "The search"
    eps: Eps = 0.1
    effort: NotNegative = 1.0
    work: str = "flops"


@dataclass(frozen=True, kw_only=True)
class Trained(Options):
    """The training, and how long it lasts.

    Attributes
    ----------
    steps : N
        Timed steps per turn, after two warm-up steps. Default: 3, or 30 with --inference.
    rounds : N
        Turns of each way. Default: 3.
    time_limit : SECONDS
        Begin no further turn after so many seconds; --resume goes on. Default: no limit.
    until : ACCURACY
        Instead of timing steps, train each way once until this share of the test samples, from 0 to
        1, is classified correctly. Append ,epochs=N for the most epochs (default 50).
    data : synthetic|digits|shapes|KIND:PATH
        Training data: synthetic (one batch of random images), digits (scikit-learn's handwritten
        digits), shapes (drawn polygons and stars), imagefolder:PATH (a folder per class), or
        mnist:PATH, cifar10:PATH or tiny-imagenet:PATH (a folder with the published files).
    lr : RATE
        Learning rate of plain gradient descent.
    seed : N
        Seed of weights, data and partitions.
    """

    panel: ClassVar[str] = "Training"
    steps: PositiveOrNone = None
    rounds: PositiveOrNone = None
    time_limit: float | None = None
    until: str | None = None
    data: str = "synthetic"
    lr: float = 0.01
    seed: int = 0

    def check(self, inference: bool) -> None:
        """Refuse numbers that are out of range, and options that have no use for each other."""
        if inference and self.until is not None:
            raise not_both(f"--until {self.until}", "--inference")
        if inference and self.data != "synthetic":
            raise ArgumentError(
                f"--data {self.data} with --inference: accepted are synthetic images"
            )
        for name, value in (("steps", self.steps), ("rounds", self.rounds)):
            if value is not None and self.until is not None:
                once = f"--until {self.until}, for which each way trains once"
                raise not_both(f"--{name} {value}", once)
        if self.time_limit is not None and not 0 < self.time_limit < inf:
            raise ArgumentError(f"--time-limit {self.time_limit}: accepted is more than 0 s")
        if not 0 <= self.lr <= LARGEST_RATE:
            raise ArgumentError(f"--lr {self.lr}: accepted is a number from 0 to {LARGEST_RATE:g}")
        if self.until is not None and self.data == "synthetic":
            raise ArgumentError(
                "--until needs data to test on: accepted are --data digits, shapes and KIND:PATH"
            )

    def goal(self) -> tuple[float, int] | None:
        """The accuracy and the most epochs of --until, checked."""
        if self.until is None:
            return None
        values, settings = keyed("--until", self.until, epochs=int)
        text = one_value("--until", self.until, values) or ""
        epochs = settings.get("epochs", EPOCHS)
        if epochs < 1:
            raise ArgumentError(f"--until {self.until}: accepted are 1 epoch or more")
        try:
            accuracy = float(text)
        except ValueError:
            accuracy = 0.0
        if not 0 < accuracy <= 1:
            raise ArgumentError(f"--until {self.until}: accepted is a number above 0 and up to 1")
        return accuracy, epochs


def bench(
    context: typer.Context,
    model: Model,
    trained: Trained,
    dividing: Dividing,
    results: GrowingTable,
    ways: Names = None,
    processes: str = "2",
    inference: bool = False,
    batch_size: Positive = 32,
    input_shape: InputTexts = None,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Train a few steps each way, torch's and hgpart's, in turns: which is fast on this machine.

    With --inference, run passes forward instead, one batch at a time, for their latency.

    Parameters
    ----------
    ways : W,W,...
        Ways to run: single, apart, ddp, fsdp, pipeline-gpipe, pipeline-1f1b, ps-sync, ps-async,
        any way that 'hgpart compare' lists, hybrid-R, or a plan file; with --inference also
        fused-tiles, and none that only train. Default: all but plans; with --inference a few.
        NAME:RULE:M sets the schedule and micro-batches of a way; also pipeline-...:M, and ps-...
        with the settings of 'hgpart train --way', as in ps-async:servers=2, or :distributed.
    processes : K
        Processes that share a step; a parameter server is one more. Append ,machine=FILE, a machine
        file of as many devices, to divide by their speeds.
    inference
        Run passes in evaluation, without gradients. Default: training steps.
    batch_size : N
        Samples per step, over all processes together.

    Examples
    --------
    $ hgpart bench lenet5 --ways single,ddp,coarse --processes 2
    """
    counting = Counting(batch_size=batch_size, work=dividing.work)
    results.check(work=counting.kept_work)
    trained.check(inference)
    goal = trained.goal()
    with Stages() as stage:
        with stage("import"):
            from hgpart.bench.plans import Subject
            from hgpart.bench.ways.job import Job
            from hgpart.bench.ways.way import check_ways, chosen_ways
            from hgpart.cli.named_model import NamedModel
            from hgpart.compare.comparison import work_digest
            from hgpart.partition.problem.checks import check_request, check_search
            from hgpart.partition.problem.problem import Problem
            from hgpart.run.processes.connection import check_timeout
            from hgpart.zoo import import_user_code
        import_user_code(model)
        count, speeds = _processes(processes)
        chosen = chosen_ways(ways, count, inference)
        if ways is not None:
            check_ways(chosen, count, batch_size, inference)
        eps, effort, seed = dividing.eps, dividing.effort, trained.seed
        check_request(count, eps, speeds)
        check_search(seed, effort)
        check_timeout(timeout)
        counting.check_work()
        asked = input_shape, lambda shape: shape.image("hgpart bench")
        named = NamedModel(stage, model, *asked, inference=inference)
        shape, graph, module, traced = named.shape, named.graph, named.module, named.traced
        classes = 1 if inference else classes_of(module, shape)
        work = counting.measured(stage, named)
    problem = Problem(graph, work, hgpart.Modelling(batch_size=batch_size), count, eps, speeds)
    subject = Subject(model, shape, traced, problem, seed, effort)
    if ways is not None:
        for way in chosen:
            subject.check(way)
    threads = threads_of_each(count)
    of_step = model, shape, classes, batch_size, count, threads
    job = Job(*of_step, seed, trained.lr, timeout, trained.data, inference)
    about = {
        "model": model,
        "input_shape": shape,
        "fingerprint": graph.fingerprint,
        "batch_size": batch_size,
        "processes": count,
        "threads": threads,
        "eps": eps,
        "effort": effort,
        "lr": trained.lr,
        "seed": seed,
        "work_source": work.source,
        "work_digest": work_digest(work),
        "data": trained.data,
        **({"inference": True} if inference else {}),
        "machine": _machine(speeds),
    }
    same = typed(context, "input_shape", "batch_size")
    then = f"hgpart recommend {quote(model)}{same} --devices {count}"
    then += " --goal latency" if inference else ""
    limit = inf if trained.time_limit is None else trained.time_limit
    wanted = _Wanted(chosen, subject, job, unit_of(context), results, limit, then)
    if goal is None:
        steps = trained.steps or (PASSES if inference else STEPS)
        wanted.turns(about, steps, trained.rounds or 3)
    else:
        wanted.race(about, *goal)


@dataclass(frozen=True)
class _Wanted:
    """A bench that was asked for, checked."""

    ways: Sequence[TrainingWay]
    subject: Subject
    job: Job
    unit: str
    results: GrowingTable
    time_limit: float
    then: str

    def turns(self, about: Mapping[str, Any], steps: int, rounds: int) -> None:
        """Measure seconds per step, or per pass."""
        from hgpart.bench.results import Bench, bench_csv, bench_json, rows_done
        from hgpart.bench.turns import take_turns
        from hgpart.report.benches import print_bench
        from hgpart.report.page.ways import bench_page

        empty, unit, wide = Bench(**about, steps=steps), self.unit, self.results.wide
        self.job.batches()  # which says what is wrong with the data
        before = rows_done(self.results.resumed, empty)
        run = partial(take_turns, self.ways, self.subject, self.job, steps, rounds, before)
        rows = self._rows(empty, before, bench_json)
        page = partial(bench_page, unit=unit)
        self._run(run, rows, bench_csv, page, partial(print_bench, unit=unit, wide=wide))

    def race(self, about: Mapping[str, Any], until: float, epochs: int) -> None:
        """Measure seconds to an accuracy."""
        from hgpart.bench.races import Races, race, races_csv, races_done, races_json
        from hgpart.report.benches import print_races
        from hgpart.report.page.ways import race_page

        empty, data = Races(**about, until=until, epochs=epochs), self.job.opened_data()
        before = races_done(self.results.resumed, empty)
        run = partial(race, self.ways, self.subject, self.job, data, until, epochs, before)
        rows = self._rows(empty, before, races_json)
        self._run(run, rows, races_csv, race_page, partial(print_races, wide=self.results.wide))

    def _rows(
        self, empty: Any, before: Mapping[str, Any], as_json: Callable[[Any], str]
    ) -> KeptRows[Any, Any]:
        order = [way.text for way in self.ways]
        return KeptRows(empty, before, order, attrgetter("way"), as_json, self.results.json)

    def _run(
        self,
        run: Callable[..., int],
        rows: KeptRows[Any, Any],
        as_csv: Callable[[Any], str],
        as_page: Callable[[Any], str],
        show: Callable[[Any, Console], None],
    ) -> None:
        """Keep the rows that come, whatever ends it; then write the other files, and print."""
        from hgpart.bench.turns import is_failed

        interrupted, left_out, start = False, 0, time.monotonic()

        def tell_line(line: str) -> None:
            say(f"hgpart: {line} ({time.monotonic() - start:.0f} s)")

        try:
            with share_done("measuring") as tell:
                left_out = run(tell, rows.add, tell_line, self.time_limit)
        except KeyboardInterrupt:
            interrupted = True
        record = replace(rows.close(), left_out=left_out)
        if record.rows:
            self.results.write_csv(lambda: as_csv(record))
            self.results.draw(as_page, record)
            if self.results.want_tables(rows.as_json(record)):
                show(record, plain_console())
                lead_on(self.then)
            sys.stdout.flush()
        if interrupted:
            raise KeyboardInterrupt(f"with {len(record.rows)} of {len(self.ways)} ways begun")
        if failed := [row.way for row in rows.added.values() if is_failed(row)]:
            again = "" if self.results.json in (None, "-") else "; --resume tries again"
            raise RunError(f"{', '.join(failed)} failed, the others are measured{again}")


def _processes(text: str) -> tuple[int, tuple[float, ...] | None]:
    """The number of --processes, and their speeds where these differ."""
    from hgpart.partition.problem.topology import load_speeds

    values, settings = keyed("--processes", text, machine=str)
    count = one_value("--processes", text, values) or ""
    if not count.isdecimal():
        raise ArgumentError(f"--processes {text}: accepted is a whole number, at least 2")
    speeds = load_speeds(settings["machine"], int(count)) if settings else None
    return int(count), speeds


def _machine(speeds: Sequence[float] | None) -> str:
    """The machine and the versions that figures depend on."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "hgpart"))
    differ = "" if speeds is None else f", speeds {', '.join(f'{speed:g}' for speed in speeds)}"
    return f"{usable_cores()} cores of {processor()}{differ}, {versions}"
