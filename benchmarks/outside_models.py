"""Models of timm, torchvision and pytorchcv, drawn by lot, in parts beside the original.

    PYTHONPATH=tests OMP_NUM_THREADS=1 python benchmarks/outside_models.py [--count N] [--seed S]
        [--only SPEC ...] [--partitions NAME ...] [--again OUTCOME ...] [--summary]

A seeded draw: N (100) of the families (a family is a module of a package), one model of each. A
model runs in training and in evaluation; in each mode divided by the native solver, at low effort,
and at random; grain and k (2 or 3) by lot too. All in one process, float64 if the model itself can,
two or four samples of the smallest size that it takes. And in random tiles, k = 2, 3 and 5: 2 to 5
bands, 1 or 2 slices, norms of slices or of the batch, all tasks of a tile or blocks of them in a
part at random, borders first or not, four samples of 64 or more rows.
`hgpart.run.verifying.verify` compares results, all gradients, what became of the buffers, and the
bytes with the table; the inputs' gradients are compared, too. Small images make some models
ill-conditioned (a batch norm over four maps of one element); verify's tolerance follows that.
--only takes built-in models as well.

Each model has a process of its own, with a limit on its memory and on the CPU seconds of a run.
Each run appends a line to benchmarks/results/outside_models.csv:

    equal    all agrees
    refused  hgpart says that it does not take it
    failed   anything else: another result, a traceback, a limit that was passed
    not had  the model does not get as far as hgpart: it can't be built, or none of the inputs
             tried suits it, or it passes the limits by itself

Runs that the file has are not repeated, but for those with an outcome of --again. It rewrites the
file: two at once would spoil it.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gc
import inspect
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Literal

import placements
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils._pytree import tree_leaves

import hgpart
from hgpart.placement.building import blueprint
from hgpart.run.verifying import Verification, verify
from hgpart.zoo import packages

RESULTS = Path(__file__).parent / "results" / "outside_models.csv"
KEY = ("model", "mode", "partition")
DIFFERENCES = ("outputs", "gradients", "buffers")
BYTES = ("forward_bytes", "forward_expected", "backward_bytes", "backward_expected")
ABOUT = ("seed", "grain", "k", "dtype", "inputs", "outcome", "why")
COLUMNS = (*KEY, *ABOUT, "accepted", *DIFFERENCES, *BYTES, "cpu_seconds", "tiles")
OUTCOMES = ("equal", "refused", "failed", "not had")

MODES = ("training", "evaluation")
TILES = {"tiles2": 2, "tiles3": 3, "tiles5": 5}
PARTITIONS = ("native", "random", *TILES)
GRAINS: tuple[Literal["coarse", "fine"], ...] = ("coarse", "fine")
SIDES = (32, 64, 96, 128, 224, 256)
TILED_SIDE = 64  # the smallest in tiles
FRAMES = 16  # of a video
EFFORT = 0.05
CPU_SECONDS = 240
WALL_SECONDS = 1800  # for a process that hangs without computing
MEMORY = 16 * 10**9
MOST_WEIGHTS = MEMORY // 48  # 8 bytes, four times, and half as much again for the rest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="SPEC", help="these models, not a draw")
    parser.add_argument("--partitions", nargs="+", choices=PARTITIONS, default=PARTITIONS)
    parser.add_argument("--again", nargs="+", choices=OUTCOMES, default=[])
    parser.add_argument("--summary", action="store_true", help="of the file; nothing runs")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_model(*arguments.child, seed=arguments.seed)
    elif not arguments.summary:
        run_all(arguments.only or drawn(arguments.count, arguments.seed), arguments)
    if not arguments.child:
        summarise()


# ------------------------------------------------------------------ the draw


def drawn(count: int, seed: int) -> list[str]:
    """Draw families, and of each a model; a larger count only adds to the end."""
    draw = random.Random(seed)
    found = [draw.choice(models) for _, models in sorted(families().items())]
    draw.shuffle(found)
    return found[:count]


def families() -> Mapping[str, list[str]]:
    """The models of the packages by the module that defines them."""
    timm, vision, cv = (
        packages._import(module.partition(".")[0], module)
        for module in ("timm", "torchvision.models", "pytorchcv.model_provider")
    )
    builders = {f"timm:{name}": timm.model_entrypoint(name) for name in timm.list_models()}
    builders |= {
        f"torchvision:{name}": vision.get_model_builder(name) for name in vision.list_models()
    }
    builders |= {
        f"pytorchcv:{name}": builder
        for name, builder in vars(cv).items()
        if inspect.isfunction(builder) and builder.__module__ != cv.__name__
    }
    found = defaultdict(list)
    for spec, builder in sorted(builders.items()):
        found[builder.__module__].append(spec)
    return found


# ------------------------------------------------------------------ a process for each model


def run_all(specs: list[str], arguments: argparse.Namespace) -> None:
    known = known_rows(RESULTS, arguments.again, specs)
    done = {tuple(row[each] for each in KEY) for row in known}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(known)
        file.flush()
        for spec in specs:
            keys = [(mode, partition) for mode in MODES for partition in arguments.partitions]
            runs = [":".join(key) for key in keys if (spec, *key) not in done]
            for row in rows(spec, runs, arguments.seed):
                writer.writerow(row)
                file.flush()
                print(*(row.get(each, "") for each in COLUMNS), sep=",", flush=True)


def known_rows(path: Path, again: list[str], specs: list[str]) -> list[dict[str, str]]:
    """Read what was found before, but for what is to be found again."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["outcome"] not in again or row["model"] not in specs
        ]


