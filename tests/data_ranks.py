"""A program for the processes of a test: which samples each reads, and what they learn of them.

    python data_ranks.py FILE

Ranks train plans with slices and without, by `train` and by a DataLoader with a `PartSampler` or,
data-parallel, a `DistributedSampler`, each with its own samples alone, beside one process with all;
rank 0 writes to FILE what differs.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import placements
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from hgpart import Modelling, PartSampler, flops, place
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.baselines.known_ways import layer_cut
from hgpart.partition.problem.problem import Problem
from hgpart.run.distributed import DistributedModel
from hgpart.run.placed_model import PlacedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.scheduling import schedule
from hgpart.run.training.data import Data
from hgpart.run.training.loop import train
from hgpart.run.training.options import TrainingOptions
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes

SECONDS = 200  # that all may take
BATCH, STEPS, MICRO_BATCHES = 9, 2, 2
SIZES = micro_batch_sizes(BATCH, MICRO_BATCHES)


class Noted:
    """Random samples, as `train` and as a DataLoader read them; and which were read."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.all = torch.randn(count, 3, 6, 6, generator=generator, dtype=torch.float64)
        self.read, self.named = [], []

    def __len__(self):
        return len(self.all)

    def __getitem__(self, index):
        self.read.append(index)
        return self.all[index], index % 5

    def images(self, indices, epoch=0):
        self.read += indices
        return self.all[indices]

    def labels(self, indices, epoch=0):
        self.named += indices
        return torch.tensor(indices) % 5


def main(file: str) -> None:
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    with connect(int(os.environ["WORLD_SIZE"]), timeout=60) as connection:
        found = {name: differences(connection, name) for name in ("random", "ways", "cut", "whole")}
    if connection.rank == 0:
        Path(file).write_text(json.dumps(found))


def differences(connection: Connection, name: str) -> list[str]:
    """What is not as it should be, on any rank."""
    k, rank = connection.k, connection.rank
    torch.manual_seed(3)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(16, 5)),
    ).double()
    traced, graph = placements.traced_model(model, [torch.randn(BATCH, 3, 6, 6).double()])
    slices = {"random": 4, "ways": k, "cut": 1, "whole": 1}[name]
    modelling = Modelling(batch_size=BATCH, slices=slices)
    problem = Problem(graph, flops(graph), modelling, k, 0.1)
    if name == "random":
        plan = placements.of_random_blocks(traced, graph, modelling, k, seed=1)
    else:
        blocks, parts = data_parallel(problem) if name == "ways" else layer_cut(problem)
        if name == "whole":  # one part has all, the others have nothing to read
            parts = np.ones_like(parts)
        plan = placements.partitioned(traced, graph, modelling, k, blocks, parts)

    def placed(parts=None):
        return place(copy.deepcopy(model), plan, parts=parts)

    wrong = {*trained(connection, placed), *loaded(connection, placed)}
    if name == "ways":
        wrong.update(called(connection, placed))
    needed = placed([rank]).programs.samples_needed(rank, SIZES)
    if name == "ways" and not 0 < len(needed) <= 2 * MICRO_BATCHES:
        wrong.add(f"data parallelism reads {needed}")
    return sorted(set().union(*connection.gather(wrong)))


def trained(connection, placed):
    """By `train`, in micro-batches, and then tested."""
    rank, scheduling = connection.rank, Scheduling("greedy", MICRO_BATCHES)
    here = placed([rank])
    data, beside = (Data("noted", Noted(40), Noted(13), 5, seed=0) for _ in range(2))
    options = TrainingOptions(STEPS, BATCH, lr=0.1)
    found = train(PlacedModel(DistributedModel(here, connection), scheduling), data, options)
    expected = train(PlacedModel(placed(), scheduling), beside, options)
    if found.losses != expected.losses:
        yield f"losses {found.losses} {expected.losses}"
    if found.accuracy != expected.accuracy:
        yield "accuracy"
    for what, noted, samples in (
        ("images", data.train.read, here.programs.samples_read(rank, SIZES)),
        ("labels", data.train.named, here.programs.samples_of_result(rank, *SIZES)),
    ):
        batches = [data.training_indices(step, BATCH) for step in range(STEPS)]
        if noted != [batch[at] for batch in batches for at in samples]:
            yield f"{what} {noted}"


def loaded(connection, placed):
    """By a loop of one's own."""
    rank, threads = connection.rank, placed()
    process = DistributedModel(placed([rank]), connection)
    data, beside = Noted(30), Noted(30)

    def batches():
        order = RandomSampler(data, generator=torch.Generator().manual_seed(5))
        return BatchSampler(order, BATCH, drop_last=True)

    facts = "1f1b", MICRO_BATCHES
    orders = schedule(threads, *facts), schedule(process, *facts)
    sampler = PartSampler(batches(), process, orders[1])
    own = DataLoader(data, batch_sampler=sampler)
    whole = DataLoader(beside, batch_sampler=batches())
    sgd = [torch.optim.SGD([{"params": [*one.parameters()]}], lr=0.1) for one in (threads, process)]
    for (some, named), (images, labels) in zip(own, whole, strict=True):
        for one in sgd:
            one.zero_grad()
        expected = threads.step([images], labels, nn.functional.cross_entropy, orders[0])
        loss_fn = nn.functional.cross_entropy
        loss = process.step([some], named, loss_fn, orders[1], batch_size=BATCH)
        total = connection.add_later(0.0 if loss is None else loss.item())()
        if total != expected.item():
            yield f"loss {total} {expected}"
        for one in sgd:
            one.step()
    needed = process.placement.programs.samples_needed(rank, SIZES)
    if data.read != [batch[at] for batch in batches() for at in needed or [0]]:
        yield f"samples {data.read}"


def called(connection, placed):
    """By a loop that calls the model, with data in parallel."""
    k, rank = connection.k, connection.rank
    whole, process = placed(), DistributedModel(placed([rank]), connection)
    data, batch = Noted(12 * k), 4 * k
    order = schedule(process, "gpipe", 1)
    samplers = [DistributedSampler(data, k, at, seed=3) for at in range(k)]
    of_ranks = [[*BatchSampler(sampler, 4, drop_last=True)] for sampler in samplers]
    batches = [[*chain(*own)] for own in zip(*of_ranks, strict=True)]
    loaders = (
        DataLoader(data, 4, sampler=samplers[rank]),
        DataLoader(data, batch_sampler=PartSampler(batches, process, order)),
    )
    sgd = [torch.optim.SGD([{"params": [*one.parameters()]}], lr=0.1) for one in (whole, process)]
    for loader in loaders:
        for (some, named), numbers in zip(loader, batches, strict=True):
            images, labels = (
                torch.stack([data.all[at] for at in numbers]),
                torch.tensor(numbers) % 5,
            )
            for one in sgd:
                one.zero_grad()
            expected = nn.functional.cross_entropy(whole(images), labels)
            expected.backward()
            scores = process(some, batch_size=batch)
            loss = nn.functional.cross_entropy(scores, named) * len(named) / batch
            loss.backward()
            for one in sgd:
                one.step()
            if not torch.isclose(process.value(loss), expected, rtol=0, atol=1e-12):
                yield f"called: loss {process.value(loss)} {expected}"
    state = process.gathered_state_dict() or {}
    for name, tensor in whole.state_dict().items():
        if rank == 0 and not torch.allclose(state[name], tensor, rtol=0, atol=1e-12):
            yield f"called: {name}"


if __name__ == "__main__":
    main(*sys.argv[1:])
