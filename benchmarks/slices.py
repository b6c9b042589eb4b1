"""Slices of the batch: native beside Mt-KaHyPar, KaHyPar and the ways that others train.

python benchmarks/slices.py [--models a,b] [--k 2,8,32,128] [--batch-sizes 32] [--eps 0.1]
                            [--grains coarse] [--slices auto|S] [--solvers native,ways,...]
                            [--limit 60] [--draw N] [--jsonl FILE] [--resume]

Solvers: native; whole (native, S = 1); ways (layer cuts, data parallelism, hybrids of every number
of replicas, each divided by native at low effort, one weird trick, ...); mtkahypar (its default
preset), kahypar: on blocks x slices, for one slice a part and for several, as far as the batch
goes. Each runs in a process of its own, native at most LONGEST seconds, the others --limit. Volumes
and feasibility are by hgpart's metrics. FILE gets a line for each; with --resume what it has is not
run again (`--models ""` runs none). --draw N takes N instances of all that were asked for, at
random. The summary is that of quality.py: within 1 is best or tied.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from quality import Row, cpu_seconds, summarise

import hgpart
from hgpart.arrays import Int32
from hgpart.errors import HgpartError
from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.partition.baselines.known_ways import numbers_of_replicas
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.external import mtkahypar as mtkahypar_backend
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices
from hgpart.partition.ways.catalogue import way_named

SOLVERS = ("native", "whole", "ways", "mtkahypar", "kahypar")
LONGEST = 600.0  # seconds, of native
SLICES_PER_PART = (1, 4)  # of the peers and the ways, up to the batch
SLICED = ("data-parallel", "one-weird-trick", "opposed-replicas", "replicated-stages")
HYBRID_EFFORT = 0.1  # of native, for the parts of a replica
KEY = ("model", "grain", "k", "batch_size", "eps")

Instance = tuple[str, str, int, int, float]
Record = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(hgpart.builtin_models()))
    parser.add_argument("--k", default="2,8,32,128")
    parser.add_argument("--batch-sizes", default="32")
    parser.add_argument("--eps", default="0.1")
    parser.add_argument("--grains", default="coarse")
    parser.add_argument("--slices", default="auto", help="of native")
    parser.add_argument("--solvers", default=",".join(SOLVERS))
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--draw", type=int)
    parser.add_argument("--jsonl", type=Path, default=Path("benchmarks/results/slices.jsonl"))
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if options.jsonl.exists() and not options.resume:
        parser.error(f"{options.jsonl} exists: go on from it with --resume, or name another")
    every = [
        (model, grain, int(k), int(batch), float(eps))
        for model, grain, k, batch, eps in itertools.product(
            filter(None, options.models.split(",")),
            options.grains.split(","),
            options.k.split(","),
            options.batch_sizes.split(","),
            options.eps.split(","),
        )
    ]
    if options.draw is not None:
        every = sorted(random.Random(0).sample(every, min(options.draw, len(every))))
    done = {(*key_of(record), record["run"]) for record in read(options.jsonl)}
    for instance in every:
        for run in runs_of(instance, options.solvers.split(","), options.slices):
            if (*instance, run) not in done:
                measure(options.jsonl, instance, run, options.limit)
    summary(read(options.jsonl))


def runs_of(instance: Instance, solvers: list[str], slices: str) -> Iterator[str]:
    """Solvers, each with its number of slices."""
    _, _, k, batch, _ = instance
    several = sorted({min(k * each, batch) for each in SLICES_PER_PART})
    for solver in solvers:
        numbers = {"native": [slices], "whole": [1], "ways": several[-1:]}.get(solver, several)
        yield from (f"{solver} {number}" for number in numbers)


def measure(path: Path, instance: Instance, run: str, limit: float) -> None:
    """Run one solver in a process of its own, and add what it found to the file."""
    graph_of(instance[0])  # here, once for all
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=answer, args=(sender, instance, run, limit))
    child.start()
    sender.close()
    ends = time.monotonic() + (LONGEST if run.startswith("native") else 2 * limit)
    found: list[Record] = []
    note = "ended"
    try:
        while receiver.poll(max(0.0, ends - time.monotonic())):
            found.append(receiver.recv())
        note = "ran out of time"
    except EOFError:
        pass
    child.kill()
    child.join()
    if not found:
        found = [{"solver": run.partition(" ")[0], "note": note}]
    with path.open("a") as file:
        for record in found:
            line = {**dict(zip(KEY, instance, strict=True)), "run": run, **record}
            file.write(json.dumps(line) + "\n")
    seconds = sum(record.get("seconds", 0.0) for record in found)
    print(*instance, run, f"{seconds:.1f} s", found[-1].get("note", ""), flush=True)


def answer(sender: Connection, instance: Instance, run: str, limit: float) -> None:
    """Solve, evaluate by hgpart's metrics, and send what was found as soon as it is."""
    name, grain, k, batch, eps = instance
    graph, work = graph_of(name)
    modelling = hgpart.Modelling(grain=grain, batch_size=batch)
    solver, _, slices = run.partition(" ")
    problem = Problem(graph, work, modelling, k, eps)
    start, cpu = time.perf_counter(), cpu_seconds()
    try:
        for way, sliced, model, parts in found_by(problem, solver, slices, limit):
            seconds, cpu_used = time.perf_counter() - start, cpu_seconds() - cpu
            evaluation = evaluate_parts(model, parts, k)
            record = {
                "solver": way,
                "slices": sliced.modelling.slices,
                "volume": evaluation.volume,
                "feasible": bool((evaluation.loads <= sliced.capacities).all()),
                "imbalance": evaluation.imbalance,
                "seconds": round(seconds, 2),
                "cpu_seconds": round(cpu_used, 2),
                "peak_mb": round(peak_mb()),
            }
            if solver == "native":
                record["bound"] = lower_bound(sliced)
            sender.send(record)
            start, cpu = time.perf_counter(), cpu_seconds()
    except hgpart.errors.HgpartError as error:
        sender.send({"solver": solver, "note": str(error)[:100]})


