"""Transformation -> what changes in which stage, what does not and why, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.report.tables import in_unit, print_table
from hgpart.transformation.transforming import Transformation

MOST_NAMED = 4  # modules named in a row


def print_transformation(
    name: str,
    transformation: Transformation,
    before: ChannelGraph,
    after: ChannelGraph,
    console: Console,
) -> None:
    """Print a row for what is changed, and left, in each stage, then sizes before and after."""
    rows = []
    for number, stage in enumerate(transformation.stages, start=1):
        shape = " x ".join(map(str, stage.shape))
        changes = [
            (change.paths, change.what)
            for change in transformation.changes
            if change.stage == number
        ]
        changes += [
            (left.paths, f"(left: {left.why})")
            for left in transformation.left
            if left.stage == number
        ]
        head = (str(number), str(len(stage.cells)), shape)
        for paths, what in changes or [((), "(not asked for)")]:
            rows.append((*head, _named(paths), what))
            head = ("", "", "")
    headings = ["stage", "cells", "map", "modules", "become"]
    title = f"{name}: {transformation.kind}, {transformation.parts} parts"
    print_table(console, title, headings, rows, left=(0, 2, 3, 4))
    console.print()
    macs = (sum(layer.macs * layer.tasks for layer in graph.layers) for graph in (before, after))
    parameters = (sum(layer.parameters for layer in graph.layers) for graph in (before, after))
    sizes = {"Multiply-accumulates per sample": macs, "Parameters": parameters}
    for what, (old, new) in sizes.items():
        change = f" ({new / old - 1:+.1%})" if old else ""
        console.print(f"{what}: {old:,} -> {new:,}{change}")


def print_parts(partition: Partition, console: Console) -> None:
    """Print what it costs to have each part on a device of its own."""
    samples, evaluation = partition.modelling.batch_size, partition.evaluation
    (megabytes,) = in_unit([evaluation.volume], "MB")
    console.print()
    console.print(
        f"{partition.k} devices, each part on one, all else on the first: {megabytes} MB in a "
        f"forward pass of {samples} samples, the largest load {1 + evaluation.imbalance:.2f} times "
        "the average"
    )


def _named(paths: Sequence[str]) -> str:
    """Modules by their paths, the first few of many.

    >>> _named(("a", "b", "c", "d", "e", "f"))
    'a, b, c, 3 more'
    """
    if len(paths) <= MOST_NAMED:
        return ", ".join(paths)
    return ", ".join((*paths[: MOST_NAMED - 1], f"{len(paths) - MOST_NAMED + 1} more"))
