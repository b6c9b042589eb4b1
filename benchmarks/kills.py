"""Commands that are ended at random moments: no file is half written, and trainings go on.

    OMP_NUM_THREADS=1 python benchmarks/kills.py [--count 50] [--seed 0]

Kills by turns `hgpart partition` with all its files, `hgpart train` in one process and in one for
each part, with SIGKILL, SIGTERM or SIGINT, sent to the command or to any of its processes. After
each, within 20 s, no process of it is left, and

    each file of the partition is the one before or a new one, whole;
    the newest checkpoint is whole, and none was refused.

Every fifth kill of a training is followed by one that goes on to its end, to the losses of a
training that nobody disturbed, and leaves nothing but two checkpoints. A command that has come to
its end before it is its turn does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import hgpart
from hgpart.hypergraph.blocks import full_vertices
from hgpart.hypergraph.formats import read_partition
from hgpart.hypergraph.modelling import Modelling
from hgpart.run.training.checkpoints import KEPT, LOCK, checkpoints, newest

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
GONE = 20.0  # seconds that the processes of a command have to end after it
PARTS = 2
STEPS, EVERY = 400, 10
MARK = "HGPART_KILLS"  # in the environment of all processes that a command starts


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random, failures, done = Random(arguments.seed), 0, Counter[str]()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turns = [Partition(folder), Training(folder, one_process=True), Training(folder)]
        while done.total() < arguments.count:
            turn = turns[done.total() % len(turns)]
            how, wrong = killed(turn, folder, random)
            if how is not None:
                done[f"{turn.name}, {how}"] += 1
            wrong += turn.wrong()
            failures += bool(wrong)
            print(
                f"{done.total()} {turn.name}: {how}: {'; '.join(wrong) or turn.state}", flush=True
            )
    for what, count in sorted(done.items()):
        print(f"{count:>4} {what}")
    seconds = time.monotonic() - began
    print(f"{done.total()} kills in {seconds:.0f} s, {failures} failed, seed {arguments.seed}")
    return min(1, failures)


def hgpart_command(*arguments: object) -> list[str]:
    start = "from hgpart.cli import main; main()"
    return [sys.executable, "-c", start, *map(str, arguments)]


def run(command: list[str], folder: Path) -> float:
    """Run a command to its end; returns its seconds."""
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


def killed(
    turn: Partition | Training, folder: Path, random: Random
) -> tuple[str | None, list[str]]:
    """Start a command and end it; returns how, unless it was at its end, and what was wrong."""
    mark = f"{MARK}={random.random()}"
    environment = {**os.environ, MARK: mark.partition("=")[2]}
    process = subprocess.Popen(
        turn.command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    number = random.choice(SIGNALS)
    # Half of them where there is most to lose: a command spends its first seconds on imports.
    latest = 1.1
    if random.random() < 0.5:
        latest = turn.later
        before = turn.latest()
        while process.poll() is None and turn.latest() == before:
            time.sleep(0.001)
    time.sleep(random.uniform(0, latest) * turn.seconds)
    target = process.pid if random.random() < 0.7 else random.choice(alive(mark) or [process.pid])
    how = None
    if process.poll() is None:
        how = f"{number.name} to {'it' if target == process.pid else 'one of its processes'}"
        with suppress(ProcessLookupError):
            os.kill(target, number)
    deadline = time.monotonic() + GONE
    while time.monotonic() < deadline and (process.poll() is None or alive(mark)):
        time.sleep(0.1)
    left = alive(mark)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return how, [f"{len(left)} processes were left"] if left else []


def alive(mark: str) -> list[int]:
    """Processes with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


