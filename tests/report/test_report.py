"""What is printed and written is what was measured."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest
import torch
from builtin_graphs import full_size_graph
from random_reports import changed
from rich.console import Console
from torch import nn

from hgpart.files.columns import UNITS
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partition import partition_graph
from hgpart.partition.problem.objectives import LARGEST
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.report.layers import print_trace
from hgpart.report.models import model_summary, print_models
from hgpart.report.partition.columns import as_csv, as_json
from hgpart.report.partition.printing import print_report
from hgpart.report.partition.record import Report
from hgpart.report.partition.slice_shares import who_has
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops, measured
from hgpart.work.watching import with_note


@pytest.fixture(scope="module")
def graph():
    return full_size_graph("lenet5")


def make_report(graph, k, work=None, best_effort=False, speeds=None, **modelling):
    work = work or flops(graph)
    modelling = Modelling(**modelling)
    options = {"modelling": modelling, "best_effort": best_effort, "speeds": speeds}
    found = partition_graph(graph, work, k, 0.1, **options, effort=0.1)
    layerwise = evaluate_layerwise(graph, work, modelling, k, speeds, 0.1)
    partition = dataclasses.replace(found, backend="kahypar")
    seconds = {"partition": 0.25, "total": 1.5}
    report = Report(partition, "lenet5", (1, 32, 32), layerwise, seconds)
    return report, found


@pytest.fixture(scope="module", params=["coarse", "fine"])
def result(request, graph):
    return make_report(graph, 4, grain=request.param)


@pytest.fixture(scope="module")
def crowded(graph):
    return make_report(graph, 20, best_effort=True)[0]


def printed(report, width=100, unit="MB"):
    text = io.StringIO()
    print_report(
        report, Console(file=text, width=width, markup=False, emoji=False, highlight=False), unit
    )
    return text.getvalue()


def figures(report):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(as_json(report), parse_constant=refuse)


def volume_of(hypergraph, parts):
    """The definition: each net's cost times the number of its parts less one."""
    nets = zip(hypergraph.costs, hypergraph.pointers[:-1], hypergraph.pointers[1:], strict=True)
    return sum(int(cost) * (len(set(parts[hypergraph.pins[a:b]])) - 1) for cost, a, b in nets)


@pytest.mark.few(1)
def test_json_has_every_key_that_was_promised(result):
    promised = (
        "model grain linear k eps seed backend batch_size bytes_per_element feasible imbalance "
        "volume_bytes lower_bound_bytes gap layerwise_imbalance layerwise_volume_bytes parts "
        "seconds"
    )
    found = figures(result[0])
    assert set(promised.split()) <= set(found)
    assert {"work", "parameters", "send_bytes", "receive_bytes"} <= set(found["parts"][0])
    assert found["seconds"] == {"partition": 0.25, "total": 1.5}


def test_json_has_the_figures_of_the_partition(result):
    report, found = result
    shown, hypergraph = figures(report), found.model.hypergraph
    loads = np.bincount(found.parts, weights=hypergraph.weights, minlength=4)
    assert [part["work"] for part in shown["parts"]] == loads.tolist()
    assert shown["imbalance"] == pytest.approx(loads.max() / loads.mean() - 1)
    assert shown["volume_bytes"] == volume_of(hypergraph, found.parts)
    assert sum(part["send_bytes"] for part in shown["parts"]) == shown["volume_bytes"]
    assert sum(part["receive_bytes"] for part in shown["parts"]) == shown["volume_bytes"]
    assert sum(part["work_share"] for part in shown["parts"]) == pytest.approx(1)
    assert sum(part["parameters"] for part in shown["parts"]) == 61_706
    assert sum(part["messages_sent"] for part in shown["parts"]) == shown["messages"]
    assert shown["bytes_per_element"] == 4
    for layer, entry in zip(report.partition.problem.graph.layers, shown["layers"], strict=True):
        assert entry["layer"] == layer.name
        assert sum(entry["tasks_by_part"]) == layer.tasks