def found_by(
    problem: Problem, solver: str, slices: str, limit: float
) -> Iterator[tuple[str, Problem, CnnHypergraph, Int32]]:
    """Name, problem in slices, and partition, of each that a solver finds."""
    if solver == "ways":
        problem = problem.in_slices(int(slices))
        hybrids = (f"hybrid-{count}" for count in numbers_of_replicas(problem))
        for name in ("layerwise-volume", "incremental", *SLICED, *hybrids):
            with suppress(HgpartError):  # not for this model
                model, parts = way_named(name).parts(problem, Search(effort=HYBRID_EFFORT))
                yield name, problem, model, parts
        return
    backend = "native" if solver in ("native", "whole") else solver
    mtkahypar_backend.PRESET = "DEFAULT"
    search = Search(time_limit=None if backend == "native" else limit)
    if slices == "auto":
        found = solve_in_slices(problem, search, backend, best_effort=True)
    else:
        found = solve(problem.in_slices(int(slices)), search, backend, best_effort=True)
    yield solver, problem.in_slices(found.modelling.slices), found.model, found.parts


@cache
def graph_of(name: str) -> tuple[hgpart.ChannelGraph, hgpart.Work]:
    model, shape = hgpart.load_model(name, device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    return graph, hgpart.flops(graph)


def peak_mb() -> float:
    """Of this process, or of its largest child."""
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in users) / 1e3


def key_of(record: Record) -> Instance:
    model, grain, k, batch, eps = (record[name] for name in KEY)
    return model, grain, k, batch, eps


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(records: list[Record]) -> None:
    """As quality.py's: of each solver, and of all hybrids, the best feasible one."""
    best: dict[tuple[Instance, str], Row] = {}
    for record in records:
        key, solver = key_of(record), record["solver"].partition(" of ")[0]
        model, grain, k, batch, eps = key
        volume = record["volume"] if record.get("feasible") else float("inf")
        row = Row(
            (f"{model} batch {batch}", grain, k, eps),
            solver,
            volume,
            record.get("seconds", 0.0),
            record.get("cpu_seconds", 0.0),
            record.get("bound", 0),
        )
        if (key, solver) not in best or volume < best[key, solver].volume:
            best[key, solver] = row
    solvers = dict.fromkeys(row.solver for row in best.values())
    summarise(list(best.values()), ("native", *(name for name in solvers if name != "native")))


if __name__ == "__main__":
    main()
