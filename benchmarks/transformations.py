"""What `hgpart transform` saves, and the elements that F. Brakel's thesis counts beside hgpart's.

    python benchmarks/transformations.py counts
    python benchmarks/transformations.py sizes --json results/transformations.jsonl
                                               [--models resnet50,mobilenet_v2] [--parts 2,4]
    python benchmarks/transformations.py seconds --json results/transformed_seconds.jsonl
    python benchmarks/transformations.py verified --json results/transformed_verified.jsonl

`counts`: inception_resnet_v2-4-8-4, elements of a forward pass and sample between devices: by the
formulas of the thesis (Transforming Convolutional Neural Networks for Model Parallelism, UvA and
VU, 2024, section 3.3), by the metric of hgpart's hypergraph for the division that the thesis draws
(`transformed-parts`), and of what hgpart's solver finds at the imbalance of that division.

`sizes`: bytes of a forward pass of 32 samples between k = P devices, coarse-grain, eps 0.1, beside
the original's; multiply-accumulates of a sample, parameters, the largest load over the average; and
bytes and load of `transformed-parts`, with what the solver finds at its imbalance.

`seconds`: of a training step, one process and two (`hgpart bench`, ways single, coarse and
transformed-parts). Nothing else should run meanwhile.

`verified`: what `hgpart verify` would find on P devices, of a random partition and the solver's,
forward and backward in float64, with images of 64 x 64, or of 96 x 96; whether the state loads into
a model made anew, and by what kinds what was made can be transformed once more.

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

import torch
from rich.progress import MofNCompleteColumn, TimeElapsedColumn
from torch import nn

import hgpart
from hgpart.errors import HgpartError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.problem.problem import Problem
from hgpart.run.verifying import verify
from hgpart.terminal import progress_bar

Cell = tuple[str, str, int]  # a model, a kind of change or none, parts
KINDS = ("parallel", "grouped", "split")
MODELS = (
    "inception_resnet_v2-4-8-4",
    "resnet50",
    "timm:resnext50_32x4d",
    "mobilenet_v2",
    "timm:convnext_atto",
)
EPS = 0.1
WAYS = ("single", "coarse", "transformed-parts")
# Of each stage of inception_resnet_v2-4-8-4: pixels, channels between cells, those that branches
# make in a cell, cells.
STAGES = ((35 * 35, 320, 128, 4), (17 * 17, 1088, 384, 8), (8 * 8, 2080, 448, 4))
ELEMENTS = hgpart.Modelling(batch_size=1, bytes_per_element=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("counts", *TABLES))
    parser.add_argument("--json", type=Path, help="for all but counts")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--parts", default="2,4")
    asked = parser.parse_args()
    parts = [int(count) for count in asked.parts.split(",")]
    if asked.what == "counts":
        show_counts(counted([1, *parts]))
        return
    if asked.json is None:
        parser.error(f"{asked.what} needs --json FILE")
    compute, show = TABLES[asked.what]
    cells = list(cells_of(asked.what, asked.models.split(","), parts))
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=len(cells))
        for model, kind, count in cells:
            spec = f"{model}+{kind}:{count}" if kind else model
            bar.update(task, description=f"{spec}, {count} devices")
            if (spec, count) not in {(row["model"], row["k"]) for row in rows_of(asked.json)}:
                row = compute(spec, count)
                with asked.json.open("a") as file:
                    file.write(json.dumps({"model": spec, "k": count, **row}) + "\n")
            bar.advance(task)
    show(rows_of(asked.json), cells)


def cells_of(what: str, models: Sequence[str], parts: Sequence[int]) -> Iterator[Cell]:
    """Of each model and number of parts the original, where that is compared with, and each kind.

    In one process and in two the original is the same whatever the number of parts.
    """
    for model, count, kind in itertools.product(models, parts, ("", *KINDS)):
        compared = what == "sizes" or (what == "seconds" and count == parts[0])
        if kind or compared:
            yield model, kind, count


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
        work = hgpart.flops(graph)
        found = hgpart.partition_graph(graph, work, k, EPS, best_effort=True).evaluation
        row: dict[str, Any] = {"bytes": int(found.volume), "load": 1 + found.imbalance}
        if "+" in spec:
            drawn = transformed_parts(Problem(graph, work, hgpart.Modelling(), k, EPS))
            parts = evaluate_parts(*drawn, k)
            row |= {"parts_bytes": int(parts.volume), "parts_load": 1 + parts.imbalance}
            same = hgpart.partition_graph(graph, work, k, parts.imbalance, best_effort=True)
            row["solver_bytes"] = int(same.evaluation.volume)
    except HgpartError as error:
        return {"why": str(error)}
    macs = sum(layer.macs * layer.tasks for layer in graph.layers)
    return {**row, "macs": macs, "parameters": sum(layer.parameters for layer in graph.layers)}


def show_sizes(rows: Sequence[dict[str, Any]], cells: Sequence[Cell]) -> None:
    of = {(row["model"], row["k"]): row for row in rows}
    print(
        "| model | P | kind | GMAC | million parameters | MB forward, eps 0.1 | load "
        "| MB, transformed-parts | its load | MB, solver at that load |"
    )
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for model, kind, count in cells:
        row = of[f"{model}+{kind}:{count}" if kind else model, count]
        head = f"| {model} | {count} | {kind or 'original'} |"
        if "why" in row:
            print(head, f"{row['why']} | | | | | | |")
            continue
        whole = of[model, count]
        change = f" ({row['bytes'] / whole['bytes'] - 1:+.0%})" if kind and whole["bytes"] else ""
        parts = "- | - | -"
        if kind:
            parts = (
                f"{row['parts_bytes'] / 1e6:.2f} | {row['parts_load']:.2f} | "
                f"{row['solver_bytes'] / 1e6:.2f}"
            )
        print(
            head,
            f"{row['macs'] / 1e9:.3f} | {row['parameters'] / 1e6:.2f} | "
            f"{row['bytes'] / 1e6:.2f}{change} | {row['load']:.3f} | {parts} |",
        )


# ------------------------------------------------------------------ seconds


def timed(spec: str, _: int) -> dict[str, Any]:
    """Median seconds of a step in one process, and in two by filters and by parts."""
    ways = WAYS if "+" in spec else WAYS[:2]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        command = ["hgpart", "bench", spec, "--ways", ",".join(ways), "--json", str(file)]
        command += ["--batch-size", "8", "--steps", "3", "--rounds", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"why": done.stderr.strip().splitlines()[-1]}
        rows = json.loads(file.read_text())["rows"]
    return {row["way"]: row.get("median_seconds") for row in rows}


def show_seconds(rows: Sequence[dict[str, Any]], cells: Sequence[Cell]) -> None:
    of = {(row["model"], row["k"]): row for row in rows}
    print(
        "| model | P | kind | ms, one process | two, coarse | two, transformed-parts | speed-up |"
    )
    print("|---|---:|---|---:|---:|---:|---:|")
    for model, kind, count in cells:
        row = of[f"{model}+{kind}:{count}" if kind else model, count]
        head = f"| {model} | {count if kind else ''} | {kind or 'original'} |"
        if "why" in row:
            print(head, f"{row['why']} | | | |")
            continue
        original = next(one for one in rows if one["model"] == model)["single"]
        times = [f"{1e3 * row[way]:.0f}" if row.get(way) else "-" for way in WAYS]
        best = min(row[way] for way in WAYS[1:] if row.get(way))
        print(head, " | ".join(times), f"| {row['single'] / best:.2f} ({original / best:.2f}) |")
    print(
        "\nSpeed-up: the faster of the two over one process (and over the original's one process)."
    )


# ------------------------------------------------------------------ verified


def verified(spec: str, k: int) -> dict[str, Any]:
    """What disagrees with the whole model, of a random partition and of the partitioner's."""
    kind = spec.rsplit("+")[-1].split(":")[0]
    torch.manual_seed(0)
    try:
        model, _ = hgpart.load_model(spec)
    except HgpartError as error:
        return {"why": str(error)}
    model = model.double()
    side = 96 if spec.startswith("inception") else 64  # 64 are too few for its stem
    example = hgpart.example_inputs(model, (3, side, side))
    batch = tuple(torch.randn(4, *one.shape[1:], dtype=one.dtype) for one in example)
    traced = hgpart.trace(model, example)
    graph = hgpart.channel_graph(traced)
    work = hgpart.flops(graph)
    row: dict[str, Any] = {}
    for partition, way in (("random", "random"), ("good", "coarse")):
        found = hgpart.partition_by(way, graph, work, k, EPS)
        split = hgpart.PartitionedModel(traced, found, found.evaluation, {})
        row[partition] = list(verify(model, hgpart.place(model, split), batch).failures)
    again, _ = hgpart.load_model(spec)
    again = again.double()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        row["loads"] = torch.equal(again.eval()(*batch), model.eval()(*batch))
    others = [other for other in KINDS if other != kind]
    row["once more"] = [other for other in others if _transforms(again, other, example)]
    return row


