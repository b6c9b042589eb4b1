"""A program for the processes of a test: steps of partitions over slices, beside threads' own.

    python sliced_ranks.py threads FILE CASE ...

Each rank trains its part, and by itself all parts in threads; rank 0 writes to FILE what differs.

    python sliced_ranks.py ddp FILE

Two ranks train by data parallelism, ours and torch's; rank 0 writes losses and states that differ,
and what it is refused where they begin batches of two sizes.

    python sliced_ranks.py loops FILE

Two ranks train by data parallelism, with batches of several sizes by one schedule and then compiled
steps, then go on after what rank 1 is refused; rank 0 writes what is not as it should be.

    python sliced_ranks.py streams FILE

Each rank trains its part on streams, and by itself all parts in threads; rank 0 writes what is not
the same.

Behind "threads" and "streams" may stand " by order": messages then have no tags, as over NCCL, and
no lanes; or " in short lanes", which have room for some of the messages of a pass.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import placements
import torch
from changed_models import CHANGES, change, freeze, taught
from placed_models import model_of
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hgpart import Modelling, Placement, flops, place
from hgpart.errors import HgpartError
from hgpart.execution.records.totals import Traffic
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.shares import joining, messages
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes import lanes, rank_messages
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.scheduling import schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Direction, Schedule
from hgpart.tracing.traced_model import TracedModel

SECONDS = 200  # that all may take
BATCH = 7
Make = Callable[..., PartitionedModel]


BY_ORDER, IN_SHORT_LANES = " by order", " in short lanes"


def know_messages_by_order_alone() -> None:
    """As NCCL does, which has no tags: those from rank to rank come in the order of departure."""

    def isend(body: torch.Tensor, to: int, group: Any, tag: int) -> Any:
        return dist.isend(body, to, group)

    def irecv(body: torch.Tensor, source: int, group: Any, tag: int) -> Any:
        return dist.irecv(body, source, group)

    rank_messages.dist = SimpleNamespace(isend=isend, irecv=irecv, Work=dist.Work)  # type: ignore[attr-defined]


def main(beside: str, file: str, *cases: str) -> None:
    signal.alarm(SECONDS)  # ends this process, and the launcher the others
    by_order = beside.endswith(BY_ORDER)
    if by_order:
        know_messages_by_order_alone()
        beside = beside.removesuffix(BY_ORDER)
    if beside.endswith(IN_SHORT_LANES):
        beside = beside.removesuffix(IN_SHORT_LANES)
        lanes.LEAST, lanes.INBOX = 0, 2**12
    rank, k = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found: dict[str, list[str]] = {}
    messages.SMALL = 16  # so that some tensors travel by themselves
    messages.BUCKET = 24  # and that the others are several buckets
    joining.end_of = lambda units, order: 0.0  # shares wait for each other where they can be one
    with connect(k, timeout=60) as connection:
        if by_order:
            connection.lanes = {}
        if beside == "ddp":
            found = {"ddp": beside_ddp(connection), "sizes": of_other_sizes(connection)}
        elif beside == "loops":
            found = {"loops": loops(connection), "failing": failing(connection)}
        elif beside == "streams":
            found["streams"] = streams(connection)
        else:
            found = {case: CASES[case](connection) for case in cases}
    if rank == 0:
        Path(file).write_text(json.dumps(found))


def sharing_layers(*facts: Any, seed: int) -> PartitionedModel:
    """Of 2 parts and of 3 some do the last layer of several shares at once."""
    return placements.of_shared_layers(*facts, seed=1)


@cache
def example() -> tuple[nn.Module, Sequence[torch.Tensor], torch.Tensor, TracedModel, ChannelGraph]:
    """A model, a batch with targets, and its trace: what all comparisons are of."""
    model, (image,) = model_of("forked")
    model = nn.Sequential(model.stem, model.norm, nn.ReLU(), model.drop, model.heads[0])
    inputs = [torch.randn(BATCH, *image.shape[1:], dtype=image.dtype)]
    targets = torch.randn(BATCH, 4, 6, 6, dtype=image.dtype)
    return model, inputs, targets, *placements.traced_model(model, inputs)


def compare(
    connection: Connection,
    grain: str,
    norms: str = "slice",
    make: Make = placements.of_random_blocks,
    slices: int = 3,
    bands: int = 1,
) -> list[str]:
    """Names of what is not the same to the bit, or not as the table says; on all ranks."""
    k, rank = connection.k, connection.rank
    model, inputs, targets, traced, graph = example()
    modelling = Modelling(grain=grain, batch_size=BATCH, slices=slices, norms=norms, bands=bands)
    plan = make(traced, graph, modelling, k, seed=k)
    threads, here = place(model, plan), place(model, plan, parts=[rank])
    process = DistributedModel(here, connection)
    optimizers = [
        torch.optim.SGD([{"params": [*one.parameters()]}], lr=0.01, momentum=0.9)
        for one in (threads, here)
    ]
    wrong: set[str] = set()
    if make is sharing_layers and not any(one.joined for one in threads.programs.parts.values()):
        wrong.add("steps of several shares")
    orders: dict[int, list[Schedule]] = {}
    for step, micro_batches in enumerate((1, 2, 1, 2)):  # the first by a schedule counts gradients
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_fn = nn.functional.mse_loss
        if micro_batches not in orders:
            facts = "greedy", micro_batches
            orders[micro_batches] = [schedule(threads, *facts), schedule(process, *facts)]
        torch.manual_seed(step)
        expected = threads.step(inputs, targets, loss_fn, orders[micro_batches][0])
        torch.manual_seed(step)
        read = here.programs.samples_read(rank, micro_batch_sizes(BATCH, micro_batches))
        own = torch.full_like(inputs[0], torch.nan)  # others' samples are not looked at
        own[read] = inputs[0][read]
        loss = process.step([own], targets, loss_fn, orders[micro_batches][1], batch_size=BATCH)
        total = connection.add_later(0.0 if loss is None else loss.item())()
        if total != expected.item():
            wrong.add("loss")
        wrong |= set(differences(connection, threads, process))
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        threads.eval(), process.eval()
        whole, own = threads(*inputs), process(*inputs, batch_size=BATCH)
        samples = here.programs.samples_of_result(rank, BATCH)
        if samples and not torch.equal(whole[samples], own):
            wrong.add("results in evaluation")
        threads.train(), process.train()
    torch.manual_seed(9)
    threads(*inputs).square().sum().backward()
    torch.manual_seed(9)
    own = process(*inputs, batch_size=BATCH)
    own.square().sum().backward()
    wrong |= set(differences(connection, threads, process))
    return sorted(set().union(*connection.gather(wrong)))


def streams(connection: Connection) -> list[str]:
    """The same of batches in flight, of which one stream follows another, and then a step."""
    k, rank = connection.k, connection.rank
    model, (image,) = model_of("forked")
    model = nn.Sequential(model.stem, model.norm, nn.ReLU(), model.drop, model.heads[0])
    wrong: set[str] = set()
    inputs = torch.randn(BATCH, *image.shape[1:], dtype=image.dtype)
    traced, graph = placements.traced_model(model, [inputs])
    cases = [("async", "coarse", 1), ("async", "fine", 2), ("async", "coarse", 3)]
    if (
        rank_messages.dist is dist
    ):  # whose messages have tags; with one in flight there is one order
        cases += [("dynamic", "coarse", 1), ("turns", "fine", 1)]
    for rule, grain, in_flight in cases:
        modelling = Modelling(grain=grain, batch_size=BATCH, slices=3)
        plan = placements.of_random_blocks(traced, graph, modelling, k, seed=in_flight)
        threads, here = (place(copy.deepcopy(model), plan, parts=some) for some in (None, [rank]))
        process = DistributedModel(here, connection)
        optimizers = [
            {
                part: torch.optim.SGD(
                    [{"params": [*one.programs.submodule(part).parameters()]}],
                    lr=0.01,
                    momentum=0.9,
                )
                for part in one.programs.parts
            }
            for one in (threads, here)
        ]
        options = rule, 6, Costs(message=1e-3)
        orders = [
            schedule(threads, *options, in_flight=in_flight),
            schedule(process, *options, in_flight=in_flight),
        ]
        if orders[0].fingerprint != orders[1].fingerprint:
            wrong.add("order")
        if in_flight > 1 and max(map(max, orders[0].staleness)) == 0:
            wrong.add("nothing is stale")
        for begin in range(2):
            torch.manual_seed(begin)
            batches = [
                ([torch.randn_like(inputs)], torch.randn(BATCH, 4, 6, 6, dtype=image.dtype))
                for _ in range(6)
            ]
            found = []
            for one, optimizer, order in zip((threads, process), optimizers, orders, strict=True):
                torch.manual_seed(9)
                more = () if one is threads else (BATCH,)
                update = partial(_step_of, optimizer)
                found.append(one.stream(batches, nn.functional.mse_loss, update, order, *more))
            turns = here.forms.turns if rule == "turns" else [here.programs]
            losses = iter(found[1] or ())
            own = [
                next(losses).item() if rank in turns[at % len(turns)].output_parts else 0.0
                for at in range(6)
            ]
            for number, loss in enumerate(found[0]):
                if connection.add_later(own[number])() != loss.item():
                    wrong.add("loss")
            wrong |= set(differences(connection, threads, process))
        torch.manual_seed(9)
        threads.step(*batches[0], nn.functional.mse_loss)
        torch.manual_seed(9)
        process.step(*batches[0], nn.functional.mse_loss, batch_size=BATCH)
        wrong |= {f"{name} of a step" for name in differences(connection, threads, process)}
    return sorted(set().union(*connection.gather(wrong)))


def _step_of(optimizers: dict[int, torch.optim.Optimizer], part: int) -> None:
    optimizers[part].step()


def after_changes(connection: Connection) -> list[str]:
    """The same of passes between which, or within which, something is done to the model."""
    rank = connection.rank
    model, inputs, targets = taught()
    modelling = Modelling(batch_size=len(targets), slices=3)
    plan = placements.of_random_blocks(*placements.traced_model(model, inputs), modelling, 2, 0)
    threads, here = place(model, plan), place(model, plan, parts=[rank])
    process, wrong = DistributedModel(here, connection), set[str]()
    size = {"batch_size": len(targets)}
    changes = [lambda one: None, *(partial(change, how=how) for how in CHANGES)]
    for done in (*changes, partial(freeze, name="stem.weight")):
        for one in (threads, here):
            done(one)
            one.zero_grad()
        threads.step(inputs, targets, nn.functional.mse_loss)
        process.step(inputs, targets, nn.functional.mse_loss, **size)
        wrong |= set(differences(connection, threads, process))
    results = threads(*inputs), process(*inputs, **size)
    threads.eval(), process.eval()  # of other slices, and with another program
    results[0].square().sum().backward()
    results[1].square().sum().backward()
    threads.train(), process.train()
    wrong |= set(differences(connection, threads, process))
    results = threads(*inputs), process(*inputs, **size)
    with torch.no_grad():  # brings copies of running statistics, which the graph of the last has
        process(*inputs, **size)
        threads(*inputs)
    for result in results:
        result.sum().backward()
    wrong |= {f"{name} after an evaluation" for name in differences(connection, threads, process)}
    process.zero_grad()
    threads.eval(), process.eval()
    with torch.no_grad():
        samples = here.programs.samples_of_result(rank, len(targets))
        for done in (*changes, lambda _: process.double()):  # which is no change that others miss
            for one in (threads, here):
                done(one)
            own = process(*inputs, **size)
            if samples and not torch.equal(threads(*inputs)[samples], own):
                wrong.add("results in evaluation")
    return sorted(set().union(*connection.gather(wrong)))


def two_passes(connection: Connection) -> list[str]:
    """Go back through two passes at once; weights of both, the same, were received in lanes.

    Those of the second were written into the copies, for which autograd refused the first graph.
    """
    threads, process = wide(connection)
    images = torch.randn(8, 96, dtype=torch.float64)
    for one in (threads, partial(process, batch_size=8)):
        results = [one(images), one(images + 1)]
        sum(result.square().sum() for result in results).backward()
    wrong = {*differences(connection, threads, process)}
    return sorted(set().union(*connection.gather(wrong)))


CASES = {
    "two passes": two_passes,
    "coarse": lambda connection: compare(connection, "coarse"),
    "fine": lambda connection: compare(connection, "fine"),
    "norms of the batch": lambda connection: compare(connection, "fine", "batch"),
    "changes": after_changes,
    "shared layers": lambda connection: compare(connection, "coarse", make=sharing_layers),
    "bands": lambda connection: compare(connection, "coarse", slices=1, bands=3),
    "tiles": lambda connection: compare(connection, "coarse", "batch", slices=2, bands=2),
}


def beside_ddp(connection: Connection) -> list[str]:
    """Train with norms, each rank on its half of the batch; what differs by more than rounding."""
    k, rank = connection.k, connection.rank
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)),
        *(nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
    ).double()
    images, labels = torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.arange(8) % 5
    traced, graph = placements.traced_model(model, [images])
    problem = Problem(graph, flops(graph), Modelling(batch_size=8, slices=k), k, 0.1)
    plan = placements.partitioned(traced, graph, problem.modelling, k, *data_parallel(problem))
    ours = DistributedModel(place(model, plan, parts=[rank]), connection)
    theirs = DistributedDataParallel(model)
    loss_fn, wrong = nn.functional.cross_entropy, []
    optimizers = [
        torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in (ours, theirs)
    ]
    own = slice(rank * 4, rank * 4 + 4)
    for step in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = ours.step([images], labels, loss_fn, batch_size=len(images))
        halves = loss_fn(theirs(images[own]), labels[own])
        halves.backward()
        for optimizer in optimizers:
            optimizer.step()
        both = [sum(connection.gather(float(each.detach()))) for each in (loss, halves / k)]
        if abs(both[0] - both[1]) > 1e-12:
            wrong.append(f"loss {step}")
    state = model.state_dict()
    for held, tensor in ours.placement.held(rank):
        if not torch.allclose(held.take(state[held.name]), tensor, rtol=1e-10, atol=1e-13):
            wrong.append(held.name)
    return sorted(set().union(*connection.gather(wrong)))


def wide(connection: Connection) -> tuple[Placement, DistributedModel]:
    """A model with a matrix that belongs to both ranks, in threads and in processes."""
    k = connection.k
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5)).double()
    example = [torch.randn(8, 96, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, example)
    problem = Problem(graph, flops(graph), Modelling(batch_size=8, slices=k), k, 0.1)
    plan = placements.partitioned(traced, graph, problem.modelling, k, *data_parallel(problem))
    here = place(model, plan, parts=[connection.rank])
    return place(model, plan), DistributedModel(here, connection)


def loops(connection: Connection) -> list[str]:
    """Gradients of matrices are products of all micro-batches where samples are few."""
    threads, process = wide(connection)
    learned = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (threads, process)]
    orders = [schedule(threads, "gpipe", 3), schedule(process, "gpipe", 3)]
    wrong: set[str] = set()
    for batch in (6, 96, 6, 192, 9):
        images = torch.randn(batch, 96, dtype=torch.float64)
        labels = torch.arange(batch) % 5
        if batch == 9:
            threads.compile(backend="eager")
            process.placement.compile(backend="eager")
        loss_fn = nn.functional.cross_entropy
        threads.step([images], labels, loss_fn, orders[0])
        process.step([images], labels, loss_fn, orders[1], batch_size=batch)
        done = [event.action.direction for event in process.runtime.last.events]
        early = Direction.BACKWARD in done[done.index(Direction.REDUCE) :]
        if not any(connection.gather(early)):  # one rank may have copies of the first layer alone
            wrong.add("gradients depart at the end only")
        wrong |= {f"{name} of {batch}" for name in differences(connection, threads, process)}
        for optimizer in learned:
            optimizer.step()
            optimizer.zero_grad()
    return sorted(set().union(*connection.gather(wrong)))


def failing(connection: Connection) -> list[str]:
    """What one is refused the other hears; nothing is left in copies, and no pass begins."""
    _, process = wide(connection)
    images = torch.randn(8, 96, dtype=torch.float64)
    targets, loss_fn = torch.arange(8) % 5, nn.functional.cross_entropy
    process.step([images], targets, loss_fn, batch_size=8)
    if connection.rank == 1:
        next(process.parameters()).register_hook(torch.neg)
    said = []
    for _ in range(2):
        try:
            process.step([images], targets, loss_fn, batch_size=8)
        except HgpartError as error:
            said.append(str(error))
    copies = [one for one in process.placement.buffers() if one.requires_grad]
    said += ["copies"] * bool(copies)
    said += ["gradients"] * any(one.grad is not None for one in copies)
    return said


def of_other_sizes(connection: Connection) -> list[str]:
    """Of a size each, which one alone is refused nothing; they send nothing to each other."""
    _, process = wide(connection)
    size = (8, 6)[connection.rank]
    try:
        with torch.no_grad():
            process(torch.randn(size, 96, dtype=torch.float64), batch_size=size)
    except HgpartError as error:
        return [str(error)]
    return []


def differences(connection, threads, process):
    for (held, one), (_, other) in zip(
        threads.held(connection.rank), process.placement.held(connection.rank), strict=True
    ):
        pairs = [(one, other), (one.grad, other.grad)]
        if not all(a is b or torch.equal(a, b) for a, b in pairs):
            yield held.name
    sent = sum(connection.gather(process.runtime.last.traffic), Traffic.none(connection.k))
    wanted = threads.runtime.last.traffic
    for name in ("forward_bytes", "forward_messages", "backward_bytes", "backward_messages"):
        if (getattr(sent, name) != getattr(wanted, name)).any():
            yield name


if __name__ == "__main__":
    main(*sys.argv[1:])
