"""The thesis's tables: what its figures count, by the definitions here, to the printed digit."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from builtin_graphs import full_size_graph
from partitioned_models import chain

from hgpart import cnn_hypergraph, evaluate, flops
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.metrics import Evaluation
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.problem.problem import Problem

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "thesis_vgg16.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("thesis_vgg16", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["thesis_vgg16"] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


thesis = benchmark()


@pytest.fixture(scope="module")
def four() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        return importlib.import_module("thesis_n4")


PRINTED = thesis.reference()
MEBI = 2**20
PROFILE = thesis.RESULTS.parent / "vgg16_profile.json"
KEPT_WITH_PROFILE = thesis.RESULTS.parent / "thesis_vgg16_profile.csv"
CUTS = {2: [6], 4: [3, 6, 9], 8: [2, 3, 4, 6, 7, 9, 10], 16: list(range(1, 16))}


def cut_off(value: float, decimals: int) -> float:
    return math.floor(value * 10**decimals) / 10**decimals


def figure(table: str, k: int, column: str) -> float:
    return float(PRINTED[table, k][column])


# ------------------------------------------------------------------ the copied figures


def test_all_tables_are_there() -> None:
    tables = {table for table, _ in PRINTED}
    assert tables == {
        table for pair in thesis.PAIRS for table in (pair.load_table, pair.volume_table)
    }
    assert tables == {f"5.{n}" for n in range(1, 13)} | {f"A.{n}" for n in range(1, 13)}
    for table in tables:
        several = [2, 4, 8, 16] if table in ("5.1", "5.2") else [2, 4, 8, 16, 32, 64, 128]
        assert [k for other, k in PRINTED if other == table] == several


def test_sizes_are_those_of_table_5_13() -> None:
    graph = full_size_graph("vgg16")
    assert sum(layer.parameters for layer in graph.layers) == thesis.PARAMETERS
    assert len(thesis.computing(graph)) == 17  # the input and 16 layers


# ------------------------------------------------------------------ tables 5.1 and 5.2


def cut_vgg16(cuts: list[int]) -> Evaluation:
    """Cut behind the numbered layers; 1 is the first convolution, in one part with the input."""
    graph = full_size_graph("vgg16")
    model = cnn_hypergraph(
        graph, flops(graph), layer_blocks(thesis.THESIS.views(graph)), thesis.THESIS
    )
    parts = np.searchsorted(cuts, model.vertex_layers, "left").astype(np.int32)
    return evaluate(model.hypergraph, parts, len(cuts) + 1)


@pytest.mark.parametrize("k", [2, 4, 8, 16])
@pytest.mark.parametrize("source", ["flops", "fitted"])
def test_recursive_bisection_makes_its_cuts(source: str, k: int) -> None:
    work = thesis.work_of(full_size_graph("vgg16"), source)
    assert thesis.recursive_cuts(full_size_graph("vgg16"), work, k) == CUTS[k]


@pytest.mark.parametrize(("k", "volume"), [(2, 24.5), (4, 85.75), (8, 131.6875), (16, 273.578125)])
def test_its_cuts_cost_what_table_5_2_prints(k: int, volume: float) -> None:
    found = cut_vgg16(CUTS[k])
    assert found.volume / MEBI == volume
    assert cut_off(volume, 1) == figure("5.2", k, "volume")
    assert cut_off(found.max_part_volume / MEBI, 1) == figure("5.2", k, "max_volume")
    assert cut_off(found.average_part_volume / MEBI, 1) == figure("5.2", k, "avg_volume")


def bisections(first: int, last: int, depth: int) -> Iterator[list[int]]:
    """All ways to cut layers first to last in two, and each half again, `depth` times."""
    if depth == 0:
        yield []
        return
    for cut in range(first, last):
        halves = product(bisections(first, cut, depth - 1), bisections(cut + 1, last, depth - 1))
        for left, right in halves:
            yield [*left, cut, *right]


def test_only_twelve_recursive_cuts_cost_what_table_5_2_prints() -> None:
    """All of them exactly 131.6875 at N=8; its loads and the layers' FLOPs leave one."""
    sizes = thesis.map_sizes(full_size_graph("vgg16"))
    found = []
    for eight in bisections(1, 16, 3):
        four, two = eight[1::2], eight[3:4]
        if all(
            cut_off(sum(sizes[cut] for cut in cuts), 1) == figure("5.2", k, "volume")
            and cut_off(max(sizes[cut] for cut in cuts), 1) == figure("5.2", k, "max_volume")
            for k, cuts in ((2, two), (4, four), (8, eight))
        ):
            found.append(eight)
            assert sum(sizes[cut] for cut in eight) == 131.6875
    assert sorted(found) == sorted(
        [2, 3, 4, middle, 7, third, last]
        for middle, third, last in product((5, 6), (8, 9), (10, 11, 12))
    )
    assert CUTS[8] in found


