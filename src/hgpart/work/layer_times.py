"""Seconds of some shares of layers in some batches -> seconds of any share in any batch.

Half of a layer's filters does not take half of its time, nor does half of a batch: each operator
has a fixed cost besides that of its filters and samples, and kernels for few of them differ from
those for many. So times are measured at some points, numbers of tasks by numbers of samples, and
straight lines (a fixed cost, and a cost per task or sample) join them: bilinear between four
points, exact at each. Below the first points and above the last ones time is in proportion: less
than a task is a fraction of it, and large batches have no fixed cost left to share. Where the
points rise, everything between them rises too, in both directions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from hgpart.errors import ArgumentError
from hgpart.files.fields import json_text
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import write_text
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work import figures
from hgpart.work.figures import Work, load_work, measured, records_of_layers
from hgpart.work.watching import caution, with_note

FORMAT = "hgpart layer times 2"
WHAT = "a file of hgpart profile"
# The plausible range of a file's figures. None computed from them is too large for a float.
MOST_SECONDS = 1e6  # for a pass of a layer: eleven days
MOST_FACTOR = 1e6  # times as long
LEAST_SECONDS = 1e-9  # for all layers' passes in a step

Table = tuple[tuple[float, ...], ...]


class Pass(Enum):
    """A piece of a layer's work in a training step; the values are the names in files."""

    FORWARD = "forward"
    BACKWARD = "backward"  # to all gradients at once
    MAPS = "maps"  # backward, only to the gradients of the maps that the layer reads
    WEIGHTS = "weights"  # backward, to the gradients of its parameters once MAPS is done
    UPDATE = "update"  # once per step, whatever the samples


WHOLE_STEP = (Pass.FORWARD, Pass.BACKWARD, Pass.UPDATE)


@dataclass(frozen=True)
class ShareTimes:
    """Seconds of a layer for a part that has some of its tasks.

    Attributes
    ----------
    tasks : tuple of int
        Numbers of tasks, ascending; the last is all of them.
    seconds : mapping of Pass to tuple of tuples of float
        A row for each number of tasks, with a time for each number of samples; a row of the
        update has one time.
    """

    tasks: tuple[int, ...]
    seconds: Mapping[Pass, Table]


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of each layer of a model.

    Attributes
    ----------
    samples : tuple of int
        Numbers of samples that were measured, ascending.
    layers : tuple of ShareTimes or None
        Seconds of each layer; None for layers that compute nothing.
    source : str
        Where the seconds come from: device, threads, versions, date.
    neighbours : int
        Number of further processes that fill the device's cores; 0 if it has nothing to share.
    beside : float
        Factor by which a step slows down while these processes go through steps as well: they
        share caches, memory and power.
    disturbed : str
        What disturbed the measurement, as `hgpart.work.watching` says it; empty where nothing did.
    """

    samples: tuple[int, ...]
    layers: tuple[ShareTimes | None, ...]
    source: str
    neighbours: int = 0
    beside: float = 1.0
    disturbed: str = ""

    @property
    def caution(self) -> str:
        """Why these times can't be trusted; empty where nothing is known against them."""
        return caution("The times of layers", self.disturbed)

    def seconds(self, layer: int, which: Pass, share: float, samples: float) -> float:
        """Seconds that a part takes for its share of a layer.

        Parameters
        ----------
        layer : int
            Index of the layer.
        share : float
            Fraction of the layer's tasks, more than 0 and at most 1.
        samples : float
            Samples in the batch or micro-batch; a tile without rows has 0, which take no time.

        Raises
        ------
        ArgumentError
            If a number is out of range.

        >>> table = {which: ((1.0, 2.0), (1.5, 3.0)) for which in Pass}
        >>> table[Pass.UPDATE] = ((0.25,), (1.0,))
        >>> times = LayerTimes((1, 4), (ShareTimes((4, 8), table),), "by hand")
        >>> times.seconds(0, Pass.FORWARD, 0.5, 1), times.seconds(0, Pass.FORWARD, 1.0, 4)
        (1.0, 3.0)
        >>> times.seconds(0, Pass.FORWARD, 0.75, 2.5), times.seconds(0, Pass.FORWARD, 1.0, 8)
        (1.875, 6.0)
        """
        if not 0 < share <= 1:
            raise ArgumentError(f"share {share} of a layer: accepted is more than 0, at most 1")
        if not 0 <= samples < math.inf:
            raise ArgumentError(f"{samples} samples: accepted are 0 or more")
        times = self.layers[layer]
        if times is None:
            return 0.0
        rows = times.seconds[which]
        if which is Pass.UPDATE:
            by_tasks = [row[0] for row in rows]
        else:
            by_tasks = [_between(self.samples, row, samples) for row in rows]
        return _between(times.tasks, by_tasks, share * times.tasks[-1])

    def together(self, processes: int) -> float:
        """Factor by which computing slows down while `processes` processes share the cores.

        >>> LayerTimes((1,), (), "by hand", neighbours=3, beside=1.6).together(2)
        1.2
        """
        neighbours = min(max(0, processes - 1), self.neighbours)
        return 1.0 + (self.beside - 1.0) * neighbours / self.neighbours if neighbours else 1.0


def _between(points: Sequence[int], values: Sequence[float], at: float) -> float:
    """Straight lines between points; in proportion to the nearest outside."""
    if at <= points[0] or at >= points[-1]:
        nearest = 0 if at <= points[0] else -1
        return values[nearest] * (at / points[nearest])
    right = bisect_right(points, at)
    low, high = values[right - 1], values[right]
    return low + (high - low) * ((at - points[right - 1]) / (points[right] - points[right - 1]))