class Partition:
    """A partition with its files, each of which was there before."""

    name = "partition"
    later = 0.01  # share of a run between the first file that it begins and its end

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "partition"
        self.folder.mkdir()
        files = {"-o": "plan", "--json": "json", "--csv": "csv", "--write-partition": "parts"}
        self.files = {name: self.folder / name for name in files.values()}
        self.command = hgpart_command(
            *("partition", "alexnet", "--modelling", "grain=fine", "--k", PARTS, "--effort", 0.01),
            *(word for option, name in files.items() for word in (option, self.files[name])),
        )
        self.seconds = run(self.command, folder)
        model, shape = hgpart.load_model("alexnet", device="meta")
        self.graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
        self.state = "all files are whole"

    def latest(self) -> object:
        """Another one as soon as files are written."""
        return sorted(self.folder.iterdir())

    def wrong(self) -> Iterator[str]:
        """What is wrong with the files."""
        try:
            hgpart.restore(hgpart.files.load_plan(self.files["plan"]), self.graph)
            json.loads(self.files["json"].read_text())
            vertices = full_vertices(Modelling(grain="fine").views(self.graph))
            read_partition(self.files["parts"], vertices, PARTS)
            if len(self.files["csv"].read_text().splitlines()) != 1 + PARTS:
                yield "the table is not whole"
        except (hgpart.errors.HgpartError, OSError, ValueError) as error:
            yield str(error)
        temporary = [path for path in self.folder.iterdir() if path not in self.files.values()]
        self.state = f"all files are whole, {len(temporary)} temporary ones"
        for path in temporary:
            path.unlink()


class Training:
    """A training that goes on from its checkpoints, as often as it is ended."""

    later = 0.4  # share of a run between a checkpoint and its end

    def __init__(self, folder: Path, one_process: bool = False) -> None:
        self.name = f"training in {1 if one_process else PARTS} processes"
        self.work = folder
        self.plan, self.figures = folder / "plan.json", folder / "figures.json"
        run(hgpart_command("partition", "lenet5", "--k", PARTS, "-o", self.plan), folder)
        self.one_process = one_process
        self.attempt, self.kills = 0, 0
        self.seconds = run(self.command, folder)
        self.losses = self._losses()
        self.attempt += 1
        self.state = ""

    @property
    def folder(self) -> Path:
        """Of the checkpoints."""
        return self.work / f"checkpoints {self.one_process} {self.attempt}"

    @property
    def command(self) -> list[str]:
        """The same each time."""
        return hgpart_command(
            *("train", "lenet5", "--plan", self.plan, "--data", "digits", "--batch-size", 16),
            *("--steps", STEPS, "--checkpoint", f"{self.folder},every={EVERY}", "--resume"),
            *("--json", self.figures, *(["--backend", "threads"] if self.one_process else [])),
        )

    def latest(self) -> object:
        """Another one as soon as a checkpoint is complete."""
        return checkpoints(self.folder)[:1]

    def wrong(self) -> Iterator[str]:
        """What is wrong with the checkpoints and, after every fifth kill, with the losses."""
        step = 0
        if checkpoints(self.folder):
            try:
                _, manifest, refused = newest(self.folder)
                step = manifest.step
                yield from refused
            except hgpart.errors.HgpartError as error:
                yield str(error)
        self.state = f"step {step} is whole"
        self.kills += 1
        if self.kills % 5 and step < STEPS:
            return
        try:
            run(self.command, self.work)
        except subprocess.CalledProcessError as error:
            yield f"it did not go on: {error.stderr.decode()[-300:]}"
            return
        self.state += ", and it went on to the losses of one that nobody ended"
        if self._losses() != self.losses:
            yield "it went on to other losses"
        left = {path.name for path in self.folder.iterdir()} - {LOCK}
        whole = {path.name for path in checkpoints(self.folder)}
        if left != whole or len(whole) != KEPT:
            yield f"it left {', '.join(sorted(left))}"
        self.attempt += 1

    def _losses(self) -> list[float]:
        losses: list[float] = json.loads(self.figures.read_text())["losses"]
        return losses


if __name__ == "__main__":
    sys.exit(main())
