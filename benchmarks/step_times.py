"""Seconds of a training step in two processes of one thread: torch's ways, and ours by each rule.

python benchmarks/step_times.py vgg16 --batch 16 --size 224 --rounds 5
python benchmarks/step_times.py resnet50 --batch 32 --size 128 --rounds 5

A step is zero_grad, forward, cross entropy, backward and plain sgd, float32. The ways take turns,
a step each in a round, after one of each that does not count; a step lasts until the last process
has ended it. Of asynchronous training a round is a stream of eight batches, and a step the time
between two updates of a process, from the second on to the eighth: a stream fills and drains once
in a training, not in each step. ``apart`` is the limit of the machine: two processes that never
talk, each with half of the batch. DDP and torch.distributed.pipelining are used as their
documentation says; the cuts of the latter are those nearest to halves of the multiply-accumulates.
``default`` is the plan of least bytes, by multiply-accumulates, eps 0.1, ``measured`` the same by
measured seconds a layer, ``halves`` has every layer in halves. Run it on idle cores.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from statistics import median, quantiles

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hgpart
from hgpart.compare.kinds import partition_of_kind
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.processes.launch import launch
from hgpart.run.scheduling import schedule_among

PROCESSES = 2
RULES = "sequential", "gpipe", "1f1b", "zero-bubble", "greedy"
STREAM = 8  # batches
KINDS = {"default": "good", "measured": "good", "halves": "horizontal"}
RESULTS = Path(__file__).parent / "results" / "step_times.csv"
COLUMNS = ["model", "batch", "size", "way", "steps", "s", "lower", "upper", "speed-up"]
COLUMNS += ["CPU s", "waiting", "MB", "load"]

Step = Callable[[], None]


class Bench:
    """What all ways have in common."""

    def __init__(self, asked: argparse.Namespace, connection: Connection) -> None:
        self.name, self.batch, self.size = asked.model, asked.batch, asked.size
        self.connection, self.rank = connection, connection.rank
        torch.manual_seed(0)
        self.images = torch.randn(self.batch, 3, self.size, self.size)
        self.labels = torch.randint(1000, (self.batch,))
        each = self.batch // PROCESSES
        self.mine = slice(self.rank * each, (self.rank + 1) * each)
        self.seconds: dict[str, float] = {}  # where they are not those of the whole call
        self.waited: dict[str, float] = {}
        self.sent: dict[str, float] = {}

    def model(self) -> nn.Module:
        """A new one, the same each time."""
        return hgpart.load_model(self.name, seed=0)[0]

    def ways(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """Those whose name is asked for."""
        found: dict[str, Step] = {}
        if wanted.search("one process"):
            found["one process"] = self.alone(self.images, self.labels, self.rank == 0)
        if wanted.search("apart"):
            found["apart"] = self.alone(self.images[self.mine], self.labels[self.mine], True)
        if wanted.search("torch ddp"):
            ddp = DistributedDataParallel(self.model())
            found["torch ddp"] = self.whole(ddp, self.images[self.mine], self.labels[self.mine])
        found.update(self.torch_pipelines(wanted))
        found.update(self.parts(wanted))
        return found

    def alone(self, images: Tensor, labels: Tensor, works: bool) -> Step:
        """Where one of the processes does it by itself."""
        return self.whole(self.model(), images, labels) if works else lambda: None

    def whole(self, model: nn.Module, images: Tensor, labels: Tensor) -> Step:
        """A step of a module that is wholly here."""
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> None:
            sgd.zero_grad()
            cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            sgd.step()

        return step

    def torch_pipelines(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """Three cuts, two schedules, two numbers of micro-batches."""
        found: dict[str, Step] = {}
        for cut in cuts(self.model(), self.size):
            names = {
                f"torch {name} cut {cut} m={m}": (rule, m)
                for name, rule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B))
                for m in (4, 8)
            }
            names = {name: how for name, how in names.items() if wanted.search(name)}
            if not names:
                continue
            steps = list(chain_of(self.model()))
            stage = nn.Sequential(*(steps[:cut] if self.rank == 0 else steps[cut:]))
            for name, (rule, m) in names.items():
                found[name] = self.torch_pipeline(stage, rule, m)
        return found

    def torch_pipeline(self, module: nn.Module, rule: Callable[..., object], m: int) -> Step:
        """A stage of it in each process."""
        stage = PipelineStage(module, self.rank, PROCESSES, torch.device("cpu"))
        schedule: object = rule(stage, m, loss_fn=cross_entropy)
        sgd = torch.optim.SGD(module.parameters(), lr=0.01)

        def step() -> None:
            sgd.zero_grad()
            if self.rank == 0:
                schedule.step(self.images)  # type: ignore[attr-defined]
            else:
                schedule.step(target=self.labels)  # type: ignore[attr-defined]
            sgd.step()

        return step

    def parts(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """Ours: each plan is placed once."""
        found: dict[str, Step] = {}
        model = self.model()
        traced = hgpart.trace(model, torch.empty(2, 3, self.size, self.size))
        for title in KINDS:
            names = {f"hgpart {title} sequential m=1": ("sequential", 1)}
            names |= {f"hgpart {title} {rule} m=4": (rule, 4) for rule in RULES[1:]}
            names |= {f"hgpart {title} {rule} m=8": (rule, 8) for rule in RULES[3:]}
            names |= {f"hgpart {title} async n={n}": ("async", n) for n in (2, 3)}
            names = {name: how for name, how in names.items() if wanted.search(name)}
            if not names:
                continue
            plan = self.connection.gather(self.plan(model, traced, title))[0]
            shared = DistributedModel(hgpart.place(model, plan, parts=[self.rank]), self.connection)
            for name, (rule, m) in names.items():
                made = self.stream if rule == "async" else self.placed
                found[name] = made(name, shared, rule, m)
        return found

    def plan(self, model: nn.Module, traced: hgpart.TracedModel, title: str) -> hgpart.Plan | None:
        """What the first process finds, by measured seconds a layer if the title says so."""
        if self.rank:
            return None
        graph, modelling = hgpart.channel_graph(traced), hgpart.Modelling(batch_size=self.batch)
        if title == "measured":
            work = hgpart.profile(model, traced, graph, batch_size=self.batch)
        else:
            work = hgpart.flops(graph)
        found = partition_of_kind(
            KINDS[title], graph, work, k=PROCESSES, eps=0.1, modelling=modelling
        )
        return hgpart.make_plan(found, graph, work, self.name, (3, self.size, self.size))

    def placed(self, name: str, model: DistributedModel, rule: str, m: int) -> Step:
        """A part of it in each process."""
        sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01)
        schedule = schedule_among(model, rule, m, batch_size=len(self.images))

        def step() -> None:
            sgd.zero_grad()
            model.step([self.images], self.labels, cross_entropy, schedule)
            sgd.step()
            self.note(name, model)

        return step

    def stream(self, name: str, model: DistributedModel, rule: str, in_flight: int) -> Step:
        """The same, without a flush between batches."""
        sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01)
        schedule = schedule_among(model, rule, STREAM, in_flight=in_flight)
        batches = [([self.images], self.labels)] * STREAM
        updates: list[float] = []

        def update(part: int) -> None:
            sgd.step()
            updates.append(time.perf_counter())

        def step() -> None:
            sgd.zero_grad()
            updates.clear()
            model.stream(batches, cross_entropy, update, schedule, self.batch)
            self.note(name, model, STREAM)
            self.seconds[name] = (updates[-1] - updates[1]) / (STREAM - 2)

        return step

    def note(self, name: str, model: DistributedModel, steps: int = 1) -> None:
        """Keep what the last steps waited and sent, of one of them."""
        timing, traffic = model.timing, model.traffic
        self.waited[name] = (timing.forward_waiting + timing.backward_waiting) / steps
        self.sent[name] = float((traffic.forward_bytes + traffic.backward_bytes).sum()) / steps


def chain_of(model: nn.Module) -> list[nn.Module]:
    """The model as a sequence, a level deep."""
    children = model.children()
    return [
        one
        for child in children
        for one in (child if isinstance(child, nn.Sequential) else [child])
    ]


def cuts(model: nn.Module, size: int) -> list[int]:
    """The three that come nearest to halves of the multiply-accumulates, at different ones."""
    from torch.utils.flop_counter import FlopCounterMode

    value, work = torch.empty(1, 3, size, size), []
    with torch.no_grad():
        for one in chain_of(model.eval()):
            with FlopCounterMode(display=False) as counter:
                value = one(value)
            work.append(counter.get_total_flops())
    so_far = [*accumulate(work)]
    places = {total: at for at, total in enumerate(so_far, start=1)}  # behind what has no work
    nearest = sorted((abs(total / so_far[-1] - 0.5), at) for total, at in places.items())
    return sorted(at for _, at in nearest[:3])


def measure(asked: argparse.Namespace) -> None:
    """In each process."""
    torch.set_num_threads(1)
    with connect(PROCESSES) as connection:
        bench = Bench(asked, connection)
        ways = bench.ways(re.compile(asked.ways))
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for done in range(asked.rounds + 1):
            if bench.rank == 0:
                print(f"{time.strftime('%H:%M:%S')} round {done}", file=sys.stderr, flush=True)
            for name, step in ways.items():
                connection.gather(None)
                begin, used = time.perf_counter(), time.process_time()
                step()
                used = time.process_time() - used
                connection.gather(None)
                seconds = time.perf_counter() - begin
                if name in bench.seconds:
                    seconds = max(connection.gather(bench.seconds[name]))
                    used /= STREAM
                if done:
                    wall[name].append(seconds)
                    cpu[name].append(used)
                elif bench.rank == 0:
                    print(f"{name}: {seconds:.2f} s", file=sys.stderr, flush=True)
        rows = []
        for name in ways:
            mine = median(cpu[name]), bench.waited.get(name, 0.0), bench.sent.get(name, 0.0)
            every = connection.gather(mine)
            lower, middle, upper = quantiles(wall[name], n=4)
            one = median(wall.get("one process", [middle]))
            waits = " ".join(f"{waited / middle:.2f}" for _, waited, _ in every)
            rows.append([asked.model, asked.batch, asked.size, name, asked.rounds])
            rows[-1] += [f"{each:.3f}" for each in (middle, lower, upper, one / middle)]
            rows[-1] += [f"{sum(used for used, _, _ in every):.2f}", waits]
            rows[-1] += [f"{sum(sent for *_, sent in every) / 1e6:.1f}"]
            rows[-1] += [f"{os.getloadavg()[0]:.1f}"]
        if connection.rank == 0:
            with Path(asked.csv).open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            for row in sorted(rows, key=lambda row: -float(row[8])):
                print(*row[3:], sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default="", help="A regular expression; all when left out.")
    parser.add_argument("--csv", default=str(RESULTS))
    asked = parser.parse_args()
    if "RANK" in os.environ:
        measure(asked)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        launch(__file__, sys.argv[1:], PROCESSES)


if __name__ == "__main__":
    main()
