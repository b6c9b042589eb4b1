"""Plan <-> plan file (JSON), which holds all but the model."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import write_text
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import LARGEST_BANDS, LARGEST_FACTOR, Modelling
from hgpart.partition.problem.checks import FASTEST, SLOWEST
from hgpart.partition.problem.constraints import NONE, Constraints, read_constraints
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import Objective, read_objective
from hgpart.plan.plan import Plan
from hgpart.schedule_wanted import Recompute, Scheduling
from hgpart.schedules.outline import Stretch
from hgpart.schedules.rules import MOST_IN_FLIGHT
from hgpart.summary import Summary
from hgpart.tracing.input_shape import ACCEPTED, InputShape, shape_text
from hgpart.work.figures import Work

if TYPE_CHECKING:
    from torch import nn

FORMAT = "hgpart plan 1"
LARGEST_K = 2**14  # what `evaluate` takes
LARGEST_RUNS = 25_000_000  # in all: what a file asks for in memory stays below 1 GB


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file; `restore` makes the Partition once the model's graph is known.

    Attributes
    ----------
    model : str
        The model spec, as `load_model` takes it. `load_plan` does not call it: who does calls
        whatever code a file names (`hgpart.specs.models.is_user_code`).
    input_shape : InputShape
        The inputs that the model takes for each sample.
    fingerprint : str
        Fingerprint of the model's ChannelGraph.
    versions : mapping
        Versions of hgpart, torch, the backend and Python.
    modelling, k, eps, speeds, objective, memory, constraints, work
        The `Problem`, but for its graph.
    seed, backend, start, feasible, interrupted
        The same as in `Partition`.
    volume_bytes, lower_bound_bytes : int
        The figures that the file gives; `restore` recomputes them.
    parts : int32 array
        Part of each block.
    file : str or None
        The file that it was read from.
    """

    model: str
    input_shape: InputShape
    fingerprint: str
    versions: Mapping[str, str]
    modelling: Modelling
    k: int
    eps: float
    seed: int
    backend: str
    start: str
    speeds: tuple[float, ...] | None
    objective: Objective
    memory: MemoryLimits | None
    feasible: bool
    interrupted: bool
    work: Work
    imbalance: float
    volume_bytes: int
    lower_bound_bytes: int
    blocks: Blocks
    parts: Int32
    scheduling: Scheduling | None = None
    constraints: Constraints = NONE
    file: str | None = None

    @property
    def words(self) -> str:
        """The plan in an error, by its file."""
        return "the plan" if self.file is None else f"the plan {self.file}"

    def __repr__(self) -> str:
        """Short, without its arrays."""
        return (
            f"PlanFile({self.model!r}, k={self.k}, {self.modelling.grain}-grain, "
            f"imbalance={self.imbalance:.3f}, volume={self.volume_bytes:,} bytes)"
        )

    def summary(self) -> Summary:
        """The model, what was asked for, and the figures; the parts' shares need the model."""
        batch, slices = f"{self.modelling.batch_size} samples", self.modelling.slices
        if slices > 1:
            batch += f" in {slices} slices"
        if self.modelling.bands > 1:
            batch += f", rows in {self.modelling.bands} bands"
        said = {
            "model": f"{self.model}, input {shape_text(self.input_shape)}",
            "parts": str(self.k),
            "grain": self.modelling.grain,
            "batch": batch,
            "imbalance": f"{self.imbalance:.3f} of {self.eps:g}",
            "volume": f"{self.volume_bytes:,} bytes, at least {self.lower_bound_bytes:,}",
            "made by": f"{self.backend} from {self.start}, seed {self.seed}",
        }
        if self.constraints:
            said["constraints"] = str(self.constraints)
        if self.scheduling is not None:
            said["schedule"] = self.scheduling.text
        return Summary((f"Plan for {self.k} devices",), ("of", "is"), tuple(said.items()))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def plot(self, path: Path | str | None = None, model: nn.Module | None = None) -> str:
        """Return the page of the plan, and write it to `path` if given; see `hgpart.plot`."""
        from hgpart import plot

        return plot(self, path, model=model)

    def schedule_for(self, batch_size: int) -> Scheduling | None:
        """Its schedule, unless a batch is too small for that, as each slice has samples of each."""
        count = 1 if self.scheduling is None else self.scheduling.micro_batches
        fits = count == 1 or count * self.modelling.slices <= batch_size
        return self.scheduling if fits else None


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write a plan as JSON, one line a layer; runs of equal numbers as number, count pairs.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    partition, problem = plan.partition, plan.partition.problem
    modelling, memory, work = problem.modelling, problem.memory, problem.work
    head = {
        "format": FORMAT,
        "model": plan.model,
        "input_shape": list(plan.input_shape),
        "fingerprint": plan.fingerprint,
        "versions": _versions(partition.backend),
        "grain": modelling.grain,
        "linear": modelling.linear,
        "batch_size": modelling.batch_size,
        "bytes_per_element": modelling.bytes_per_element,
        "input_vertex": modelling.input_vertex,
        "output_vertex": modelling.output_vertex,
        **({"slices": modelling.slices} if modelling.slices > 1 else {}),
        **({"bands": modelling.bands} if modelling.bands > 1 else {}),
        **({} if modelling.training else {"training": False}),
        **({} if modelling.norms == "slice" else {"norms": modelling.norms}),
        "k": problem.k,
        "eps": problem.eps,
        "seed": partition.seed,
        "backend": partition.backend,
        "start": partition.start,
        "speeds": None if problem.speeds is None else list(problem.speeds),
        **problem.objective.record(),
        "memory": None if memory is None else list(memory.bytes),
        "memory_copies": None if memory is None else memory.copies,
        **_several_in_flight(memory),
        **({"constraints": problem.constraints.record()} if problem.constraints else {}),
        "feasible": partition.feasible,
        "interrupted": partition.interrupted,
        "imbalance": partition.evaluation.imbalance,
        "volume_bytes": partition.evaluation.volume,
        "lower_bound_bytes": partition.lower_bound,
        "work_source": work.source,
        "work_unit": work.unit,
        "work_units": work.units,
        **_schedule_fields(plan.scheduling),
        "parts": _runs(partition.parts),
        "layer_count": len(partition.model.blocks.rows),
    }
    blocks = partition.model.blocks
    layers = [
        {"work": int(per_task), "rows": _runs(np.diff(rows)), "columns": _runs(np.diff(columns))}
        for per_task, rows, columns in zip(work.per_task, blocks.rows, blocks.columns, strict=True)
    ]
    _write(path, head, layers)


