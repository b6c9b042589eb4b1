"""CnnHypergraph + parts -> Flows: what a training step sends, by what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import messages, traffic
from hgpart.layers.channel_graph import INPUT
from hgpart.sequences import Sequences


@dataclass(frozen=True, eq=False)
class Flow:
    """What the parts send each other at one time of a step.

    Attributes
    ----------
    sent, received : int64 arrays, shape (k,)
        Bytes of each part.
    """

    sent: Int64
    received: Int64
    messages: int

    @property
    def volume(self) -> int:
        """Bytes of all parts."""
        return int(self.sent.sum())

    @property
    def most_sent(self) -> int:
        """Bytes of the part that sends most."""
        return int(self.sent.max())

    @property
    def most_received(self) -> int:
        """Bytes of the part that receives most."""
        return int(self.received.max())

    @property
    def most(self) -> int:
        """Bytes of the part that sends and receives most."""
        return int((self.sent + self.received).max())

    @property
    def back(self) -> Flow:
        """The same from each receiver to its sender."""
        return Flow(self.received, self.sent, self.messages)


def step_flows(model: CnnHypergraph, parts: Int32, k: int) -> Mapping[str, Flow]:
    """What a step sends, in order of time: "maps forward" first, alone where nothing is trained.

    "maps backward" are their gradients, of which none goes back to an input. "gradients" are those
    of parameters that several parts have, and are summed in one of them; from there the new
    "weights" go back to the others. "statistics" of norms over all slices, or over bands, are
    summed and go "back" in the same way, those of maps forward and those of gradients backward,
    half each. Maps forward, gradients and statistics, each once, add up to the
    partition's volume.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)
    """
    maps = model.map_nets.of_parts(model.weights, parts, k)
    forward = _flow(maps, k)
    if not model.modelling.training:
        return {"maps forward": forward}
    layers = model.graph.layers
    is_input = np.array([layer.kind == INPUT for layer in layers])
    costs = np.where(is_input[maps.net_layers % max(1, len(layers))], 0, maps.costs)
    gradients, statistics = (
        _flow(
            replace(nets, gathers=np.ones_like(nets.gathers)).of_parts(model.weights, parts, k), k
        )
        for nets in (model.parameter_nets, model.statistics_nets)
    )
    sums = {"statistics": statistics, "statistics back": statistics.back}
    return {
        "maps forward": forward,
        **(sums if model.modelling.norms == "batch" or model.modelling.bands > 1 else {}),
        "maps backward": _flow(replace(maps, costs=costs), k).back,
        "gradients": gradients,
        "weights": gradients.back,
    }


def border_bytes(model: CnnHypergraph, parts: Int32, k: int) -> int:
    """Bytes of borders in the maps forward: rows that a part gets of maps that it makes others of.

    The parts R that have a net and the parts M that make rows of its maps, both with its sender,
    have |R| + |M| - |R and M together| in common, of which each but the sender is sent a border.

    Parameters
    ----------
    parts : int32 array, shape (model.vertices,)
    """
    if model.modelling.bands == 1:
        return 0
    slices, within = np.divmod(np.arange(model.vertices), model.slice_vertices)
    width = model.in_bands.shape[1]
    of_tasks = slices * width + model.first_bands[within]
    bands = Sequences.of_pairs(of_tasks, np.arange(model.vertices), model.modelling.slices * width)
    nets = model.map_nets
    makers = len(nets.sets) + of_tasks[nets.roots]
    every, read = np.arange(len(makers)), nets.lists.take(nets.readers)
    lists = (
        read,
        Sequences.of_pairs(every, makers, len(every)),
        Sequences.of_pairs(
            np.concatenate([read.owners, every]),
            np.concatenate([read.values, makers]),
            len(every),
        ),
    )
    sets = Sequences.joined([nets.sets, bands])
    received, made, both = (
        _flow(
            replace(nets, readers=every, lists=own, sets=sets).of_parts(model.weights, parts, k), k
        )
        for own in lists
    )
    return received.volume + made.volume - both.volume


def together(flows: Iterable[Flow]) -> Flow:
    """All that some send."""
    every = list(flows)
    return Flow(
        np.sum([flow.sent for flow in every], axis=0),
        np.sum([flow.received for flow in every], axis=0),
        sum(flow.messages for flow in every),
    )


def _flow(between: Hypergraph, k: int) -> Flow:
    every = np.arange(k, dtype=np.int32)  # its vertices are the parts
    sent = traffic(between, every, k)
    count = int(messages(between, every, k).sum())
    return Flow(sent.sum(axis=1), sent.sum(axis=0), count)