def test_the_loads_of_table_5_1_say_which_layers_its_parts_hold() -> None:
    """Its largest and smallest eighth make up one quarter, whose half is its largest half."""
    half = figure("5.1", 2, "max_work")
    quarter = half - figure("5.1", 4, "max_work")
    assert quarter == figure("5.1", 8, "max_work") + figure("5.1", 8, "min_work")
    other = figure("5.1", 2, "min_work") - figure("5.1", 4, "min_work")
    assert figure("5.1", 4, "min_work") <= min(quarter, other)
    assert max(quarter, other) <= figure("5.1", 4, "max_work")


@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_fitted_work_gives_table_5_1_exactly(k: int) -> None:
    ends = [0, *CUTS[k], 16]
    loads = [sum(thesis.FITTED_WORK[start:end]) for start, end in pairwise(ends)]
    assert max(loads) == figure("5.1", k, "max_work")
    assert min(loads) == figure("5.1", k, "min_work")
    assert sum(loads) // k == figure("5.1", k, "avg_work")
    graph = full_size_graph("vgg16")
    best = layerwise(Problem(graph, thesis.work_of(graph, "fitted"), thesis.THESIS, k))
    assert [int(at) for at in np.flatnonzero(np.diff(best[:17]))] == CUTS[k]


# ------------------------------------------------------------------ tables 5.3 and 5.4

NS = [2, 4, 8, 16, 32, 64, 128]


def test_horizontal_volumes_are_gathers_before_pooling_and_broadcasts_after() -> None:
    graph = full_size_graph("vgg16")
    maps, unpooled = thesis.map_sizes(graph), thesis.unpooled_sizes(graph)
    convolutions = slice(1, 14)
    travelling = maps[0] + sum(maps[convolutions])
    gathered = sum(unpooled[convolutions])
    assert (travelling, gathered) == (277.921875, 413.4375)
    assert sum(maps[14:16]) == 0.25
    for k in NS:
        volume = (k - 1) * (travelling + gathered / k) + 0.25
        assert thesis.horizontal_volume(graph, k) == pytest.approx(volume, rel=1e-12)


@pytest.mark.parametrize("k", NS)
def test_horizontal_volumes_are_those_of_table_5_4(k: int) -> None:
    volume = thesis.horizontal_volume(full_size_graph("vgg16"), k)
    printed = figure("5.4", k, "volume")
    if k == 128:  # more parts than the first two layers have filters
        assert 0 < printed - volume < 0.5
        return
    assert math.floor(volume) == printed
    assert math.floor(volume / k) == figure("5.4", k, "avg_volume")


def test_largest_horizontal_figure_is_of_one_layer() -> None:
    largest = max(thesis.map_sizes(full_size_graph("vgg16")))
    assert [figure("5.4", k, "max_volume") for k in NS] == [largest * (k - 1) for k in NS]
    # Less than the average: it can't be the largest of all that the devices send.
    assert figure("5.4", 2, "max_volume") < figure("5.4", 2, "avg_volume")


