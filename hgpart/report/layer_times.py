"""LayerTimes -> the table of what each layer takes in a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.report.tables import even_decimals, print_table, ruled_table
from hgpart.work.layer_times import LayerTimes, Pass


def print_layer_times(
    name: str,
    input_shape: Sequence[int],
    graph: ChannelGraph,
    times: LayerTimes,
    batch_size: int,
    console: Console,
) -> None:
    """Print what all of each layer takes with all samples, pass by pass, and half of its tasks."""
    measured = [at for at, shares in enumerate(times.layers) if shares is not None]

    def milliseconds(at: int, share: float) -> list[float]:
        return [1e3 * times.seconds(at, which, share, batch_size) for which in Pass]

    whole = {at: milliseconds(at, 1.0) for at in measured}
    total = math.fsum(map(math.fsum, whole.values()))
    shape = " x ".join(map(str, input_shape))
    console.print(
        f"{name} at {shape}: {total / 1e3:.4g} s a training step of {batch_size} samples, "
        f"layer by layer ({times.source})"
    )
    table = ruled_table(
        ["layer", "tasks", *(which.value for which in Pass), "share", "half the tasks"]
    )
    columns = [even_decimals([row[number] for row in whole.values()]) for number in range(4)]
    for at, *figures in zip(measured, *columns, strict=True):
        layer, all_of_it = graph.layers[at], math.fsum(whole[at])
        half = math.fsum(milliseconds(at, 0.5)) if layer.tasks > 1 else None
        table.add_row(
            layer.name,
            f"{layer.tasks:,}",
            *figures,
            f"{all_of_it / total:.1%}",
            "-" if half is None else f"{half / all_of_it:.0%}",
        )
    console.print()
    print_table(console, "Layers (ms, on their own; what half of the tasks take of that)", table)
