"""CnnVertices -> Nets: the readers of each block's maps, and the sums of each reduction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.hypergraph.nets import Nets
from hgpart.hypergraph.parameters import read_parameters, vertex_gradients, vertex_statistics
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph, SourceRows
from hgpart.sequences import Sequences, distinct, distinct_pairs, equal_rows, starts_of_runs


def map_nets(model: CnnVertices) -> Nets:
    """Nets of maps, slice by slice: per layer, a net for each row's sums, then for maps read alike.

    Where the batch is in slices, parameters that tasks read are not maps: see `parameter_nets`.
    """
    modelling, layers = model.modelling, 2 * len(model.views)
    of_samples = {
        samples: _slice_nets(model, modelling.of_samples(samples).views(model.graph))
        for samples in sorted(set(modelling.samples))
    }
    if modelling.slices > 1:
        of_samples = {
            samples: nets.take(np.flatnonzero(~_are_of_parameters(model, nets)))
            for samples, nets in of_samples.items()
        }
    return Nets.joined(
        [
            of_samples[samples].shifted(number * model.slice_vertices, number * layers)
            for number, samples in enumerate(modelling.samples)
        ]
    )


def parameter_nets(model: CnnVertices) -> Nets:
    """A net for the parameters of each vertex: its tiles, of which the first sums gradients.

    A parameter that a task holds and others read, such as the scale of a norm over the width, is
    a net of its own: that task and all tasks that read it, in all slices.
    """
    first_layer = 2 * len(model.views) * model.modelling.slices
    own, read = vertex_gradients(model), read_parameters(model)
    readers = readers_of_parameters(model)
    vertices = np.array([vertex for vertex, _ in read.values()], dtype=np.int64)
    costs = np.array([cost for _, cost in read.values()], dtype=np.int64) * model.modelling.training
    np.subtract.at(own, vertices, costs)
    by_layer = [readers.get(at, vertices[:0]) for at in read]
    own_nets = _nets_over_tiles(model, own, first_layer)
    return Nets.joined([own_nets, _nets_of_read(model, vertices, costs, first_layer, by_layer)])


def statistics_nets(model: CnnVertices) -> Nets:
    """A net for each vertex with norms whose tiles add up sums and sums of squares in the first.

    These are all tiles where norms take their statistics of the batch; else the bands of each
    slice, which takes its own of all rows.
    """
    modelling = model.modelling
    first_layer = len(model.views) * (2 * modelling.slices + 1)
    own = vertex_statistics(model)
    if modelling.norms == "batch":
        return _nets_over_tiles(model, own, first_layer)
    if modelling.bands == 1:
        return _over_none(model)
    of_slice = _nets(model, own, _bands_of(model), first_layer)
    slices = range(modelling.slices)
    return Nets.joined([of_slice.shifted(at * model.slice_vertices, 0) for at in slices])


def _bands_of(model: CnnVertices) -> Sequences:
    """The vertices of all bands, in the first slice, with the tasks of each of the first band."""
    has_band = model.in_bands.T >= 0
    return Sequences.of_pairs(
        np.nonzero(has_band)[0], model.in_bands.T[has_band], model.in_bands.shape[1]
    )


def _tiles_of(model: CnnVertices) -> Sequences:
    """The vertices of all slices and bands with the tasks of each vertex of the first band."""
    tasks = np.tile(model.first_bands, model.modelling.slices)
    return Sequences.of_pairs(tasks, np.arange(model.vertices), model.in_bands.shape[1])


def _nets_over_tiles(model: CnnVertices, costs: Int64, first_layer: int) -> Nets:
    if model.modelling.slices == model.modelling.bands == 1:
        return _over_none(model)
    return _nets(model, costs, _tiles_of(model), first_layer)


def _nets(model: CnnVertices, costs: Int64, tiles: Sequences, first_layer: int) -> Nets:
    """A net over the tiles of each vertex of the first band that has a cost and several tiles."""
    own = np.flatnonzero((costs > 0) & (tiles.lengths > 1))
    return _over(model, own, costs[own], tiles.take(own), first_layer, gathers=True)


def _nets_of_read(
    model: CnnVertices,
    vertices: Int64,
    costs: Int64,
    first_layer: int,
    readers: Sequence[Int64],
) -> Nets:
    """A net of each vertex whose parameters tasks read, and these, over all slices.

    There is none if the batch is whole: the parameter then travels like a map.
    """
    some = np.flatnonzero(costs if model.modelling.slices > 1 else costs[:0])
    slices = np.arange(model.modelling.slices)[:, None] * model.slice_vertices
    pins = [(np.union1d(readers[at], vertices[at]) + slices).ravel() for at in some.tolist()]
    ends = np.cumsum([0, *map(len, pins)])
    sets = Sequences(ends, np.concatenate([np.zeros(0, np.int64), *pins]))
    return _over(model, vertices[some], costs[some], sets, first_layer, gathers=False)


def _over_none(model: CnnVertices) -> Nets:
    nothing = np.zeros(0, np.int64)
    return _over(
        model, nothing, nothing, Sequences(np.zeros(1, np.int64), nothing), 0, gathers=True
    )


def _over(
    model: CnnVertices,
    roots: Int64,
    costs: Int64,
    sets: Sequences,
    first_layer: int,
    *,
    gathers: bool,
) -> Nets:
    every = np.arange(len(roots) + 1)
    return Nets(
        costs=costs,
        gathers=np.full(len(roots), gathers),
        layers=(first_layer + model.vertex_layers[roots]).astype(np.int32),
        roots=roots.astype(np.int32),
        readers=every[:-1],
        lists=Sequences(every, every[:-1]),
        sets=sets,
    )


def _are_of_parameters(model: CnnVertices, nets: Nets) -> Bool:
    """Whether each net of a slice carries a parameter that its task sends."""
    are = np.array([layer.kind == PARAMETER for layer in model.graph.layers], dtype=np.bool_)
    return are[nets.layers % max(1, len(are))] & ~nets.gathers


def readers_of_parameters(model: CnnVertices) -> dict[int, Int64]:
    """For each layer whose parameters others read, the vertices of a slice that read them."""
    if all(layer.kind != PARAMETER for layer in model.graph.layers):
        return {}
    maps = _maps(model, model.views)
    readers, vertices = maps.lists.united(maps.sets), dict[int, Int64]()
    for net in np.flatnonzero(_are_of_parameters(model, maps)).tolist():
        reading, at = readers[int(maps.readers[net])], int(maps.layers[net])
        vertices[at] = np.union1d(vertices[at], reading) if at in vertices else reading
    return vertices


def _slice_nets(model: CnnVertices, views: tuple[LayerVertices, ...]) -> Nets:
    """The nets of the first slice, for maps as large as the views say."""
    sums = Nets.joined([_reduction_nets(model, views), _statistics_of_channels(model, views)])
    maps = _maps(model, views)
    if model.modelling.bands > 1:
        sums = Nets.joined([_sums_in_bands(model, views, sums), _totals_of_rows(model, views)])
    is_map = np.repeat([False, True], [len(sums.roots), len(maps.roots)])
    layers = np.concatenate([sums.layers, maps.layers])
    order = np.lexsort((is_map, layers % max(1, len(views))))
    return Nets.joined([sums, maps]).take(order)


def _reduction_nets(model: CnnVertices, views: tuple[LayerVertices, ...]) -> Nets:
    """A net for each row: its reduction first, then the cells that it sums."""
    costs: list[int] = []
    layers, roots, firsts, lasts = [], [], [], []
    for at, (view, layout) in enumerate(zip(views, model.layouts, strict=True)):
        if layout is None or view.split is None:
            continue
        cuts, rows = model.blocks.columns[at], model.blocks.rows[at]
        per_group, channels = view.layer.tasks // view.split.groups, view.columns_per_task
        read_groups = Sequences.of_spans(rows[:-1] // per_group, (rows[1:] - 1) // per_group + 1)
        groups, row = read_groups.values, read_groups.owners
        begin = np.maximum(rows[row], groups * per_group)
        tasks = np.minimum(rows[row + 1], (groups + 1) * per_group) - begin
        low = np.searchsorted(cuts, groups * channels, "right") - 1
        high = np.searchsorted(cuts, (groups + 1) * channels - 1, "right") - 1
        numbers, example = equal_rows(np.stack([row, low, high], axis=1))
        times = np.zeros(len(example), dtype=np.int64)
        np.add.at(times, numbers, tasks)
        costs += [view.partial_bytes * count for count in times.tolist()]
        layers.append(np.full(len(example), len(views) + at, dtype=np.int32))
        roots.append((layout.finish + row[example]).astype(np.int32))
        firsts.append(layout.cell(row[example], low[example]))
        lasts.append(layout.cell(row[example], high[example]))
    nothing = [np.zeros(0, np.int64)]
    first, last = np.concatenate([*nothing, *firsts]), np.concatenate([*nothing, *lasts])
    every = np.arange(len(first) + 1)
    return Nets(
        costs=np.array(costs, dtype=np.int64),
        gathers=np.ones(len(first), dtype=np.bool_),
        layers=np.concatenate([*nothing, *layers]).astype(np.int32),
        roots=np.concatenate([*nothing, *roots]).astype(np.int32),
        readers=every[:-1],
        lists=Sequences(every, every[:-1]),
        sets=Sequences.of_spans(first, last + 1),
    )


def _statistics_of_channels(model: CnnVertices, views: tuple[LayerVertices, ...]) -> Nets:
    """A net for each block of statistics: its vertex first, then those that take its channels."""
    finishing = np.concatenate([np.zeros(0, np.int64), *_finishing(model)])
    costs: dict[tuple[int, int, bytes], int] = {}
    for view in views:
        if (statistic := view.statistic) is None:
            continue
        groups = np.arange(view.layer.tasks) * statistic.read.groups // view.layer.tasks
        roots = model.task_vertices[view.at].tolist()
        for root, group in zip(roots, groups.tolist(), strict=True):
            key = view.at, root, distinct(finishing[statistic.of_group(group)]).tobytes()
            costs[key] = costs.get(key, 0) + view.partial_bytes
    sets = [np.frombuffer(members, dtype=np.int64) for _, _, members in costs]
    every = np.arange(len(costs) + 1)
    return Nets(
        costs=np.array([*costs.values()], dtype=np.int64),
        gathers=np.ones(len(costs), dtype=np.bool_),
        layers=np.array([len(views) + at for at, _, _ in costs], dtype=np.int32),
        roots=np.array([root for _, root, _ in costs], dtype=np.int32),
        readers=every[:-1],
        lists=Sequences(every, every[:-1]),
        sets=Sequences(
            np.cumsum([0, *map(len, sets)], dtype=np.int64),
            np.concatenate([np.zeros(0, np.int64), *sets]),
        ),
    )


def _sums_in_bands(model: CnnVertices, views: tuple[LayerVertices, ...], sums: Nets) -> Nets:
    """A net for each band of the partial sums, each of which has a set of its own."""
    pieces = list[Nets]()
    of_layer = sums.layers % max(1, len(views))
    for band, vertices in enumerate(model.in_bands):
        costs = np.array([view.partial_bytes_in_band(band) for view in views], dtype=np.int64)
        whole = np.array([max(1, view.partial_bytes) for view in views], dtype=np.int64)
        chosen = np.flatnonzero(vertices[sums.roots] >= 0)
        layers, sets = of_layer[chosen], sums.sets.take(chosen)
        every = np.arange(len(chosen) + 1)
        pieces.append(
            Nets(
                costs=sums.costs[chosen] // whole[layers] * costs[layers],
                gathers=sums.gathers[chosen],
                layers=sums.layers[chosen],
                roots=vertices[sums.roots[chosen]].astype(np.int32),
                readers=every[:-1],
                lists=Sequences(every, every[:-1]),
                sets=Sequences(sets.pointers, vertices[sets.values]),
            )
        )
    return Nets.joined(pieces)


def _totals_of_rows(model: CnnVertices, views: tuple[LayerVertices, ...]) -> Nets:
    """A net for each block of sums over rows: its vertex first, then the cell of each band."""
    every = [
        (view, layout, np.diff(rows))
        for view, layout, rows in zip(views, model.layouts, model.blocks.rows, strict=True)
        if layout is not None and view.total is not None
    ]
    nothing = [np.zeros(0, np.int64)]
    cells = [layout.row_starts for _, layout, _ in every]
    roots = [layout.finish + np.arange(len(sizes)) for _, layout, sizes in every]
    costs = [view.partial_bytes * sizes for view, _, sizes in every]
    layers = [np.full(len(sizes), len(views) + view.at) for view, _, sizes in every]
    numbers = np.arange(1 + sum(map(len, roots)))
    return Nets(
        costs=np.concatenate([*nothing, *costs]),
        gathers=np.ones(len(numbers) - 1, dtype=np.bool_),
        layers=np.concatenate([*nothing, *layers]).astype(np.int32),
        roots=np.concatenate([*nothing, *roots]).astype(np.int32),
        readers=numbers[:-1],
        lists=Sequences(numbers, numbers[:-1]),
        sets=_bands_of(model).take(np.concatenate([*nothing, *cells])),
    )


def _maps(model: CnnVertices, views: tuple[LayerVertices, ...]) -> Nets:
    """A net for each set of maps with one producer and the same readers, or each segment of it."""
    maps, items = _map_nets(model, views)
    return maps if model.modelling.bands == 1 else _maps_in_bands(model, views, maps, items)


def _map_nets(model: CnnVertices, views: tuple[LayerVertices, ...]) -> tuple[Nets, Int64]:
    """A net for each set of maps with one producer and the same readers.

    Beside them the item by which each set of readers reads, as in `items_read`.
    """
    graph = model.graph
    tasks, own, sets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], []
    count, items = 0, [np.zeros(0, np.int64)]
    for members in by_vertices(views).values():
        read, numbers, vertices, items_of_sets = _readers(model, members)
        tasks.append(read)
        own.append(count + numbers)
        sets.append(vertices)
        items.append(items_of_sets)
        count += len(vertices)
    # Layers are in ascending order, and so are their vertices.
    lists = Sequences.of_pairs(
        np.concatenate(tasks), np.concatenate(own), int(graph.first_task[-1])
    )
    read = np.flatnonzero(lists.lengths)
    layers = np.searchsorted(graph.first_task, read, "right") - 1
    roots = np.concatenate([np.zeros(0, np.int64), *_finishing(model)])[read]
    made = roots >= 0
    read, layers, roots = read[made], layers[made], roots[made]
    lists = lists.take(read)
    numbers, first = lists.alike()
    nets, examples = equal_rows(np.stack([layers, roots, numbers], axis=1))
    times = np.bincount(nets, minlength=len(examples)).tolist()
    maps = Nets(
        costs=np.array(
            [
                views[at].map_bytes * count
                for at, count in zip(layers[examples].tolist(), times, strict=True)
            ],
            dtype=np.int64,
        ),
        gathers=np.zeros(len(examples), dtype=np.bool_),
        layers=layers[examples].astype(np.int32),
        roots=roots[examples].astype(np.int32),
        readers=numbers[examples],
        lists=lists.take(first),
        sets=Sequences.joined(sets),
    )
    return maps, np.concatenate(items)


def _finishing(model: CnnVertices) -> list[Int64]:
    """For each layer, the vertex that finishes each task; -1 where a layer has none."""
    return [
        vertices if len(vertices) else np.full(layer.tasks, -1)
        for layer, vertices in zip(model.graph.layers, model.task_vertices, strict=True)
    ]


def _readers(
    model: CnnVertices, members: list[LayerVertices]
) -> tuple[Int64, Int64, Sequences, Int64]:
    """Tasks that tied layers read, the number of each task's set of readers, and the sets.

    Last, for each set, the item by which it reads: a map is one channel of one item, or of none.
    """
    graph = model.graph
    first_layer = members[0].at
    rows = model.blocks.rows[first_layer]
    tasks, runs = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
    for view in members:
        for read in view.layer.reads:
            if read is view.read_as_statistic:
                continue
            known = np.flatnonzero(read.channels >= 0)
            groups = known * read.groups // max(1, len(read.channels))
            per_group = view.layer.tasks // read.groups
            low = np.searchsorted(rows, groups * per_group, "right") - 1
            high = np.searchsorted(rows, (groups + 1) * per_group - 1, "right") - 1
            columns = np.full(len(known), -1 if view.total is None else 0)
            if view.split is read:
                columns = np.searchsorted(model.blocks.columns[view.at], known, "right") - 1
            items = np.zeros(len(known), dtype=np.int64)
            if model.modelling.bands > 1:
                items = items_read(graph, view, read.channels[known])
            tasks.append(graph.task_of_channel[read.channels[known]])
            runs.append(np.stack([low, high, columns, items], axis=1))
    table = np.concatenate(runs)
    numbers, first = equal_rows(table)
    low, high, column, item = table[first].T
    layout = model.layouts[first_layer]
    assert layout is not None
    reading = Sequences.of_spans(low, high + 1)
    column = column[reading.owners]
    cells = layout.cell(reading.values, np.maximum(column, 0))
    vertices = np.where(column < 0, layout.finish + reading.values, cells)
    read_tasks, numbers = distinct_pairs(np.concatenate(tasks), numbers)
    starts = starts_of_runs(read_tasks)
    lists = Sequences(starts, numbers)
    alike, examples = lists.alike()
    of_sets = lists.take(examples)
    sets = of_sets.united(Sequences(reading.pointers, vertices))
    return read_tasks[starts[:-1]], alike, sets, item[of_sets.values[of_sets.pointers[:-1]]]


# ------------------------------------------------------------------ bands of rows


def rows_read(graph: ChannelGraph, view: LayerVertices) -> tuple[SourceRows, ...]:
    """What each row of a layer reads, or each partial sum over rows where its bands make these."""
    return graph.layer_rows[view.at].read_in_bands(of_partial_sums=view.total is not None)


def items_read(graph: ChannelGraph, view: LayerVertices, channels: Int64) -> Int64:
    """For each channel that a layer reads, its item of `rows_read`, counted from 1.

    It is 0 for the channels of a source that are all read in the same rows.
    """
    items = np.zeros(len(channels), dtype=np.int64)
    for number, own in enumerate(rows_read(graph, view), 1):
        if own.channels is not None:
            items[np.isin(channels, own.channels + graph.first_channel[own.source])] = number
    return items


def _maps_in_bands(
    model: CnnVertices, views: Sequence[LayerVertices], maps: Nets, items: Int64
) -> Nets:
    """A net for each segment of the rows of each map: those of a band with the same readers.

    Its cost is its rows' share, and so connectivity - 1 stays what travels.
    """
    segments = Segments(model.graph, views)
    of_sets = model.vertex_layers[maps.sets.values[maps.sets.pointers[:-1]]].astype(np.int64)
    sets, in_bands = _sets_in_bands(model, maps.sets)
    readers, examples = equal_rows(np.stack([of_sets, items], axis=1))
    named_by = [(int(of_sets[at]), int(items[at])) for at in examples]
    number_of = {reader: number for number, reader in enumerate(named_by)}
    layers, numbers = np.unique(np.stack([maps.layers, maps.readers]), axis=1, return_inverse=True)
    lists = list[Int64]()
    costs, roots, own_lists, nets = [], [], [], []
    of_pair = [np.flatnonzero(numbers.ravel() == at) for at in range(layers.shape[1])]
    for (at, own), members in zip(layers.T.tolist(), of_pair, strict=True):
        named = maps.lists[own]
        reading_it = tuple(named_by[reader] for reader in distinct(readers[named]).tolist())
        for band, rows, read in segments.of(at, reading_it):
            chosen = [
                in_bands[reading][named[readers[named] == number_of[reader]]]
                for reader, reading in read
            ]
            costs.append(maps.costs[members] // views[at].height * rows)
            roots.append(model.in_bands[band][maps.roots[members]])
            own_lists.append(np.full(len(members), len(lists)))
            nets.append(members)
            lists.append(np.sort(np.concatenate(chosen)))
    nothing = [np.zeros(0, np.int64)]
    taken = np.concatenate([*nothing, *nets])
    return Nets(
        costs=np.concatenate([*nothing, *costs]),
        gathers=maps.gathers[taken],
        layers=maps.layers[taken],
        roots=np.concatenate([*nothing, *roots]).astype(np.int32),
        readers=np.concatenate([*nothing, *own_lists]),
        lists=Sequences(np.cumsum([0, *map(len, lists)]), np.concatenate([*nothing, *lists])),
        sets=sets,
    )


def _sets_in_bands(model: CnnVertices, sets: Sequences) -> tuple[Sequences, list[Int64]]:
    """The sets of each band, and for each band the number of each set; -1 where there is none."""
    pieces, numbers, count = list[Sequences](), list[Int64](), 0
    for vertices in model.in_bands:
        has_band = vertices[sets.values[sets.pointers[:-1]]] >= 0
        chosen = np.flatnonzero(has_band)
        own = sets.take(chosen)
        pieces.append(Sequences(own.pointers, vertices[own.values]))
        numbers.append(np.where(has_band, count + np.cumsum(has_band) - 1, -1))
        count += len(chosen)
    return Sequences.joined(pieces), numbers


Reader = tuple[int, int]  # a layer, the first of tied ones, and its item of `rows_read`, or 0
Segment = tuple[int, int, list[tuple[Reader, int]]]  # a band, its rows, readers and their bands


class Segments:
    """The segments of each layer's rows, by what reads them."""

    def __init__(self, graph: ChannelGraph, views: Sequence[LayerVertices]) -> None:
        self._views, self._graph = views, graph
        self._members = by_vertices(views)
        self._known: dict[tuple[int, tuple[Reader, ...]], list[Segment]] = {}

    def of(self, at: int, readers: tuple[Reader, ...]) -> list[Segment]:
        """The segments of a layer's maps that all have these readers."""
        if (at, readers) not in self._known:
            self._known[at, readers] = self._new(at, readers)
        return self._known[at, readers]

    def _new(self, at: int, readers: tuple[Reader, ...]) -> list[Segment]:
        cuts = self._views[at].row_cuts
        pairs = [self._reading_bands(at, *reader) for reader in readers]
        most = max(self._views[layer].bands for layer, _ in readers)
        rows = np.concatenate([rows for rows, _ in pairs])
        keys = np.concatenate([number * most + bands for number, (_, bands) in enumerate(pairs)])
        read = Sequences.of_pairs(rows, keys, cuts[-1])
        alike, examples = read.alike()
        bands = np.searchsorted(cuts, np.arange(cuts[-1]), "right") - 1
        segments = list[Segment]()
        keyed = bands * len(examples) + alike
        for key in distinct(keyed).tolist():
            band, number = divmod(key, len(examples))
            own = [divmod(value, most) for value in read[int(examples[number])].tolist()]
            if own:
                count = int((keyed == key).sum())
                segments.append(
                    (band, count, [(readers[place], reading) for place, reading in own])
                )
        return segments

    def _reading_bands(self, at: int, layer: int, item: int) -> tuple[Int64, Int64]:
        """Pairs of a row of a layer and a band, of another one, that reads it."""
        rows, bands = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for view in self._members[layer]:
            for number, own in enumerate(rows_read(self._graph, view), 1):
                if own.source == at and item in (0, number):
                    reads = own.windows.reads
                    rows.append(reads.values)
                    bands.append(np.searchsorted(view.cell_cuts, reads.owners, "right") - 1)
        return distinct_pairs(np.concatenate(rows), np.concatenate(bands))
