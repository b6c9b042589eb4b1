"""Report -> text and tables: a partition of a model, for people."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.table import Table

from hgpart.partition.bounds.lower_bound import relative_gap
from hgpart.report.partition.bars import print_bars
from hgpart.report.partition.record import Report, layer_shares, samples_of, work_scale
from hgpart.report.partition.slice_shares import (
    SliceShares,
    ranges,
    way_divided,
    who_has,
)
from hgpart.report.tables import UNITS, even_decimals, print_table, ruled_table, table_lines

MAX_GRID_PARTS = 16  # a column each for up to so many parts

SAME = 0.995  # of a figure, and it is printed as the same or more
NO_BOUND = "no useful bound is known"


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
    if report.partition.k > 1:
        console.print()
        print_bars(report, console)
    work_unit, work_size = work_scale(report)
    for title, table in (
        (f"Load ({work_unit})", _load_table(report, work_size)),
        (f"Communication ({unit} {_per(report)})", _communication_table(report, unit)),
        *_step_tables(report, unit),
        ("Parts (maps: made or received)", _part_table(report, work_unit, work_size, unit)),
        _layer_table(report, console.width),
    ):
        console.print()
        print_table(console, title, table)
    console.print()
    *stages, (_, total) = report.seconds.items()
    spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages)
    console.print(f"Wall seconds: {total:.2f} in all ({spent})")


def answer(report: Report, unit: str) -> list[str]:
    """What came out and how it compares with cutting between layers, in a few lines."""
    found, layerwise, k = report.partition.evaluation, report.layerwise, report.partition.k
    devices = f"{k} device" if k == 1 else f"{k} devices"
    balanced = report.partition.feasible or found.imbalance <= report.partition.problem.eps
    allowed = "allowed" if balanced else "more than the allowed"
    by_layers = f"imbalance {layerwise.imbalance:.3f}, {_bytes(layerwise.volume, unit)}"
    idle = int((layerwise.loads == 0).sum())
    if idle:
        by_layers += f" ({idle} of the {devices} get no work)"
    which = f"least volume within {report.partition.problem.eps:g}"
    if layerwise.imbalance > report.partition.problem.eps:
        which = f"none is within {report.partition.problem.eps:g}; the most even one"
    slices = report.partition.modelling.slices
    said = f", {slices} slices of the batch" if slices > 1 else ""
    if len(set(report.partition.modelling.samples)) > 1:
        said += f" ({_slice_samples(report)} each)"
    lines = [
        f"{report.model} on {devices}, {report.partition.modelling.grain}-grain{said}: imbalance "
        f"{found.imbalance:.3f} ({allowed} {report.partition.problem.eps:g}), "
        f"{_volume(report, unit)} between devices {_per(report)}",
        f"Cut between layers instead ({which}): {by_layers}",
    ]
    lines[1:1] = [
        *_slices_lines(report, unit),
        *_objective_line(report, unit),
        *_memory_line(report, unit),
    ]
    if report.partition.interrupted:
        lines.insert(1, "Ctrl-C ended the search: this is the best that it had found by then")
    if report.partition.start == "layerwise":
        lines.append(
            f"{report.partition.backend} found nothing better than that cut, improved as it is here"
        )
    work_ratio = (1 + found.imbalance) / (1 + layerwise.imbalance)
    if layerwise.volume:
        volume_ratio = found.volume / layerwise.volume
        volume = _compared(volume_ratio, "fewer", "more", "many") + " bytes travel"
    else:
        volume_ratio = math.inf if found.volume else 1.0
        volume = "bytes travel" if found.volume else "no bytes travel either"
    link = "but" if (work_ratio - 1) * (volume_ratio - 1) < 0 else "and"
    work = _compared(work_ratio, "less", "more", "much") + " work"
    if report.partition.problem.speeds is not None:
        work += " for its speed"
    lines.append(f"Compared with that, the busiest device has {work}, {link} {volume}")
    if k > 1 and work_ratio > SAME and volume_ratio > SAME:
        lines.append("So it gains nothing over that cut, in load and bytes")
    return [*lines, *_seconds_line(report)]


def _per(report: Report) -> str:
    """What bytes are of, where a step's gradients of parameters are among them, and where not."""
    when = "each way per training step" if report.each_way else "per forward pass"
    return f"{when} of {samples_of(report)}"