def _transforms(model: nn.Module, kind: str, example: Sequence[Any]) -> bool:
    """Whether it can be changed so, and the result traced."""
    try:
        hgpart.trace(hgpart.transform(model, kind, 2, example), example)
    except HgpartError:
        return False
    return True


def show_verified(rows: Sequence[dict[str, Any]], cells: Sequence[Cell]) -> None:
    of = {(row["model"], row["k"]): row for row in rows}
    print("| model | P | kind | random | good | state loads | once more by |")
    print("|---|---:|---|---|---|---|---|")
    for model, kind, count in cells:
        row = of[f"{model}+{kind}:{count}", count]
        if "why" in row:
            print(f"| {model} | {count} | {kind} | {row['why']} | | | |")
            continue
        found = ["; ".join(row[name]) or "agrees" for name in ("random", "good")]
        loads, more = "yes" if row["loads"] else "NO", ", ".join(row["once more"]) or "none"
        print(f"| {model} | {count} | {kind} |", " | ".join(found), f"| {loads} | {more} |")


# ------------------------------------------------------------------ files


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What was computed so far."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


TABLES = {
    "sizes": (size, show_sizes),
    "seconds": (timed, show_seconds),
    "verified": (verified, show_verified),
}

if __name__ == "__main__":
    main()