@pytest.mark.parametrize("k", NS[:-1])
def test_hgpart_sends_each_horizontal_map_to_each_other_part_once(k: int) -> None:
    graph = full_size_graph("vgg16")
    modelling = replace(thesis.THESIS, linear="neuron")
    model, parts = horizontal(Problem(graph, flops(graph), modelling, k))
    volume = evaluate(model.hypergraph, parts, k).volume / MEBI
    assert volume == (k - 1) * (277.921875 + 0.25)
    # What the thesis counts besides: the gathers; it keeps linear layers whole.
    assert thesis.horizontal_volume(graph, k) - volume == pytest.approx(
        413.4375 * (k - 1) / k - 0.25 * (k - 2)
    )


# ------------------------------------------------------------------ tables 5.5 and 5.6


def test_gathered_volume_of_a_chain_by_hand() -> None:
    # Layers of 4, 4 and 2 filters, maps of 1, 2 and 3 elements; twice as many before pooling.
    graph, work = chain([4, 4, 2], [4, 4, 2], [1, 2, 3])
    units = Modelling(batch_size=1, bytes_per_element=1, output_vertex=False)
    model, parts = incremental(Problem(graph, work, units, 2))
    assert evaluate(model.hypergraph, parts, 2).loads.tolist() == [6, 4]
    # Input and layer 1 are on part 0, layer 2 is halved, layer 3 on part 1.
    # Layer 1 goes to part 1 (4); half of layer 2 is gathered there before pooling (2 x 4).
    found = thesis.gathered_volume(graph, model, parts, 2) * MEBI / thesis.BATCH
    assert found == pytest.approx(4 + 8)
    assert evaluate(model.hypergraph, parts, 2).volume == 4 + 4


@pytest.mark.parametrize("k", NS)
def test_gathers_explain_table_5_6(k: int) -> None:
    """A single weight is fitted to volumes and loads; the maxima and the parts in use are not.

    At N=128 the first convolution is divided too, so that it is sent by two parts here, and by the
    one that gathers it there: to 16 others, 98 x 16 = 1,568.
    """
    graph = full_size_graph("vgg16")
    work = thesis.work_of(graph, "fitted")
    model, parts = incremental(Problem(graph, work, thesis.THESIS, k))
    loads = evaluate(model.hypergraph, parts, k).loads
    used = int((loads > 0).sum())
    # The average leaves parts without work out.
    volume = thesis.gathered_volume(graph, model, parts, k)
    assert volume == pytest.approx(figure("5.6", k, "avg_volume") * used, rel=0.01)
    assert volume == pytest.approx(figure("5.6", k, "volume"), rel=0.01, abs=1.1)
    assert used == {64: 63, 128: 121}.get(k, k)  # 122 there
    assert 43020 / used == pytest.approx(figure("5.5", k, "avg_work"), rel=0.011)
    if k < 128:
        largest = thesis.largest_of_one_layer(model, parts, k)
        assert cut_off(largest, 1) == figure("5.6", k, "max_volume")
    if k <= 32:  # beyond, a filter or two are as much as what is tolerated
        assert loads.max() / work.units == pytest.approx(figure("5.5", k, "max_work"), rel=0.002)


# ------------------------------------------------------------------ tables 5.9 and 5.10


def test_fitted_work_gives_the_coarse_halves() -> None:
    """Layers 6 to 10 are one half at every eps, behind the two cuts of its volume."""
    layers = thesis.FITTED_WORK
    sizes = thesis.map_sizes(full_size_graph("vgg16"))
    assert cut_off(sizes[5] + sizes[10], 1) == figure("A.7", 2, "volume")
    for table in ("5.9", "A.1", "A.2", "A.3"):
        assert sum(layers) - sum(layers[5:10]) == figure(table, 2, "max_work")
        # Work of a filter is rounded in the hypergraph, so that its total is 19 more.
        assert sum(layers[5:10]) + 19 == figure(table, 2, "min_work")