def _seconds_line(report: Report) -> list[str]:
    """About how long a step takes, and whether that pays."""
    if report.partition.problem.objective.in_seconds or (found := report.step_seconds) is None:
        return []
    what = "training step" if report.partition.modelling.training else "forward pass"
    times = found.one_device / found.seconds if found.seconds else 1.0
    pays = "" if times > 1 else ", so that it does not pay"
    count = found.micro_batches
    by = f" in {count} micro-batches" if count > 1 else ""
    return [
        f"A {what} would take about {found.seconds:.3g} s{by}, {times:.2f} times as fast as one "
        f"device{pays} (an estimate, for {found.assumed}); hgpart recommend simulates, and chooses"
    ]


def _slices_lines(report: Report, unit: str) -> list[str]:
    """What a step with slices sends, or how many slices would be better, or that none are."""
    if report.each_way:
        sizes = [flow.volume / UNITS[unit] for flow in report.flows.values()]
        said = dict(zip(report.flows, even_decimals(sizes), strict=True))
        sums = said.get("statistics")
        lines = [
            f"A step sends {_bytes(report.step['in all'].volume, unit)}: maps "
            f"{said['maps forward']} forward and {said['maps backward']} back, gradients of "
            f"parameters {said['gradients']} and the new weights {said['weights']}"
            + (f", statistics of norms {sums} there and back" if sums else "")
        ]
        norms = any(layer.batch_statistics for layer in report.partition.problem.graph.layers)
        if norms and report.partition.modelling.norms == "slice":
            lines.append(
                f"Batch norms take their statistics of {_share_samples(report)} each: --modelling "
                f"norms=batch takes them of all {report.partition.modelling.batch_size}, for "
                f"{_bytes(report.statistics_bytes, unit)} more each way"
            )
        return [*lines, *_in_turn_line(report)]
    if report.any_slices and report.partition.modelling.slices == 1:
        if report.partition.modelling.batch_size == 1:
            return ["1 slice: a batch of 1 sample can't be divided"]
        if mixing := report.partition.problem.graph.mixing.of_norms(
            report.partition.modelling.norms
        ):
            return [f"1 slice of the batch: {mixing}", *_in_turn_line(report)]
        return [
            "1 slice of the batch: no other number that was tried sends less",
            *_in_turn_line(report),
        ]
    if report.in_slices is not None and report.in_slices < report.partition.evaluation.volume:
        return [
            f"With the batch in slices at most {_bytes(report.in_slices, unit)} would travel each "
            "way of a training step: --slices auto"
        ]
    if report.untried_slices and report.partition.evaluation.volume:
        return ["Slices of the batch were not tried: --slices auto may send less"]
    return []


def _in_turn_line(report: Report) -> list[str]:
    """Where least bytes may not be least time: each layer on one part, for all slices."""
    if report.partition.k == 1 or not report.lies_in_layers:
        return []
    return [
        "Each layer is whole on one device: several work at once in micro-batches only. Few bytes "
        "are not always little time, which hgpart run measures"
    ]


def _objective_line(report: Report, unit: str) -> list[str]:
    def most(count: int) -> str:
        said = _bytes(count, unit)
        if report.each_way:
            said += f" each way, {_bytes(report.step['in all'].most, unit)} in a step"
        return said

    partition = report.partition
    said = partition.problem.objective.in_words(
        partition.objective_value, partition.evaluation.volume, most
    )
    if said is None:
        return []
    gap = NO_BOUND if report.says_little else f"gap at most {partition.gap:.1%}"
    return [f"{said} ({gap})"]


