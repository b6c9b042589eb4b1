"""OpenLayers -> ChannelGraph: channels numbered through, parameters counted once."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from hgpart.layers.channel_graph import ChannelGraph, Layer, OwnParameter, Read
from hgpart.layers.elements.constants import of_rows
from hgpart.layers.elements.holdings import count_needed
from hgpart.layers.mixed_samples import mixed_samples
from hgpart.layers.open_layers import OpenLayers
from hgpart.layers.operations import operations_of
from hgpart.layers.row_windows import row_windows
from hgpart.operators.effects import Channels, Constant
from hgpart.operators.ids import NO_CHANNEL, compact, core


def numbered_graph(open_layers: OpenLayers) -> ChannelGraph:
    """Number channels through all layers in order, and count each parameter once."""
    layers = open_layers.all
    layers.sort(key=lambda layer: layer.position)
    renumber = np.full(open_layers.width + 1, NO_CHANNEL, dtype=np.int64)  # the last one is -1's
    first = 0
    for layer in layers:
        renumber[layer.start : layer.start + layer.channels] = first + np.arange(layer.channels)
        first += layer.channels
    index = {id(layer): at for at, layer in enumerate(layers)}
    tied = list(range(len(layers)))
    for sharers in open_layers.users().values():
        group = {tied[index[id(layer)]] for layer in sharers}
        if len(group) > 1:
            tied = [min(group) if at in group else at for at in tied]
    # A sum that is fused into another type is sent with elements of another size.
    undivided = {
        tied[at]
        for at, layer in enumerate(layers)
        if any(read.partial for read in layer.reads) and layer.sum_bytes != layer.bytes_per_element
    }
    owned, sizes = _owned(open_layers), _sizes(open_layers)
    operations = operations_of(
        open_layers.traced, [(layer.name, layer.kind, layer.operators) for layer in layers]
    )
    table = torch.from_numpy(renumber.astype(np.int32))
    return ChannelGraph(
        layers=tuple(
            Layer(
                name=layer.name,
                kind=layer.kind,
                operators=tuple(layer.operators),
                operations=operations[at],
                tasks=layer.tasks,
                channels=layer.channels,
                map_elements=layer.map_elements,
                fixed_elements=layer.fixed_elements,
                batch_statistics=layer.batch_statistics,
                partial_elements=layer.partial_elements,
                bytes_per_element=layer.bytes_per_element,
                macs=layer.macs,
                own_parameters=tuple(
                    OwnParameter(
                        open_layers.traced.parameters[name],
                        sizes[name],
                        open_layers.origin(name)[0].meta["val"].element_size(),
                    )
                    for name in layer.uses
                    if name in owned[at]
                ),
                weights=layer.weights if layer.weight_names & owned[at] else 0,
                parameter_names=tuple(
                    open_layers.traced.parameters[name] for name in layer.uses if name in sizes
                ),
                reads=tuple(
                    Read(
                        renumber[read.channels],
                        read.sizes,
                        read.groups,
                        read.partial and tied[at] not in undivided,
                        read.is_statistic,
                    )
                    for read in layer.reads
                ),
                tied_to=tied[at],
            )
            for at, layer in enumerate(layers)
        ),
        ids={
            node.name: table[core(value.ids).long()].expand(value.ids.shape)
            for node, value in open_layers.values.items()
            if isinstance(value, Channels)
        },
        rows={
            node.name: compact(value.rows)
            for node, value in open_layers.values.items()
            if isinstance(value, Constant) and value.origins and of_rows(value.rows)
        },
        mixing=mixed_samples(open_layers.traced),
        find_rows=partial(row_windows, open_layers.traced),
    )


def _owned(open_layers: OpenLayers) -> list[frozenset[str]]:
    """For each layer, the parameters that no layer before it has: each element counts once."""
    seen: frozenset[str] = frozenset()
    owned = []
    for layer in open_layers.all:
        owned.append(frozenset(layer.uses.keys() & open_layers.traced.parameters.keys()) - seen)
        seen |= owned[-1]
    return owned


def _sizes(open_layers: OpenLayers) -> dict[str, int]:
    """Number of elements of each parameter that any layer needs."""
    return {
        name: count_needed(
            [use for layer in layers for use in layer.uses[name]], *open_layers.origin(name)
        )
        for name, layers in open_layers.users().items()
        if name in open_layers.traced.parameters
    }
