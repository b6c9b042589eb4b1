"""Report -> tables, JSON, CSV: a partition of a model, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from hgpart.arrays import Int64
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import LayerVertices, Modelling
from hgpart.hypergraph.shares import PartShares
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.bounds.lower_bound import relative_gap
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.report.tables import UNITS, even_decimals, print_table, ruled_table, table_lines
from hgpart.work.figures import Work

MAX_GRID_PARTS = 16  # a column each for up to so many parts

_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("u", 1e-6))


@dataclass(frozen=True)
class Report:
    """All that is said about a partition of a model.

    Attributes
    ----------
    model : str
        The model spec.
    input_shape : tuple of int
        Of one sample.
    graph, work, modelling, k, eps, speeds
        What was partitioned, and what was asked for.
    backend, start, seed
        What made the partition, as in `Partition`; None where another tool did.
    blocks : CnnHypergraph
        The blocks that were partitioned.
    feasible : bool
    evaluation : Evaluation
    lower_bound : int
        Bytes that every partition within eps sends at least.
    shares : PartShares
    layerwise : Evaluation
        Of the best split between layers (`evaluate_layerwise`).
    seconds : mapping
        Wall time by stage, and ``total``.
    objective, memory, memory_bytes
        What was searched for, and what each part may need and needs, as in `Partition`.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    model: str
    input_shape: tuple[int, ...]
    graph: ChannelGraph
    work: Work
    modelling: Modelling
    k: int
    eps: float
    speeds: tuple[float, ...] | None
    backend: str | None
    start: str | None
    seed: int | None
    blocks: CnnHypergraph
    feasible: bool
    evaluation: Evaluation
    lower_bound: int
    shares: PartShares
    layerwise: Evaluation
    seconds: Mapping[str, float]
    objective: Objective = VOLUME
    memory: MemoryLimits | None = None
    memory_bytes: Int64 | None = None
    interrupted: bool = False


# ------------------------------------------------------------------ for programs


def as_json(report: Report) -> str:
    """All figures as a JSON object, a line for each key, part and layer.

    Bytes are of one forward pass of a batch, work is in ``work_unit`` (multiply-accumulates of
    one sample, or measured seconds of a batch). What has no number, such as maximum over minimum
    where a part has no work, is null.
    """
    lines = [
        f'  "{name}": ' + (_listed(value) if name in ("parts", "layers") else _json(value))
        for name, value in _fields(report).items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_csv(report: Report) -> str:
    """What each part holds and sends: a header and one row a part, with the fields of the JSON."""
    text = io.StringIO()
    rows = _part_fields(report)
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _fields(report: Report) -> dict[str, Any]:
    found, layerwise, modelling = report.evaluation, report.layerwise, report.modelling
    return {
        "hgpart_version": version("hgpart"),
        "model": report.model,
        "input_shape": report.input_shape,
        "grain": modelling.grain,
        "linear": modelling.linear,
        "k": report.k,
        "eps": report.eps,
        "speeds": report.speeds,
        "seed": report.seed,
        "backend": report.backend,
        "start": report.start,
        "batch_size": modelling.batch_size,
        "bytes_per_element": _bytes_per_element(report),
        "input_vertex": modelling.input_vertex,
        "output_vertex": modelling.output_vertex,
        "work_unit": report.work.unit,
        "work_source": report.work.source,
        "objective": report.objective.name,
        "objective_value": report.objective.value(found.traffic),
        "memory_copies": None if report.memory is None else report.memory.copies,
        "feasible": report.feasible,
        "interrupted": report.interrupted,
        "imbalance": found.imbalance,
        "max_work": _in_units(report.work, found.max_load),
        "min_work": _in_units(report.work, found.min_load),
        "average_work": found.average_load / report.work.units,
        "max_over_min_work": found.max_over_min,
        "max_over_average_work": found.max_over_average,
        "volume_bytes": found.volume,
        "lower_bound_bytes": report.lower_bound,
        "gap": _gap(report),
        "max_part_volume_bytes": found.max_part_volume,
        "average_part_volume_bytes": found.average_part_volume,
        "max_over_average_part_volume": found.max_over_average_part_volume,
        "cut_net_bytes": found.cut_net,
        "messages": found.message_count,
        "layerwise_imbalance": layerwise.imbalance,
        "layerwise_max_work": _in_units(report.work, layerwise.max_load),
        "layerwise_volume_bytes": layerwise.volume,
        "layerwise_messages": layerwise.message_count,
        "vertices": report.blocks.vertices,
        "nets": len(report.blocks.nets.costs),
        "pins": int(report.blocks.nets.sizes().sum()),
        "parts": _part_fields(report),
        "layers": _layer_fields(report),
        "seconds": {stage: round(seconds, 4) for stage, seconds in report.seconds.items()},
    }


def _part_fields(report: Report) -> list[dict[str, int | float]]:
    found, shares = report.evaluation, report.shares
    total = max(1, int(found.loads.sum()))
    sent, received = found.messages.sum(axis=1), found.messages.sum(axis=0)
    fields = [
        {
            "part": part,
            "work": _in_units(report.work, int(found.loads[part])),
            "work_share": int(found.loads[part]) / total,
            "parameters": int(shares.parameters[part]),
            "activation_bytes": int(shares.activation_bytes[part]),
            "send_bytes": int(found.sent[part]),
            "receive_bytes": int(found.received[part]),
            "messages_sent": int(sent[part]),
            "messages_received": int(received[part]),
        }
        for part in range(report.k)
    ]
    if report.memory is not None and report.memory_bytes is not None:
        for own, needed, limit in zip(
            fields, report.memory_bytes.tolist(), report.memory.bytes, strict=True
        ):
            own |= {"memory_bytes": needed, "memory_limit_bytes": limit}
    return fields


def _layer_fields(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "tasks_by_part": tasks.tolist(),
            "work_by_part": [_in_units(report.work, value) for value in work.tolist()],
        }
        for layer, tasks, work in zip(
            report.graph.layers, report.shares.layer_tasks, report.shares.layer_work, strict=True
        )
    ]


