"""Report -> text and tables: a partition of a model, for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console

from hgpart.files.columns import UNITS
from hgpart.layers.channel_graph import Layer
from hgpart.partition.bounds.lower_bound import relative_gap
from hgpart.recommendation.of_partition import Simulated
from hgpart.report.partition.bars import print_bars
from hgpart.report.partition.columns import (
    both,
    load_columns,
    part_columns,
    per,
    step_columns,
    volume_columns,
)
from hgpart.report.partition.divided_layers import (
    divided_columns,
    divided_layers,
    divided_legend,
)
from hgpart.report.partition.record import Report, layer_shares, work_scale
from hgpart.report.partition.slice_shares import ranges
from hgpart.report.tables import (
    counted,
    even_decimals,
    print_columns,
    print_table,
    table_lines,
)
from hgpart.work.watching import caution, noted

MAX_GRID_PARTS = 16  # parts that may have a column each
FEW_OF_MODULE = 4  # layers of a module, such as steps of a recurrent one, that have rows each

SAME = 0.995  # share of a figure from which on another is no less
NO_BOUND = "no useful lower bound is known"


def print_report(report: Report, console: Console, unit: str) -> None:
    """Print the answer, then the tables, then the seconds.

    Parameters
    ----------
    unit : str
        Unit of bytes, one of `UNITS`.
    """
    for line in answer(report, unit):
        console.print(line)
    if report.partition.k > 1:
        console.print()
        print_bars(report, console)
    console.print()
    title = f"Load (work: {work_scale(report)[0]})"
    print_columns(console, title, load_columns(report), both(report), unit)
    console.print()
    title = f"Communication ({unit} {per(report)})"
    print_columns(console, title, volume_columns(report), both(report), unit)
    if report.each_way:
        console.print()
        title = "A training step (max: of one part)"
        print_columns(console, title, step_columns(report), [*report.step], unit)
    console.print()
    title = "Parts (maps: made or received{})".format("; sends: one way" * report.each_way)
    print_columns(console, title, part_columns(report), range(report.partition.k), unit)
    console.print()
    _print_layers(report, console)
    console.print()
    *stages, (_, total) = report.seconds.items()
    spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages)
    console.print(f"Wall seconds: {total:.2f} in all ({spent})")


def answer(report: Report, unit: str) -> Iterator[str]:
    """What came out and how it compares with cutting between layers, in a few lines."""
    partition, modelling = report.partition, report.partition.modelling
    eps, imbalance = partition.problem.eps, partition.evaluation.imbalance
    allowed = "allowed" if partition.feasible or imbalance <= eps else "more than the allowed"
    divided = f", {modelling.slices} slices of the batch" if modelling.slices > 1 else ""
    divided += f", {modelling.bands} bands of rows" if modelling.bands > 1 else ""
    if len(set(modelling.samples)) > 1:
        sizes = map(str, sorted(set(modelling.samples)))
        divided += f" ({' or '.join(sizes)} samples each)"
    yield (
        f"{report.model} on {counted(partition.k, 'device')}, {modelling.grain}-grain{divided}: "
        f"imbalance {imbalance:.3f} ({allowed} {eps:g}), {_volume(report, unit)} between devices "
        f"{per(report)}"
    )
    if said := caution("The seconds of layers", noted(partition.problem.work.source)):
        yield said
    if partition.interrupted:
        yield "Ctrl-C ended the search: this is the best that it had found"
    if report.each_way:
        yield from _on_step(report, unit)
    yield from _on_bands(report, unit)
    yield from _on_slices(report, unit)
    yield from _on_objective(report, unit)
    yield from _on_memory(report, unit)
    yield from _on_constraints(report)
    if report.moved is not None:
        weights = sum(view.parameter_bytes for view in partition.model.views if view.exists)
        yield (
            f"{_bytes(report.moved, unit)} of weights change place, of "
            f"{_bytes(weights, unit)} in all"
        )
    yield from _beside_layer_cut(report, unit)
    yield from _on_seconds(report)


def beside(eps: float, imbalance: float) -> str:
    """An imbalance in three decimals, or in as many as it takes not to look like eps.

    >>> beside(0.1, 0.4347), beside(0.1, 0.100004), beside(0.1, 0.1)
    ('0.435', '0.100004', '0.100')
    """
    decimals = 3
    while imbalance > eps >= float(f"{imbalance:.{decimals}f}") and decimals < 17:
        decimals += 1
    return f"{imbalance:.{decimals}f}"


def _on_constraints(report: Report) -> Iterator[str]:
    """Whether the constraints are kept."""
    partition = report.partition
    number = len(partition.problem.constraints.each())
    if partition.broken:
        yield f"Constraints that it breaks: {'; '.join(partition.broken)}"
    elif number == 1:
        yield f"The constraint is kept: {partition.problem.constraints}"
    elif number:
        every = "Both" if number == 2 else f"All {number}"
        yield f"{every} constraints are kept: {partition.problem.constraints}"


def _beside_layer_cut(report: Report, unit: str) -> Iterator[str]:
    """The best cut between layers, and what the partition gains over it."""
    partition, layerwise = report.partition, report.layerwise
    evaluation, eps = partition.evaluation, partition.problem.eps
    by_layers = f"imbalance {beside(eps, layerwise.imbalance)}, {_bytes(layerwise.volume, unit)}"
    if idle := int((layerwise.loads == 0).sum()):
        by_layers += f" ({idle} of the {counted(partition.k, 'device')} get no work)"
    if layerwise.imbalance > eps:
        yield f"No cut between layers meets eps {eps:g}; the closest has {by_layers}"
    else:
        free = ", without constraints" * bool(report.partition.problem.constraints)
        yield f"Cut between layers instead (least volume within {eps:g}{free}): {by_layers}"
    if partition.start == "layerwise":
        yield f"{partition.backend} found nothing better than that cut after its improvement"
    work_ratio = (1 + evaluation.imbalance) / (1 + layerwise.imbalance)
    if layerwise.volume:
        volume_ratio = evaluation.volume / layerwise.volume
        volume = _compared(volume_ratio, "fewer", "more", "many") + " bytes travel"
    else:
        volume_ratio = math.inf if evaluation.volume else 1.0
        volume = "bytes travel" if evaluation.volume else "no bytes travel either"
    link = "but" if (work_ratio - 1) * (volume_ratio - 1) < 0 else "and"
    work = _compared(work_ratio, "less", "more", "much") + " work"
    if partition.problem.speeds is not None:
        work += " for its speed"
    yield f"Compared with that, the busiest device has {work}, {link} {volume}"
    is_comparable = report.moved is None  # that cut may move any weights
    if is_comparable and partition.k > 1 and work_ratio > SAME and volume_ratio > SAME:
        yield "So it gains nothing over that cut, in load and bytes"


def _on_seconds(report: Report) -> Iterator[str]:
    """About how long a step takes, whether dividing the model pays, and what is faster."""
    is_objective = report.partition.problem.objective.name == "time"
    if is_objective or (estimate := report.step_seconds) is None:
        return
    what = "training step" if report.partition.modelling.training else "forward pass"
    times = estimate.one_device / estimate.seconds if estimate.seconds else 1.0
    pays = "" if times > 1 else ", so dividing does not pay"
    count = estimate.micro_batches
    by = f" in {count} micro-batches" if count > 1 else ""
    if isinstance(estimate, Simulated) and estimate.for_norms:
        by += f" (batch norms see {estimate.for_norms} samples)"
    how = "simulated" if isinstance(estimate, Simulated) else "an estimate"
    yield (
        f"A {what} takes about {estimate.seconds:.3g} s{by}, {times:.2f} times as fast as one "
        f"device{pays} ({how}, for {estimate.assumed})"
    )
    is_new = report.moved is None  # other ways know nothing of a plan that is mended
    if is_new and isinstance(estimate, Simulated) and estimate.faster and estimate.faster_seconds:
        faster = estimate.one_device / estimate.faster_seconds
        yield (
            f"Faster, {faster:.2f} times by the same simulation: the same command with --way "
            f"{estimate.faster}"
        )


def _on_bands(report: Report, unit: str) -> Iterator[str]:
    """What of the maps are borders, or why there is one band, where hgpart was to choose."""
    partition, modelling = report.partition, report.partition.modelling
    if modelling.bands > 1:
        if borders := report.border_bytes:
            share = 100 * borders / report.flows["maps forward"].volume
            yield (
                f"Of the maps forward, {_bytes(borders, unit)} ({share:.0f}%) are borders: rows of "
                "maps of which the device that gets them computes other rows"
            )
        return
    if not report.any_bands:
        return
    why = "no other number that was tried is better"
    if partition.problem.graph.most_rows == 1:
        why = "no layer has rows to divide (hgpart trace --rows says why)"
    yield f"1 band of rows: {why}"


def _on_step(report: Report, unit: str) -> Iterator[str]:
    """What a training step sends, where it sends more than maps."""
    partition, modelling = report.partition, report.partition.modelling
    sizes = [flow.volume / UNITS[unit] for flow in report.flows.values()]
    sent = dict(zip(report.flows, even_decimals(sizes), strict=True))
    has_norms = any(layer.batch_statistics for layer in partition.problem.graph.layers)
    sums = ""
    if has_norms and "statistics" in sent:
        sums = f", statistics of norms {sent['statistics']} there and back"
    yield (
        f"A step sends {_bytes(report.step['in all'].volume, unit)}: maps "
        f"{sent['maps forward']} forward and {sent['maps backward']} back, gradients of "
        f"parameters {sent['gradients']} and the new weights {sent['weights']}{sums}"
    )
    if modelling.slices > 1 and modelling.norms == "slice" and has_norms:
        more = report.statistics_bytes
        yield (
            f"Batch norms take their statistics of {_share_samples(report)} each: --modelling "
            f"norms=batch takes them of all {modelling.batch_size}, for "
            f"{_bytes(abs(more), unit)} {'more' if more >= 0 else 'less'} each way"
        )


def _on_slices(report: Report, unit: str) -> Iterator[str]:
    """Why there is one slice, or whether slices would send less; who works at once."""
    partition, modelling = report.partition, report.partition.modelling
    graph, volume = partition.problem.graph, partition.evaluation.volume
    if report.any_slices and modelling.slices == 1:
        if modelling.batch_size == 1:
            yield "1 slice: a batch of 1 sample can't be divided"
            return
        why = graph.mixing.of_norms(modelling.norms)
        yield f"1 slice of the batch: {why or 'no other number that was tried sends less'}"
    elif modelling.slices == 1 or not modelling.training:
        if report.in_slices is not None and report.in_slices < volume:
            yield (
                f"With the batch in slices at most {_bytes(report.in_slices, unit)} would travel "
                "each way of a training step: --slices auto"
            )
        elif report.untried_slices and volume:
            yield "Slices of the batch were not tried: --slices auto may send less"
        return
    if partition.k > 1 and modelling.bands == 1 and report.lies_in_layers:
        yield (
            "Each layer is whole on one device: devices work at once in micro-batches only. Few "
            "bytes are not always little time, which hgpart run measures"
        )


def _on_objective(report: Report, unit: str) -> Iterator[str]:
    partition, objective = report.partition, report.partition.problem.objective
    value = partition.objective_value
    gap = f" ({NO_BOUND})" if report.says_little else f" (gap at most {partition.gap:.1%})"
    if objective.name == "largest":
        most = _bytes(int(value), unit)
        if report.each_way:
            most += f" each way, {_bytes(report.step['in all'].most, unit)} in a step"
        yield f"No device sends and receives more than {most}{gap}"
    elif objective.name == "links":
        share = value / max(1, partition.evaluation.volume)
        yield f"A byte costs {share:.3g} on the links that it takes, on average{gap}"
    elif objective.name == "time":
        count = objective.micro_batches
        batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
        yield f"A step of {batches} takes {value:.3g} s by the search's estimate{gap}"


def _on_memory(report: Report, unit: str) -> Iterator[str]:
    memory, needs = report.partition.problem.memory, report.partition.memory_bytes
    if memory is None or needs is None:
        return
    part = int((needs - memory.bytes).argmax())
    needed, limit = int(needs[part]), memory.bytes[part]
    yield (
        f"Part {part} is the shortest of memory: {_bytes(needed, unit)}, "
        f"{'more than the' if needed > limit else 'of the'} {_bytes(limit, unit)} that it has, "
        f"with {memory.counted}"
    )


def _volume(report: Report, unit: str) -> str:
    """The volume, and what is known of the least within eps, if anything."""
    volume, bound = report.partition.evaluation.volume, report.partition.lower_bound
    text = _bytes(volume, unit)
    if report.partition.problem.objective.name != "volume" or not report.partition.feasible:
        return text
    if volume == bound:
        return f"{text} (proven optimal)"
    if report.says_little:
        return f"{text} ({NO_BOUND})"
    return f"{text} (at least {_bytes(bound, unit)}: gap {relative_gap(volume, bound):.1%})"


def _compared(ratio: float, less: str, more: str, much: str) -> str:
    """How a figure compares with another.

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


