"""Times of layers that are known: a share takes its share of the work, for any sample."""

from __future__ import annotations

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.work.layer_times import LayerTimes, Pass, ShareTimes

UNIT = 1e-9  # seconds of a multiply-accumulate


def in_proportion(graph: ChannelGraph, update: float = 0.0, scale: float = 1.0) -> LayerTimes:
    """Backward takes twice as long as forward; the update of any layer as long as any other's."""
    found = []
    for layer in graph.layers:
        once = layer.macs * layer.tasks * UNIT * scale
        seconds = {which: ((once,),) for which in Pass}
        seconds |= {Pass.BACKWARD: ((2 * once,),), Pass.UPDATE: ((update,),)}
        found.append(ShareTimes((layer.tasks,), seconds) if layer.operators else None)
    return LayerTimes((1,), tuple(found), "by hand")