def _in_units(work: Work, value: int) -> int | float:
    return value if work.units == 1 else value / work.units


def _bytes_per_element(report: Report) -> int | None:
    """What was asked for, or what all maps have; None where they differ."""
    sizes = {layer.bytes_per_element for layer in report.graph.layers if layer.channels}
    own = sizes.pop() if len(sizes) == 1 else None
    return report.modelling.bytes_per_element or own


def _listed(items: Iterable[Any]) -> str:
    return "[\n" + ",\n".join(f"    {_json(item)}" for item in items) + "\n  ]"


def _json(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value, allow_nan=False)


# ------------------------------------------------------------------ for people


def print_report(report: Report, console: Console, unit: str) -> None:
    """Print the answer, then the tables, then the seconds.

    Parameters
    ----------
    report : Report
    console : Console
    unit : str
        What bytes are printed in, one of `UNITS`.
    """
    for line in answer(report, unit):
        console.print(line)
    work_unit, work_size = work_scale(report)
    batch = f"{unit} per forward pass of {_samples(report)}"
    for title, table in (
        (f"Load ({work_unit})", _load_table(report, work_size)),
        (f"Communication ({batch})", _communication_table(report, unit)),
        ("Parts (maps: made or received)", _part_table(report, work_unit, work_size, unit)),
        ("Layers (% of each that each part has)", _layer_table(report, console.width)),
    ):
        console.print()
        print_table(console, title, table)
    console.print()
    *stages, (_, total) = report.seconds.items()
    spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages)
    console.print(f"Seconds: {total:.2f} in all ({spent})")