def rows(spec: str, runs: list[str], seed: int) -> Iterator[dict[str, str]]:
    """Run a model in processes; the run that ends one has failed, and another does the rest."""
    while runs:
        command = [sys.executable, __file__, "--seed", str(seed), "--child", spec, *runs]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=WALL_SECONDS)
            printed, why = ended.stdout, _how_it_ended(ended)
        except subprocess.TimeoutExpired as error:
            printed, why = (error.stdout or b"").decode(), f"no end in {WALL_SECONDS} s"
        found = [json.loads(line) for line in printed.splitlines()]
        yield from found
        runs = runs[len(found) :]
        if runs:
            run, *runs = runs
            key = dict(zip(KEY, (spec, *run.split(":")), strict=True))
            yield {**key, "seed": str(seed), "outcome": "failed", "why": why}


def _how_it_ended(process: subprocess.CompletedProcess[str]) -> str:
    last = (process.stderr.strip().splitlines() or [""])[-1]
    if process.returncode == -signal.SIGXCPU:
        return f"more than {CPU_SECONDS} CPU seconds: {last}"
    return f"status {process.returncode}: {last}"


# ------------------------------------------------------------------ in that process


def run_model(spec: str, *runs: str, seed: int) -> None:
    """Print a JSON object for each run, and to stderr what is being done."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    results = sys.stdout
    with redirect_stdout(sys.stderr):
        for run in runs:
            start = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (int(start) + CPU_SECONDS, -1))
            row = dict(zip(KEY, (spec, *run.split(":")), strict=True))
            for found in outcomes(**row, seed=seed):
                row |= found
            row["cpu_seconds"] = f"{time.process_time() - start:.1f}"
            print(json.dumps(row), file=results, flush=True)
            gc.collect()  # a placement refers to itself, and the next one may be as large


def outcomes(model: str, mode: str, partition: str, seed: int) -> Iterator[dict[str, str]]:
    """Yield the figures of a run as they are found."""
    draw = random.Random(f"{seed} {model} {mode} {partition}")
    tiled = partition in TILES
    grain, k = draw.choice(GRAINS), draw.choice([2, 3])
    if tiled:
        grain, k = "coarse", TILES[partition]
    yield {"seed": str(seed), "grain": grain, "k": str(k)}
    try:
        module, inputs = with_inputs(model, mode, seed, tiled)
    except Exception as error:
        yield {"outcome": "not had", "why": line(error)}
        return
    yield {
        "inputs": " ".join("x".join(map(str, one.shape)) for one in inputs),
        "dtype": str(inputs[0].dtype).removeprefix("torch."),
    }
    try:
        traced_model, graph = traced(model, mode, seed, tiled)
        if tiled:
            plan, about = in_tiles(traced_model, graph, k, draw)
            yield {"tiles": about}
        else:
            plan = divided(traced_model, graph, partition, grain, k, seed)
        stage("place")
        placement = hgpart.place(module, plan)
        stage("verify")
        found = verify(module, placement, inputs, seed)
        yield figures(found)
        if found.passed and (not module.training or len(placement.programs.shares) == 1):
            gap = gap_of_inputs(module, placement, inputs, seed)
            if not gap <= found.gradients.tolerance:
                yield {"outcome": "failed", "why": f"gradients of inputs differ by {gap:.1e}"}
    except Exception as error:
        refused = isinstance(error, hgpart.HgpartError)
        yield {"outcome": "refused" if refused else "failed", "why": line(error)}


def gap_of_inputs(
    model: nn.Module, placement: nn.Module, inputs: list[torch.Tensor], seed: int
) -> float:
    """Largest relative difference of the inputs' gradients."""
    stage("gradients of inputs")
    gradients = []
    for one in (model, placement):
        learning = [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]
        pass_of(one, learning, seed)
        gradients.append([each.grad for each in learning if each.grad is not None])
    pairs = list(zip(*gradients, strict=True))
    return max(
        (float((a - b).abs().max() / a.abs().max().clamp(1e-300)) for a, b in pairs), default=0.0
    )


