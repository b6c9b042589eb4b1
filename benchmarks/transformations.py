"""What `hgpart transform` saves, and the elements that F. Brakel's thesis counts beside hgpart's.

    python benchmarks/transformations.py counts
    python benchmarks/transformations.py sizes --json results/transformations.jsonl
                                               [--models resnet50,mobilenet_v2] [--parts 2,4]
    python benchmarks/transformations.py seconds --json results/transformed_seconds.jsonl

`counts`: inception_resnet_v2-4-8-4, elements of a forward pass and sample between devices: by the
formulas of the thesis (Transforming Convolutional Neural Networks for Model Parallelism, UvA and
VU, 2024, section 3.3), by the metric of hgpart's hypergraph for the division that the thesis draws
(`transformed-parts`), and of what hgpart's solver finds at the imbalance of that division.

`sizes`: bytes of a forward pass of 32 samples between k = P devices, coarse-grain, eps 0.1, beside
the original's; multiply-accumulates of a sample, parameters, the largest load over the average.

`seconds`: of a training step, one process and two (`hgpart bench`, ways single and coarse). Nothing
else should run meanwhile.

The files have a line for each row; what they hold is not computed again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, TimeElapsedColumn

import hgpart
from hgpart.errors import HgpartError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.problem.problem import Problem
from hgpart.terminal import progress_bar

KINDS = ("parallel", "grouped", "split")
MODELS = (
    "inception_resnet_v2-4-8-4",
    "resnet50",
    "timm:resnext50_32x4d",
    "mobilenet_v2",
    "timm:convnext_atto",
)
EPS = 0.1
# Of each stage of inception_resnet_v2-4-8-4: pixels, channels between cells, those that branches
# make in a cell, cells.
STAGES = ((35 * 35, 320, 128, 4), (17 * 17, 1088, 384, 8), (8 * 8, 2080, 448, 4))
ELEMENTS = hgpart.Modelling(batch_size=1, bytes_per_element=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("counts", "sizes", "seconds"))
    parser.add_argument("--json", type=Path, help="for sizes and seconds")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--parts", default="2,4")
    parser.add_argument("--batch-size", type=int, default=8, help="of the steps of seconds")
    asked = parser.parse_args()
    parts = [int(count) for count in asked.parts.split(",")]
    if asked.what == "counts":
        show_counts(counted([1, *parts]))
        return
    if asked.json is None:
        parser.error(f"{asked.what} needs --json FILE")
    cells = list(cells_of(asked.models.split(","), parts))
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=len(cells))
        for model, kind, count in cells:
            spec = f"{model}+{kind}:{count}" if kind else model
            bar.update(task, description=f"{spec}, {count} devices")
            if (spec, count) not in {(row["model"], row["k"]) for row in rows_of(asked.json)}:
                row = size(spec, count) if asked.what == "sizes" else timed(spec, asked.batch_size)
                with asked.json.open("a") as file:
                    file.write(json.dumps({"model": spec, "k": count, **row}) + "\n")
            bar.advance(task)
    (show_sizes if asked.what == "sizes" else show_seconds)(rows_of(asked.json), cells)


def cells_of(models: Sequence[str], parts: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Of each model and number of parts the original, then each kind."""
    yield from (
        (model, kind, count)
        for model, count, kind in itertools.product(models, parts, ("", *KINDS))
    )


def graph_of(spec: str) -> ChannelGraph:
    model, shape = hgpart.load_model(spec, device="meta")
    return hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))


# ------------------------------------------------------------------ elements


def by_formula(kind: str, parts: int) -> int:
    """Elements of a forward pass between devices, as the thesis counts them."""
    each = {  # of a stage
        "parallel": lambda pixels, channels, _, cells: (
            pixels * channels * (parts - 1) * cells // parts * 2
        ),
        "grouped": lambda pixels, channels, inner, cells: (
            pixels * (inner + channels) // parts * (parts - 1) * cells
        ),
        "split": lambda pixels, channels, *_: pixels * channels // parts * (parts - 1) * 2,
    }[kind]
    return sum(each(*stage) for stage in STAGES)