@pytest.mark.parametrize("eps", [0.03, 0.1, 0.15, 0.2])
def test_one_partition_gives_all_volumes_in_four_coarse_parts(four: ModuleType, eps: float) -> None:
    """Its smallest part says how many filters of layer 8 are with layers 6 and 7."""
    graph = full_size_graph("vgg16")
    moved = round(four.filters_moved(eps))
    volume = four.volume_of(graph, moved)
    loads, volumes = four.ROWS[eps]
    decimals = 0 if eps == 0.1 else 1
    assert cut_off(volume, decimals) == figure(volumes, 4, "volume")
    assert cut_off(volume / 4, 1) == figure(volumes, 4, "avg_volume")
    if eps == 0.1:
        assert volume == pytest.approx(thesis.VOLUMES_5_14[4], abs=0.1)
    layers, own = thesis.FITTED_WORK, moved / 512 * thesis.FITTED_WORK[7]
    parts = (
        sum(layers[:2]) + sum(layers[10:14]) + layers[15],
        sum(layers[2:5]) + layers[14],
        sum(layers[5:7]) + own,
        sum(layers[7:10]) - own + 19,
    )
    assert max(parts) == pytest.approx(figure(loads, 4, "max_work"), abs=9)
    assert min(parts) == pytest.approx(figure(loads, 4, "min_work"), abs=3)


def test_the_partition_in_four_parts_costs_what_its_maps_do(four: ModuleType) -> None:
    graph = full_size_graph("vgg16")
    units = thesis.THESIS
    model = cnn_hypergraph(graph, flops(graph), layer_blocks(units.views(graph)), units)
    part_of_layer = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 0, 0, 0, 0, 1, 0])
    parts = part_of_layer[model.vertex_layers].astype(np.int32)
    volume = evaluate(model.hypergraph, parts, 4).volume / MEBI
    assert volume == four.volume_of(graph, 0) == 58.4375


# ------------------------------------------------------------------ table 5.14


