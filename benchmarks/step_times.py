"""Seconds of a training step in two processes of one thread: torch's ways, and ours by each rule.

python benchmarks/step_times.py vgg16 --batch 16 --size 224 --rounds 5
python benchmarks/step_times.py resnet50 --batch 32 --size 128 --rounds 5

A step is forward, cross entropy, backward, plain sgd and zero_grad, float32. The ways take turns,
a step each in a round, after one of each that does not count; a step lasts until the last process
has ended it. Of asynchronous training a round is a stream of eight batches, and a step the time
between two updates of a process, from the second on to the eighth: a stream fills and drains once
in a training, not in each step. ``apart`` is the limit of the machine: two processes that never
talk, each with half of the batch. DDP and torch.distributed.pipelining are used as their
documentation says, the latter of models that are chains of modules; its cuts are those nearest to
halves of the multiply-accumulates. ``default`` is the plan of least bytes, by multiply-accumulates,
eps 0.1, ``measured`` the same by measured seconds a layer, ``horizontal`` halves all layers.
``called`` is a loop's ``model(...)`` and ``loss.backward()``, all else is ``model.step(...)``.
Bytes are counted of our ways only. Run it on idle cores.
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
from hgpart.placement.shares.batch_shares import sizes_of
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.connection import Connection, connect
from hgpart.run.processes.launch import launch
from hgpart.run.scheduling import schedule
from hgpart.run.training.scores import class_scores
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes

PROCESSES = 2
RULES = "sequential", "gpipe", "1f1b", "zero-bubble", "greedy"
STREAM = 8  # batches
KINDS = {"default": "coarse", "measured": "coarse", "horizontal": "horizontal"}
RESULTS = Path(__file__).parent / "results"

Step = Callable[[], None]


class Bench:
    """What all ways have in common."""

    titles: tuple[str, ...] = tuple(KINDS)  # of our plans
    hows = (
        {"called": ("called", 1), "sequential m=1": ("sequential", 1)}
        | {f"{rule} m=4": (rule, 4) for rule in RULES[1:]}
        | {f"{rule} m=8": (rule, 8) for rule in RULES[3:]}
        | {f"async n={n}": ("async", n) for n in (2, 3)}
    )
    pipelines: Mapping[str, Callable[..., object]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
    micro_batches: tuple[int, ...] = (4, 8)  # of torch's pipelines
    sums: tuple[str, ...] = ("MB",)  # what is told apart of the bytes that travel

    def __init__(self, asked: argparse.Namespace, connection: Connection) -> None:
        self.name, self.batch, self.size = asked.model, asked.batch, asked.size
        self.connection, self.rank = connection, connection.rank
        torch.manual_seed(0)
        self.images = torch.randn(self.batch, 3, self.size, self.size)
        with torch.no_grad():
            classes = class_scores(self.model().eval()(self.images[:1]), 1).shape[1]
        self.labels = torch.randint(classes, (self.batch,))
        each = self.batch // PROCESSES
        self.mine = slice(self.rank * each, (self.rank + 1) * each)
        self.seconds: dict[str, float] = {}  # where they are not those of the whole call
        self.waited: dict[str, float] = {}
        self.sent: dict[str, tuple[float, ...]] = {}  # bytes, by `sums`

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
            loss_of(model(images), labels).backward()  # type: ignore[no-untyped-call]
            sgd.step()
            sgd.zero_grad()  # last, so that no way holds gradients while others take their turn

        return step

    def torch_pipelines(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """By three cuts, with each schedule and number of micro-batches."""
        found: dict[str, Step] = {}
        whole = self.model()
        if not isinstance(whole, nn.Sequential):
            return found
        for cut in cuts(whole, self.size):
            names = {
                f"torch {name} cut {cut} m={m}": (rule, m)
                for name, rule in self.pipelines.items()
                for m in self.micro_batches
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
        schedule: object = rule(stage, m, loss_fn=loss_of)
        sgd = torch.optim.SGD(module.parameters(), lr=0.01)

        def step() -> None:
            if self.rank == 0:
                schedule.step(self.images)  # type: ignore[attr-defined]
            else:
                schedule.step(target=self.labels)  # type: ignore[attr-defined]
            sgd.step()
            sgd.zero_grad()

        return step

    def parts(self, wanted: re.Pattern[str]) -> Mapping[str, Step]:
        """Ours: each plan is placed once."""
        found: dict[str, Step] = {}
        model = self.model()
        traced = hgpart.trace(model, torch.empty(2, 3, self.size, self.size))
        for title in self.titles:
            names = {f"hgpart {title} {name}": how for name, how in self.hows.items()}
            names = {name: how for name, how in names.items() if wanted.search(name)}
            if not names:
                continue
            plan = self.connection.gather(self.plan(model, traced, title))[0]
            if plan is None:
                continue
            shared = DistributedModel(hgpart.place(model, plan, parts=[self.rank]), self.connection)
            for name, (rule, m) in names.items():
                made = {"async": self.stream, "called": self.called}.get(rule, self.placed)
                sizes = micro_batch_sizes(self.batch, 1 if rule == "async" else m)
                if not all(all(sizes_of(shared.placement.programs.shares, size)) for size in sizes):
                    continue  # a slice would have no sample
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
        found = hgpart.partition_by(KINDS[title], graph, work, PROCESSES, modelling=modelling)
        return hgpart.Plan(found, self.name, (3, self.size, self.size))

    def placed(self, name: str, model: DistributedModel, rule: str, m: int) -> Step:
        """A part of it in each process."""
        sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01)
        order = schedule(model, rule, m, batch_size=len(self.images))

        def step() -> None:
            model.step([self.images], self.labels, loss_of, order, batch_size=self.batch)
            sgd.step()
            sgd.zero_grad()
            self.note(name, model, m)

        return step

    def called(self, name: str, model: DistributedModel, rule: str, m: int) -> Step:
        """The same by ``model(...)`` and ``loss.backward()``, as in a loop of one's own."""
        sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01)
        mine = model.placement.programs.samples_of_result(self.rank, self.batch)
        labels = self.labels[mine] if mine else self.labels

        def step() -> None:
            loss = loss_of(model(self.images, batch_size=self.batch), labels)
            (loss * (len(labels) / self.batch)).backward()  # type: ignore[no-untyped-call]
            sgd.step()
            sgd.zero_grad()
            self.note(name, model, m)

        return step

    def stream(self, name: str, model: DistributedModel, rule: str, in_flight: int) -> Step:
        """The same, without a flush between batches."""
        sgd = torch.optim.SGD([{"params": [*model.parameters()]}], lr=0.01)
        order = schedule(model, rule, STREAM, in_flight=in_flight)
        batches = [([self.images], self.labels)] * STREAM
        updates: list[float] = []

        def update(part: int) -> None:
            sgd.step()
            updates.append(time.perf_counter())

        def step() -> None:
            updates.clear()
            model.stream(batches, loss_of, update, order, self.batch)
            sgd.zero_grad()
            self.note(name, model, 1, STREAM)
            self.seconds[name] = (updates[-1] - updates[1]) / (STREAM - 2)

        return step

    def note(self, name: str, model: DistributedModel, m: int, steps: int = 1) -> None:
        """Keep what steps of m micro-batches waited, the last ones, and sent, one of them."""
        timing, traffic = model.runtime.last.timing[0], model.runtime.last.traffic
        self.waited[name] = (timing.forward_waiting + timing.backward_waiting) / steps
        if name in self.sent:  # all steps send as much
            return
        total = float((traffic.forward_bytes + traffic.backward_bytes).sum()) / steps
        self.sent[name] = self.told_apart(model, total, m)

    def told_apart(self, model: DistributedModel, total: float, m: int) -> tuple[float, ...]:
        """What this process sent in a step, by `sums`."""
        return (total,)


