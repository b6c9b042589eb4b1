"""hgpart compare: model, k's, eps's -> ways of dividing it side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

import typer
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.commands.show import plan_report
from hgpart.cli.grouping import Options
from hgpart.cli.groups import COUNTED, STEERED, AnyCounting, Steering
from hgpart.cli.options import Integers, Model, Names, Numbers, Seed, WholeOrAuto
from hgpart.cli.outputs import GrowingTable, lead_on, plain_console
from hgpart.cli.stages import Stages
from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError, BackendError
from hgpart.files.row_files import KeptRows
from hgpart.terminal import progress_bar

if TYPE_CHECKING:
    from hgpart.compare.comparison import Comparison
    from hgpart.compare.outcomes import Row


@dataclass(frozen=True, kw_only=True)
class Compared(AnyCounting):
    """The counting that all ways share; grain, norms and training are each way's own.

    Attributes
    ----------
    modelling : KEY=VALUE,...
        How the model becomes a hypergraph, in all ways. linear=neuron (a vertex per output of a
        linear layer) or layer (one for the whole layer); input-vertex=yes or no and
        output-vertex=yes or no (sending the inputs and the result counts); bytes-per-element=N
        (default: each tensor's own). The first value of each is the default.
    dataset_size : N
        Samples per epoch.
    """

    slices: WholeOrAuto = "auto"
    dataset_size: int = 64_000


@dataclass(frozen=True, kw_only=True)
class Grid(Options):
    """How ways are searched for.

    Attributes
    ----------
    ways : NAME,NAME,...
        Compare these ways only. Default: all.
    jobs : N
        Ways to search for at the same time; with 1 their search times are undisturbed. Default: 2,
        or 1 on a single core.
    """

    panel: ClassVar[str] = "The search"
    ways: Names = None
    seed: Seed = 0
    jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompareResults(GrowingTable):
    """Where the results go.

    Attributes
    ----------
    plan : PLAN
        A plan of the model, to show on the page of --html.
    """

    not_written = ("plan",)
    plan: Path | None = None

    def check(self, **files: Path | None) -> None:
        """Refuse files that can't be written, and a plan without a page to show it."""
        super().check(**files)
        if self.html is None and self.plan is not None:
            raise ArgumentError(f"--plan {self.plan}: only the page of --html FILE shows a plan")


def compare(
    context: typer.Context,
    model: Model,
    counting: Compared,
    search: Grid,
    steering: Steering,
    results: CompareResults,
    k: Integers = "2,4,8,16",
    eps: Numbers = "0.1",
) -> None:
    """Compare ways of dividing a model: load, traffic and memory per number of devices.

    Parameters
    ----------
    k : K,K,...
        Numbers of devices to compare.
    eps : E,E,...
        Allowed imbalances, a row for each.

    Examples
    --------
    $ hgpart compare vgg16 --k 4,8,16
    """
    results.check(work=counting.kept_work)
    seed = search.seed
    jobs = min(2, usable_cores()) if search.jobs is None else search.jobs
    with Stages() as stage:
        with stage("import"):
            from hgpart.cli.named_model import NamedModel
            from hgpart.compare.comparison import (
                Comparison,
                cell_of,
                check_grid,
                chosen_ways,
                grid,
                work_digest,
            )
            from hgpart.compare.comparison import compare as rows_of
            from hgpart.compare.comparison_files import comparison_csv, comparison_json, rows_done
            from hgpart.partition.problem.problem import Problem
            from hgpart.report.page.comparison import comparison_page
            from hgpart.zoo import import_user_code
        ks, epss = tuple(dict.fromkeys(k)), tuple(dict.fromkeys(eps))
        check_grid(ks, epss, seed, counting.dataset_size, jobs)
        import_user_code(model)
        chosen, constraints = chosen_ways(search.ways), steering.wanted()
        modelling = replace(counting.modelling_of(counting.batch_size), slices=1)
        if counting.bands != 1:
            raise ArgumentError(
                f"--bands {counting.bands} can't be given in compare, whose ways choose their own"
            )
        if replace(modelling, grain="coarse", norms="slice", training=True) != modelling:
            raise ArgumentError(
                f"--modelling {counting.modelling}: accepted in compare are linear=, "
                "input-vertex=, output-vertex= and bytes-per-element=; the others are "
                "each way's own"
            )
        number = None if counting.slices == "auto" else counting.slices
        counting.check_work()
        loaded = None if results.plan is None else hgpart.files.load_plan(results.plan)
        named = NamedModel(stage, model, counting.input_shape)
        shape, graph = named.shape, named.graph
        shown = None if loaded is None else plan_report(loaded, graph)
        for devices in ks if constraints else ():  # refuses what there is not, before the work
            Problem(graph, hgpart.flops(graph), modelling, devices, constraints=constraints)
        work = counting.measured(stage, named)
    empty = Comparison(
        model=model,
        input_shape=shape,
        fingerprint=graph.fingerprint,
        batch_size=modelling.batch_size,
        bytes_per_element=modelling.bytes_per_element,
        work_source=work.source,
        seed=seed,
        dataset_size=counting.dataset_size,
        rows=(),
        epss=epss,
        work_digest=work_digest(work),
        linear=modelling.linear,
        input_vertex=modelling.input_vertex,
        output_vertex=modelling.output_vertex,
        slices=number,
        constraints=str(constraints) if constraints else None,
    )
    before = rows_done(results.resumed, empty)
    cells = list(grid(chosen, ks, epss))
    order = [(way.name, devices, allowed) for way, devices, allowed in cells]
    rows = KeptRows(empty, before, order, cell_of, comparison_json, results.json)
    interrupted = False
    try:
        with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
            task = bar.add_task("comparing", total=len(cells))

            def on_row(row: Row) -> None:
                rows.add(row)
                bar.update(task, advance=1, description=f"k={row.k} {row.strategy}")

            settings = seed, before, on_row, jobs, number, constraints
            for _ in rows_of(graph, work, modelling, cells, *settings):
                pass
    except KeyboardInterrupt:
        interrupted = True
    finally:
        comparison: Comparison = rows.close()
        if comparison.rows:  # else the file that is resumed stays as it is
            largest = max((row.step_bytes for row in comparison.outcomes), default=0)
            unit = context.obj or ("GB" if largest >= 10**9 else "MB")
            results.write_csv(lambda: comparison_csv(comparison))
            results.draw(comparison_page, comparison, shown, unit)
    if comparison.rows and results.want_tables(comparison_json(comparison)):
        _print(comparison, unit, typed(context, *COUNTED, *STEERED, "seed"), wide=results.wide)
    failed = len(comparison.failed)
    if interrupted:
        there = len(comparison.rows) - failed
        raise KeyboardInterrupt(f"with {there} of {len(order)} rows done")
    if failed:
        raise BackendError(f"{failed} of {len(order)} rows failed; --resume tries them again")


def _print(comparison: Comparison, unit: str, same: str, *, wide: bool) -> None:
    """The tables, and how to get the plan of the best for the most devices, if any is balanced."""
    from hgpart.partition.problem.balance import round_up
    from hgpart.report.comparison import print_comparison

    print_comparison(comparison, plain_console(), unit, wide=wide)
    best = min(
        (row for row in comparison.outcomes if comparison.is_balanced(row)),
        key=lambda row: (-row.k, row.step_bytes),
        default=None,
    )
    if best is not None and comparison.slices is None:  # a way has its own number of slices
        eps = "" if comparison.epss == (0.1,) else f" --eps {comparison.eps:g}"
        lead_on(
            f"hgpart partition {quote(comparison.model)}{same} --k {best.k}{eps} "
            f"--way {best.strategy} -o plan.json"
        )
    elif best is None and comparison.outcomes:
        least = min(row.imbalance for row in comparison.outcomes)
        lead_on(f"the same with --eps {round_up(least)}, the smallest that a way here meets")
