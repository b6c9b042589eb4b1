"""Division's Partition, goal -> Schedulings: in which orders the steps of a division are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hgpart.partition import Partition
from hgpart.recommendation.ranking import trains
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import IN_FLIGHT

DEEP = 8  # parts of a pipeline, from which on it is filled with more micro-batches


def orders(
    partition: Partition, *, goal: str, divides_batch: bool = True, micro_batches: int | None = None
) -> tuple[Scheduling, ...]:
    """Schedules worth a simulation, the first of them the likeliest.

    Parts that wait for each other's maps want micro-batches; slices of the batch mostly do not.
    Streams are for throughput alone, as their weights are older than those of a step; not dynamic
    ones, which differ from run to run. Where a model's batch can't be divided, all are of one
    micro-batch. If a number of micro-batches is given, those of several devices have that.
    """
    if not trains(goal):
        schedulings = [*_of_inference(partition)]
    elif partition.k == 1:
        counts = (1, 2, 4, 8) if goal == "memory" else (1,)
        schedulings = [Scheduling("greedy", count) for count in counts]
    elif partition.modelling.slices > 1:
        schedulings = [Scheduling("greedy", count) for count in (1, 2, 4, 8)]
    else:
        schedulings = [*_of_pipelines(partition.k)]
    if micro_batches is not None and partition.k > 1:
        rules = dict.fromkeys(scheduling.rule for scheduling in schedulings)
        schedulings = [Scheduling(rule, micro_batches) for rule in rules]
    elif goal == "throughput" and partition.k > 1:
        in_flight = sorted({IN_FLIGHT, partition.k})
        schedulings += [Scheduling("async", in_flight=count) for count in in_flight]
    if goal == "memory":
        again = [replace(scheduling, recompute=True) for scheduling in schedulings]
        schedulings += again if partition.k > 1 else []
    most = partition.modelling.batch_size if divides_batch else 1
    return tuple(scheduling for scheduling in schedulings if scheduling.micro_batches <= most)


def _of_inference(partition: Partition) -> Iterator[Scheduling]:
    """Rules differ in their backward passes alone."""
    counts = (4, 8, 2, 1) if partition.modelling.slices == 1 else (1, 2, 4)
    for count in (1,) if partition.k == 1 else counts:
        yield Scheduling("greedy", count)


def _of_pipelines(k: int) -> Iterator[Scheduling]:
    counts = (4, 8, 16, 2, 1) if k >= DEEP else (4, 8, 2, 1)
    for count in counts:
        yield Scheduling("greedy", count)
    for rule in ("zero-bubble", "1f1b"):
        for count in counts[:-2]:
            yield Scheduling(rule, count)