def test_json_gives_seconds_where_work_was_measured(graph):
    work = measured(graph, [0.0, 0.5, 0.25, 0.25, 0.0, 0.0, 0.0], "a test")
    shown = figures(make_report(graph, 2, work=work)[0])
    assert shown["work_unit"] == "s"
    assert sum(part["work"] for part in shown["parts"]) == pytest.approx(1.0)
    assert shown["average_work"] == pytest.approx(0.5)


def test_what_disturbed_the_work_stands_behind_the_answer(graph):
    source = with_note("a test", "others ran")
    work = measured(graph, [0.0, 0.5, 0.25, 0.25, 0.0, 0.0, 0.0], source)
    said = printed(make_report(graph, 2, work=work)[0], width=1000).splitlines()[1]
    assert said.startswith("The seconds of layers can't be trusted: others ran while they were")


def test_json_has_null_for_what_is_infinite(crowded):
    idle = changed(crowded, evaluation=crowded.layerwise)
    assert figures(idle)["max_over_min_work"] is None


def test_csv_has_the_parts_of_the_json(result):
    report, _ = result
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    parts = figures(report)["parts"]
    assert [{name: float(text) for name, text in row.items()} for row in rows] == parts


def test_the_answer_comes_first(result):
    report, _ = result
    first, second, third, *_ = printed(report, width=1000).splitlines()
    assert first.startswith(
        f"lenet5 on 4 devices, {report.partition.modelling.grain}-grain: imbalance 0.0"
    )
    assert f"{report.partition.evaluation.volume / 10**6:.4f} MB" in first
    assert f"imbalance {report.layerwise.imbalance:.3f}" in second
    ratio = report.layerwise.max_load / report.partition.evaluation.max_load
    assert f"the busiest device has {ratio:.1f} times less work, but " in third