def pass_of(model: nn.Module, inputs: list[torch.Tensor], seed: int) -> None:
    """Pass forward, and backward from random gradients."""
    model.zero_grad()
    torch.manual_seed(seed)
    results = [one for one in tree_leaves(model(*inputs)) if isinstance(one, torch.Tensor)]
    learning = [one for one in results if one.requires_grad]
    torch.manual_seed(seed)
    torch.autograd.backward(learning, [torch.randn_like(one) for one in learning])


def figures(found: Verification) -> dict[str, str]:
    return {
        "outcome": "equal" if found.passed else "failed",
        "why": "; ".join(found.failures[:3]),
        "accepted": f"{max(getattr(found, each).tolerance for each in DIFFERENCES):.0e}",
        **{each: f"{getattr(found, each).value:.2e}" for each in DIFFERENCES},
        "forward_bytes": str(found.traffic.forward_bytes.sum()),
        "forward_expected": str(found.planned.forward_bytes.sum()),
        "backward_bytes": str(found.traffic.backward_bytes.sum()),
        "backward_expected": str(found.planned.backward_bytes.sum()),
    }


def divided(
    traced: hgpart.TracedModel,
    graph: hgpart.ChannelGraph,
    partition: str,
    grain: Literal["coarse", "fine"],
    k: int,
    seed: int,
) -> hgpart.PartitionedModel:
    """Partition a model by the native solver or at random."""
    stage("partition")
    work = hgpart.flops(graph)
    modelling = hgpart.Modelling(grain=grain, batch_size=traced.batch_size)
    if partition == "native":
        found = hgpart.partition_graph(
            graph, work, k, 0.1, modelling=modelling, seed=seed, effort=EFFORT, best_effort=True
        )
    else:
        found = hgpart.partition_by("random", graph, work, k, modelling=modelling, seed=seed)
    return hgpart.PartitionedModel(traced, found, found.evaluation, {})


