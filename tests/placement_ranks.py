"""A program for the processes of a test: built-in models in parts, each beside the original.

    python placement_ranks.py FILE MODEL ...

Models are divided among the first two processes, which call them, then three, ..., then all, which
step by a schedule in micro-batches. Each has the original too, made once for all k, and compares
its own part with it. Rank 0 writes what they found to FILE:
for each "model grain k" a list of `Finding`s, as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import placements
import torch
from builtin_graphs import IMAGES
from originals import (
    SEED,
    Original,
    expected_traffic,
    joined,
    original,
    original_in_micro_batches,
    wrong_figures,
)

from hgpart import Modelling, PartitionedModel, flops, load_model, partition_graph, place
from hgpart.execution.records.totals import Traffic
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.scheduling import schedule
from hgpart.tracing.traced_model import TracedModel

# Partitions besides the one of random blocks.
MODELS = {
    "lenet5": ("tasks", "good"),
    "resnet18": ("good",),
    "unet": (),
}
BATCH = 3
SIZES = (1, 1, 1)  # of the micro-batches of a step
SECONDS = 300  # that all may take


class Finding(NamedTuple):
    """What all ranks together found of one partition of a model."""

    partition: str
    outputs: float
    gradients: float
    buffers: float
    held: int
    elements: int
    wrong_figures: list[str]
    volume: int


def main(file: str, *names: str) -> None:
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = {}
    for name in names:
        torch.manual_seed(1)
        inputs = [torch.randn(BATCH, *IMAGES.get(name, (3, 64, 64)), dtype=torch.float64)]
        model, _ = load_model(name, seed=0)
        traced, graph = placements.traced_model(model.double(), inputs)
        called = original(model, inputs)
        stepped = original_in_micro_batches(model, inputs, SIZES)
        gc.freeze()  # what stays need not be looked through in `compare`
        for k in range(max(2, rank + 1), processes + 1):
            # What the first k tell each other in the launcher's store is theirs alone.
            os.environ.update(WORLD_SIZE=str(k), TORCHELASTIC_RESTART_COUNT=f"{name} {k}")
            with connect(k, timeout=120) as connection:
                for grain in ("coarse", "fine"):
                    modelling = Modelling(grain=grain, batch_size=BATCH)
                    found[f"{name} {grain} {k}"] = [
                        compare(connection, kind, called if k == 2 else stepped, plan)
                        for kind, plan in partitions(connection, name, traced, graph, modelling)
                    ]
    if rank == 0:
        Path(file).write_text(json.dumps(found))


def partitions(
    connection: Connection,
    name: str,
    traced: TracedModel,
    graph: ChannelGraph,
    modelling: Modelling,
) -> Iterator[tuple[str, PartitionedModel]]:
    """Those to try, the same on all ranks."""
    k = connection.k
    yield "blocks", placements.of_random_blocks(traced, graph, modelling, k, seed=k)
    if "tasks" in MODELS[name]:
        yield "tasks", placements.of_single_tasks(traced, graph, modelling, k, seed=k)
    if "good" in MODELS[name]:
        work, found = flops(graph), None
        if connection.rank == 0:
            found = partition_graph(graph, work, k, 0.1, modelling=modelling, effort=0)
        found = connection.gather(found)[0]
        yield "good", PartitionedModel(traced, found, found.evaluation, {})


def passes(placed: DistributedModel, expected: Original) -> Any:
    """Forward, a loss, backward."""
    results = placed(*expected.inputs)
    expected.loss(results).backward()
    return results if placed.makes_result else None


def step(placed: DistributedModel, expected: Original) -> Any:
    """The same in micro-batches by a schedule, backward in halves."""
    made = []

    def loss_of(results: Any, samples: torch.Tensor) -> torch.Tensor:
        made.append(results)
        return expected.mean_loss(results, samples)

    order = schedule(placed, "zero-bubble", len(SIZES))
    placed.step(expected.inputs, torch.arange(BATCH), loss_of, order)
    return joined(made) if made else None


def compare(
    connection: Connection, kind: str, expected: Original, plan: PartitionedModel
) -> Finding:
    """Run this rank's part of the model, and compare it; all ranks get the same answer."""
    placed = DistributedModel(place(expected.model, plan, parts=[connection.rank]), connection)
    torch.manual_seed(SEED)
    results = passes(placed, expected) if connection.k == 2 else step(placed, expected)
    own = expected.differences(results, placed.placement)
    outputs, gradients, buffers, held = zip(*connection.gather(own), strict=True)
    table = expected_traffic(plan)
    if connection.k > 2:  # each micro-batch has its messages; its bytes are its share
        messages = table.forward_messages * len(SIZES), table.backward_messages * len(SIZES)
        table = replace(table, forward_messages=messages[0], backward_messages=messages[1])
    traffic = sum(connection.gather(placed.runtime.last.traffic), Traffic.none(connection.k))
    wrong = wrong_figures(traffic, table)
    del placed
    gc.collect()  # a placement refers to itself, and the next one may be as large
    return Finding(
        kind,
        max(outputs),
        max(gradients),
        max(buffers),
        sum(held),
        expected.elements,
        wrong,
        int(table.forward_bytes.sum()),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