def loss_of(result: object, labels: Tensor) -> Tensor:
    """Cross entropy; of maps of scores, of their means."""
    return cross_entropy(class_scores(result, len(labels)), labels)


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


def measure(asked: argparse.Namespace, make: type[Bench], given: dict[str, object]) -> None:
    """In each process; what is given is said in each row, after what was asked for."""
    torch.set_num_threads(1)
    with connect(PROCESSES) as connection:
        bench = make(asked, connection)
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
        rows: list[dict[str, object]] = []
        for name in ways:
            mine = median(cpu[name]), bench.waited.get(name, 0.0), bench.sent.get(name)
            every = connection.gather(mine)
            lower, middle, upper = (
                quantiles(wall[name], n=4) if asked.rounds > 1 else 3 * wall[name]
            )
            one = median(wall.get("one process", [middle]))
            sent = [sent or (0.0,) * len(bench.sums) for *_, sent in every]
            counted = [f"{sum(each) / 1e6:.1f}" for each in zip(*sent, strict=True)]
            if name not in bench.sent:
                counted = [""] * len(bench.sums)
            rows.append(
                {"model": asked.model, "batch": asked.batch, "size": asked.size}
                | given
                | {"way": name, "steps": asked.rounds}
                | {"s": f"{middle:.3f}", "lower": f"{lower:.3f}", "upper": f"{upper:.3f}"}
                | {"speed-up": f"{one / middle:.3f}"}
                | {"CPU s": f"{sum(used for used, *_ in every):.2f}"}
                | {"waiting": " ".join(f"{waited / middle:.2f}" for _, waited, _ in every)}
                | dict(zip(bench.sums, counted, strict=True))
                | {"load": f"{os.getloadavg()[0]:.1f}"}
            )
        if connection.rank == 0 and rows:
            write(Path(asked.csv), rows)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Add rows to the file, and print them, the fastest first."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)
    for row in sorted(rows, key=lambda row: -float(str(row["speed-up"]))):
        print(*[*row.values()][3:], sep="  ", flush=True)


def options(description: str | None, results: str) -> argparse.ArgumentParser:
    """What is asked for: a model, and how it is measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default="", help="A regular expression; all when left out.")
    parser.add_argument("--csv", default=str(RESULTS / results))
    return parser


def main() -> None:
    asked = options(__doc__, "step_times.csv").parse_args()
    if "RANK" in os.environ:
        measure(asked, Bench, {})
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        launch(__file__, sys.argv[1:], PROCESSES)


if __name__ == "__main__":
    main()
