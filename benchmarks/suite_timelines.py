"""Where the fastest way of the suite is not hgpart's: what the best of hgpart's does with its time.

python benchmarks/suite_timelines.py --minutes 20 --only mnist

Goes by what suite.py has measured. Each such plan is run by `hgpart run --backward --timeline`, two
processes of a thread, three steps after one that does not count, without an update and without
reading images. Each part's actions are divided, by the events of its timeline, into computing,
sending messages, waiting for them in forward and in backward passes, and the end of the step (the
last gradients that others have of its weights, and adding them up); the rest of the step is between
actions. All are medians. Beside them is half of what the whole model takes as one part, by the same
command: computing is more than that where work is unequal, where shares of layers take longer than
their share of the time, and where a step of many small ones pays for each.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from bench_runs import ROOT, Cell, Results, options, print_markdown, say
from suite import OURS, by_run, suite_runs

from hgpart import channel_graph, example_inputs, flops, load_model, trace
from hgpart.bench.plans import Subject, layout_of
from hgpart.bench.ways.way import TrainingWay, way_of
from hgpart.files import save_plan
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.problem.problem import Problem

STEPS = 3
COLUMNS = (
    *("data", "net", "way", "part", "step_seconds", "computing", "sending", "waiting_forward"),
    *("waiting_backward", "end_of_step", "between", "half_of_one_part"),
)


def main() -> None:
    parser = options(__doc__, "suite")
    asked = parser.parse_args()
    path = asked.results.with_name("suite_timelines.csv")
    rows = [*csv.DictReader(path.open())] if path.exists() else []
    results, begin = Results(asked.results), time.monotonic()
    there = {(row["data"], row["net"], row["way"]) for row in rows}
    for own in by_run(
        cell for run in suite_runs("build/suite_images") for cell in results.cells(run)
    ):
        cell = best_of_ours_where_lost(own)
        if cell is None or asked.table or not re.search(asked.only, cell.name):
            continue
        if (*cell.run.name.split("/"), cell.way) in there:
            continue
        if time.monotonic() - begin > 60 * asked.minutes:
            say(f"{asked.minutes:g} minutes are over")
            break
        say(cell.name)
        rows += rows_of(cell)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print_markdown(
        ["data, net", "way", *(name.replace("_", " ") for name in COLUMNS[3:])],
        [
            [f"{row['data']}/{row['net']}", f"`{row['way']}`", *(row[name] for name in COLUMNS[3:])]
            for row in rows
        ],
    )


def best_of_ours_where_lost(own: Iterable[Cell]) -> Cell | None:
    """The fastest of hgpart's ways, if another way is faster."""
    measured = sorted((cell for cell in own if cell.median is not None), key=lambda it: it.median)
    ours = [cell for cell in measured if cell.way in OURS or cell.way == "layerwise"]
    return ours[0] if ours and ours[0] is not measured[0] else None


def rows_of(cell: Cell) -> list[dict[str, Any]]:
    """A row for each part."""
    data, net = cell.run.name.split("/")
    head = {"data": data, "net": net, "way": cell.way}
    (whole,) = parts_of(cell, way_of("layerwise"), 1)
    half = whole["computing"] / 2
    return [
        {**head, **{name: f"{value:.3f}" for name, value in part.items()}, "part": f"{number}"}
        | {"half_of_one_part": f"{half:.3f}"}
        for number, part in enumerate(parts_of(cell, way_of(cell.way), cell.run.processes))
    ]


def parts_of(cell: Cell, way: TrainingWay, k: int) -> list[dict[str, float]]:
    """Seconds of a step that each of k parts spends with what."""
    run = cell.run
    model, own_shape = load_model(run.model, device="meta")
    shape = run.input_shape or own_shape
    assert shape is not None
    traced = trace(model, example_inputs(model, shape))
    graph = channel_graph(traced)
    problem = Problem(graph, flops(graph), Modelling(batch_size=run.batch_size), k, 0.1)
    subject = Subject(run.model, shape, traced, problem, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        plan, timeline = Path(folder) / "plan.json", Path(folder) / "timeline.json"
        save_plan(layout_of(way, subject), plan)
        scheduling = way.scheduling
        subprocess.run(
            [
                *(str(Path(sys.executable).with_name("hgpart")), "run", run.model),
                *("--plan", str(plan), "--backward", "--steps", str(STEPS)),
                *("--schedule", scheduling.rule, "--micro-batches", str(scheduling.micro_batches)),
                *("--timeline", str(timeline)),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return read(json.loads(timeline.read_text())["traceEvents"], k)


def read(events: Iterable[dict[str, Any]], parts: int) -> list[dict[str, float]]:
    """Medians of the steps, in seconds."""
    timed = [event for event in events if event["ph"] == "X"]
    steps: list[list[dict[str, float]]] = []
    for step in range(STEPS):
        own = [event for event in timed if event["args"]["step"] == step]
        begin = min(event["ts"] for event in own)
        end = max(event["ts"] + event["dur"] for event in own)
        steps.append([part_of_step(own, part + 1, end - begin) for part in range(parts)])
    return [
        {name: median(step[part][name] for step in steps) / 1e6 for name in steps[0][part]}
        for part in range(parts)
    ]


def part_of_step(events: Iterable[dict[str, Any]], track: int, step: float) -> dict[str, float]:
    """Microseconds that a part spends with what, in a step of so many."""
    own = [event for event in events if event["tid"] == track]
    running = [event for event in own if event["cat"] == "run"]
    last = max(event["ts"] + event["dur"] for event in running)
    waits = {"waiting_forward": 0.0, "waiting_backward": 0.0, "end_of_step": 0.0, "sending": 0.0}
    for event in own:
        if event["cat"] == "send":
            waits["sending"] += event["dur"]
        elif event["cat"] == "wait":
            is_forward = event["args"]["direction"] == "forward"
            name = "waiting_forward" if is_forward else "waiting_backward"
            waits["end_of_step" if event["ts"] >= last else name] += event["dur"]
    inside = waits["waiting_forward"] + waits["waiting_backward"] + waits["sending"]
    computing = sum(event["dur"] for event in running) - inside
    between = step - computing - sum(waits.values())
    return {"step_seconds": step, "computing": computing, **waits, "between": between}


if __name__ == "__main__":
    main()