def answer(report: Report, unit: str) -> list[str]:
    """What came out and how it compares with cutting between layers, in a few lines."""
    found, layerwise, k = report.evaluation, report.layerwise, report.k
    devices = f"{k} device" if k == 1 else f"{k} devices"
    balanced = report.feasible or found.imbalance <= report.eps
    allowed = "allowed" if balanced else "more than the allowed"
    by_layers = f"imbalance {layerwise.imbalance:.3f}, {_bytes(layerwise.volume, unit)}"
    idle = int((layerwise.loads == 0).sum())
    if idle:
        by_layers += f" ({idle} of the {devices} get no work)"
    which = f"least volume within {report.eps:g}"
    if layerwise.imbalance > report.eps:
        which = f"none is within {report.eps:g}; the most even one"
    lines = [
        f"{report.model} on {devices}, {report.modelling.grain}-grain: imbalance "
        f"{found.imbalance:.3f} ({allowed} {report.eps:g}), {_volume(report, unit)} between "
        f"devices per forward pass of {_samples(report)}",
        f"Cut between layers instead ({which}): {by_layers}",
    ]
    lines[1:1] = [*_objective_line(report, unit), *_memory_line(report, unit)]
    if report.interrupted:
        lines.insert(1, "Ctrl-C ended the search: this is the best that it had found by then")
    if report.start == "layerwise":
        lines.append(f"{report.backend} found nothing better than that cut, improved as it is here")
    work_ratio = (1 + found.imbalance) / (1 + layerwise.imbalance)
    if layerwise.volume:
        volume_ratio = found.volume / layerwise.volume
        volume = _compared(volume_ratio, "fewer", "more", "many") + " bytes travel"
    else:
        volume_ratio = math.inf if found.volume else 1.0
        volume = "bytes travel" if found.volume else "no bytes travel either"
    link = "but" if (work_ratio - 1) * (volume_ratio - 1) < 0 else "and"
    work = _compared(work_ratio, "less", "more", "much") + " work"
    if report.speeds is not None:
        work += " for its speed"
    lines.append(f"Compared with that, the busiest device has {work}, {link} {volume}")
    return lines


def _objective_line(report: Report, unit: str) -> list[str]:
    objective = report.objective
    value = objective.value(report.evaluation.traffic)
    gap = f" (gap at most {_gap(report):.1%})" if _gap(report) < 1 else ""
    if objective.name == "largest":
        return [f"No device sends and receives more than {_bytes(int(value), unit)}{gap}"]
    if objective.name == "links":
        share = value / max(1, report.evaluation.volume)
        return [f"A byte costs {share:.3g} on the links that it takes, on average{gap}"]
    return []


def _gap(report: Report) -> float:
    """Share of the objective that a better partition within eps might do without."""
    value = report.objective.value(report.evaluation.traffic)
    return relative_gap(value, report.objective.least(report.lower_bound, report.k))


def _memory_line(report: Report, unit: str) -> list[str]:
    if report.memory is None or report.memory_bytes is None:
        return []
    needed, limits = report.memory_bytes.tolist(), report.memory.bytes
    part = max(range(report.k), key=lambda at: needed[at] - limits[at])
    above = "more than the" if needed[part] > limits[part] else "of the"
    return [
        f"Part {part} is the shortest of memory: {_bytes(needed[part], unit)}, {above} "
        f"{_bytes(limits[part], unit)} that it has, with {report.memory.copies:g} copies of its "
        "parameters"
    ]


def _volume(report: Report, unit: str) -> str:
    """The volume, and what is known of the least within eps, if anything."""
    volume, bound = report.evaluation.volume, report.lower_bound
    said = _bytes(volume, unit)
    if report.objective.name != "volume":
        return said
    if report.feasible and volume == bound:
        return f"{said} (proven optimal)"
    if report.feasible and bound > 0:
        return f"{said} (at least {_bytes(bound, unit)}: gap {relative_gap(volume, bound):.1%})"
    return said


def _compared(ratio: float, less: str, more: str, much: str) -> str:
    """Say how a figure compares with another.

    >>> [_compared(ratio, "less", "more", "much") for ratio in (0.25, 0.77, 1, 1.942, 3.31)]
    ['4.0 times less', '23% less', 'as much', '94% more', '3.3 times as much']
    """
    percent = round(100 * (ratio - 1))
    if percent == 0:
        return f"as {much}"
    if ratio >= 2:
        return f"{ratio:.1f} times as {much}"
    if ratio <= 0.5:
        return f"{1 / ratio:.1f} times {less}" if ratio else f"100% {less}"
    return f"{abs(percent)}% {less if percent < 0 else more}"


def _load_table(report: Report, work_size: float) -> Table:
    table = ruled_table(["", "max", "min", "average", "max/min", "max/average", "imbalance"])
    for name, found in (("partition", report.evaluation), ("between layers", report.layerwise)):
        table.add_row(
            name,
            *even_decimals([value / work_size for value in (found.max_load, found.min_load)]),
            *even_decimals([found.average_load / work_size]),
            "-" if math.isinf(found.max_over_min) else f"{found.max_over_min:.3f}",
            f"{found.max_over_average:.3f}",
            f"{found.imbalance:.3f}",
        )
    return table