def step_seconds(times: LayerTimes, batch_size: int) -> float:
    """Seconds of all layers in a training step of a batch."""
    return math.fsum(
        times.seconds(at, which, 1.0, batch_size)
        for at in range(len(times.layers))
        for which in WHOLE_STEP
    )


def training_work(
    times: LayerTimes,
    graph: ChannelGraph,
    batch_size: int,
    passes: Sequence[Pass] = WHOLE_STEP,
) -> Work:
    """Seconds of whole layers in a training step of a batch, as work to be divided.

    Or in some passes of it alone.

    Raises
    ------
    ArgumentError
        If the times are for another number of layers, or the batch is empty.
    """
    if batch_size < 1:
        raise ArgumentError(f"a batch of {batch_size} samples: accepted are 1 or more")
    seconds = [
        math.fsum(times.seconds(at, which, 1.0, batch_size) for which in passes)
        for at in range(len(times.layers))
    ]
    source = with_note(f"{times.source}, batch {batch_size}", times.disturbed)
    return measured(graph, seconds, source)


# ------------------------------------------------------------------ files


def save_layer_times(times: LayerTimes, graph: ChannelGraph, path: Path | str) -> None:
    """Write seconds to a JSON file, a line per layer; all figures are exact.

    Raises
    ------
    ArgumentError
        If the times do not belong to `graph`.
    OutputError
        If the file can't be written.
    """
    if len(times.layers) != len(graph.layers):
        raise ArgumentError(
            f"times of {len(times.layers)} layers: accepted are those of {len(graph.layers)}"
        )
    head = {
        "format": FORMAT,
        "source": times.source,
        "fingerprint": graph.fingerprint,
        "unit": "s",
        "neighbours": times.neighbours,
        "beside": times.beside,
        **({"disturbed": times.disturbed} if times.disturbed else {}),
        "samples": times.samples,
    }
    layers = [
        {
            "layer": layer.name,
            "tasks": () if shares is None else shares.tasks,
            **{which.value: () if shares is None else shares.seconds[which] for which in Pass},
        }
        for layer, shares in zip(graph.layers, times.layers, strict=True)
    ]
    write_text(path, json_text({**head, "layers": layers}))


def load_layer_times(path: Path | str, graph: ChannelGraph) -> LayerTimes:
    """Read a file of `save_layer_times`, and check that it belongs to this model.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed, or a time is negative, not a number, over
        `MOST_SECONDS`, or less than that of fewer tasks or samples; the message names the line.
        If all times together are less than `LEAST_SECONDS`: there is nothing to divide.
    PlanError
        If it holds the times of another model.
    """
    head = read_json(path, WHAT, FORMAT)
    source = head.string("source")
    if head.string("unit") != "s":
        raise head.wrong("unit", '"s"')
    samples = _ascending(head, "samples")
    if not samples:
        raise head.wrong("samples", "at least one number")
    neighbours, beside = head.whole("neighbours", 0), head.number("beside")
    if not 1 <= beside <= MOST_FACTOR:
        raise head.wrong("beside", f"1 to {MOST_FACTOR:g}")
    layers: list[ShareTimes | None] = []
    for layer, record in records_of_layers(head, graph, "times"):
        tasks = _ascending(record, "tasks")
        if tasks[-1:] != ((layer.tasks,) if layer.operators else ()):
            last = f"the last one {layer.tasks}" if layer.operators else "none"
            raise record.wrong("tasks", f"whole numbers, {last}")
        tables = {
            which: _table(record, which, len(tasks), 1 if which is Pass.UPDATE else len(samples))
            for which in Pass
        }
        layers.append(ShareTimes(tasks, tables) if tasks else None)
    disturbed = head.string("disturbed") if "disturbed" in head.fields else ""
    times = LayerTimes(samples, tuple(layers), source, neighbours, beside, disturbed)
    step = step_seconds(times, samples[0])
    if step < LEAST_SECONDS and any(layers):
        raise head.wrong(
            "layers", f"those of a step of {LEAST_SECONDS:g} s or more, not {step:g} s"
        )
    return times


def load_any_work(path: Path | str, graph: ChannelGraph, batch_size: int) -> Work:
    """Read work from a file of `save_work`, or for a batch from one of `save_layer_times`.

    Raises
    ------
    FormatError, PlanError
        For the reasons of `load_work` and `load_layer_times`.
    """
    head = read_json(path, f"a file of --work SOURCE,save=FILE, or {WHAT}", figures.FORMAT, FORMAT)
    if head.string("format") == figures.FORMAT:
        return load_work(path, graph)
    return training_work(load_layer_times(path, graph), graph, batch_size)


def _ascending(record: JsonObject, name: str) -> tuple[int, ...]:
    numbers = record.wholes(name)
    if any(low >= high for low, high in pairwise([0, *numbers])):
        raise record.wrong(name, "ascending whole numbers, at least 1")
    return tuple(numbers)


def _table(record: JsonObject, which: Pass, rows: int, columns: int) -> Table:
    """The seconds of a pass; none is less than that of fewer tasks or samples."""
    table = record.items(which.value, rows)
    accepted = (
        f"{rows} lists of {columns} numbers from 0 to {MOST_SECONDS:g}, none less than the one "
        "before or above it"
    )
    above: list[float] = [0.0] * columns
    for row in table:
        if not isinstance(row, list) or len(row) != columns or not all(map(_is_number, row)):
            raise record.wrong(which.value, accepted)
        if row != sorted(row) or any(low > high for low, high in zip(above, row, strict=True)):
            raise record.wrong(which.value, accepted)
        above = row
    return tuple(tuple(map(float, row)) for row in table)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST_SECONDS
