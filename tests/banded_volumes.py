"""What a partition over tiles sends, by the definition: task by task, row by row, coarse."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from sliced_volumes import parameter_bytes, reading

from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.parameters import NUMBERS_A_CHANNEL
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph

# Of a slice, a band, a layer and one of its tasks; without a band, of what adds up sums over rows.
PartOf = Callable[[int, int | None, int, int], int]


def is_summed(graph: ChannelGraph, modelling: Modelling, at: int) -> bool:
    """Whether a layer's bands make partial sums of its rows."""
    total, layers = graph.layer_rows[at].total, graph.layers
    own = [layer.tied_to for layer in layers].count(layers[at].tied_to)
    of_samples = own == 1 and layers[at].fixed_elements == 0
    return modelling.bands > 1 and total is not None and total.ends and of_samples


def bands_of(graph: ChannelGraph, modelling: Modelling, at: int) -> list[range]:
    """The rows that each band of a layer computes; one that shares its weights has one band."""
    rows = graph.layer_rows[at]
    height = rows.height or 1
    if is_summed(graph, modelling, at):
        assert rows.total is not None
        height = rows.total.height
    own = [layer.tied_to for layer in graph.layers].count(graph.layers[at].tied_to)
    count = 1 if own > 1 else min(modelling.bands, height)
    return [range(band * height // count, (band + 1) * height // count) for band in range(count)]


def banded_volume(graph: ChannelGraph, modelling: Modelling, part_of: PartOf) -> int:
    """Bytes of rows of maps, of parameters, and of what norms take of all rows."""
    layers = range(len(graph.layers))
    bands = [bands_of(graph, modelling, at) for at in layers]
    summed = [at for at in layers if is_summed(graph, modelling, at)]

    def part(number: int, band: int | None, at: int, task: int) -> int:
        at = graph.layers[at].tied_to
        return part_of(number, band, at, 0 if modelling.is_solid(graph.layers[at]) else task)

    read_rows = {  # of a layer, by what it reads and its place among the layer's reads
        (at, item.source, place): [
            set(own.tolist())
            for own in map(item.windows.reads.__getitem__, range(len(item.windows)))
        ]
        for at, rows in enumerate(graph.layer_rows)
        for place, item in enumerate(((rows.total or rows) if at in summed else rows).reads)
    }

    def is_read(source: int, task: int, row: int, at: int, own: range) -> bool:
        tied = [n for n in layers if graph.layers[n].tied_to == graph.layers[at].tied_to]
        for other in tied:  # the only band of tied layers is sent what any of them reads
            rows = graph.layer_rows[other]
            for place, item in enumerate(((rows.total or rows) if other in summed else rows).reads):
                if item.source == source and (item.channels is None or task in item.channels):
                    of_rows = own if other == at else bands[other][0]
                    if any(row in read_rows[other, source, place][each] for each in of_rows):
                        return True
        return False

    volume = 0
    for at in summed:
        layer, total = graph.layers[at], graph.layer_rows[at].total
        assert total is not None
        size = modelling.bytes_per_element or layer.bytes_per_element
        for task in range(layer.tasks) if modelling.has_vertices(layer) else ():
            for number, samples in enumerate(modelling.samples):
                parts = {part(number, band, at, task) for band in range(len(bands[at]))}
                others = len(parts - {part(number, None, at, task)})
                volume += others * samples * total.elements * size
    readers_of = reading(graph, modelling)
    cuts = [at * modelling.batch_size // modelling.slices for at in range(modelling.slices + 1)]
    for number, (first, last) in enumerate(pairwise(cuts)):
        for (source, task), readers in readers_of.items():
            layer = graph.layers[source]
            if modelling.slices > 1 and layer.kind == PARAMETER:
                continue
            size = modelling.bytes_per_element or layer.bytes_per_element
            height = graph.layer_rows[source].height or 1
            row_bytes = graph.map_bytes(layer, last - first, size) // height
            made = [(None, range(1))] if source in summed else [*enumerate(bands[source])]
            for band, rows in made:
                for row in rows:
                    parts = {
                        part(number, reading_band, at, reader)
                        for at, reader in readers
                        for reading_band, own in enumerate(bands[at])
                        if modelling.bands == 1  # a whole map is sent, with rows that nobody reads
                        or is_read(source, task, row, at, own)
                    }
                    volume += len(parts - {part(number, band, source, task)}) * row_bytes
    if not modelling.training:
        return volume
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            continue
        tiles = [
            (number, band) for number in range(modelling.slices) for band in range(len(bands[at]))
        ]
        if layer.kind == PARAMETER and modelling.slices == 1:
            continue
        for task, size in enumerate(parameter_bytes(layer, modelling)):
            parts = {part(*tile, at, task) for tile in tiles}
            if layer.kind == PARAMETER:
                parts |= {
                    part(number, band, other, reader)
                    for other, reader in readers_of.get((at, task), set())
                    for number in range(modelling.slices)
                    for band in range(len(bands[other]))
                }
            volume += (len(parts) - 1) * size
            channels = layer.batch_statistics * (task + 1) // layer.tasks
            channels -= layer.batch_statistics * task // layer.tasks
            size = modelling.bytes_per_element or layer.bytes_per_element
            groups = (
                [tiles]
                if modelling.norms == "batch"
                else [
                    [tile for tile in tiles if tile[0] == number]
                    for number in range(modelling.slices)
                ]
            )
            for group in groups:
                parts = {part(*tile, at, task) for tile in group}
                volume += (len(parts) - 1) * NUMBERS_A_CHANNEL * channels * size
    return volume


def fine_volume(model: CnnHypergraph, parts: np.ndarray) -> int:
    """Bytes of a forward pass over tiles of single channels, row by row of maps and of sums."""
    graph, views, volume = model.graph, model.views, 0
    bands = [bands_of(graph, model.modelling, at) for at in range(len(views))]
    of_task = graph.task_of_channel.tolist()
    computed = [view.total or rows for view, rows in zip(views, graph.layer_rows, strict=True)]
    readers: dict[tuple[int, int], set[tuple[int, int, int]]] = {}  # of a map: layer, task, channel
    for at, view in enumerate(views):
        for read in view.layer.reads if view.exists else ():
            for place, channel in enumerate(read.channels.tolist()):
                group, tasks = place * read.groups // len(read.channels), view.layer.tasks
                source = 0 if channel < 0 else int(graph.layer_of_channel(channel))
                is_copied = model.modelling.slices > 1 and graph.layers[source].kind == PARAMETER
                is_sent = channel >= 0 and views[source].exists and not is_copied
                for task in range(tasks) if is_sent else ():
                    if task * read.groups // tasks == group:
                        number = of_task[channel] - int(graph.first_task[source])
                        whole = -1 if view.total is None else 0
                        own = (at, task, place if view.split is read else whole)
                        readers.setdefault((source, number), set()).add(own)
    for samples, of_slice in zip(
        model.modelling.samples, parts.reshape(model.modelling.slices, -1).tolist(), strict=True
    ):

        def part(at: int, task: int, channel: int, band: int, own: list[int] = of_slice) -> int:
            at, layout = views[at].first, model.layouts[at]
            assert layout is not None
            row = 0 if views[at].is_solid else task
            cell = layout.finish + row if channel < 0 else int(layout.cell(row, channel))
            return own[model.in_bands[band][cell]]

        of_slice_views = model.modelling.of_samples(samples).views(graph)
        for (source, task), own in readers.items():
            height = graph.layer_rows[source].height or 1
            made = [range(1)] if views[source].total else bands[source]
            for band, rows in enumerate(made):
                for row in rows:
                    reading = {
                        part(*reader, reader_band)
                        for reader in own
                        for reader_band, reader_rows in enumerate(bands[reader[0]])
                        for other in graph.layers_tied_to(reader[0])
                        for item in computed[other].reads
                        if item.source == source
                        and (item.channels is None or task in item.channels)
                        and any(
                            row in item.windows.reads[each]
                            for each in (reader_rows if other == reader[0] else bands[other][0])
                        )
                    } - {part(source, task, -1, band)}
                    volume += len(reading) * of_slice_views[source].map_bytes // height
        for at, view in enumerate(of_slice_views):
            for task in range(view.layer.tasks) if view.total is not None else ():
                sending = {part(at, task, 0, band) for band in range(len(bands[at]))}
                volume += len(sending - {part(at, task, -1, 0)}) * view.partial_bytes
            if not view.exists or view.split is None:
                continue
            groups, head = view.split.groups, graph.layer_rows[at].head
            for task in range(view.layer.tasks):
                group = task * groups // view.layer.tasks
                channels = range(group * view.columns_per_task, (group + 1) * view.columns_per_task)
                for band, rows in enumerate(bands[at]):
                    summed, height = {0}, 1
                    if len(bands[at]) > 1:
                        assert head is not None
                        summed, height = {r for row in rows for r in head.reads[row]}, head.height
                    sending = {part(at, task, channel, band) for channel in channels}
                    sending -= {part(at, task, -1, band)}
                    volume += len(sending) * len(summed) * view.partial_bytes // height
    return volume
