"""Damaged files of every kind that hgpart reads: each is read, or refused in one line.

    OMP_NUM_THREADS=1 python benchmarks/fuzzed_files.py
        [--count 20000] [--seed 0] [--first 0] [--kinds plan work ...] [--keep FOLDER]

File n of a seed is always the same: a valid file of the kinds in turn, changed (mutations.py). It
fails if reading it, and printing or evaluating what was read,

    ends the process (a signal, an exit, a crash of native code),
    raises anything but an HgpartError whose message is one line,
    takes 10 s of one core, or 2 minutes in all,
    takes 1 GB of memory more than there was,
    prints a control character,
    or runs code, starts a process, writes, removes or connects to anything.

Failures are printed, and with --keep the files are kept, under the number that --first repeats.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutations import mutated
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import hgpart
from hgpart.cli.commands.show import plan_report
from hgpart.compare.comparison import Comparison
from hgpart.compare.comparison_files import comparison_json, rows_done
from hgpart.errors import HgpartError
from hgpart.hypergraph.blocks import full_vertices, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.formats import (
    read_hmetis,
    read_partition,
    read_patoh,
    write_hmetis,
    write_partition,
    write_patoh,
)
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_parts
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import over_links
from hgpart.partition.problem.topology import load_topology
from hgpart.placement.cutting.slices import Slice
from hgpart.plan import LARGEST_K
from hgpart.report.comparison import print_comparison
from hgpart.report.partition.columns import as_json
from hgpart.report.partition.printing import print_report
from hgpart.run.training import checkpoints
from hgpart.run.training import manifest as manifests
from hgpart.run.training.checkpoints import CheckpointReader, Held
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.sources.image_folder import ImageFiles
from hgpart.terminal import PlainConsole, printable
from hgpart.work.figures import load_work, save_work

CORE_SECONDS, SECONDS = 10, 120
MEMORY = 10**9
PARTS = 3
# What may not happen while a file is read: see Python's table of audit events.
FORBIDDEN = ("exec", "compile", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.")
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")


@dataclass(frozen=True)
class Kind:
    """Files of a kind.

    Attributes
    ----------
    valid : list of bytes
    read : function
        Reads a file as a command would, and prints or evaluates what was read; returns what it
        printed.
    place : function
        Puts a file's content where `read` looks for it.
    hostile : sequence of bytes
        What is to be refused as it is.
    """

    valid: list[bytes]
    read: Callable[[Path], str]
    place: Callable[[Path, bytes], object] = Path.write_bytes
    hostile: Sequence[bytes] = ()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kinds = made_kinds(Path(folder))
        kinds = {name: kinds[name] for name in arguments.kinds or kinds}
        for late in ("cp437", "unicode_escape"):  # is imported, as it is by what is read here
            "".encode(late)
        for kind in kinds.values():
            for content in kind.valid:
                kind.place(Path(folder) / "file", content)
                kind.read(Path(folder) / "file")
        fuzzer = Fuzzer(kinds, arguments.seed, Path(folder) / "file", arguments.keep)
        number, end = arguments.first, arguments.first + arguments.count
        while number < end:
            number = fuzzer.run(number, end)
    print(f"{arguments.count} files in {time.monotonic() - began:.0f} s, seed {arguments.seed}")
    print(f"{'kind':<12}{'files':>8}{'read':>8}{'refused':>9}{'failed':>8}{'slowest s':>11}")
    for name in kinds:
        found = fuzzer.found[name]
        print(
            f"{name:<12}{found.total():>8}{found['read']:>8}{found['refused']:>9}"
            f"{found['failed']:>8}{fuzzer.slowest.get(name, 0):>11.2f}"
        )
    return min(1, sum(found["failed"] for found in fuzzer.found.values()))


class Fuzzer:
    """Reads files in a process of their own, and begins another where that ends."""

    def __init__(self, kinds: Mapping[str, Kind], seed: int, path: Path, keep: Path | None) -> None:
        self.kinds, self.seed, self.path, self.keep = kinds, seed, path, keep
        self.found = {name: Counter[str]() for name in kinds}
        self.slowest: dict[str, float] = {}

    def file(self, number: int) -> tuple[str, bytes]:
        """The kind and the content of a file."""
        random = Random(f"{self.seed} {number}")
        name = list(self.kinds)[number % len(self.kinds)]
        kind = self.kinds[name]
        content = random.choice((*kind.valid, *kind.hostile))
        return name, content if content in kind.hostile else mutated(content, random)

    def run(self, number: int, end: int) -> int:
        """Read files until one ends the process, or all are read; returns the next."""
        sys.stdout.flush()
        reader, writer = os.pipe()
        process = os.fork()
        if not process:
            os.close(reader)
            with os.fdopen(writer, "w") as report:
                self._read_all(number, end, report)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as report:
            for line in report:
                self._count(*json.loads(line))
                number += 1
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if number < end:
            how = f"status {status}" if status >= 0 else signal.Signals(-status).name
            self._count(number, "failed", 0.0, f"ended the process: {how}")
            number += 1
        return number

    def _count(self, number: int, outcome: str, seconds: float, said: str) -> None:
        name, content = self.file(number)
        self.found[name][outcome] += 1
        self.slowest[name] = max(self.slowest.get(name, 0.0), seconds)
        if outcome == "failed":
            print(f"{number} {name}: {printable(said)}", flush=True)
            if self.keep is not None:
                self.keep.mkdir(exist_ok=True, parents=True)
                (self.keep / f"{number}.{name}").write_bytes(content)

    def _read_all(self, first: int, end: int, report: Any) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
        watch = Watch()
        for number in range(first, end):
            name, content = self.file(number)
            kind = self.kinds[name]
            kind.place(self.path, content)
            # Their default action ends the process, whatever it is at.
            signal.setitimer(signal.ITIMER_PROF, CORE_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            began = time.process_time()
            outcome, said = watch.outcome(kind.read, self.path)
            seconds = time.process_time() - began
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            report.write(json.dumps([number, outcome, seconds, said]) + "\n")
            report.flush()


class Watch:
    """Says what came of reading a file, and whether it did what reading must not."""

    def __init__(self) -> None:
        self.reading, self.done = False, ""
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.reading:
            return
        writes = (
            event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        )
        if writes or (event.startswith(FORBIDDEN) and event not in HARMLESS):
            self.done = self.done or f"{event} {arguments!r}"[:200]

    def outcome(self, read: Callable[[Path], str], path: Path) -> tuple[str, str]:
        """``read``, ``refused`` or ``failed``, and what is to be said of it."""
        self.reading, self.done = True, ""
        try:
            printed = read(path)
        except HgpartError as error:
            said = str(error)
            if len(said.splitlines()) != 1:
                return "failed", f"an error of {len(said.splitlines())} lines: {said[:200]!r}"
            if _out_of_memory(error):
                return "failed", f"out of memory: {said}"
            found = "refused", ""
        except BaseException as error:
            return "failed", f"{type(error).__name__}: {error}"[:300]
        else:
            if not printed.replace("\n", "").isprintable():
                return "failed", "printed control characters"
            found = "read", ""
        finally:
            self.reading = False
        return ("failed", f"did more than read: {self.done}") if self.done else found


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, was the limit."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


# ------------------------------------------------------------------ the kinds


def made_kinds(folder: Path) -> dict[str, Kind]:
    """Valid files of every kind, made as hgpart makes them."""
    model, shape = hgpart.load_model("lenet5", device="meta")
    graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    work = hgpart.flops(graph)
    links = over_links([[0, 1, 9], [1, 0, 9], [9, 9, 0]])
    memory = MemoryLimits((10**9,) * PARTS, 4.0)
    plans = []
    for options in (
        {"speeds": (1, 1, 2)},
        {"modelling": Modelling(grain="fine", batch_size=8)},
        {"objective": links, "memory": memory},
    ):
        found = hgpart.partition_graph(graph, work, PARTS, 0.3, effort=0.01, **options)
        hgpart.files.save_plan(hgpart.Plan(found, "lenet5", shape), folder / "plan")
        plans.append((folder / "plan").read_bytes())

    def shown(path: Path) -> str:
        report = replace(plan_report(hgpart.files.load_plan(path), graph), seconds={"total": 0.0})
        as_json(report)
        return _printed(lambda console: print_report(report, console, "MB"))

    def worked(path: Path) -> str:
        made = cnn_hypergraph(graph, load_work(path, graph), blocks, modelling)
        evaluate(made.hypergraph, every, PARTS)
        return ""

    def evaluated(read: Callable[[Path], Hypergraph]) -> Callable[[Path], str]:
        def of(path: Path) -> str:
            found = read(path)
            evaluate(found, np.arange(found.vertices, dtype=np.int32) % PARTS, PARTS)
            return ""

        return of

    def divided(path: Path) -> str:
        vertices = full_vertices(modelling.views(graph))
        parts = read_partition(path, vertices, min(vertices, LARGEST_K))
        made, own = blocks_of_parts(graph, work, modelling, parts)
        evaluate(made.hypergraph, own, int(parts.max()) + 1)
        return ""

    def linked(path: Path) -> str:
        load_topology(path, PARTS).value(np.ones((PARTS, PARTS), np.int64))
        return ""

    modelling = Modelling()
    blocks = single_blocks(graph, modelling)
    full = cnn_hypergraph(graph, work, blocks, modelling).hypergraph
    every = full_parts(found.model, found.parts)
    small = cnn_hypergraph(graph, work, found.model.blocks, modelling).hypergraph
    save_work(work, graph, folder / "work")
    made: dict[str, list[bytes]] = {"patoh": [], "hmetis": []}
    for name, write in (("patoh", write_patoh), ("hmetis", write_hmetis)):
        for hypergraph in (small, full):
            write(hypergraph, folder / name)
            made[name].append((folder / name).read_bytes())
    write_partition(every, folder / "parts")
    lines = (folder / "parts").read_bytes()
    topologies = [{"nodes": [1, 2], "inside": 1, "between": 10}, {"links": links.links.tolist()}]
    return {
        "plan": Kind(plans, shown),
        "work": Kind([(folder / "work").read_bytes()], worked),
        "topology": Kind(
            [json.dumps({"format": "hgpart topology 1", **one}).encode() for one in topologies],
            linked,
        ),
        "comparison": _comparison(graph),
        "patoh": Kind(made["patoh"], evaluated(read_patoh)),
        "hmetis": Kind(made["hmetis"], evaluated(read_hmetis)),
        "partition": Kind([lines, lines.replace(b"\n", b" "), b"% of hgpart\n" + lines], divided),
        **_checkpoint_kinds(folder / "step-000003"),
        **_weight_kinds(folder),
        "image": Kind(_images(), _pixels),
    }


def _printed(show: Callable[[PlainConsole], None]) -> str:
    text = io.StringIO()
    show(PlainConsole(file=text, width=1000))
    return text.getvalue()


def _comparison(graph: hgpart.ChannelGraph) -> Kind:
    from hgpart.compare.comparison import chosen_ways, compare, grid

    names = ("layerwise", "random", "data-parallel", "one-weird-trick")
    cells = grid(chosen_ways(names), (2, 4), (0.1,))
    rows = (*compare(graph, hgpart.flops(graph), Modelling(), cells, 0),)
    empty = Comparison("lenet5", (1, 32, 32), graph.fingerprint, 32, None, "flops", 0, 1000, ())

    def compared(path: Path) -> str:
        found = replace(empty, rows=(*rows_done(path, empty).values(),))
        return _printed(lambda console: print_comparison(found, console, "MB"))

    return Kind([comparison_json(replace(empty, rows=rows)).encode()], compared)


def _checkpoint_kinds(folder: Path) -> dict[str, Kind]:
    """Manifests as they are and with their digest made anew, and the files of parts."""
    folder.mkdir()
    whole = torch.arange(12.0).reshape(4, 3)
    slices = [
        Slice("weight", (4, 3), {0: np.array([0, 2])}),
        Slice("weight", (4, 3), elements=np.array([3, 4, 5, 9, 10, 11])),
    ]
    files = {
        manifests.part_file(part): checkpoints.write_part(
            folder, part, [Held(one, {"value": one.take(whole), "step": torch.tensor(3.0)})]
        )
        for part, one in enumerate(slices)
    }
    about = {"seed": 0}, {"lr": 0.1}, (0.5, 0.25, 0.125), "00ff", files
    manifest = manifests.Manifest(3, *about, (Epoch(1, 0.1, 0.5),))
    valid = manifests.as_text(manifest).encode()
    parts = {name: (folder / name).read_bytes() for name in files}

    def read(_: Path) -> str:
        reader = CheckpointReader(folder, checkpoints.check(folder))
        reader.read(Slice("weight", (4, 3)))
        return ""

    def put(manifest: bytes, first: bytes = parts["part-0.pt"]) -> None:
        (folder / "part-0.pt").write_bytes(first)
        (folder / manifests.MANIFEST).write_bytes(manifest)

    def signed(content: bytes) -> bytes:
        try:
            fields = json.loads(content)
            fields.pop("sha256", None)
            return json.dumps({**fields, "sha256": manifests._digest(fields)}).encode()
        except (ValueError, AttributeError, TypeError, RecursionError):
            return content

    def put_part(_: Path, content: bytes) -> None:
        fields = json.loads(valid)
        fields["files"]["part-0.pt"] = [len(content), hashlib.sha256(content).hexdigest()]
        put(signed(json.dumps(fields).encode()), content)

    return {
        "manifest": Kind([valid], read, lambda _, content: put(content)),
        "signed": Kind([valid], read, lambda _, content: put(signed(content))),
        "part": Kind([parts["part-0.pt"]], read, put_part),
    }


class Called:
    """What runs code where a pickle is loaded without care."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """What pickle writes, and calls as it reads."""
        return self.reduced


def _weight_kinds(folder: Path) -> dict[str, Kind]:
    """State dicts in both formats, for a placement of their model."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    plan = hgpart.partition_model(model, torch.zeros(2, 1, 8, 8), k=2, eps=1, effort=0.01)
    placed = hgpart.place(model, plan)
    torch.save(model.state_dict(), folder / "weights.pt")
    save_file(model.state_dict(), folder / "weights.safetensors")
    hostile = []
    for called in (
        Called(os.system, "true"),
        Called(bytearray, 2**34),
        Called(torch.Tensor, 2**33),
    ):
        torch.save({**model.state_dict(), "0.weight": called}, folder / "hostile.pt")
        hostile.append((folder / "hostile.pt").read_bytes())

    def kind(suffix: str, hostile: Sequence[bytes] = ()) -> Kind:
        path = folder / f"weights{suffix}"

        def load(_: Path) -> str:
            placed.load_checkpoint(path)
            return ""

        def put(_: Path, content: bytes) -> None:
            path.write_bytes(content)

        return Kind([path.read_bytes()], load, put, hostile)

    return {"torch": kind(".pt", hostile), "safetensors": kind(".safetensors")}


def _images() -> list[bytes]:
    made = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"):
        file = io.BytesIO()
        Image.radial_gradient("L").resize((9, 7)).convert("RGB").save(file, kind)
        made.append(file.getvalue())
    return made


def _pixels(path: Path) -> str:
    ImageFiles(((path, 0),), channels=3, height=8, width=8).images([0])
    return ""


if __name__ == "__main__":
    sys.exit(main())