def _memory_line(report: Report, unit: str) -> list[str]:
    if report.partition.problem.memory is None or report.partition.memory_bytes is None:
        return []
    needed, limits = report.partition.memory_bytes.tolist(), report.partition.problem.memory.bytes
    part = max(range(report.partition.k), key=lambda at: needed[at] - limits[at])
    above = "more than the" if needed[part] > limits[part] else "of the"
    return [
        f"Part {part} is the shortest of memory: {_bytes(needed[part], unit)}, {above} "
        f"{_bytes(limits[part], unit)} that it has, with {report.partition.problem.memory.counted}"
    ]


def _volume(report: Report, unit: str) -> str:
    """The volume, and what is known of the least within eps, if anything."""
    volume, bound = report.partition.evaluation.volume, report.partition.lower_bound
    said = _bytes(volume, unit)
    if not report.partition.problem.objective.is_volume:
        return said
    if report.partition.feasible and volume == bound:
        return f"{said} (proven optimal)"
    if report.partition.feasible and report.says_little:
        return f"{said} ({NO_BOUND})"
    if report.partition.feasible:
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


def one_way(report: Report) -> str:
    """What headings have beside those of a step, of which a volume is one way."""
    return ", one way" if report.each_way else ""


def _load_table(report: Report, work_size: float) -> Table:
    table = ruled_table(["", "max", "min", "average", "max/min", "max/average", "imbalance"])
    for name, found in (
        ("partition", report.partition.evaluation),
        ("between layers", report.layerwise),
    ):
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
    sends = f"max part sends{one_way(report)}"
    headings = ["volume", "at least", sends, "average", "max/average", "messages"]
    table = ruled_table(["", *headings])
    both = (report.partition.evaluation, report.layerwise)
    least = (
        "-"
        if report.says_little
        else even_decimals([report.partition.lower_bound / UNITS[unit]])[0]
    )
    columns = [
        even_decimals([found.volume / UNITS[unit] for found in both]),
        [least, "-"],
        even_decimals([found.max_part_volume / UNITS[unit] for found in both]),
        even_decimals([found.average_part_volume / UNITS[unit] for found in both]),
        [f"{found.max_over_average_part_volume:.3f}" for found in both],
        [f"{found.message_count:,}" for found in both],
    ]
    for name, *figures in zip(("partition", "between layers"), *columns, strict=True):
        table.add_row(name, *figures)
    return table


def _step_tables(report: Report, unit: str) -> list[tuple[str, Table]]:
    """What a training step sends at each time, where gradients of parameters travel."""
    if not report.each_way:
        return []
    flows = report.step
    each = ["max part sends", "max part receives", "max part sends + receives"]
    table = ruled_table(["", "volume", *each, "messages"])
    columns = [
        even_decimals([size / UNITS[unit] for size in sizes])
        for sizes in (
            [flow.volume for flow in flows.values()],
            [flow.most_sent for flow in flows.values()],
            [flow.most_received for flow in flows.values()],
            [flow.most for flow in flows.values()],
        )
    ]
    for (name, flow), *figures in zip(flows.items(), *columns, strict=True):
        table.add_row(name, *figures, f"{flow.messages:,}")
    return [(f"A training step ({unit})", table)]


