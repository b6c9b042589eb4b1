"""VGG16 as the thesis splits it: its figures (tables 5.1 to 5.12, 5.14, A.1 to A.12), ours, ratios.

    python benchmarks/thesis_vgg16.py [--work flops|profile|fitted|FILE] [--seed 0]
                                      [--backend native,kahypar] [--tables 5.1,5.14] [--n 2,4]
                                      [--csv FILE]

The thesis is B. Eserol's (Bilkent University, 2019; benchmarks/reference/README.md). All tables
with `flops` go to benchmarks/results/thesis_vgg16.csv, which has all their columns; volumes and
largest loads are printed. Hypergraph partitions are those of each backend, and table 5.14 is of the
first one.

benchmarks/results/vgg16_profile.json is a measured profile, to be given as FILE: of 2026-11-20,
batch 32, 2 cores, measured once (31 s a pass) by `hgpart partition vgg16 --k 2 --work
profile,save=FILE`. Its fingerprint was replaced by hand afterwards, when the fingerprint function
changed; layers and tasks are the same. Tables with it are in results/thesis_vgg16_profile.csv.

What its communication tables count
-----------------------------------
Volumes are 2^20 *elements* at batch 32, decimals cut off; the input has a vertex.

Layers that stay whole (table 5.2) cost what hgpart counts: each map once for each part that reads
it. The cuts are those of recursive bisection by work, ties by volume (`recursive_cuts`): behind
layer 6, then 3, 6, 9, then 2, 3, 4, 6, 7, 9, 10. Its loads agree: 22,757 - 12,827 = 9,930 =
7,253 + 2,677, layers 1 and 2 (its largest part at N=8) beside layer 3 (its smallest).

Layers that are divided cost more in its tables than the nets of its hypergraph: the shares are
gathered *before pooling* on a device that computes the next layer, pooled there, and sent to the
others (`gathered_volume`). For equal shares (table 5.4), with S1 the input and the pooled maps of
all convolutions, and S2 their outputs before pooling,

    V(N) = (N - 1) (S1 + S2 / N) + F        S1 = 277.92, S2 = 413.44, F = 0.25

where F is what the linear layers, a vertex each, send each other once (`horizontal_volume`). That
gives six of the seven figures to the printed digit; for N=128, more than the 64 filters of the
first two layers, it gives 35,706.5 for 35,707. hgpart counts (N - 1) (S1 + F): each map once for
each part that reads it, pooled where it was made, and linear layers divided like the others.

Max Comm. is the most that one device sends of *one layer*: 98 (N - 1) in table 5.4, the first
convolution's maps to all others. It can't be a maximum over devices of all that they send: at N=2
it is below the average.

Table 5.14 multiplies volumes in 2^20 elements by 2 (forward and backward) and 2,000 iterations,
divides by 1,024 and prints GB: those are 2^30 elements. Its data-parallel column counts four bytes
for each parameter, in 2^30 bytes. So its reductions hold for maps of one byte an element.

Averages and minima of tables 5.5 and 5.6 leave out parts without work (682 = 43,020 / 63 at N=64);
so do ours here. Max x N of table 5.1 at N=2, 51,308, is that of N=4; 2 x 22,757 is 45,514.

Our work is printed in the thesis's unit: scaled so that all of it is what the thesis has in all,
twice the average of the table's row for N=2, where no part is empty. Ratios of two columns are
taken from the printed columns; it prints them with one decimal, cut off.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import hgpart
from hgpart import ChannelGraph, Evaluation, Modelling, Work
from hgpart.arrays import Int32
from hgpart.errors import HgpartError
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import traffic
from hgpart.layers.channel_graph import OUTPUT, Layer
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.problem.problem import Problem

HERE = Path(__file__).parent
REFERENCE = HERE / "reference" / "eserol_vgg16_tables.csv"
RESULTS = HERE / "results" / "thesis_vgg16.csv"

MEBI = 2**20
ITS_WAY = "volume its way"
AT_LEAST = "at least"
OF_A_PART = "max of a part"
LOAD_COLUMNS = ("max_work", "min_work", "avg_work", "max_times_n")
VOLUME_COLUMNS = ("volume", "max_volume", "avg_volume")
BATCH = 32
# Counts are elements, linear layers are single vertices, the loss is not modelled.
THESIS = Modelling(linear="layer", batch_size=BATCH, bytes_per_element=1, output_vertex=False)

PARAMETERS = 138_357_544
SAMPLES = 64_000  # of an epoch (thesis 5.1.8)

# Work of layers 1 to 16 in the thesis's unit. Table 5.1 gives the first three, the sums of layers
# 4 to 6, 7 to 9 and 10 to 16, and the last (with table 5.7, where 144 is layers 15 and 16); table
# 5.11 gives 546. The coarse-grain tables for N=2 and N=4 give layers 6 to 10 (21,195: 21,176 and
# what rounding adds), 6 and 7 (9,649), 11 to 16 (less one of the last two 11,123 with the first
# two), and 8 by what its shares cost (`thesis_n4.py`): so 6, 7, 9 and 10 as well. Layers 11 to 13
# are as equal as their FLOPs. A single weight, what layer 4 has of 4 and 5, is fitted to tables 5.5
# and 5.6; table 5.1 says at least 5,574.
FITTED_WORK = (
    *(629, 6624, 2677, 5621, 2323, 4883, 4766, 2280, 4701, 4546, 1087, 1087, 1087),
    *(546, 84, 60),
)
FLOAT_BYTES = 4

# Table 5.14: N, batch size, data parallelism and hypergraph partitioning in "GB", reduction in %.
TABLE_5_14 = (
    (2, 16, 4123, 107, 97),
    (2, 32, 2061, 107, 94),
    (2, 64, 1030, 107, 89),
    (4, 16, 12370, 239, 98),
    (4, 32, 6185, 239, 96),
    (4, 64, 3092, 239, 92),
    (8, 16, 28863, 1167, 95),
    (8, 32, 14431, 1167, 91),
    (8, 64, 7215, 1167, 83),
)
# Volumes in 2^20 elements that both tables 5.10 and 5.14 allow: 27.4 to 27.6, 61.2 to 61.4 and
# 298.8 to 299.0.
VOLUMES_5_14 = {2: 27.5, 4: 61.3, 8: 298.8}


@dataclass(frozen=True)
class Pair:
    """A load table and the communication table of the same partitions."""

    method: str
    load_table: str
    volume_table: str
    eps: float | None = None


PAIRS = (
    Pair("layer-wise", "5.1", "5.2"),
    Pair("filter-wise horizontal", "5.3", "5.4"),
    Pair("filter-wise incremental", "5.5", "5.6"),
    Pair("channel-wise incremental", "5.7", "5.8"),
    Pair("coarse-grain", "5.9", "5.10", 0.1),
    Pair("coarse-grain", "A.1", "A.7", 0.03),
    Pair("coarse-grain", "A.2", "A.8", 0.15),
    Pair("coarse-grain", "A.3", "A.9", 0.2),
    Pair("fine-grain", "5.11", "5.12", 0.1),
    Pair("fine-grain", "A.4", "A.10", 0.03),
    Pair("fine-grain", "A.5", "A.11", 0.15),
    Pair("fine-grain", "A.6", "A.12", 0.2),
)

SEARCHED = ("coarse-grain", "fine-grain")  # methods that a backend partitions for
EPOCH = "5.14"  # needs the volumes of table 5.10
EPOCH_PAIR = next(pair for pair in PAIRS if pair.volume_table == "5.10")


@dataclass(frozen=True)
class Figure:
    """A figure of the thesis and ours, by a backend where one partitions."""

    table: str
    method: str
    eps: float | None
    k: int
    quantity: str
    thesis: float
    ours: float
    backend: str = ""

    @property
    def ratio(self) -> float:
        """Ours over the thesis's."""
        return self.ours / self.thesis