def counted(parts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """By formula, by hgpart's metric, and what the solver finds."""
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        cells = list(itertools.product(KINDS, parts))
        task = bar.add_task("", total=len(cells))
        for kind, count in cells:
            spec = f"inception_resnet_v2-4-8-4+{kind}:{count}"
            bar.update(task, description=spec)
            graph = graph_of(spec)
            work = hgpart.flops(graph)
            problem = Problem(graph, work, ELEMENTS, count, 0.0)
            named = evaluate_parts(*transformed_parts(problem), count)
            row = {"kind": kind, "parts": count, "formula": by_formula(kind, count)}
            row |= {"metric": named.volume, "imbalance": named.imbalance}
            if count > 1:
                found = hgpart.partition_graph(
                    graph, work, count, named.imbalance, modelling=ELEMENTS
                )
                row["solver"] = found.evaluation.volume
            yield row
            bar.advance(task)


def show_counts(rows: Iterator[dict[str, Any]]) -> None:
    print("| kind | P | by formula | transformed-parts | its imbalance | solver, same eps |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        solver = f"{row['solver']:,}" if "solver" in row else "-"
        print(
            f"| {row['kind']} | {row['parts']} | {row['formula']:,} | {row['metric']:,} | "
            f"{row['imbalance']:.3f} | {solver} |",
            flush=True,
        )


# ------------------------------------------------------------------ bytes, work, parameters


def size(spec: str, k: int) -> dict[str, Any]:
    """A model's bytes between k devices, work, parameters and load."""
    try:
        graph = graph_of(spec)
        found = hgpart.partition_graph(graph, hgpart.flops(graph), k, EPS, best_effort=True)
    except HgpartError as error:
        return {"why": str(error)}
    return {
        "bytes": int(found.evaluation.volume),
        "macs": sum(layer.macs * layer.tasks for layer in graph.layers),
        "parameters": sum(layer.parameters for layer in graph.layers),
        "load": 1 + found.evaluation.imbalance,
    }


def show_sizes(rows: Sequence[dict[str, Any]], cells: Sequence[tuple[str, str, int]]) -> None:
    of = {(row["model"], row["k"]): row for row in rows}
    print("| model | P | kind | MB forward | GMAC | million parameters | largest load |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for model, kind, count in cells:
        row = of[f"{model}+{kind}:{count}" if kind else model, count]
        head = f"| {model} | {count} | {kind or 'original'} |"
        if "why" in row:
            print(head, f"{row['why']} | | | |")
            continue
        whole = of[model, count]
        change = f" ({row['bytes'] / whole['bytes'] - 1:+.0%})" if kind and whole["bytes"] else ""
        print(
            head,
            f"{row['bytes'] / 1e6:.2f}{change} | {row['macs'] / 1e9:.3f} | "
            f"{row['parameters'] / 1e6:.2f} | {row['load']:.3f} |",
        )


# ------------------------------------------------------------------ seconds


def timed(spec: str, batch_size: int) -> dict[str, Any]:
    """Median seconds of a step in one process, and in two by filters."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = ["hgpart", "bench", spec, "--ways", "single,coarse", "--json", str(file)]
        done = subprocess.run(
            [*command, "--batch-size", str(batch_size)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"why": done.stderr.strip().splitlines()[-1]}
        rows = json.loads(file.read_text())["rows"]
    return {row["way"]: row.get("median_seconds") for row in rows}


def show_seconds(rows: Sequence[dict[str, Any]], cells: Sequence[tuple[str, str, int]]) -> None:
    of = {(row["model"], row["k"]): row for row in rows}
    print("| model | P | kind | ms, one process | ms, two |")
    print("|---|---:|---|---:|---:|")
    for model, kind, count in cells:
        row = of[f"{model}+{kind}:{count}" if kind else model, count]
        times = [row.get("why", "-")] if "why" in row else []
        times += [f"{1e3 * row[way]:.0f}" if row.get(way) else "-" for way in ("single", "coarse")][
            len(times) :
        ]
        print(f"| {model} | {count} | {kind or 'original'} |", " | ".join(times), "|")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What was computed so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
