"""What a partition over slices sends, by the definition: task by task, slice by slice, coarse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph, Layer

PartOf = Callable[[int, int, int], int]  # of a slice, a layer and one of its tasks


def sliced_volume(graph: ChannelGraph, modelling: Modelling, part_of: PartOf) -> int:
    """Bytes of maps, slice by slice, and of parameters between the slices of a task.

    Where the batch is in slices, parameters that others read are no maps of each slice: in training
    they are sent once, from their task to all parts that read them in some slice.
    """
    over_slices = modelling.slices > 1

    def part(number: int, at: int, task: int) -> int:
        at = graph.layers[at].tied_to
        return part_of(number, at, 0 if modelling.is_solid(graph.layers[at]) else task)

    cuts = [at * modelling.batch_size // modelling.slices for at in range(modelling.slices + 1)]
    volume = 0
    for number, (first, last) in enumerate(pairwise(cuts)):
        for (source, task), readers in reading(graph, modelling).items():
            layer = graph.layers[source]
            if over_slices and layer.kind == PARAMETER:
                continue
            size = modelling.bytes_per_element or layer.bytes_per_element
            parts = {part(number, *reader) for reader in readers}
            others = len(parts - {part(number, source, task)})
            volume += others * graph.map_bytes(layer, last - first, size)
    if not modelling.training:
        return volume
    readers_of = reading(graph, modelling)
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            continue
        for task, size in enumerate(parameter_bytes(layer, modelling)):
            pins = {(at, task)}
            if over_slices and layer.kind == PARAMETER:
                pins |= readers_of.get((at, task), set())
            parts = {part(number, *pin) for number in range(modelling.slices) for pin in pins}
            volume += (len(parts) - 1) * size
    return volume


def parameter_bytes(layer: Layer, modelling: Modelling) -> list[int]:
    """Of each task: as even as can be."""
    found = [0] * layer.tasks
    for one in layer.own_parameters:
        cuts = [one.elements * task // layer.tasks for task in range(layer.tasks + 1)]
        size = modelling.bytes_per_element or one.element_bytes
        for task, (first, last) in enumerate(pairwise(cuts)):
            found[task] += (last - first) * size
    return found


def reading(
    graph: ChannelGraph, modelling: Modelling
) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """The tasks, as (layer, task), that read the map of each."""
    found: dict[tuple[int, int], set[tuple[int, int]]] = {}
    owner = [(at, task) for at, layer in enumerate(graph.layers) for task in range(layer.tasks)]
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            continue
        for read in layer.reads:
            per_group = layer.tasks // read.groups
            for place, channel in enumerate(read.channels.tolist()):
                if channel < 0:
                    continue
                source = owner[int(graph.task_of_channel[channel])]
                if not modelling.has_vertices(graph.layers[source[0]]):
                    continue
                group = place * read.groups // len(read.channels)
                tasks = range(group * per_group, (group + 1) * per_group)
                found.setdefault(source, set()).update((at, task) for task in tasks)
    return found