def _print_layers(report: Report, console: Console) -> None:
    """Print what each part has of each layer: a column a part where they fit, else a summary."""
    if report.partition.modelling.slices > 1 or report.partition.modelling.bands > 1:
        _print_divided_layers(report, console)
        return
    title = "Layers (% of each that each part has)"
    layers = [*_layers_of_modules(report)]
    headings = ["layer", "tasks", *map(str, range(report.partition.k))]
    rows = [(name, tasks, *map(_percent, shares)) for name, tasks, shares in layers]
    lines = table_lines([*zip(headings, *rows, strict=True)])
    if report.partition.k <= MAX_GRID_PARTS and len(max(lines, key=len)) <= console.width:
        print_table(console, title, headings, rows)
        return
    rows = []
    for name, tasks, shares in layers:
        held = [part for part, share in enumerate(shares) if share > 0]
        rows.append((name, tasks, str(len(held)), _percent(max(shares)), ranges(held)))
    headings = ["layer", "tasks", "parts", "max %", "which"]
    print_table(console, title, headings, rows, left=(0, 4))


def _layers_of_modules(report: Report) -> Iterator[tuple[str, str, list[float]]]:
    """Name, tasks and shares of each layer; many of one module that lie alike are in one row."""
    own = [
        (view.layer, layer_shares(report, view))
        for view in report.partition.model.views
        if view.exists
    ]

    def lies(layer: tuple[Layer, list[float]]) -> object:
        return layer[0].name.partition("#")[0], [*map(_percent, layer[1])]

    for _, run in groupby(own, lies):
        alike = [*run]
        if len(alike) > FEW_OF_MODULE:
            (first, shares), count = alike[0], counted(len(alike), "layer")
            tasks = sum(layer.tasks for layer, _ in alike)
            yield f"{first.name} ({count})", f"{tasks:,}", shares
            continue
        for layer, shares in alike:
            yield layer.name, f"{layer.tasks:,}", shares


def _print_divided_layers(report: Report, console: Console) -> None:
    """Print which part has which filters of which tiles; neighbouring layers alike in one row."""
    rows = [
        (line.layers, line.divided, str(line.parts), line.who) for line in divided_layers(report)
    ]
    headings = [column.heading for column in divided_columns()]
    print_table(console, f"Layers ({divided_legend(report)})", headings, rows, (0, 1, 3))


def _percent(share: float) -> str:
    if 0 < share < 0.005:
        return "<1"
    return f"{100 * share:.0f}" if share else "."


def _share_samples(report: Report) -> str:
    """Samples of slices that lie alike, which are computed as one batch."""
    modelling, sizes = report.partition.modelling, Counter[bytes]()
    by_slice = report.partition.parts.reshape(modelling.slices, -1)
    for parts, samples in zip(by_slice, modelling.samples, strict=True):
        sizes[parts.tobytes()] += samples
    fewest, *others = sorted(set(sizes.values()))
    if not others:
        return counted(fewest, "sample")
    return f"{fewest} {'or' if len(others) == 1 else 'to'} {others[-1]} samples"


def _bytes(count: int, unit: str) -> str:
    return f"{even_decimals([count / UNITS[unit]])[0]} {unit}"