def keep_schedule(path: Path | str, scheduling: Scheduling) -> None:
    """Let a plan file name a schedule; all else in it stays as it is.

    Raises
    ------
    FormatError
        If the file can't be read.
    OutputError
        If the file can't be written.
    """
    head = dict(read_json(path, "a plan of hgpart partition -o", FORMAT).fields)
    layers = head.pop("layers")
    _write(path, {**head, **_schedule_fields(scheduling)}, layers)


def _write(path: Path | str, head: Mapping[str, object], layers: Sequence[object]) -> None:
    lines = [f'  "{name}": {json.dumps(value)}' for name, value in head.items()]
    body = ",\n".join(f"    {json.dumps(layer)}" for layer in layers)
    write_text(path, "{\n" + ",\n".join(lines) + f',\n  "layers": [\n{body}\n  ]\n}}\n')


def load_plan(path: Path | str) -> PlanFile:
    """Read a file of `save_plan`; `restore` then checks it against the model.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    """
    head = read_json(path, "a plan of hgpart partition -o", FORMAT)
    k = head.whole("k", 1, LARGEST_K)
    layers = head.objects("layers", head.whole("layer_count", 1, 10**6))
    per_task = [layer.whole("work") for layer in layers]
    parts = _expanded(head, "parts", k - 1, LARGEST_RUNS)
    room = LARGEST_RUNS - len(parts)
    rows: list[Int64] = []
    columns: list[Int64] = []
    for layer in layers:
        for name, cuts in (("rows", rows), ("columns", columns)):
            sizes = _expanded(layer, name, 2**31, room)
            room -= len(sizes)
            cuts.append(np.concatenate([[0], np.cumsum(sizes)]))
    speeds = None
    if head.fields.get("speeds") is not None:
        numbers = head.items("speeds", k)
        if not all(type(x) in (int, float) and SLOWEST <= x <= FASTEST for x in numbers):
            raise head.wrong("speeds", f"{k} numbers from {SLOWEST:g} to {FASTEST:g}")
        speeds = tuple(map(float, numbers))
    if head.number("eps") < 0:
        raise head.wrong("eps", "a number >= 0")
    try:
        modelling = Modelling(
            grain=head.string("grain"),
            linear=head.string("linear"),
            batch_size=head.whole("batch_size", 1, LARGEST_FACTOR),
            bytes_per_element=(
                None
                if head.fields.get("bytes_per_element") is None
                else head.whole("bytes_per_element", 1, LARGEST_FACTOR)
            ),
            input_vertex=head.flag("input_vertex"),
            output_vertex=head.flag("output_vertex"),
            slices=head.whole("slices", 1, LARGEST_FACTOR) if "slices" in head.fields else 1,
            training=head.flag("training") if "training" in head.fields else True,
            norms=head.string("norms") if "norms" in head.fields else "slice",
            bands=head.whole("bands", 1, LARGEST_BANDS) if "bands" in head.fields else 1,
        )
    except ArgumentError as error:  # the text that it quotes
        refused = ("grain", "linear", "slices", "norms")
        name = next(word for word in refused if str(error).startswith(word))
        raise head.wrong(name, str(error)) from None
    versions = head.fields.get("versions")
    if not isinstance(versions, dict):
        raise head.wrong("versions", "an object")
    return PlanFile(
        model=head.string("model"),
        input_shape=_input_shape(head),
        fingerprint=head.string("fingerprint"),
        versions={str(name): str(value) for name, value in versions.items()},
        modelling=modelling,
        k=k,
        eps=head.number("eps"),
        seed=head.whole("seed"),
        backend=head.string("backend"),
        start=head.string("start"),
        speeds=speeds,
        objective=read_objective(head, k),
        memory=_memory(head, k),
        feasible=head.flag("feasible"),
        interrupted="interrupted" in head.fields and head.flag("interrupted"),
        work=Work(
            np.array(per_task, dtype=np.int64),
            head.string("work_unit"),
            head.whole("work_units", 1),
            head.string("work_source"),
        ),
        imbalance=head.number("imbalance"),
        volume_bytes=head.whole("volume_bytes"),
        lower_bound_bytes=head.whole("lower_bound_bytes"),
        blocks=Blocks(tuple(rows), tuple(columns)),
        parts=parts.astype(np.int32),
        scheduling=_scheduling(head, modelling.batch_size, k),
        constraints=(
            read_constraints(head.object("constraints")) if "constraints" in head.fields else NONE
        ),
        file=str(path),
    )


