"""Seconds of a training step of plans over slices of the batch, in two processes of one thread.

python benchmarks/slice_times.py vgg16 --batch 16 --size 224 --rounds 5
python benchmarks/slice_times.py resnet50 --batch 32 --size 128 --megabits 1000

Steps and turns are those of step_times.py. ``auto E`` is the plan of least bytes of --slices auto
within eps E, ``data parallel`` and ``one weird trick`` are the ways of that name, each as a
partition over slices; ``unsliced`` is the plan of least bytes for whole batches, and ``unsliced in
4`` the same in each of four slices, which shows what slices cost. Beside them: one process, two
that never talk (``apart``), torch DDP and, of models that are chains, torch's pipelines by 1F1B, of
which the best of three cuts counts. Bytes are of a step, between all processes, of our ways as
counted: maps with their gradients, and gradients of parameters with the new weights. DDP's are what
a ring sends.

With --inference a step is an evaluation of a batch without gradients. With --megabits each process
has a network of its own, and a wire between them carries as many megabits a second each way (Linux,
as root: ip, tc).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial

import torch
from slow_wire import launch_on_wire
from step_times import PROCESSES, Bench, Step, measure, options
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B

import hgpart
from hgpart.errors import HgpartError
from hgpart.partition import Partition
from hgpart.partition.baselines.by_slices import data_parallel, in_every_slice
from hgpart.partition.baselines.known_ways import Parts
from hgpart.partition.baselines.one_weird_trick import one_weird_trick
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.launch import launch
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes

EPS = 0.1  # of ways that need none


def least_bytes(eps: float, graph: hgpart.ChannelGraph, work: hgpart.Work, batch: int) -> Partition:
    """What --slices auto finds."""
    modelling = hgpart.Modelling(batch_size=batch)
    return hgpart.partition_graph(graph, work, PROCESSES, eps, modelling=modelling, slices="auto")


def unsliced(graph: hgpart.ChannelGraph, work: hgpart.Work, batch: int) -> Partition:
    """What is found for whole batches."""
    modelling = hgpart.Modelling(batch_size=batch)
    return hgpart.partition_graph(graph, work, PROCESSES, EPS, modelling=modelling)


def the_same_in(
    slices: int, graph: hgpart.ChannelGraph, work: hgpart.Work, batch: int
) -> Partition:
    """The same parts in every slice."""
    one = unsliced(graph, work, batch)
    modelling = hgpart.Modelling(batch_size=batch, slices=slices)
    problem = Problem(graph, work, modelling, PROCESSES, EPS)
    way = in_every_slice(problem, one.model, one.parts)
    return evaluated(problem, *way, seed=0, backend="known", start="known")


def known(
    way: Callable[[Problem], Parts], graph: hgpart.ChannelGraph, work: hgpart.Work, batch: int
) -> Partition:
    """A way that others train, with a slice for each process."""
    modelling = hgpart.Modelling(batch_size=batch, slices=PROCESSES)
    problem = Problem(graph, work, modelling, PROCESSES, EPS)
    return evaluated(problem, *way(problem), seed=0, backend="known", start="known")


PLANS: Mapping[str, Callable[[hgpart.ChannelGraph, hgpart.Work, int], Partition]] = {
    "auto 0.1": partial(least_bytes, 0.1),
    "auto 0.03": partial(least_bytes, 0.03),
    "data parallel": partial(known, data_parallel),
    "one weird trick": partial(known, one_weird_trick),
    "unsliced": unsliced,
    "unsliced in 4": partial(the_same_in, 4),
}


class SliceBench(Bench):
    """The ways of a batch in slices, and torch's."""

    titles = tuple(PLANS)
    hows = {  # noqa: RUF012
        "called": ("called", 1),
        "sequential m=1": ("sequential", 1),
        "greedy m=2": ("greedy", 2),
    }
    pipelines = {"1f1b": Schedule1F1B}  # noqa: RUF012
    micro_batches = (4,)
    sums = ("MB maps", "MB gradients")

    def ways(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """Those whose name is asked for."""
        found = super().ways(wanted)
        if "torch ddp" in found:
            learned = sum(one.nbytes for one in self.model().parameters() if one.requires_grad)
            self.sent["torch ddp"] = 0.0, 2 * (PROCESSES - 1) / PROCESSES * learned
        return found

    def plan(self, model: nn.Module, traced: hgpart.TracedModel, title: str) -> hgpart.Plan | None:
        """What the first process finds; nothing where there is no such plan."""
        if self.rank:
            return None
        graph = hgpart.channel_graph(traced)
        work = hgpart.flops(graph)
        try:
            found = PLANS[title](graph, work, self.batch)
        except HgpartError as error:
            print(f"{title}: {error}", file=sys.stderr, flush=True)
            return None
        print(
            f"{title}: {found.modelling.slices} slices, {found.evaluation.volume / 1e6:.1f} MB "
            f"each way, imbalance {found.evaluation.imbalance:.3f}",
            file=sys.stderr,
            flush=True,
        )
        return hgpart.Plan(found, self.name, (3, self.size, self.size))

    def told_apart(self, model: DistributedModel, total: float, m: int) -> tuple[float, ...]:
        """Maps and their gradients by the table, all else is of parameters."""
        placement = model.placement
        maps = sum(
            float(figures(size).traffic[self.rank].sum())
            for size in micro_batch_sizes(self.batch, m)
            for figures in (placement.programs.expected, placement.programs.expected_gradients)
        )
        return maps, total - maps


class InferenceBench(SliceBench):
    """Evaluations of a batch."""

    hows = {"": ("sequential", 1)}  # noqa: RUF012
    pipelines = {}  # noqa: RUF012

    def model(self) -> nn.Module:
        """As it is evaluated."""
        return super().model().eval()

    def whole(self, model: nn.Module, images: Tensor, labels: Tensor) -> Step:
        """Of a module that is wholly here."""

        def step() -> None:
            with torch.no_grad():
                model(images)

        return step

    def placed(self, name: str, model: DistributedModel, rule: str, m: int) -> Step:
        """A part of it in each process."""

        def step() -> None:
            with torch.no_grad():
                model(self.images, batch_size=self.batch)
            self.sent.pop(name, None)  # the first one brings weights, too
            self.note(name, model, m)

        return step

    def told_apart(self, model: DistributedModel, total: float, m: int) -> tuple[float, ...]:
        """Nothing but maps, once copies of weights are there."""
        return total, 0.0


def main() -> None:
    parser = options(__doc__, "slice_times.csv")
    parser.add_argument("--megabits", type=float, help="Of the wire, a second and each way.")
    parser.add_argument("--inference", action="store_true", help="Evaluate without gradients.")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        made = InferenceBench if asked.inference else SliceBench
        measure(asked, made, {"megabits": asked.megabits})
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    if asked.megabits is None:
        launch(__file__, sys.argv[1:], PROCESSES)
    else:
        launch_on_wire(__file__, sys.argv[1:], asked.megabits)


if __name__ == "__main__":
    main()
