"""Run times of table 5.15 of the thesis: VGG16 on N devices, by batch size, beside ours.

python benchmarks/thesis_5_15.py --minutes 20
python benchmarks/thesis_5_15.py --table

The thesis's are seconds of ten epochs of 10,240 images of 224 x 224, N processes of 112 cores each
with 10 Gb Ethernet between them; ours are steps of `hgpart bench` in processes of one thread,
times as many steps. At --size 64 a step of 16 images takes one process here about as long as there
at 224, for as many parameters, and 512 images are what 24 GB hold. Ratios are what can be compared:
seconds of one process over those of a way. With N = 4 there are more processes than cores here:
their ratios say nothing, and only how much of the cores' time is idle is printed.

The thesis trains divided models asynchronously: an idle processor takes the next batch (chapter 4).
Here, the schedule "dynamic" does so; synchronous steps in four micro-batches stand beside it.
"""

from __future__ import annotations

import csv
import signal
from collections.abc import Iterator
from pathlib import Path

from bench_runs import Cell, Results, Run, options, print_markdown, run_all

from hgpart.cores import usable_cores

REFERENCE = Path(__file__).parent / "reference" / "eserol_vgg16_runtime.csv"
IMAGES = 10 * 10_240
BATCHES = 16, 32, 64, 128, 256, 512
SINGLE = "Single Processor"
METHODS = {
    SINGLE: "single",
    "Layer-wise, asynchronous": "layerwise:dynamic",
    "Layer-wise, 4 micro-batches": "layerwise:greedy:4",
    "Filter-wise, asynchronous": "incremental:dynamic",
    "Filter-wise, 4 micro-batches": "incremental:greedy:4",
    "Coarse-grain Hypergraph, asynchronous": "coarse:dynamic",
    "Coarse-grain Hypergraph, 4 micro-batches": "coarse:greedy:4",
    "Async. DP (1PS)": "ps-async",
    "Sync. DP (1PS)": "ps-sync",
    "Async. DP (Dist. PS)": "ps-async:distributed",
    "Sync. DP (Dist. PS)": "ps-sync:distributed",
}


def main() -> None:
    parser = options(__doc__, "thesis_5_15")
    parser.add_argument("--size", type=int, default=64, help="Pixels a side.")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what it started too
    results, runs = Results(asked.results), [*thesis_runs(asked.size)]
    if not asked.table:
        run_all(runs, results, asked)
    cells = {
        (cell.run.processes, cell.run.batch_size, cell.way): cell
        for run in runs
        for cell in results.cells(run)
    }
    print_ratios(cells)
    print_idle(cells)
    for cell in cells.values():
        if cell.reason is not None:
            print(f"- {cell.name}: {cell.reason}")


def thesis_runs(size: int) -> Iterator[Run]:
    """A row of batches for each number of processes."""
    for processes in (2, 4):
        for batch in BATCHES:
            yield Run(
                name=f"vgg16_{size}/N{processes}/{batch}",
                model="vgg16",
                ways=tuple(METHODS.values())[processes > 2 :],  # one process needs no second time
                batch_size=batch,
                cost=batch * processes,
                processes=processes,
                input_shape=(3, size, size),
            )


def reference() -> dict[tuple[int, str, int], float]:
    """Seconds that the thesis prints, by N, method and batch; it divides models asynchronously."""
    with REFERENCE.open() as file:
        return {
            (int(row["n"]), row["method"], int(row["batch_size"])): float(row["seconds_10_epochs"])
            for row in csv.DictReader(file)
        }


def print_ratios(cells: dict[tuple[int, int, str], Cell]) -> None:
    """In the table's shape: seconds of one process, then what others are times as fast as it."""
    printed = reference()

    def figure(method: str, batch: int) -> str:
        single, own = cells[2, batch, "single"].median, cells[2, batch, METHODS[method]].median
        theirs = printed[1, SINGLE, batch]
        if method == SINGLE:
            ours = "-" if single is None else f"{single * IMAGES / batch:,.0f}"
            return f"{ours} / {theirs:,.0f}"
        ours = "-" if single is None or own is None else f"{single / own:.2f}"
        in_thesis = method.split(",")[0]
        return f"{ours} / {theirs / printed[2, in_thesis, batch]:.2f}"

    print("N = 2, ours / the thesis's: seconds of ten epochs, below times as fast as these:\n")
    print_markdown(
        ["", *(f"BS={batch}" for batch in BATCHES)],
        [[method, *(figure(method, batch) for batch in BATCHES)] for method in METHODS],
    )


def print_idle(cells: dict[tuple[int, int, str], Cell]) -> None:
    """Of the time of all cores that a way's processes can use."""

    def figure(processes: int, batch: int, way: str) -> str:
        cell = cells[processes, batch, way]
        if cell.row is None or cell.median is None:
            return "-"
        busy = cell.row["busy"]
        return f"{100 * (1 - sum(busy) / min(len(busy), usable_cores())):.0f}"

    print("\nIdle, % of the cores' time, with N = 2 / with N = 4:\n")
    print_markdown(
        ["", *(f"BS={batch}" for batch in BATCHES)],
        [
            [method, *(" / ".join(figure(n, batch, way) for n in (2, 4)) for batch in BATCHES)]
            for method, way in METHODS.items()
            if method != SINGLE
        ],
    )


if __name__ == "__main__":
    main()
