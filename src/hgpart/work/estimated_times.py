"""Work -> LayerTimes: seconds of layers where none were measured, in proportion to their work."""

from __future__ import annotations

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work, seconds_a_unit
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes

RATE = 5e10  # multiply-accumulates a second: some cores of a CPU
READING = 5e9  # bytes a second: of weights, which each pass reads however few its samples are
# In forward passes; together `STEP_PASSES`.
PARTS = {Pass.FORWARD: 1, Pass.MAPS: 1, Pass.WEIGHTS: 1, Pass.BACKWARD: 2, Pass.UPDATE: 0}


def estimated_times(work: Work, graph: ChannelGraph, batch_size: int) -> LayerTimes:
    """Times of layers, by their multiply-accumulates or by their seconds in a step of a batch.

    A share of a layer takes its share of the seconds, for as many samples as it is of a batch; and
    each pass reads the weights, which of large matrices and few samples takes longest.

    Parameters
    ----------
    batch_size : int
        Samples of the step that work in seconds is of.
    """
    layers = list[ShareTimes | None]()
    sizes, unit = sorted({1, batch_size}), seconds_a_unit(work, batch_size, 1 / RATE)
    for layer, per_task in zip(graph.layers, work.per_task.tolist(), strict=True):
        per_sample = per_task * layer.tasks * unit
        read = sum(own.elements * own.element_bytes for own in layer.own_parameters) / READING
        if work.unit == "s":  # reading is in what was measured
            read = min(read, batch_size * per_sample)
            per_sample -= read / batch_size
        row = tuple(read + size * per_sample for size in sizes)
        seconds = {
            which: (tuple(part * forward for forward in row),) for which, part in PARTS.items()
        }
        seconds[Pass.UPDATE] = ((0.0,),)  # of no samples
        layers.append(ShareTimes((layer.tasks,), seconds) if layer.operators else None)
    return LayerTimes(tuple(sizes), tuple(layers), work.source)
