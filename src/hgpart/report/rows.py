"""ChannelGraph -> a table, and figures, of the rows of its layers and what ends their bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from hgpart.files.fields import json_text
from hgpart.layers.channel_graph import ChannelGraph, LayerRows, SourceRows
from hgpart.report.tables import print_table
from hgpart.work.figures import Work

MAX_NAMED_ENDS = 3  # layers that the first line names among those that end bands
MAX_NAMED_SOURCES = 3  # sources with a figure each in a cell


def print_rows(
    name: str, input_shape: Sequence[int], graph: ChannelGraph, console: Console
) -> None:
    """Print how many layers have bands, what ends these, and the windows of each layer."""
    shape = " x ".join(map(str, input_shape))
    console.print(f"{name} at {shape}: {rows_said(graph)}")
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
        return f"rows: none of {count} layers has bands, as no map has rows"
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
    return f"rows: {len(heights)} of {count} layers have bands ({between}); {said}"


def as_rows_json(name: str, input_shape: Sequence[int], graph: ChannelGraph, work: Work) -> str:
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
