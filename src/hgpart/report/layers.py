"""ChannelGraph, LayerTimes -> tables of layers: what they compute and read, rows, seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from hgpart.files.fields import json_text
from hgpart.layers.channel_graph import WHOLE, ChannelGraph, Layer, LayerRows, Read, SourceRows
from hgpart.report.tables import even_decimals, print_table
from hgpart.tracing.input_shape import InputShape, shape_text
from hgpart.work.figures import Work
from hgpart.work.layer_times import WHOLE_STEP, LayerTimes, Pass

MAX_NAMED_LAYERS = 3  # layers named among those that a layer reads
MAX_NAMED_ENDS = 3  # layers that the first line names among those that end bands
MAX_NAMED_SOURCES = 3  # sources with a figure each in a cell


def print_trace(
    name: str, input_shape: InputShape, graph: ChannelGraph, work: Work, console: Console
) -> None:
    """Print the layers of a model, what they read, and what no channel rule knew."""
    whole = [layer for layer in graph.layers if layer.kind == WHOLE]
    total = sum(
        int(per_task) * layer.tasks
        for per_task, layer in zip(work.per_task, graph.layers, strict=True)
    )
    kept = f"{len(whole)} kept whole" if whole else "none kept whole"
    console.print(
        f"{name} at {shape_text(input_shape)}: {len(graph.layers)} layers ({kept}), "
        f"{int(graph.first_task[-1]):,} tasks, {total:,} {work.unit} per sample"
    )
    headings = ["layer", "kind", "tasks", "map", work.unit, "parameters", "reads", "operators"]
    rows = [
        (
            layer.name,
            _kind(graph, layer),
            f"{layer.tasks:,}",
            _elements(layer),
            f"{per_task * layer.tasks:,}",
            f"{layer.parameters:,}",
            "; ".join(dict.fromkeys(_read(graph, layer, read) for read in layer.reads)),
            " + ".join(map(_operator, layer.operators)),
        )
        for layer, per_task in zip(graph.layers, work.per_task.tolist(), strict=True)
    ]
    console.print()
    title = "Layers (map: elements per task and sample; other figures: all tasks together)"
    print_table(console, title, headings, rows, left=(0, 1, 6, 7))
    console.print()
    names = [f"{layer.name} ({', '.join(layer.operators)})" for layer in whole]
    console.print(f"Kept whole (one task that reads everything): {', '.join(names) or 'none'}")


def _elements(layer: Layer) -> str:
    if not layer.fixed_elements:
        return f"{layer.map_elements:,}"
    per_sample = f"{layer.map_elements:,} + " if layer.map_elements else ""
    return f"{per_sample}{layer.fixed_elements:,} in all"


def _kind(graph: ChannelGraph, layer: Layer) -> str:
    first = graph.layers[layer.tied_to]
    return layer.kind if first is layer else f"{layer.kind}, weight of {first.name}"


def _read(graph: ChannelGraph, layer: Layer, read: Read) -> str:
    """The channels that each task reads, and the layers that make them."""
    known = read.channels[read.channels >= 0]
    owners = graph.layer_of_channel(known)
    sources = list(dict.fromkeys(owners.tolist()))
    names = [graph.layers[at].name for at in sources]
    if len(names) > MAX_NAMED_LAYERS + 1:
        names[MAX_NAMED_LAYERS:] = [f"{len(names) - MAX_NAMED_LAYERS} more"]
    listed = ", ".join(names) or "constants"
    made = np.concatenate(
        [np.zeros(0, np.int64)]
        + [np.arange(graph.first_channel[at], graph.first_channel[at + 1]) for at in sources]
    )
    in_order = np.array_equal(known, made)
    how = f"1 of {read.groups} groups" if read.kind == "group" else read.kind
    if not in_order:
        how += f", index list of {len(known):,} from {len(made):,} channels"
    return f"{how}: {listed}"


def _operator(name: str) -> str:
    """What a graph node computes: its name without its number.

    >>> _operator("conv2d_12"), _operator("_native_batch_norm_legit_functional_3")
    ('conv2d', 'batch_norm')
    """
    return re.sub(r"_\d+$", "", name).replace("_native_batch_norm_legit_functional", "batch_norm")


# ------------------------------------------------------------------ rows of layers


def print_rows(name: str, input_shape: InputShape, graph: ChannelGraph, console: Console) -> None:
    """Print how many layers have bands, what ends these, and the windows of each layer."""
    console.print(f"{name} at {shape_text(input_shape)}: {rows_said(graph)}")
    console.print()
    headings = ["layer", "rows", "window", "stride", "reads", "one band because"]
    lines = [
        (
            layer.name,
            "-" if rows.height is None else f"{rows.height:,}",
            _figures([str(item.windows.widest) for item in rows.reads if _has_rows(graph, item)]),
            _figures([str(item.windows.stride) for item in rows.reads if _has_rows(graph, item)]),
            _figures([graph.layers[item.source].name for item in rows.reads]),
            rows.reason,
        )
        for layer, rows in zip(graph.layers, graph.layer_rows, strict=True)
    ]
    title = "Rows (window: most rows of a source that a row reads; stride: its rows for each row)"
    print_table(console, title, headings, lines, left=(0, 2, 3, 4, 5))


def rows_said(graph: ChannelGraph) -> str:
    """How many layers have bands, and what ends them, in a clause."""
    heights = [rows.height or 0 for rows in graph.layer_rows if rows.is_banded]
    count = len(graph.layers)
    if not heights:
        return f"none of {count} layers has bands, as no map has rows"
    most, least = max(heights), min(heights)
    between = f"{most:,} rows" if most == least else f"{most:,} to {least:,} rows"
    ended: dict[str, list[str]] = {}
    for layer, rows in zip(graph.layers, graph.layer_rows, strict=True):
        if rows.ended_by:
            ended.setdefault(rows.reason, []).append(layer.name)
    ends = "; ".join(
        f"{reason} ({_shortened(names, MAX_NAMED_ENDS)})" for reason, names in ended.items()
    )
    said = f"what ends them: {ends}" if ends else "nothing ends them"
    return f"{len(heights)} of {count} layers have bands ({between}); {said}"


def as_rows_json(name: str, input_shape: InputShape, graph: ChannelGraph, work: Work) -> str:
    """All layers, with what they compute and their rows, as a JSON object."""
    layers = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "tasks": layer.tasks,
            "map_elements": layer.map_elements,
            "fixed_elements": layer.fixed_elements,
            "work": int(per_task) * layer.tasks,
            "parameters": layer.parameters,
            "operators": list(layer.operators),
            **_rows_figures(graph, rows),
        }
        for layer, rows, per_task in zip(
            graph.layers, graph.layer_rows, work.per_task.tolist(), strict=True
        )
    ]
    return json_text(
        {"model": name, "input_shape": list(input_shape), "unit": work.unit, "layers": layers}
    )


def _rows_figures(graph: ChannelGraph, rows: LayerRows) -> dict[str, Any]:
    total = rows.total
    return {
        "rows": rows.height,
        "reads": [_read_figures(graph, item) for item in rows.reads],
        "sum": None
        if total is None
        else {
            "operator": total.operator,
            "rows": total.height,
            "reads": [_read_figures(graph, item) for item in total.reads],
        },
        "ended_by": rows.ended_by or None,
        "reason": rows.reason or None,
    }


def _read_figures(graph: ChannelGraph, item: SourceRows) -> dict[str, Any]:
    return {
        "layer": graph.layers[item.source].name,
        "rows": item.windows.height,
        "window": item.windows.widest,
        "stride": str(item.windows.stride),
        "summed": item.is_summed,
        "channels": None if item.channels is None else len(item.channels),
    }


def _has_rows(graph: ChannelGraph, item: SourceRows) -> bool:
    return graph.layer_rows[item.source].height is not None


def _figures(cells: Sequence[str]) -> str:
    """A figure for each source, or one where they are alike."""
    shown = cells[:1] if len(set(cells)) == 1 else cells
    return _shortened(shown, MAX_NAMED_SOURCES) or "-"


def _shortened(names: Sequence[str], most: int) -> str:
    shown = list(names)
    if len(shown) > most + 1:
        shown[most:] = [f"{len(shown) - most} more"]
    return ", ".join(shown)


# ------------------------------------------------------------------ seconds of layers


def print_layer_times(
    name: str,
    input_shape: InputShape,
    graph: ChannelGraph,
    times: LayerTimes,
    batch_size: int,
    console: Console,
) -> None:
    """Print what each layer takes with all samples, pass by pass, and with half of its tasks."""
    measured = [at for at, layer in enumerate(times.layers) if layer is not None]

    def milliseconds(at: int, share: float) -> dict[Pass, float]:
        return {which: 1e3 * times.seconds(at, which, share, batch_size) for which in Pass}

    def of_step(passes: dict[Pass, float]) -> float:
        return math.fsum(passes[which] for which in WHOLE_STEP)

    whole = {at: milliseconds(at, 1.0) for at in measured}
    total = math.fsum(map(of_step, whole.values()))
    console.print(
        f"{name} at {shape_text(input_shape)}: {total / 1e3:.4g} s a training step of "
        f"{batch_size} samples, layer by layer ({times.source})"
    )
    if times.caution:
        console.print(times.caution, style="bold")
    headings = ["layer", "tasks", *(which.value for which in Pass), "share", "half the tasks"]
    rows = []
    columns = [even_decimals([row[which] for row in whole.values()]) for which in Pass]
    for at, *figures in zip(measured, *columns, strict=True):
        layer, step = graph.layers[at], of_step(whole[at])
        half = of_step(milliseconds(at, 0.5)) if layer.tasks > 1 else None
        half_text = "-" if half is None else f"{half / step:.0%}"
        rows.append((layer.name, f"{layer.tasks:,}", *figures, f"{step / total:.1%}", half_text))
    console.print()
    title = "Layers (ms; backward at once, or maps, then weights; half the tasks: % of a step)"
    print_table(console, title, headings, rows)