def _input_shape(head: JsonObject) -> InputShape:
    try:
        return InputShape(head.items("input_shape"))
    except ArgumentError:
        accepted = f"sizes, whole numbers from 1, or texts {ACCEPTED}"
        raise head.wrong("input_shape", accepted) from None


def _schedule_fields(scheduling: Scheduling | None) -> dict[str, object]:
    """Said of plans that are for one; a number of batches in flight where it was asked for."""
    if scheduling is None:
        return {}
    fields = {
        "rule": scheduling.rule,
        "micro_batches": scheduling.micro_batches,
        "in_flight": scheduling.in_flight,
        "stash": scheduling.stash,
        "recompute": scheduling.recompute_field,
    }
    return {"schedule": fields}


def _recompute(record: JsonObject, k: int) -> Recompute:
    recompute = record.fields.get("recompute")
    if isinstance(recompute, bool):
        return recompute
    accepted = (
        f"true, false, or {k} lists of stretches, each a list of names of steps or, where they are "
        'offloaded, {"offload": [names]}'
    )
    if not isinstance(recompute, list) or len(recompute) != k:
        raise record.wrong("recompute", accepted)
    if at := _misplaced(recompute):
        raise record.wrong("recompute", accepted, *at)
    return tuple(tuple(map(_stretch, stretches)) for stretches in recompute)


