"""ChannelGraph -> work of each layer's tasks: multiply-accumulates, or measured seconds."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, PlanError
from hgpart.files.fields import json_text
from hgpart.files.json_files import JsonObject, quoted, read_json
from hgpart.files.writing import write_text
from hgpart.layers.channel_graph import ChannelGraph, Layer

FEMTOSECONDS = 10**15
STEP_PASSES = 3  # forward, backward for maps and backward for weights: rough costs have them alike
LARGEST_TOTAL = 2**63 - 1  # units of all tasks together: sums are int64
FORMAT = "hgpart work 1"


@dataclass(frozen=True)
class Work:
    """The work of one task of each layer.

    Attributes
    ----------
    per_task : int64 array, shape (layers,)
        Work in whole units, so that sums are exact.
    unit : str
        Unit of printed figures ("MAC", "s").
    units : int
        Number of units of `per_task` in one printed unit.
    source : str
        "flops", or where the measurement comes from.
    """

    per_task: Int64
    unit: str
    units: int
    source: str


def flops(graph: ChannelGraph) -> Work:
    """Multiply-accumulates per task and sample, from shapes alone: deterministic.

    Convolutions and linear layers count, as in published figures; operators fused into them do
    not.

    Raises
    ------
    ArgumentError
        If there are too many for 64 bits.
    """
    per_task = [layer.macs for layer in graph.layers]
    if (total := _total(per_task, graph)) > LARGEST_TOTAL:
        raise ArgumentError(
            f"{total} multiply-accumulates per sample: accepted are up to {LARGEST_TOTAL}"
        )
    return Work(np.array(per_task, dtype=np.int64), "MAC", 1, "flops")


def measured(graph: ChannelGraph, seconds: Sequence[float], source: str) -> Work:
    """Divide the seconds of each layer among its tasks, in whole femtoseconds.

    Parameters
    ----------
    seconds : sequence of float
        Seconds of each layer.
    source : str
        Where the seconds come from: device, batch size, versions, date.

    Raises
    ------
    ArgumentError
        If there is not one number >= 0 for each layer, or all of them exceed 9223 s.
    """
    if len(seconds) != len(graph.layers):
        raise ArgumentError(
            f"seconds of {len(seconds)} layers: accepted is one for each of {len(graph.layers)}"
        )
    for layer, value in zip(graph.layers, seconds, strict=True):
        if not 0 <= value < math.inf:
            raise ArgumentError(f"layer {layer.name!r} takes {value} s: accepted is 0 or more")
    per_task = [
        round(value / layer.tasks * FEMTOSECONDS)
        for layer, value in zip(graph.layers, seconds, strict=True)
    ]
    if sum(map(operator.mul, per_task, (layer.tasks for layer in graph.layers))) > LARGEST_TOTAL:
        raise ArgumentError(
            f"all layers take {sum(seconds):.0f} s: accepted is up to "
            f"{LARGEST_TOTAL // FEMTOSECONDS} s (measure a smaller batch)"
        )
    return Work(np.array(per_task, dtype=np.int64), "s", FEMTOSECONDS, source)


def whole_work(work: Work, graph: ChannelGraph) -> float:
    """The work of all tasks, in the printed unit."""
    return _total(work.per_task.tolist(), graph) / work.units


def seconds_a_unit(work: Work, batch_size: int, seconds_a_mac: float) -> float:
    """Seconds of a unit of `per_task` in a forward pass of a sample, by rough costs.

    Of measured seconds, which are those of a step of a batch, a forward pass is a third: gradients
    of maps take as long, and so do those of weights.

    Parameters
    ----------
    batch_size : int
        Samples of the step that work in seconds is of.
    seconds_a_mac : float
        Seconds of a multiply-accumulate.

    >>> one = np.ones(1, np.int64)
    >>> seconds_a_unit(Work(one, "s", 10, "measured"), 4, 1e-9) == 1 / (3 * 4 * 10)
    True
    >>> seconds_a_unit(Work(one, "MAC", 1, "flops"), 4, 1e-9)
    1e-09
    """
    return (1 / (STEP_PASSES * batch_size) if work.unit == "s" else seconds_a_mac) / work.units


def _total(per_task: Sequence[int], graph: ChannelGraph) -> int:
    return sum(units * layer.tasks for units, layer in zip(per_task, graph.layers, strict=False))


# ------------------------------------------------------------------ files


def records_of_layers(
    head: JsonObject, graph: ChannelGraph, what: str
) -> Iterator[tuple[Layer, JsonObject]]:
    """Each layer with its record in a file, which must be the `what` of this model.

    Raises
    ------
    FormatError
        If the file has other layers.
    PlanError
        If the file belongs to another model.
    """
    fingerprint = head.string("fingerprint")
    if fingerprint != graph.fingerprint:
        raise PlanError(
            f"{head.path} holds the {what} of another model, {quoted(fingerprint)}: accepted is a "
            f'file of this one, "{graph.fingerprint}"; measure it anew'
        )
    records = head.objects("layers", len(graph.layers))
    for layer, record in zip(graph.layers, records, strict=True):
        if record.string("layer") != layer.name:
            raise record.wrong("layer", json.dumps(layer.name))
        yield layer, record


def save_work(work: Work, graph: ChannelGraph, path: Path | str) -> None:
    """Write the work of each layer to a JSON file, a line per layer.

    ``per_task`` is exact, in whole units (femtoseconds); ``total`` is the work of all the layer's
    tasks in the printed unit (seconds), for people to read.

    Raises
    ------
    ArgumentError
        If `work` does not belong to `graph`.
    OutputError
        If the file can't be written.
    """
    if len(work.per_task) != len(graph.layers):
        raise ArgumentError(
            f"work of {len(work.per_task)} layers: accepted is that of {len(graph.layers)}"
        )
    head = {
        "format": FORMAT,
        "source": work.source,
        "fingerprint": graph.fingerprint,
        "unit": work.unit,
        "units": work.units,
    }
    layers = [
        {
            "layer": layer.name,
            "tasks": layer.tasks,
            "per_task": per_task,
            "total": per_task * layer.tasks / work.units,
        }
        for layer, per_task in zip(graph.layers, work.per_task.tolist(), strict=True)
    ]
    write_text(path, json_text({**head, "layers": layers}))


def load_work(path: Path | str, graph: ChannelGraph) -> Work:
    """Read a file of `save_work`, and check that it belongs to this model.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed, or one of its numbers is negative, too large or
        not a number; the message names the line.
    PlanError
        If it holds the work of another model.
    """
    head = read_json(path, "a file of save_work", FORMAT)
    source, unit, units = head.string("source"), head.string("unit"), head.whole("units", 1)
    per_task: list[int] = []
    for layer, record in records_of_layers(head, graph, "work"):
        if record.whole("tasks") != layer.tasks:
            raise record.wrong("tasks", str(layer.tasks))
        per_task.append(record.whole("per_task", 0, LARGEST_TOTAL))
        if _total(per_task, graph) > LARGEST_TOTAL:
            raise record.wrong("per_task", f"{LARGEST_TOTAL} in all tasks together at most")
        total = per_task[-1] * layer.tasks / units
        if not math.isclose(record.number("total"), total, rel_tol=1e-6):
            raise record.wrong("total", f"{total}, as per_task x tasks / units is (or change both)")
    return Work(np.array(per_task, dtype=np.int64), unit, units, source)