def test_what_is_known_of_the_least_volume_is_said(result):
    report, found = result
    volume = found.evaluation.volume
    for bound, said in (
        (0, " MB (no useful lower bound is known) between devices"),
        (volume // 2, f" MB (at least {volume // 2 / 10**6:.4f} MB: gap 50.0%) between devices"),
        (volume, " MB (proven optimal) between devices"),
    ):
        shown = changed(report, lower_bound=bound)
        assert f"{volume / 10**6:.4f}{said}" in printed(shown, width=1000).splitlines()[0]
        assert figures(shown)["gap"] == pytest.approx(1 - bound / volume)


def test_nothing_is_proven_of_what_is_not_allowed(crowded):
    bound = crowded.partition.evaluation.volume
    first, *_ = printed(changed(crowded, lower_bound=bound)).splitlines()
    assert "proven" not in first


def test_an_imbalance_that_is_not_allowed_is_called_so(crowded):
    assert "(more than the allowed 0.1)" in printed(crowded).splitlines()[0]


@pytest.mark.parametrize("unit", UNITS)
def test_bytes_are_printed_in_the_unit_asked_for(result, unit):
    report, _ = result
    text = printed(report, unit=unit)
    assert f"Communication ({unit} per forward pass of 32 samples)" in text
    row = [line.split() for line in text.splitlines() if line.startswith("partition ")][1]
    assert float(row[1]) == pytest.approx(
        report.partition.evaluation.volume / UNITS[unit], abs=5e-4
    )


@pytest.mark.parametrize("width", [20, 80, 1000])
def test_no_figure_is_cut_off(result, crowded, width):
    for report in (result[0], crowded):
        text = printed(report, width=width)
        assert "…" not in text
        for count in report.partition.shares.parameters:
            assert f"{count:,}" in text.split()
        for layer in report.partition.problem.graph.layers:
            assert f"\n{layer.name} " in text


def test_layers_show_the_share_of_each_part(result):
    report, _ = result
    lines = printed(report).splitlines()
    start = next(
        at for at, line in enumerate(lines) if line.startswith("layer ") and "tasks" in line
    )
    for at, layer in enumerate(report.partition.problem.graph.layers):
        name, tasks, *cells = lines[start + 2 + at].split()
        assert (name, tasks) == (layer.name, str(layer.tasks))
        shares = [0.0 if cell == "." else float(cell) for cell in cells]
        held = report.partition.shares.layer_work[at]
        if held.any():
            expected = 100 * held / held.sum()
            assert shares == pytest.approx(expected.tolist(), abs=0.51)


def test_many_parts_are_named_by_ranges(crowded):
    lines = printed(crowded).splitlines()
    table = lines[lines.index("Layers (% of each that each part has)") :]
    conv1 = next(line for line in table if line.startswith("conv1 ")).split(maxsplit=4)
    holders = np.flatnonzero(crowded.partition.shares.layer_tasks[1])
    assert conv1[:3] == ["conv1", "6", str(len(holders))]
    named = [
        part
        for run in conv1[4].split(", ")
        for part in range(int(run.split("-")[0]), int(run.split("-")[-1]) + 1)
    ]
    assert named == holders.tolist()


def test_speeds_show_the_share_that_each_device_should_get(graph):
    text = printed(make_report(graph, 3, speeds=[1, 1, 2])[0])
    assert "target" in text
    assert re.search(r"^2 .* 50\.0 ", text, re.MULTILINE)
    assert "work for its speed" in text


def test_markup_in_a_name_is_printed_as_it_is(result):
    report = dataclasses.replace(result[0], model="[bold]me[/bold].py:smile:")
    assert printed(report).startswith("[bold]me[/bold].py:smile: on 4 devices")


def test_slices_show_who_has_which(graph):
    report, _ = make_report(graph, 4, batch_size=64, slices=4)
    lines = printed(report, width=1000).splitlines()
    flows = {name: flow.volume / 10**6 for name, flow in report.flows.items()}
    assert "4 slices of the batch: imbalance 0.0" in lines[0]
    assert lines[0].endswith(" between devices each way per training step of 64 samples")
    assert lines[1].startswith(f"A step sends {sum(flows.values()):.4f} MB: maps ")
    volumes = {line[:15].strip(): line.split() for line in lines if line[:5] in ("maps ", "gradi")}
    assert float(volumes["maps forward"][2]) == pytest.approx(flows["maps forward"], abs=1e-4)
    assert float(volumes["gradients"][1]) == pytest.approx(flows["gradients"], abs=1e-4)
    start = next(at for at, line in enumerate(lines) if line.startswith("layers "))
    shown = {}
    for line in lines[start + 2 : lines.index("", start)]:
        name, *_, who = re.split(r"  +", line)
        shown[name] = who
    first, *_ = report.slices_of_layers
    assert who_has(first, report.partition.modelling.samples) == next(iter(shown.values()))
    assert len(shown) <= len(graph.layers)
    layers = figures(report)["layers"]
    for layer, entry in zip(graph.layers, layers, strict=True):
        assert sum(entry["tasks_by_part"]) == 4 * layer.tasks
        for group in entry["slices"]:
            assert sum(group["tasks"].values()) == layer.tasks


def test_one_slice_that_was_found_best_is_said(graph):
    report, _ = make_report(graph, 2)
    more = dataclasses.replace(report, any_slices=True)
    assert printed(more, width=1000).splitlines()[1].startswith("1 slice of the batch: ")


@pytest.mark.parametrize("slices", [1, 4])
def test_few_bytes_that_may_be_much_time_are_said(slices, graph):
    """Where each layer is on one part, in all slices alike; not where one part has all."""
    report, _ = make_report(graph, 2, batch_size=8, slices=slices)
    blocks = cnn_hypergraph(
        graph,
        report.partition.problem.work,
        layer_blocks(report.partition.model.views),
        report.partition.modelling,
    )
    in_layers = np.tile(np.arange(blocks.slice_vertices) > 2, slices).astype(np.int32)
    divided = in_layers.copy()
    divided[3] = 0 if slices > 1 else 1
    for parts, k, said in ((in_layers, 2, 1), (divided, 2, slices == 1), (0 * in_layers, 1, 0)):
        changes = {"model": blocks, "parts": parts, "evaluation": evaluate_parts(blocks, parts, k)}
        problem = dataclasses.replace(report.partition.problem, k=k)
        partition = dataclasses.replace(report.partition, problem=problem, **changes)
        other = dataclasses.replace(report, partition=partition, any_slices=True)
        shown = printed(other, width=1000)
        assert shown.count("hgpart run measures") == said


def test_what_slices_would_save_is_said_where_they_do(graph):
    report, found = make_report(graph, 2)
    volume = found.evaluation.volume
    for known, said in ((volume - 1, 1), (volume, 0), (None, 0)):
        shown = printed(dataclasses.replace(report, in_slices=known), width=1000)
        assert shown.count("--slices auto") == said


def test_a_trace_shows_layers_reads_and_operators(graph):
    text = io.StringIO()
    print_trace("lenet5", (1, 32, 32), graph, flops(graph), Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert lines[0] == (
        "lenet5 at 1 x 32 x 32: 7 layers (none kept whole), 238 tasks, 416,520 MAC per sample"
    )
    conv2 = next(line for line in lines if line.startswith("conv2 "))
    assert "240,000" in conv2
    assert "all: conv1" in conv2
    assert conv2.endswith("conv2d + tanh + avg_pool2d + tanh")
    assert lines[-1] == "Kept whole (one task that reads everything): none"


class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.third = nn.Conv2d(8, 4, 1)

    def forward(self, image):
        maps = self.first(image)
        both = torch.cat([maps, self.second(maps)], 1)
        return self.third(nn.functional.channel_shuffle(both, 2)[:, :8])


def test_a_trace_tells_reads_apart():
    graph = channel_graph(trace(Shuffled(), torch.zeros(2, 3, 4, 4)))
    text = io.StringIO()
    print_trace("shuffled", (3, 4, 4), graph, flops(graph), Console(file=text, width=200))
    lines = {line.split()[0]: line for line in text.getvalue().splitlines() if line}
    assert "same index: first" in lines["second"]
    assert "all, index list of 8 from 16 channels: first, second" in lines["third"]


def test_models_are_listed_with_their_sizes():
    text = io.StringIO()
    names = ["lenet5", "mobilenet_v2"]
    print_models(map(model_summary, names), names, Console(file=text, width=100))
    heading, *rows = text.getvalue().splitlines()
    assert heading.split()[0] == "model"
    assert rows[0].split() == ["lenet5", "1", "x", "32", "x", "32", "61,706", "416,520"]
    assert rows[1].split()[-2:] == ["3,504,872", "300,774,272"]


@pytest.mark.parametrize("name", ["lenet5", "squeezenet1_1"])
def test_a_summary_counts_what_the_traced_model_does(name):
    total = sum(layer.macs * layer.tasks for layer in full_size_graph(name).layers)
    assert model_summary(name).macs == total


@pytest.fixture(scope="module")
def uneven(graph):
    """A partition over six slices of 5 or 6 samples."""
    return make_report(graph, 4, batch_size=32, slices=6)[0]


def test_slices_of_unequal_size_are_named(uneven):
    assert ", 6 slices of the batch (5 or 6 samples each): imba" in printed(uneven, width=1000)


@pytest.mark.parametrize("useful", [True, False])
def test_a_bound_that_says_little_is_not_printed(uneven, useful):
    bound = uneven.partition.evaluation.volume // 2 + (1 if useful else -1)
    report = changed(uneven, lower_bound=bound)
    lines = printed(report, width=1000).splitlines()
    assert ("(no useful lower bound is known)" in lines[0]) != useful
    row = [line.split() for line in lines if line.startswith("partition ")][1]
    assert (row[2] == "-") != useful
    assert figures(report)["lower_bound_bytes"] == bound


def test_what_statistics_of_the_batch_would_be_is_said(uneven):
    layers = [
        dataclasses.replace(layer, batch_statistics=layer.tasks if layer.kind == "dense" else 0)
        for layer in uneven.partition.problem.graph.layers
    ]
    graph = dataclasses.replace(uneven.partition.problem.graph, layers=tuple(layers))
    norms = [
        cnn_hypergraph(
            graph,
            uneven.partition.problem.work,
            uneven.partition.model.blocks,
            dataclasses.replace(uneven.partition.modelling, norms=norms),
        )
        for norms in ("slice", "batch")
    ]
    each, of_all = (evaluate_parts(model, uneven.partition.parts, 4).volume for model in norms)
    assert each < of_all
    partition = dataclasses.replace(changed(uneven, graph=graph).partition, model=norms[0])
    report = dataclasses.replace(uneven, partition=partition)
    assert report.statistics_bytes == of_all - each
    alike = {}  # slices that lie alike are computed as one
    for parts, samples in zip(
        uneven.partition.parts.reshape(6, -1).tolist(), (5, 5, 6, 5, 5, 6), strict=True
    ):
        alike[tuple(parts)] = alike.get(tuple(parts), 0) + samples
    few, *_, many = sorted(set(alike.values()))
    word = "or" if len(set(alike.values())) == 2 else "to"
    sizes = f"{few} {word} {many} samples each"
    said = f"\nBatch norms take their statistics of {sizes}: --modelling norms=batch takes them of"
    assert f"{said} all 32, for 0." in printed(report, width=1000)
    assert said not in printed(uneven, width=1000)
    partition = dataclasses.replace(changed(report, norms="batch").partition, model=norms[1])
    assert said not in printed(dataclasses.replace(report, partition=partition))


def test_the_busiest_device_is_that_of_the_tables(uneven):
    report = changed(uneven, objective=LARGEST)
    lines = printed(report, width=1000).splitlines()
    said = next(line for line in lines if line.startswith("No device sends and receives more"))
    one_way, in_all = map(float, re.findall(r"([\d.]+) MB", said))
    both = report.partition.evaluation.sent + report.partition.evaluation.received
    assert one_way == pytest.approx(both.max() / 10**6, rel=1e-3)
    row = next(line.split() for line in lines if line.startswith("in all "))
    assert float(row[-2]) == pytest.approx(in_all, rel=1e-3)


def test_work_below_a_second_is_printed_in_milliseconds(result) -> None:
    """Tables had a thousand times the milliseconds."""
    report, _ = result
    units = 10**15
    problem = dataclasses.replace(
        report.partition.problem,
        work=dataclasses.replace(report.partition.problem.work, unit="s", units=units),
    )
    scale = 3e-3 * units / report.partition.evaluation.max_load
    evaluation = dataclasses.replace(
        report.partition.evaluation,
        loads=(report.partition.evaluation.loads * scale).astype(np.int64),
    )
    partition = dataclasses.replace(report.partition, problem=problem, evaluation=evaluation)
    shown = printed(dataclasses.replace(report, partition=partition), width=1000)
    row = next(line for line in shown.splitlines() if line.startswith("partition "))
    factor = sum(problem.modelling.slice_work)
    assert float(row.split()[1]) == pytest.approx(3.0 / factor, rel=1e-3)


class Steps(nn.Module):
    """A cell that is called in several steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.RNNCell(4, 3), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = None
        for given in inputs.unbind(1):
            state = self.cell(given, state)
        return self.last(state)


def test_many_layers_of_a_module_that_lie_alike_have_one_row() -> None:
    """Steps of a recurrent layer filled the table with hundreds of rows."""
    graph = channel_graph(trace(Steps(), torch.randn(2, 6, 4)))
    of_cell = [layer for layer in graph.layers if layer.name.startswith("cell")]
    report, _ = make_report(graph, 1)
    lines = [line.split() for line in printed(report).splitlines()]
    rows = [line for line in lines if line[:1] == ["cell"]]
    tasks = sum(layer.tasks for layer in of_cell)
    assert rows == [["cell", f"({len(of_cell)}", "layers)", str(tasks), "100"]]
