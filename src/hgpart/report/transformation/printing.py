"""Transformation -> what changes in which stage, what does not and why, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.report.tables import in_unit, print_table, ruled_table
from hgpart.transformation.transforming import Transformation

MOST_NAMED = 4  # modules of a row


def print_transformation(
    name: str,
    found: Transformation,
    before: ChannelGraph,
    after: ChannelGraph,
    console: Console,
) -> None:
    """Print a row for what is changed, and left, in each stage, then sizes before and after."""
    table = ruled_table(["stage", "cells", "map", "modules", "become"])
    for column in table.columns[2:]:
        column.justify = "left"
    for number, stage in enumerate(found.stages, start=1):
        shape = " x ".join(map(str, stage.shape))
        rows = [(one.paths, one.what) for one in found.changes if one.stage == number]
        rows += [(one.paths, f"(left: {one.why})") for one in found.left if one.stage == number]
        head = (str(number), str(len(stage.cells)), shape)
        for paths, what in rows or [((), "(not asked for)")]:
            table.add_row(*head, _named(paths), what)
            head = ("", "", "")
    print_table(console, f"{name}: {found.kind}, {found.parts} parts", table)
    console.print()
    for what, (old, new) in _sizes(before, after).items():
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


def _sizes(before: ChannelGraph, after: ChannelGraph) -> dict[str, tuple[int, int]]:
    def both(what: str) -> tuple[int, int]:
        old, new = (
            sum(
                layer.macs * layer.tasks if what == "macs" else layer.parameters
                for layer in graph.layers
            )
            for graph in (before, after)
        )
        return old, new

    return {"Multiply-accumulates per sample": both("macs"), "Parameters": both("parameters")}