def _communication_table(report: Report, unit: str) -> Table:
    headings = ["volume", "at least", "max part sends", "average", "max/average", "messages"]
    table = ruled_table(["", *headings])
    both = (report.evaluation, report.layerwise)
    columns = [
        even_decimals([found.volume / UNITS[unit] for found in both]),
        [*even_decimals([report.lower_bound / UNITS[unit]]), "-"],
        even_decimals([found.max_part_volume / UNITS[unit] for found in both]),
        even_decimals([found.average_part_volume / UNITS[unit] for found in both]),
        [f"{found.max_over_average_part_volume:.3f}" for found in both],
        [f"{found.message_count:,}" for found in both],
    ]
    for name, *figures in zip(("partition", "between layers"), *columns, strict=True):
        table.add_row(name, *figures)
    return table


def _part_table(report: Report, work_unit: str, work_size: float, unit: str) -> Table:
    found, shares = report.evaluation, report.shares
    headings = ["part", work_unit.split()[0], "share", "parameters", f"maps {unit}"]
    loads = [int(load) for load in found.loads]
    columns = [
        [str(part) for part in range(report.k)],
        even_decimals([load / work_size for load in loads]),
        [f"{load / max(1, sum(loads)):.1%}" for load in loads],
        [f"{count:,}" for count in shares.parameters.tolist()],
        even_decimals((shares.activation_bytes / UNITS[unit]).tolist()),
    ]
    for heading, sizes in ((f"sends {unit}", found.sent), (f"receives {unit}", found.received)):
        headings.append(heading)
        columns.append(even_decimals((sizes / UNITS[unit]).tolist()))
    if report.memory is not None and report.memory_bytes is not None:
        for heading, sizes in (
            (f"memory {unit}", report.memory_bytes),
            ("limit", np.array(report.memory.bytes)),
        ):
            headings.append(heading)
            columns.append(even_decimals((sizes / UNITS[unit]).tolist()))
    if report.speeds is not None:
        total = sum(report.speeds)
        headings.insert(3, "target")
        columns.insert(3, [f"{speed / total:.1%}" for speed in report.speeds])
    table = ruled_table(headings)
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def _layer_table(report: Report, width: int) -> Table:
    """What each part has of each layer: a column a part where they fit, else a summary."""
    rows = [
        (view.layer.name, f"{view.layer.tasks:,}", layer_shares(report, view))
        for view in report.blocks.views
        if view.exists
    ]
    grid = ruled_table(["layer", "tasks", *map(str, range(report.k))])
    for name, tasks, shares in rows:
        grid.add_row(name, tasks, *map(_percent, shares))
    if report.k <= MAX_GRID_PARTS and max(map(len, table_lines(grid))) <= width:
        return grid
    table = ruled_table(["layer", "tasks", "parts", "max %", "which"])
    table.columns[-1].justify = "left"
    for name, tasks, shares in rows:
        held = [part for part, share in enumerate(shares) if share > 0]
        table.add_row(name, tasks, str(len(held)), _percent(max(shares)), _ranges(held))
    return table


def layer_shares(report: Report, view: LayerVertices) -> list[float]:
    """Each part's share of a layer's work, or of its tasks where there is no work."""
    held = report.shares.layer_work[view.first]
    if not held.any():
        held = report.shares.layer_tasks[view.at]
    shares: list[float] = (held / max(1, int(held.sum()))).tolist()
    return shares


def _percent(share: float) -> str:
    if 0 < share < 0.005:
        return "<1"
    return f"{100 * share:.0f}" if share else "."


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ranges.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    starts = [n for at, n in enumerate(numbers) if at == 0 or numbers[at - 1] != n - 1]
    ends = [n for at, n in enumerate(numbers) if n == numbers[-1] or numbers[at + 1] != n + 1]
    return ", ".join(
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )


def work_scale(report: Report) -> tuple[str, float]:
    """The unit that loads are printed in, and how many units of work make one of it."""
    work = report.work
    largest = report.evaluation.max_load / work.units
    prefix, size = next((pair for pair in _PREFIXES if largest >= pair[1]), ("", 1.0))
    measured = f" for {_samples(report)}, forward and backward"
    per = measured if work.unit == "s" else " per sample"
    return f"{prefix}{work.unit}{per}", size * work.units


def _samples(report: Report) -> str:
    batch = report.modelling.batch_size
    return "1 sample" if batch == 1 else f"{batch} samples"


def _bytes(count: int, unit: str) -> str:
    return f"{even_decimals([count / UNITS[unit]])[0]} {unit}"
