"""hgpart compare: model, k's, eps's -> ways of splitting it side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from hgpart.cli.command_lines import typed
from hgpart.cli.commands.show import plan_report
from hgpart.cli.options import (
    AnySlices,
    BatchSize,
    BytesPerElement,
    HtmlFile,
    InputShape,
    JsonFile,
    Linear,
    Model,
    NoInputVertex,
    NoOutputVertex,
    ProfileDevice,
    SaveWork,
    Seed,
    Wide,
    WorkSource,
    checked_unit,
    integers,
    modelling_of,
    names,
    numbers,
    one_of,
    work_of,
)
from hgpart.cli.outputs import check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages, traced_model
from hgpart.cores import usable_cores
from hgpart.errors import ArgumentError, BackendError
from hgpart.terminal import progress_bar

if TYPE_CHECKING:
    from hgpart.compare.comparison import Comparison
    from hgpart.compare.outcomes import Row
    from hgpart.files.row_files import KeptRows
    from hgpart.report import Report

COUNTED = (  # options that `hgpart partition` has, too
    *("input_shape", "linear", "batch_size", "bytes_per_element"),
    *("no_input_vertex", "no_output_vertex", "work", "profile_device", "seed"),
)


def compare(
    context: typer.Context,
    model: Model,
    k: Annotated[
        Any, typer.Option("--k", "-k", parser=integers, metavar="K,K,...", help="Devices.")
    ] = "2,4,8,16",
    eps: Annotated[
        Any,
        typer.Option(parser=numbers, metavar="E,E,...", help="Imbalances allowed, one row each."),
    ] = "0.1",
    strategies: Annotated[
        Any,
        typer.Option(parser=names, metavar="NAME,NAME,...", help="Only these; all when left out."),
    ] = None,
    linear: Linear = "neuron",
    batch_size: BatchSize = 32,
    slices: AnySlices = "auto",
    bytes_per_element: BytesPerElement = None,
    input_shape: InputShape = None,
    no_input_vertex: NoInputVertex = False,
    no_output_vertex: NoOutputVertex = False,
    dataset_size: Annotated[int, typer.Option(help="Samples of an epoch.")] = 64_000,
    work: WorkSource = "flops",
    profile_device: ProfileDevice = None,
    save_work: SaveWork = None,
    seed: Seed = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Strategies that run at once; 1 times each undisturbed. 2 if there are 2 cores."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        one_of(words=("MB", "GB", "MiB", "GiB"), help="Of bytes; MB or GB by size when left out."),
    ] = None,
    wide: Wide = False,
    json: JsonFile = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="All figures, one line a row.")
    ] = None,
    html: HtmlFile = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="A plan of the model, to show in the page.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the rows that --json FILE has already.")
    ] = False,
) -> None:
    """Compare ways of splitting a model: load, traffic and memory for each number of devices."""
    check_outputs(
        {
            "--json": json,
            "--csv": csv,
            "--html": html,
            "--save-work": save_work,
        }
    )
    if resume and json in (None, "-"):
        raise ArgumentError("--resume needs the file that --json FILE wrote, and writes again")
    if html is None and plan is not None:
        raise ArgumentError(f"--plan {plan}: only the page of --html FILE shows a plan")
    jobs = min(2, usable_cores()) if jobs is None else jobs
    with Stages() as stage:
        with stage("import"):
            from hgpart.compare.comparison import (
                Comparison,
                cell_of,
                check_grid,
                chosen_strategies,
                grid,
                work_digest,
            )
            from hgpart.compare.comparison import compare as rows_of
            from hgpart.compare.comparison_files import comparison_json, rows_done
            from hgpart.files.row_files import KeptRows
            from hgpart.plan import load_plan
            from hgpart.work.figures import save_work as write_work
        if unit is not None:
            checked_unit(unit)
        ks, epss = tuple(dict.fromkeys(k)), tuple(dict.fromkeys(eps))
        check_grid(ks, epss, seed, dataset_size, jobs)
        chosen = chosen_strategies(strategies)
        number = None if slices == "auto" else slices
        modelling = modelling_of(
            "coarse", linear, batch_size, bytes_per_element, no_input_vertex, no_output_vertex
        )
        replace(modelling, slices=number or 1)  # which raises where the batch is too small
        measure = work_of(work, profile_device, batch_size)
        loaded = None if plan is None else load_plan(plan)
        module, shape, traced, graph = traced_model(stage, model, input_shape)
        shown = None if loaded is None else plan_report(loaded, graph)
        with stage("work", spinner=False):  # profiling shows its own progress
            done = measure(module, traced, graph)
        if save_work is not None:
            write_work(done, graph, save_work)
    comparison = Comparison(
        model=model,
        input_shape=shape,
        fingerprint=graph.fingerprint,
        batch_size=batch_size,
        bytes_per_element=bytes_per_element,
        work_source=done.source,
        seed=seed,
        dataset_size=dataset_size,
        rows=(),
        epss=epss,
        work_digest=work_digest(done),
        linear=linear,
        input_vertex=not no_input_vertex,
        output_vertex=not no_output_vertex,
        slices=number,
    )
    before = rows_done(json, comparison) if resume and json is not None else {}
    cells = list(grid(chosen, ks, epss))
    order = [(strategy.name, devices, allowed) for strategy, devices, allowed in cells]
    found = KeptRows(comparison, before, order, cell_of, comparison_json, json)
    interrupted = False
    try:
        with _progress(len(cells), found) as on_row:
            for _ in rows_of(graph, done, modelling, cells, seed, before, on_row, jobs, number):
                pass
    except KeyboardInterrupt:
        interrupted = True
    finally:
        comparison = found.close()
        _write(comparison, shown, unit, json, csv, html)
    if comparison.rows:
        _print(comparison, unit, json, typed(context, *COUNTED), wide)
    failed = len(comparison.failed)
    if interrupted:
        there = len(comparison.rows) - failed
        raise KeyboardInterrupt(f"with {there} of {len(order)} rows done")
    if failed:
        raise BackendError(f"{failed} of {len(order)} rows failed; --resume tries them again")


@contextmanager
def _progress(count: int, rows: KeptRows[Row, Comparison]) -> Iterator[Callable[[Row], None]]:
    """A bar on a terminal; what it is told is put among the rows."""
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("comparing", total=count)

        def on_row(row: Row) -> None:
            rows.add(row)
            bar.update(task, advance=1, description=f"k={row.k} {row.strategy}")

        yield on_row


def _write(
    comparison: Comparison,
    plan: Report | None,
    unit: str | None,
    json: str | None,
    csv: Path | None,
    html: Path | None,
) -> None:
    """Write the files, unless there is no row that they could hold."""
    from hgpart.compare.comparison_files import comparison_csv, save_comparison
    from hgpart.files.writing import replacing

    if not comparison.rows:
        return  # what a resumed file holds besides is there still
    if json is not None and json != "-":
        save_comparison(comparison, json)
    if csv is not None:
        with replacing(csv) as file:
            file.write(comparison_csv(comparison))
    if html is not None:
        from hgpart.report.page.comparison import comparison_page
        from hgpart.report.page.document import write_page

        write_page(comparison_page(comparison, plan, unit or _fitting_unit(comparison)), html)


def _fitting_unit(comparison: Comparison) -> str:
    largest = max((row.step_bytes for row in comparison.outcomes), default=0)
    return "GB" if largest >= 10**9 else "MB"


def _print(
    comparison: Comparison, unit: str | None, json: str | None, same: str, wide: bool
) -> None:
    """The tables, and how to get the plan of the best for the most devices, if any is balanced."""
    from hgpart.compare.comparison_files import comparison_json
    from hgpart.partition.heaviest_task import round_up
    from hgpart.report import print_comparison

    if json == "-":
        print(comparison_json(comparison), end="")
    else:
        shown = unit or _fitting_unit(comparison)
        print_comparison(comparison, plain_console(), shown, wide=wide)
        best = min(
            (row for row in comparison.outcomes if comparison.is_balanced(row)),
            key=lambda row: (-row.k, row.step_bytes),
            default=None,
        )
        if best is not None:
            eps = "" if comparison.epss == (0.1,) else f" --eps {comparison.eps:g}"
            lead_on(
                f"hgpart partition {quote(comparison.model)}{same} --k {best.k}{eps} "
                f"--strategy {best.strategy} -o plan.json"
            )
        elif comparison.outcomes:
            least = min(row.imbalance for row in comparison.outcomes)
            lead_on(f"the same with --eps {round_up(least)}, within which one is")