def test_an_epoch_over_slices_counts_parameters_and_maps_each_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data parallelism, as a partition over slices, costs what the data-parallel column says."""
    graph = full_size_graph("vgg16")

    def partition(graph, work, k, eps, *, modelling, **_):
        sliced = Problem(graph, work, replace(modelling, slices=k), k, eps)
        evaluation = evaluate_parts(*data_parallel(sliced), k)
        return SimpleNamespace(interrupted=False, evaluation=evaluation)

    monkeypatch.setattr(thesis.hgpart, "partition_graph", partition)
    found = thesis.sliced_gib(graph, flops(graph), 4, 16, 0)
    assert found == pytest.approx(thesis.data_parallel_gib(4, 16))


@pytest.mark.parametrize(("k", "batch", "data", "hypergraph", "reduction"), thesis.TABLE_5_14)
def test_table_5_14_sets_elements_beside_bytes(
    k: int, batch: int, data: int, hypergraph: int, reduction: int
) -> None:
    volume = thesis.VOLUMES_5_14[k]
    assert math.floor(volume) == figure("5.10", k, "volume")
    assert cut_off(volume / k, 1) == figure("5.10", k, "avg_volume")
    # Its data-parallel column is bytes, its hypergraph column elements, both in 2^30.
    gib = 2 * (k - 1) * 138_357_544 * 4 * (64_000 / batch) / 2**30
    assert thesis.data_parallel_gib(k, batch) == gib
    assert math.floor(gib) == data
    elements = 2 * volume * 2**20 * 2_000 / 2**30
    assert thesis.hypergraph_gib(volume, 1) == elements
    assert math.floor(elements) == hypergraph
    assert math.floor(100 * (1 - elements / gib)) == reduction
    # In bytes on both sides four times as much travels.
    assert thesis.hypergraph_gib(volume, 4) == 4 * elements


def test_mean_reduction_is_93_percent_as_printed_and_73_in_bytes() -> None:
    def mean(size: int) -> float:
        kept = [
            thesis.hypergraph_gib(thesis.VOLUMES_5_14[k], size) / thesis.data_parallel_gib(k, batch)
            for k, batch, *_ in thesis.TABLE_5_14
        ]
        return 100 * (1 - sum(kept) / len(kept))

    assert mean(1) == pytest.approx(93.315, abs=0.02)  # the text's figure
    assert mean(4) == pytest.approx(73.25, abs=0.1)


# ------------------------------------------------------------------ the script


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    monkeypatch.setattr(thesis, "vgg16", lambda: full_size_graph("vgg16"))  # traced once
    thesis.main()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_it_prints_and_keeps_the_tables_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.csv"
    run(monkeypatch, "--tables", "5.2", "--csv", str(path))
    rows = rows_of(path)
    assert {row["table"] for row in rows} == {"5.1", "5.2"}
    assert {row["k"] for row in rows} == {"2", "4", "8", "16"}
    assert not path.with_name("figures.csv.partial").exists()
    for row in rows:
        ratio = float(row["ours"]) / float(row["thesis"])
        assert float(row["ratio"]) == pytest.approx(ratio, rel=1e-3)
    printed = capsys.readouterr().out
    assert "5.1, 5.2 layer-wise" in printed
    assert "at least" not in printed
    assert "Table 5.14" not in printed
    assert "273.6" in printed


def test_volumes_by_each_backend_stand_beside_the_thesis_s() -> None:
    pair = thesis.EPOCH_PAIR
    loads, volumes = (pair.load_table, pair.volume_table)
    found = [
        thesis.Figure(table, pair.method, pair.eps, 4, quantity, its, ours, backend)
        for backend, volume in (("native", 50.0), ("kahypar", 80.0))
        for table, quantity, its, ours in (
            (loads, "max/avg", 1.034, 1.1),
            (volumes, "volume", 61.0, volume),
            (volumes, thesis.ITS_WAY, 61.0, volume + 1),
            (volumes, thesis.AT_LEAST, 61.0, 49.0),
        )
    ]
    table = thesis.table_of(found, ["native", "kahypar"])
    row = {str(column.header): list(column.cells)[-1] for column in table.columns[7:]}
    assert list(table.columns[0].cells) == ["5.9, 5.10 coarse-grain"]
    assert row["native / thesis"] == "0.82"
    assert (row["kahypar"], row["kahypar / thesis"], row["at least"]) == ("80.0", "1.31", "49.0")
    assert (row["its way, native"], row["its way / thesis"]) == ("51.0", "0.84")


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_our_work_is_scaled_to_the_thesis_s_total(k: int) -> None:
    """The fitted weights are in its unit, so that scaling leaves them (43,000 of 43,001)."""
    pair = thesis.PAIRS[0]
    for source in ("flops", "fitted"):
        work = thesis.work_of(full_size_graph("vgg16"), source)
        found = {
            (figure.table, figure.quantity): figure
            for figure in thesis.figures(
                pair, k, thesis.split(full_size_graph("vgg16"), work, pair, k, 0, "native"), PRINTED
            )
        }
        assert found["5.1", "average"].ours * k == pytest.approx(2 * 21500)
        assert found["5.1", "max x N"].ours == pytest.approx(found["5.1", "max"].ours * k)
        assert found["5.2", "average"].ours * k == pytest.approx(found["5.2", "volume"].ours)
        if source == "fitted":
            for column in ("max", "min", "max/min", "max/avg"):
                assert found["5.1", column].ratio == pytest.approx(1, rel=1e-3)


def test_table_5_14_alone_needs_three_coarse_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Found:
        volume = 50 * MEBI
        max_part_volume = MEBI
        loads = np.array([1, 1])

    def split(graph: object, work: object, pair: object, k: int, seed: int, backend: str) -> object:
        asked.append((pair, k))
        return thesis.Split(Found(), 1.0, None, 1.0)

    monkeypatch.setattr(thesis, "split", split)
    monkeypatch.setattr(thesis, "sliced_gib", lambda graph, work, k, batch, seed: 16.0 * k / batch)
    path = tmp_path / "figures.csv"
    run(monkeypatch, "--tables", "5.14", "--csv", str(path))
    assert asked == [(thesis.EPOCH_PAIR, k) for k in (2, 4, 8)]
    assert "Table 5.14" in capsys.readouterr().out
    ratios = {
        int(row["k"]): float(row["ratio"])
        for row in rows_of(path)
        if row["quantity"] == "our hypergraph GiB"
    }
    sliced = {
        (int(row["k"]), row["method"]): float(row["ours"])
        for row in rows_of(path)
        if row["quantity"] == "our slices GiB"
    }
    assert sliced == {
        (k, f"batch {batch}"): 16.0 * k / batch for k in (2, 4, 8) for batch in (16, 32, 64)
    }
    its = thesis.VOLUMES_5_14
    assert ratios == pytest.approx({k: 50 / its[k] for k in its}, rel=1e-3)


def test_a_kept_profile_is_work_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.csv"
    run(monkeypatch, "--work", str(PROFILE), "--tables", "5.1,5.2", "--csv", str(path))
    assert "5.1, 5.2 layer-wise" in capsys.readouterr().out
    rows = rows_of(path)
    assert {row["table"] for row in rows} == {"5.1", "5.2"}
    assert {row["work"].split(" batch")[0] for row in rows} == {"profile cpu (2 threads)"}
    kept = [row for row in rows_of(KEPT_WITH_PROFILE) if row["table"] in ("5.1", "5.2")]
    assert rows == kept
    # The largest load can't be less than the heaviest layer's share of all work.
    totals = [layer["total"] for layer in json.loads(PROFILE.read_text())["layers"]]
    for row in rows:
        if row["quantity"] == "max":
            assert float(row["ours"]) >= max(totals) / sum(totals) * 43000 * (1 - 1e-5)


@pytest.mark.full
def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.csv"
    path.write_text("those of an earlier run\n")
    split = thesis.split

    def interrupted(
        graph: object, work: object, pair: object, k: int, seed: int, backend: str
    ) -> object:
        if k == 8:
            raise KeyboardInterrupt
        return split(graph, work, pair, k, seed, backend)

    monkeypatch.setattr(thesis, "split", interrupted)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--tables", "5.1", "--csv", str(path))
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err
    kept = rows_of(path.with_name("figures.csv.partial"))
    assert {row["k"] for row in kept} == {"2", "4"}
    assert path.read_text() == "those of an earlier run\n"


def test_unknown_tables_and_work_are_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--tables", "5.13")
    assert "table 5.13: accepted are" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no-such-file"):
        run(monkeypatch, "--tables", "5.1", "--work", "no-such-file.json")


def test_kept_results_with_the_profile_hold_the_tables_readme_names() -> None:
    rows = rows_of(KEPT_WITH_PROFILE)
    assert {row["table"] for row in rows} == {f"5.{n}" for n in (1, 2, 3, 4, 5, 6, 9, 10)}
    assert len({row["work"] for row in rows}) == 1


def test_the_kept_results_hold_every_figure() -> None:
    rows = rows_of(thesis.RESULTS)
    assert {(row["table"], int(row["k"])) for row in rows if row["table"] != "5.14"} == set(PRINTED)
    assert {row["work"] for row in rows} == {"flops"}
    for row in rows:
        if row["quantity"] == "volume":
            assert float(row["thesis"]) == figure(row["table"], int(row["k"]), "volume")
    by_flops = {
        int(row["k"]): float(row["ours"])
        for row in rows
        if (row["table"], row["quantity"]) == ("5.2", "volume its way")
    }
    assert by_flops == pytest.approx({2: 24.5, 4: 85.75, 8: 131.6875, 16: 273.578125}, rel=1e-5)