def _stretch(field: list[str] | dict[str, list[str]]) -> Stretch:
    """The stretch of a file's field.

    >>> _stretch({"offload": ["conv1", "relu1"]})
    Stretch(steps=('conv1', 'relu1'), offloaded=True)
    """
    if isinstance(field, dict):
        return Stretch(tuple(field["offload"]), offloaded=True)
    return Stretch(tuple(field))


def _misplaced(recompute: list[Any]) -> tuple[int, ...]:
    """Where lists of stretches have something else first, or a stretch without steps.

    >>> _misplaced([[["conv1"], []], 3]), _misplaced([[["fc", 5]]]), _misplaced([[["fc"]], []])
    ((0, 1), (0, 0, 1), ())
    >>> _misplaced([[{"offload": ["conv1"]}, {"offlode": ["fc"]}]])
    (0, 1)
    """
    for part, stretches in enumerate(recompute):
        if not isinstance(stretches, list):
            return (part,)
        for number, stretch in enumerate(stretches):
            is_offloaded = isinstance(stretch, dict) and [*stretch] == ["offload"]
            steps = stretch["offload"] if is_offloaded else stretch
            if not isinstance(steps, list) or not steps:
                return part, number
            for at, name in enumerate(steps):
                if type(name) is not str:
                    return part, number, at
    return ()


def _scheduling(head: JsonObject, batch_size: int, k: int) -> Scheduling | None:
    if head.fields.get("schedule") is None:
        return None
    record = head.object("schedule")
    in_flight = None
    if record.fields.get("in_flight") is not None:
        in_flight = record.whole("in_flight", 1, MOST_IN_FLIGHT)
    rule = record.string("rule")
    micro_batches = record.whole("micro_batches", 1, batch_size)
    stash, recompute = record.flag("stash"), _recompute(record, k)
    try:
        return Scheduling(rule, micro_batches, in_flight, stash, recompute)
    except ArgumentError as error:
        raise record.wrong("rule", str(error)) from None


def _several_in_flight(memory: MemoryLimits | None) -> dict[str, int]:
    """Said of plans that count several batches; others are as they were before there were any."""
    several = memory is not None and memory.in_flight > 1
    return {"memory_in_flight": memory.in_flight} if memory is not None and several else {}


def _memory(head: JsonObject, k: int) -> MemoryLimits | None:
    if head.fields.get("memory") is None:
        return None
    limits = head.wholes("memory")
    if len(limits) != k:
        raise head.wrong("memory", f"a list of {k}")
    try:
        several = "memory_in_flight" in head.fields
        in_flight = head.whole("memory_in_flight", 1, 1000) if several else 1
        return MemoryLimits(tuple(limits), head.number("memory_copies"), in_flight)
    except ArgumentError as error:
        raise head.wrong("memory", str(error)) from None


def _versions(backend: str) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("hgpart", "torch", backend):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _runs(values: Int64 | Int32) -> list[int]:
    """Numbers and how often each stands in a row.

    >>> _runs(np.array([4, 4, 4, 2]))
    [4, 3, 2, 1]
    """
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    counts = np.diff(starts, append=len(values))
    return [int(number) for number in np.stack([values[starts], counts], axis=1).ravel()]


def _expanded(record: JsonObject, name: str, high: int, room: int) -> Int64:
    runs = record.wholes(name)
    numbers, counts = runs[::2], runs[1::2]
    if len(runs) % 2 or 0 in counts or max(numbers, default=0) > high or sum(counts) > room:
        accepted = f"pairs of a number up to {high} and a count from 1, {LARGEST_RUNS} in all"
        raise record.wrong(name, accepted)
    return np.repeat(np.array(numbers, np.int64), np.array(counts, np.int64))
