"""Work -> LayerTimes: seconds of layers where none were measured, in proportion to their work."""

from __future__ import annotations

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.figures import Work
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes

RATE = 5e10  # multiply-accumulates a second: some cores of a CPU
# Of forward passes: gradients of maps take as long, and so do those of weights.
PARTS = {Pass.FORWARD: 1, Pass.MAPS: 1, Pass.WEIGHTS: 1, Pass.BACKWARD: 2, Pass.UPDATE: 0}
STEP = PARTS[Pass.FORWARD] + PARTS[Pass.BACKWARD]


def estimated_times(work: Work, graph: ChannelGraph, batch_size: int) -> LayerTimes:
    """Times of layers, by their multiply-accumulates or by their seconds in a step of a batch.

    A share of a layer takes its share of the seconds, for as many samples as it is of a batch.

    Parameters
    ----------
    batch_size : int
        Samples of the step that work in seconds is of.
    """
    layers = list[ShareTimes | None]()
    for layer, per_task in zip(graph.layers, work.per_task.tolist(), strict=True):
        whole = per_task * layer.tasks / work.units
        forward = whole / (STEP * batch_size) if work.unit == "s" else whole / RATE
        seconds = {which: ((part * forward,),) for which, part in PARTS.items()}
        layers.append(ShareTimes((layer.tasks,), seconds) if layer.operators else None)
    return LayerTimes((1,), tuple(layers), work.source)