def in_tiles(
    traced: hgpart.TracedModel, graph: hgpart.ChannelGraph, k: int, draw: random.Random
) -> tuple[hgpart.PartitionedModel, str]:
    """Deal out tiles, or blocks of them, at random; and how, in words."""
    stage("deal out")
    name = draw.choice(["tiles", "blocks"])
    deal = {"tiles": placements.of_whole_tiles, "blocks": placements.of_random_blocks}[name]
    modelling = hgpart.Modelling(
        batch_size=traced.batch_size,
        bands=min(draw.randint(2, 5), graph.most_rows),
        slices=draw.choice([1, 2]),
        norms=draw.choice(["slice", "batch"]),
    )
    dealt = draw.randrange(10**6)
    first = draw.choice([True, False])  # images are too small to pay by themselves
    blueprint.MESSAGES_HIDDEN = blueprint.CALLS_HIDDEN = 0 if first else 10**9
    about = f"{name} {modelling.bands} bands {modelling.slices} slices norms {modelling.norms}"
    about += " borders first" * first
    return deal(traced, graph, modelling, k, dealt), about


@cache
def traced(
    spec: str, mode: str, seed: int, tiled: bool
) -> tuple[hgpart.TracedModel, hgpart.ChannelGraph]:
    """Trace a model in a mode."""
    model, inputs = with_inputs(spec, mode, seed, tiled)
    stage("trace")
    found = hgpart.trace(model, inputs)
    stage("graph")
    return found, hgpart.channel_graph(found)


@cache
def with_inputs(
    spec: str, mode: str, seed: int, tiled: bool
) -> tuple[nn.Module, list[torch.Tensor]]:
    """Find the smallest inputs that a model takes in a mode, in float64 if it can."""
    built, shape = load(spec, seed)
    channels, *own = shape or (3, 224, 224)
    needed = [
        one
        for one in inspect.signature(built.forward).parameters.values()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    stage("find inputs")
    refusals = []
    for dtype in (torch.float64, torch.float32):
        model = built.to(dtype).train(mode == "training")
        sides = [side for side in SIDES if side >= TILED_SIDE or not tiled]
        for image in sorted({*((side, side) for side in sides), tuple(own)}):
            samples = 4 if tiled or min(image) <= 64 else 2  # the last maps may be of one element
            for sizes in (image, (FRAMES, *image)):
                torch.manual_seed(seed)
                inputs = [torch.randn(samples, channels, *sizes, dtype=dtype) for _ in needed]
                try:
                    with torch.no_grad():
                        copy.deepcopy(model)(*inputs)
                    return model, inputs
                except Exception as error:
                    refusals.append(error)
    raise refusals[-2]  # of an image of the largest size


@cache
def load(spec: str, seed: int) -> tuple[nn.Module, tuple[int, ...] | None]:
    stage("load")
    weights = sum(one.numel() for one in hgpart.load_model(spec, device="meta")[0].parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"{weights:,} weights, of which both hold all and as many gradients")
    return hgpart.load_model(spec, seed=seed)


def stage(name: str) -> None:
    """Say to the process that waits how far this one is, should it be ended."""
    print(f"{name} after {time.process_time():.0f} CPU seconds", file=sys.stderr, flush=True)


def line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# ------------------------------------------------------------------ summary


def summarise() -> None:
    """Count runs and models by outcome; name all that is not equal."""
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = Table("package", "models", *OUTCOMES, *(f"largest, {each}" for each in DIFFERENCES))
    for package in ["built-in", *packages.PACKAGES, ""]:
        named = ((row, row["model"].rpartition(":")[0] or "built-in") for row in rows)
        own = [row for row, of in named if package in (of, "")]
        counts = Counter(row["outcome"] for row in own)
        equal = [row for row in own if row["outcome"] == "equal"]
        table.add_row(
            package or "all",
            str(len({row["model"] for row in own})),
            *(str(counts[each]) for each in OUTCOMES),
            *(f"{max((float(row[each]) for row in equal), default=0):.1e}" for each in DIFFERENCES),
        )
    console = Console(width=150)
    console.print(table)
    for row in rows:
        if row["outcome"] != "equal":
            print(*(row[each] for each in ("outcome", *KEY, "grain", "k", "why")), sep=" | ")


if __name__ == "__main__":
    main()