def _part_table(report: Report, work_unit: str, work_size: float, unit: str) -> Table:
    found, shares = report.partition.evaluation, report.partition.shares
    headings = ["part", work_unit.split()[0], "share", "parameters", f"maps {unit}"]
    loads = [int(load) for load in found.loads]
    columns = [
        [str(part) for part in range(report.partition.k)],
        even_decimals([load / work_size for load in loads]),
        [f"{load / max(1, sum(loads)):.1%}" for load in loads],
        [f"{count:,}" for count in shares.parameters.tolist()],
        even_decimals((shares.activation_bytes / UNITS[unit]).tolist()),
    ]
    for heading, sizes in (("sends", found.sent), ("receives", found.received)):
        headings.append(f"{heading} {unit}{one_way(report)}")
        columns.append(even_decimals((sizes / UNITS[unit]).tolist()))
    if report.partition.problem.memory is not None and report.partition.memory_bytes is not None:
        for heading, sizes in (
            (f"memory {unit}", report.partition.memory_bytes),
            ("limit", np.array(report.partition.problem.memory.bytes)),
        ):
            headings.append(heading)
            columns.append(even_decimals((sizes / UNITS[unit]).tolist()))
    if report.partition.problem.speeds is not None:
        total = sum(report.partition.problem.speeds)
        headings.insert(3, "target")
        columns.insert(3, [f"{speed / total:.1%}" for speed in report.partition.problem.speeds])
    table = ruled_table(headings)
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def _layer_table(report: Report, width: int) -> tuple[str, Table]:
    """What each part has of each layer: a column a part where they fit, else a summary."""
    if report.partition.modelling.slices > 1:
        return _sliced_layer_table(report)
    title = "Layers (% of each that each part has)"
    rows = [
        (view.layer.name, f"{view.layer.tasks:,}", layer_shares(report, view))
        for view in report.partition.model.views
        if view.exists
    ]
    grid = ruled_table(["layer", "tasks", *map(str, range(report.partition.k))])
    for name, tasks, shares in rows:
        grid.add_row(name, tasks, *map(_percent, shares))
    if report.partition.k <= MAX_GRID_PARTS and max(map(len, table_lines(grid))) <= width:
        return title, grid
    table = ruled_table(["layer", "tasks", "parts", "max %", "which"])
    table.columns[-1].justify = "left"
    for name, tasks, shares in rows:
        held = [part for part, share in enumerate(shares) if share > 0]
        table.add_row(name, tasks, str(len(held)), _percent(max(shares)), ranges(held))
    return title, table


def _sliced_layer_table(report: Report) -> tuple[str, Table]:
    """Which part has which filters of which slices; layers that follow each other alike in one."""
    table = ruled_table(["layers", "divided", "parts", "who has them"])
    for at in (1, 3):
        table.columns[at].justify = "left"
    rows = [
        (view.layer.name, groups)
        for view, groups in zip(report.partition.model.views, report.slices_of_layers, strict=True)
        if groups
    ]

    samples = report.partition.modelling.samples

    def lies(row: tuple[str, tuple[SliceShares, ...]]) -> object:
        return who_has(row[1], samples), [(group.slices, group.parts) for group in row[1]]

    for _, run in groupby(rows, lies):
        (first, groups), *others = run
        names = f"{first} to {others[-1][0]} ({1 + len(others)})" if others else first
        parts = {part for group in groups for part in group.parts}
        table.add_row(names, way_divided(groups), str(len(parts)), who_has(groups, samples))
    title = (
        'Layers ("0-3: 5" is slices 0 to 3 on part 5; "5 70%" and "1, 4 15% each" are shares of '
        "the filters)"
    )
    return title, table


def _percent(share: float) -> str:
    if 0 < share < 0.005:
        return "<1"
    return f"{100 * share:.0f}" if share else "."


def _slice_samples(report: Report) -> str:
    """Of each slice."""
    sizes = sorted(set(report.partition.modelling.samples))
    return " or ".join(map(str, sizes)) + (" sample" if sizes == [1] else " samples")


def _share_samples(report: Report) -> str:
    """Of all slices that lie alike: they are computed as one batch."""
    sizes = Counter[bytes]()
    by_slice = report.partition.parts.reshape(report.partition.modelling.slices, -1)
    for parts, samples in zip(by_slice, report.partition.modelling.samples, strict=True):
        sizes[parts.tobytes()] += samples
    fewest, *others = sorted(set(sizes.values()))
    if not others:
        return f"{fewest} sample{'s' * (fewest > 1)}"
    return f"{fewest} {'or' if len(others) == 1 else 'to'} {others[-1]} samples"


def _bytes(count: int, unit: str) -> str:
    return f"{even_decimals([count / UNITS[unit]])[0]} {unit}"