@dataclass(frozen=True)
class Split:
    """What a method costs on our side, in 2^20 elements.

    Attributes
    ----------
    evaluation : Evaluation
    one_layer : float
        Most that one part sends of one layer.
    its_way : float or None
        Volume as the thesis counts it, where that is known.
    at_least : float or None
        The least that any partition within eps sends; None for ways without a backend.
    """

    evaluation: Evaluation
    one_layer: float
    its_way: float | None = None
    at_least: float | None = None


# ------------------------------------------------------------------ what the thesis counts


def vgg16() -> ChannelGraph:
    model, shape = hgpart.load_model("vgg16", device="meta")
    return hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))


def map_sizes(graph: ChannelGraph) -> list[float]:
    """All maps of each layer as they travel, in 2^20 elements; the output has none."""
    return [layer.tasks * layer.map_elements * BATCH / MEBI for layer in computing(graph)]


def unpooled_sizes(graph: ChannelGraph) -> list[float]:
    """What each layer computes before it is pooled, in 2^20 elements."""
    return [layer.tasks * layer.partial_elements * BATCH / MEBI for layer in computing(graph)]


def computing(graph: ChannelGraph) -> list[Layer]:
    return [layer for layer in graph.layers if layer.kind != OUTPUT]


def recursive_cuts(graph: ChannelGraph, work: Work, k: int) -> list[int]:
    """Cut a chain of layers in two for the smallest largest load, ties by volume, then each half.

    Returns the layers behind which it is cut, 1 for the first convolution; all of them when there
    are no more layers than parts. `k` is a power of two (thesis 5.1.1).
    """
    layers = computing(graph)
    maps = map_sizes(graph)
    loads = [
        layer.tasks * each for layer, each in zip(layers, work.per_task.tolist(), strict=False)
    ]

    def halve(first: int, last: int, parts: int) -> list[int]:
        if parts == 1:
            return []
        cut = min(
            range(first, last),
            key=lambda at: (
                max(sum(loads[first : at + 1]), sum(loads[at + 1 : last + 1])),
                maps[at],
            ),
        )
        return [*halve(first, cut, parts // 2), cut, *halve(cut + 1, last, parts // 2)]

    count = len(layers) - 1
    return list(range(1, count)) if k >= count else halve(1, count, k)


def horizontal_volume(graph: ChannelGraph, k: int) -> float:
    """Volume of table 5.4, in 2^20 elements: gather each layer, pool it, send it to all others."""
    layers = computing(graph)
    dense = [layer.kind == "dense" for layer in layers]
    maps, unpooled = map_sizes(graph), unpooled_sizes(graph)
    travelling = maps[0] + sum(size for size, conv in zip(maps, dense, strict=True) if conv)
    gathered = sum(size for size, conv in zip(unpooled, dense, strict=True) if conv)
    between_linear = sum(maps[-3:-1])
    return (k - 1) * (travelling + gathered / k) + between_linear


def gathered_volume(graph: ChannelGraph, model: CnnHypergraph, parts: Int32, k: int) -> float:
    """Volume of a coarse-grain partition as the thesis counts it, in 2^20 elements.

    A layer whose filters are in several parts is gathered, before pooling, on the first part that
    computes the next layer, pooled there, and sent to the others; a layer in one part is sent from
    there. With `FITTED_WORK` that gives the volumes of table 5.6 within 0.9 %, and within 0.3 % up
    to N=32.
    """
    layers = computing(graph)
    counts = np.zeros((len(layers), k))
    rows = [np.diff(cuts) for cuts in model.blocks.rows]
    for layer, row, part in zip(model.vertex_layers, model.vertex_rows, parts, strict=True):
        counts[layer, part] += rows[layer][row]
    volume = 0.0
    sizes = zip(map_sizes(graph), unpooled_sizes(graph), strict=True)
    for at, (size, unpooled) in enumerate(sizes):
        if at == len(layers) - 1:
            break
        readers = counts[at + 1] > 0
        shares = counts[at] / layers[at].tasks
        holder = int(shares.argmax())
        if shares[holder] < 1:
            holder = int(readers.argmax())
            volume += unpooled * (1 - shares[holder])
        volume += size * (np.count_nonzero(readers) - readers[holder])
    return float(volume)


def largest_of_one_layer(model: CnnHypergraph, parts: Int32, k: int) -> float:
    """Most that one part sends of one layer's maps or partial sums, in 2^20 elements."""
    nets = model.hypergraph
    return max(
        float(traffic(replace(nets, costs=np.where(nets.net_layers == at, nets.costs, 0)), parts, k)
              .sum(axis=1).max())
        for at in np.unique(nets.net_layers)
    ) / MEBI  # fmt: skip


def data_parallel_gib(k: int, batch_size: int) -> float:
    """An epoch's ring all-reduce of float32 gradients, in 2^30 bytes (thesis 5.1.8)."""
    return 2 * (k - 1) * PARAMETERS * FLOAT_BYTES * (SAMPLES / batch_size) / 2**30


def hypergraph_gib(volume: float, bytes_per_element: int, batch_size: int = BATCH) -> float:
    """An epoch, forward and backward, of a batch's volume in 2^20 elements, in 2^30 bytes."""
    return 2 * volume * bytes_per_element * (SAMPLES / batch_size) / 1024


# ------------------------------------------------------------------ ours


def split(graph: ChannelGraph, work: Work, pair: Pair, k: int, seed: int, backend: str) -> Split:
    """Split VGG16 by the method of a pair of tables."""
    model, parts, at_least = _parts(graph, work, pair, k, seed, backend)
    its_way = None
    if pair.method == "layer-wise":
        its_way = sum(map_sizes(graph)[cut] for cut in recursive_cuts(graph, work, k))
    elif pair.method == "filter-wise horizontal":
        its_way = horizontal_volume(graph, k)
    elif pair.method in ("filter-wise incremental", "coarse-grain"):
        its_way = gathered_volume(graph, model, parts, k)
    evaluation = hgpart.evaluate(model.hypergraph, parts, k)
    return Split(evaluation, largest_of_one_layer(model, parts, k), its_way, at_least)


def _parts(
    graph: ChannelGraph, work: Work, pair: Pair, k: int, seed: int, backend: str
) -> tuple[CnnHypergraph, Int32, float | None]:
    fine = replace(THESIS, grain="fine")
    if pair.method == "layer-wise":
        model = hgpart.cnn_hypergraph(graph, work, layer_blocks(THESIS.views(graph)), THESIS)
        part_of_layer = layerwise(Problem(graph, work, THESIS, k)).astype(np.int32)
        return model, part_of_layer[model.vertex_layers], None
    if pair.method == "filter-wise horizontal":
        return *horizontal(Problem(graph, work, replace(THESIS, linear="neuron"), k)), None
    if pair.method.endswith("incremental"):
        coarse = pair.method.startswith("filter")
        return *incremental(Problem(graph, work, THESIS if coarse else fine, k)), None
    found = hgpart.partition_graph(
        graph,
        work,
        k,
        pair.eps or 0.0,
        modelling=THESIS if pair.method == "coarse-grain" else fine,
        backend=backend,
        seed=seed,
        best_effort=True,  # a linear layer, being one vertex, can exceed a part's share
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return found.model, found.parts, found.lower_bound / MEBI


def sliced_gib(graph: ChannelGraph, work: Work, k: int, batch_size: int, seed: int) -> float:
    """An epoch of the best partition over slices of the batch, in 2^30 bytes of float32.

    Maps and parameters' gradients travel once each way, like maps without slices.
    """
    found = hgpart.partition_graph(
        graph,
        work,
        k,
        EPOCH_PAIR.eps or 0.0,
        modelling=replace(THESIS, batch_size=batch_size),
        slices="auto",
        seed=seed,
        best_effort=True,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    return hypergraph_gib(found.evaluation.volume / MEBI, FLOAT_BYTES, batch_size)


def reference() -> dict[tuple[str, int], dict[str, str]]:
    """The thesis's rows by table and N."""
    with REFERENCE.open(newline="") as file:
        return {(row["table"], int(row["k"])): row for row in csv.DictReader(file)}


def figures(
    pair: Pair,
    k: int,
    found: Split,
    rows: dict[tuple[str, int], dict[str, str]],
    backend: str = "",
) -> Iterator[Figure]:
    """Set our figures beside those of the thesis."""
    load = {name: float(rows[pair.load_table, k][name]) for name in LOAD_COLUMNS}
    volume = {name: float(rows[pair.volume_table, k][name]) for name in VOLUME_COLUMNS}
    ours = found.evaluation
    busy = ours.loads[ours.loads > 0]
    work = busy * (2 * float(rows[pair.load_table, 2]["avg_work"]) / busy.sum())
    largest, smallest, mean = work.max(), work.min(), work.mean()
    mean_volume = ours.volume / MEBI / len(busy)
    loads = (
        ("max", load["max_work"], largest),
        ("min", load["min_work"], smallest),
        ("average", load["avg_work"], mean),
        ("max/min", load["max_work"] / load["min_work"], largest / smallest),
        ("max/avg", load["max_work"] / load["avg_work"], largest / mean),
        ("max x N", load["max_times_n"], largest * k),
    )
    volumes = [
        ("volume", volume["volume"], ours.volume / MEBI),
        ("max of a layer", volume["max_volume"], found.one_layer),
        ("average", volume["avg_volume"], mean_volume),
        ("max/avg", volume["max_volume"] / volume["avg_volume"], found.one_layer / mean_volume),
        (OF_A_PART, volume["max_volume"], ours.max_part_volume / MEBI),
    ]
    for quantity, value in ((ITS_WAY, found.its_way), (AT_LEAST, found.at_least)):
        if value is not None:
            volumes.append((quantity, volume["volume"], value))
    for table, beside in ((pair.load_table, loads), (pair.volume_table, volumes)):
        for quantity, thesis, value in beside:
            yield Figure(table, pair.method, pair.eps, k, quantity, thesis, float(value), backend)


# ------------------------------------------------------------------ tables


def table_of(found: Sequence[Figure], backends: Sequence[str]) -> Table:
    """Largest loads over the average, and volumes: the thesis's, and ours by each backend."""
    table = Table(box=box.MARKDOWN)
    ours = [backend or "ours" for backend in backends]
    table.add_column("tables")
    table.add_column("eps")
    for heading in (
        *("N", "max/avg: thesis", *ours, "volume: thesis", *ours),
        *(f"{each} / thesis" for each in ours),
        *(("at least",) if any(backends) else ()),
        *(f"its way, {ours[0]}", "its way / thesis"),
    ):
        table.add_column(heading, justify="right")
    values = {(figure.table, figure.k, figure.quantity, figure.backend): figure for figure in found}
    for pair in PAIRS:
        ks = dict.fromkeys(at.k for at in found if at.table == pair.volume_table)
        for k in [k for k in ks if (pair.volume_table, k, "volume", backends[0]) in values]:
            loads = [values.get((pair.load_table, k, "max/avg", each)) for each in backends]
            volumes = [values.get((pair.volume_table, k, "volume", each)) for each in backends]
            bounds = [values.get((pair.volume_table, k, AT_LEAST, each)) for each in backends]
            way = values.get((pair.volume_table, k, ITS_WAY, backends[0]))
            name = f"{pair.load_table}, {pair.volume_table} {pair.method}"
            table.add_row(
                name if k == min(ks) else "",
                f"{pair.eps:g}" if k == min(ks) and pair.eps else "",
                str(k),
                *_thesis_and_ours(loads, "{:.2f}"),
                *_thesis_and_ours(volumes, "{:,.1f}"),
                *(f"{at.ratio:.2f}" if at else "-" for at in volumes),
                *([f"{max(at.ours for at in bounds if at):,.1f}"] if any(backends) else []),
                *((f"{way.ours:,.1f}", f"{way.ratio:.2f}") if way else "--"),
            )
    return table


def _thesis_and_ours(found: Sequence[Figure | None], form: str) -> Iterator[str]:
    yield next(form.format(at.thesis) for at in found if at)
    for at in found:
        yield form.format(at.ours) if at else "-"


def epoch_figures(
    volumes: dict[int, float], sliced: dict[tuple[int, int], float], backend: str
) -> list[Figure]:
    """Table 5.14 as printed and in bytes, then ours beside its, in bytes: without slices, with."""
    found = []
    for k, batch_size, data, hypergraph, reduction in TABLE_5_14:
        gib = data_parallel_gib(k, batch_size)
        elements = hypergraph_gib(VOLUMES_5_14[k], 1)
        its, ours = (hypergraph_gib(of[k], FLOAT_BYTES) for of in (VOLUMES_5_14, volumes))
        its_less, our_less = 100 * (1 - its / gib), 100 * (1 - ours / gib)
        for quantity, thesis, value in (
            ("data-parallel GiB", data, gib),
            ("hypergraph as printed", hypergraph, elements),
            ("hypergraph GiB", hypergraph, its),
            ("our hypergraph GiB", its, ours),
            ("reduction %, as printed", reduction, 100 * (1 - elements / gib)),
            ("reduction %, in bytes", reduction, its_less),
            ("our reduction %, in bytes", its_less, our_less),
            ("our slices GiB", its, sliced[k, batch_size]),
            ("our reduction % by slices", its_less, 100 * (1 - sliced[k, batch_size] / gib)),
        ):
            method = f"batch {batch_size}"
            found.append(Figure(EPOCH, method, 0.1, k, quantity, thesis, value, backend))
    return found


def epoch_table(found: Sequence[Figure]) -> Table:
    """Table 5.14: ratios are of ours over its, both in bytes."""
    table = Table(
        title="Table 5.14: an epoch of 64,000 samples, eps 0.1",
        box=box.MARKDOWN,
        title_justify="left",
    )
    for heading in (
        *("N", "batch", "data-parallel: thesis GB", "ours GiB", "ratio"),
        *("hypergraph: thesis GB", "2^30 elements", "GiB", "ours GiB", "ratio"),
        *("slices: GiB", "ratio"),
        *("reduction: thesis", "in bytes", "ours, in bytes", "ratio", "slices"),
    ):
        table.add_column(heading, justify="right")
    for k, batch_size, data, hypergraph, reduction in TABLE_5_14:
        figure = {
            figure.quantity: figure
            for figure in found
            if (figure.k, figure.method) == (k, f"batch {batch_size}")
        }
        parallel, ours = figure["data-parallel GiB"], figure["our hypergraph GiB"]
        less, slices = figure["our reduction %, in bytes"], figure["our slices GiB"]
        by_slices = figure["our reduction % by slices"]
        table.add_row(
            *(str(k), str(batch_size)),
            *(f"{data:,}", f"{parallel.ours:,.0f}", f"{parallel.ratio:.2f}"),
            *(f"{hypergraph:,}", f"{figure['hypergraph as printed'].ours:,.0f}"),
            *(f"{ours.thesis:,.0f}", f"{ours.ours:,.0f}", f"{ours.ratio:.2f}"),
            *(f"{slices.ours:,.0f}", f"{slices.ratio:.2f}"),
            *(f"{reduction} %", f"{less.thesis:.0f} %", f"{less.ours:.0f} %", f"{less.ratio:.2f}"),
            f"{by_slices.ours:.0f} %",
        )
    return table


# ------------------------------------------------------------------ the command


def work_of(graph: ChannelGraph, source: str) -> Work:
    if source == "flops":
        return hgpart.flops(graph)
    if source == "fitted":
        shares = [0.0, *FITTED_WORK, 0.0]
        per_task = [
            round(share * 10**9 / layer.tasks)
            for share, layer in zip(shares, graph.layers, strict=True)
        ]
        return Work(np.array(per_task), "thesis unit", 10**9, "fitted to the thesis")
    if source == "profile":
        model, shape = hgpart.load_model("vgg16", device="meta")
        traced = hgpart.trace(model, hgpart.example_inputs(model, shape))
        return hgpart.profile(model, traced, graph, batch_size=BATCH)
    return hgpart.files.load_work(source, graph)


def run(
    work_source: str,
    seed: int,
    backends: Sequence[str],
    tables: Sequence[str],
    numbers: Sequence[int],
    path: Path | None,
) -> None:
    rows = reference()
    graph = vgg16()
    work = work_of(graph, work_source)
    chosen = [
        pair for pair in PAIRS if not tables or {pair.load_table, pair.volume_table} & set(tables)
    ]
    cells = [
        (pair, k, backend)
        for pair in chosen
        for backend in (backends if pair.method in SEARCHED else ("",))
        for table, k in rows
        if table == pair.load_table and (not numbers or k in numbers)
    ]
    epochs = [(k, size) for k, size, *_ in TABLE_5_14 if not tables or EPOCH in tables]
    if epochs and EPOCH_PAIR not in chosen:
        cells += [(EPOCH_PAIR, k, backends[0]) for k in VOLUMES_5_14]
    volumes: dict[int, float] = {}
    sliced: dict[tuple[int, int], float] = {}
    partial = path.with_name(path.name + ".partial") if path else None
    found: list[Figure] = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("VGG16", total=len(cells) + len(epochs))
        for at, (pair, k, backend) in enumerate(cells):
            load = f"{pair.method} N={k}" + ("" if pair.eps is None else f" eps {pair.eps:g}")
            progress.update(bar, description=f"{load} {backend}")
            result = split(graph, work, pair, k, seed, backend)
            new = list(figures(pair, k, result, rows, backend))
            found += new
            save(partial, new, work, seed, append=at > 0)
            progress.advance(bar)
            if pair == EPOCH_PAIR and backend == backends[0]:
                volumes[k] = result.evaluation.volume / MEBI
        for k, batch_size in epochs:
            progress.update(bar, description=f"slices of {batch_size} N={k}")
            sliced[k, batch_size] = sliced_gib(graph, work, k, batch_size, seed)
            progress.advance(bar)
    console = Console(width=240)
    for group in ([""], list(backends)):
        table = table_of([figure for figure in found if figure.backend in group], group)
        if table.row_count:
            console.print(table)
    if epochs:
        epoch = epoch_figures(volumes, sliced, backends[0])
        save(partial, epoch, work, seed, append=True)
        console.print(epoch_table(epoch))
    if path and partial:
        partial.replace(path)


def save(
    path: Path | None, found: Sequence[Figure], work: Work, seed: int, *, append: bool
) -> None:
    """Add figures to a CSV file, so that Ctrl-C keeps what is done."""
    if path is None:
        return
    with path.open("a" if append else "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not append:
            names = [item.name for item in fields(Figure)]
            writer.writerow([*names[:-1], "ratio", "work", "seed", names[-1]])
        for figure in found:
            *values, backend = [
                f"{value:.6g}" if isinstance(value, float) else value for value in astuple(figure)
            ]
            writer.writerow([*values, f"{figure.ratio:.4g}", work.source, seed, backend])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work",
        default="flops",
        help="flops, profile, fitted (to the thesis), or a file of save_work",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--backend", default="native", help="of hypergraph partitions, such as native,kahypar"
    )
    parser.add_argument("--tables", default="", help="such as 5.1,5.2,A.7; all when left out")
    parser.add_argument("--n", default="", help="such as 2,4; all when left out")
    parser.add_argument("--csv", type=Path, help="where to write the figures")
    given = parser.parse_args()
    tables = given.tables.split(",") if given.tables else []
    numbers = [int(n) for n in given.n.split(",")] if given.n else []
    known = {EPOCH, *(table for pair in PAIRS for table in (pair.load_table, pair.volume_table))}
    if unknown := set(tables) - known:
        parser.error(f"table {', '.join(sorted(unknown))}: accepted are {', '.join(sorted(known))}")
    whole = not tables and not numbers and given.work == "flops"
    path = given.csv or (RESULTS if whole else None)
    try:
        run(given.work, given.seed, given.backend.split(","), tables, numbers, path)
    except HgpartError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        kept = f"; the figures so far are in {path}.partial" if path else ""
        print(f"interrupted{kept}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
