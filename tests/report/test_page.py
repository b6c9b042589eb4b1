"""A page holds the figures of its records, and works in a real browser without a network."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from importlib.resources import files

import numpy as np
import plotly.graph_objects
import pytest
import torch
from browser import PLOTS, Page, browse, in_a_browser
from random_reports import NASTY, changed, make_report
from torch import nn
from toy_outlines import EVEN, halves

from hgpart.compare.comparison import (
    CONTESTED,
    Comparison,
    cell_of,
    verdict,
    winners,
)
from hgpart.compare.comparison_files import comparison_json
from hgpart.compare.outcomes import Failed, NotApplicable, Outcome
from hgpart.files.columns import UNITS
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.ways.catalogue import ways
from hgpart.report.page.comparison import MOST_LINES, comparison_page, lines_figure
from hgpart.report.page.drawing.boxes import MOST_SHARES, OTHERS
from hgpart.report.page.drawing.figures import load_figure, memory_figure
from hgpart.report.page.drawing.grids import (
    MOST_CELLS,
    layer_grid,
    neighbours,
    slices_grid,
    traffic_grid,
)
from hgpart.report.page.drawing.network import (
    MOST_BOXES,
    grouped,
    labels_of,
    network,
    traffic_of_layers,
)
from hgpart.report.page.plan import plan_page, step_figure
from hgpart.report.partition.columns import as_json
from hgpart.report.partition.looks import part_colour
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.rules import RULES
from hgpart.schedules.simulation import times
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops

KS = (2, 8, 128)


def make_outcome(strategy, k, eps, number):
    """Figures that are all different, and grow with the number."""
    return Outcome(
        strategy=strategy,
        k=k,
        eps=eps,
        batch_size=32,
        max_over_average=1 + 0.001 * number,
        imbalance=0.001 * number,
        forward_bytes=10**7 * number + k,
        bytes_per_sample=10**6 * number + 0.25,
        bytes_per_step=12345 * number,
        largest_device_bytes=10**6 * number + 7,
        messages=3 * number,
        largest_parameters=10**5 * number + 1,
        largest_activation_bytes=10**8 + number,
        seconds=0.0123456789 * number,
        step_seconds=None if strategy == "random" else 0.5 * number / k,
    )


def make_comparison(names, ks=KS, epss=(0.1,), model=NASTY):
    known = ways()
    rows = []
    for k in ks:
        for at, name in enumerate(names):
            for eps in epss if name in known and known[name].searches else (None,):
                if name == "layerwise" and k == 128:
                    rows.append(NotApplicable(name, k, eps, f"128 devices, <i>{NASTY}"))
                else:
                    number = 1 + (at * 11) % len(names) + len(names) * round(100 * (eps or 0))
                    rows.append(make_outcome(name, k, eps, number))
    return Comparison(model, (3, 224, 224), "f", 32, None, NASTY, 0, 64000, tuple(rows), epss)


@pytest.fixture(scope="module")
def comparison():
    return make_comparison(list(ways()))


@pytest.fixture(scope="module")
def report():
    return make_report(layers=5, k=4)


def drawn_on(html):
    """What the page is to draw, by its kinds."""
    return json.loads(re.search(r'id="figures">(.*?)</script>', html)[1])


def check_comparison_table(page, comparison):
    rows = json.loads(comparison_json(comparison))["rows"]
    shown = page.figures("comparison-table")
    assert len(shown) == len(rows)
    for (name, figures), row in zip(shown, rows, strict=True):
        assert name == row["strategy"]
        assert figures == {key: row[key] for key in figures}
        assert "why" in row or len(figures) == 15


# ------------------------------------------------------------------ what is written


@pytest.mark.parametrize("epss", [(0.1,), (0.03, 0.1, 0.2)])
def test_the_table_holds_the_figures_of_the_json(epss):
    comparison = make_comparison(list(ways()), epss=epss)
    check_comparison_table(Page(comparison_page(comparison)), comparison)


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_read_is_the_figure_in_the_unit_of_its_heading(comparison, unit):
    head, *rows = Page(comparison_page(comparison, unit=unit)).tables["comparison-table"]
    sizes = {**UNITS, "TB": 10**12, "TiB": 2**40, "M": 10**6, "ms": 1e-3}
    for row in rows:
        for heading, cell in zip(head, row, strict=False):
            if "data-value" not in cell:
                continue
            size = sizes.get(heading["text"].split()[-1], 1)
            text = cell["text"].removeprefix("★ ").replace(",", "")
            exact = json.loads(cell["data-value"])
            assert float(text) == pytest.approx(exact / size, rel=6e-4, abs=6e-4)


def test_the_best_of_each_k_are_marked_by_a_sign(comparison):
    page = Page(comparison_page(comparison))
    for column in CONTESTED:
        marked = {
            at
            for at, cells in enumerate(page.tables["comparison-table"][1:])
            for cell in cells
            if cell.get("data-key") == column and cell["text"].startswith("★ ")
        }
        best = winners(comparison, column)
        assert marked == {at for at, row in enumerate(comparison.rows) if cell_of(row) in best}


def test_a_strategy_that_cant_be_used_says_why(comparison):
    rows = Page(comparison_page(comparison)).tables["comparison-table"]
    (row,) = (cells for cells in rows if "can't be used" in cells[-1]["text"])
    assert row[0]["text"] == "layerwise"
    assert row[1]["data-value"] == "128"
    assert row[-1]["text"] == f"can't be used: 128 devices, <i>{NASTY}"


def test_text_of_the_user_is_text_of_the_page(comparison, report):
    html = comparison_page(comparison, report)
    assert NASTY not in html
    text = " ".join(Page(html).text)
    assert text.count(NASTY) >= 3
    assert verdict(comparison) in text


def test_the_unit_of_work_of_a_plan_file_is_text_of_the_page(report):
    work = dataclasses.replace(report.partition.problem.work, unit=NASTY)
    page = Page(html := plan_page(changed(report, work=work)))
    assert NASTY not in html
    assert not page.outside
    figures = drawn_on(html)
    texts = re.findall(r'"[^"]*script[^"]*"', json.dumps(figures))
    assert texts
    assert not any("<script" in text for text in texts)


@pytest.mark.parametrize("training", [True, False])
def test_the_page_of_slices_shows_who_has_which(training, comparison):
    sliced = make_report(layers=3, k=4, batch_size=8, slices=3, training=training)
    html = plan_page(sliced)
    page, shown = Page(html), json.loads(as_json(sliced))
    assert ("step-table" in page.tables) == training
    if training:
        step = dict(page.figures("step-table"))
        assert list(step) == ["maps forward", "maps backward", "gradients", "weights", "in all"]
        assert step["in all"]["volume"] == shown["step_bytes"]
        assert step["gradients"]["volume"] == shown["gradients_bytes"] > 0
    most = max(float(row[1]["text"].replace(",", "")) for row in page.tables["parts-table"][1:])
    assert most == pytest.approx(float(page.tables["summary-table"][1][1]["text"].replace(",", "")))
    drawn = drawn_on(html)["grids"]["slices"]
    parts = sliced.partition.parts.reshape(3, -1)
    layers = sliced.partition.model.vertex_layers[: parts.shape[1]]
    shown = [view for view in sliced.partition.model.views if view.exists]
    assert drawn["rows"] == [view.layer.name for view in shown]
    for cells, view in zip(drawn["cells"], shown, strict=True):
        own = parts[:, layers == view.first]
        held = {part: np.flatnonzero((own == part).any(axis=1)) for part in np.unique(own)}
        assert [part for part, *_ in cells] == list(held)
        for part, shade, numbers, details in cells:
            texts = [f"{100 * (one == part).mean():.4g} % of its filters" for one in own]
            assert all(texts[at] in details for at in held[part])
            listed = [map(int, run.split("-")) for run in numbers.split(", ")]
            spans = [(first, *rest) for first, *rest in listed]
            assert [at for run in spans for at in range(run[0], run[-1] + 1)] == [*held[part]]
            assert shade == max(1, round(100 * (own == part).mean()))
    text = " ".join(Page(comparison_page(comparison, sliced)).text)
    assert "3 slices of the batch" in text


def test_nothing_is_asked_for_outside_the_file(comparison, report):
    page = Page(comparison_page(comparison, report))
    assert page.outside == []
    assert page.policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:", page.policy)


def test_the_tables_of_a_plan_hold_the_figures_of_its_json(report):
    page, figures = Page(plan_page(report)), json.loads(as_json(report))
    parts = page.figures("parts-table")
    assert [name for name, _ in parts] == ["0", "1", "2", "3"]
    for (_, shown), part in zip(parts, figures["parts"], strict=True):
        assert shown == {key: value for key, value in part.items() if key != "part"}
    (_, plan), (_, layerwise) = page.figures("summary-table")
    for key in ("max_work", "volume_bytes", "messages", "imbalance", "max_part_volume_bytes"):
        assert plan[key] == figures[key]
        assert layerwise[key] == figures[f"layerwise_{key}"]


def test_what_decides_what_counts_is_said(comparison, report):
    subject = "batch of 32 · 4 bytes per element · a linear layer is one task · inputs not counted"
    changes = {"bytes_per_element": 4, "linear": "layer", "input_vertex": False}
    html = comparison_page(dataclasses.replace(comparison, **changes))
    assert subject in html
    assert "not counted" not in comparison_page(comparison)
    assert subject in plan_page(changed(report, **changes))


def test_what_is_beyond_the_smallest_eps_is_hollow_grey_and_said():
    rows = [
        dataclasses.replace(make_outcome("coarse-kahypar", k, eps, 1), imbalance=imbalance)
        for k, eps, imbalance in ((2, 0.1, 0.05), (2, 0.3, 0.25), (4, 0.1, 0.1), (4, 0.3, 0.01))
    ]
    comparison = dataclasses.replace(make_comparison([], epss=(0.3, 0.1)), rows=tuple(rows))
    tight, loose = lines_figure(comparison, "step_bytes", "MB", 1).data
    assert [symbol.endswith("-open") for symbol in tight["marker"]["symbol"]] == [False, False]
    assert [symbol.endswith("-open") for symbol in loose["marker"]["symbol"]] == [True, False]
    assert loose["customdata"] == ["<br>beyond eps 0.1", ""]
    assert "%{customdata}" in loose["hovertemplate"]
    html = comparison_page(comparison)
    assert html.count('class="beyond"') == 1
    assert "Hollow points are beyond eps 0.1" in html
    names = [cells[0]["text"] for cells in Page(html).tables["comparison-table"][1:]]
    assert names == ["coarse-kahypar", "coarse-kahypar beyond eps 0.1", *["coarse-kahypar"] * 2]


def test_a_failed_row_and_a_batch_too_small_say_so():
    rows = (
        Failed("coarse-kahypar", 64, 0.1, "ran out of time"),
        dataclasses.replace(
            make_outcome("data-parallel", 64, None, 1), smallest_batch=64, batch_size=64
        ),
    )
    comparison = dataclasses.replace(make_comparison([]), rows=rows)
    failed, copies = Page(comparison_page(comparison)).tables["comparison-table"][1:]
    assert failed[-1]["text"] == "failed: ran out of time"
    cells = {cell["data-key"]: cell for cell in copies[1:]}
    assert cells["step_bytes"]["text"] == "-"
    assert "only 32 samples" in cells["step_bytes"]["title"]
    assert cells["epoch_bytes_batch_64"]["text"] != "-"
    assert lines_figure(comparison, "step_bytes", "MB", 1).data == []


def test_a_plan_says_where_it_differs_from_the_comparison(comparison, report):
    own = "This plan · batch of 32 · a linear layer is its neurons · the model's own element size"
    text = " ".join(Page(comparison_page(comparison, report)).text)
    assert own in text
    assert "eps 0.1 · by random, seed 0" in text
    assert "one to one" not in text
    other = changed(report, eps=0.3, batch_size=4)
    text = " ".join(Page(comparison_page(comparison, other)).text)
    assert "it has batch of 4, not batch of 32; eps 0.3, not 0.1." in text


def test_every_plot_is_an_image_with_a_name(comparison, report):
    html = comparison_page(comparison, report)
    plots = re.findall(r'<div class="plot"[^>]*>', html)
    plots += re.findall(r'<figure class="network"[^>]*>', html)
    assert len(plots) == 6
    assert all(re.search(r'role="img" aria-label="[^"]+"', plot) for plot in plots)


def test_a_comparison_without_a_usable_strategy_has_a_page():
    why = NotApplicable("layerwise", 9, None, "too few layers")
    for rows in ((), (why,)):
        comparison = dataclasses.replace(make_comparison([]), rows=rows)
        assert len(Page(comparison_page(comparison)).figures("comparison-table")) == len(rows)


@pytest.mark.full
def test_a_page_is_small(comparison, wide):
    """1.5 MB at most, up to 128 devices that all have something of each layer."""
    assert len(comparison_page(comparison).encode()) < 1_500_000
    assert len(plan_page(wide).encode()) < 1_500_000


def test_bundles_are_what_is_on_record():
    folder = files("hgpart.report.page") / "bundles"
    said = dict(
        re.findall(r"`([\w.-]+\.js)`.*`([0-9a-f]{64})`", (folder / "README.md").read_text())
    )
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".js"}
    assert said == {name: hashlib.sha256(code).hexdigest() for name, code in found.items()}


# ------------------------------------------------------------------ what is drawn


def test_plotly_knows_every_property_of_the_figures(comparison, report):
    loads = np.arange(9) + 1  # two parts of a colour
    nine = dataclasses.replace(report.partition.evaluation, loads=loads)
    for figure in (
        lines_figure(comparison, "step_bytes", "MB per step", 10**6),
        load_figure(report),
        load_figure(changed(report, k=9, evaluation=nine, layerwise=nine)),
        memory_figure([10**6] * 3, [10**9, None, 10**7], "MB"),
        load_figure(changed(report, speeds=(1.0, 1.0, 2.0, 4.0))),
        step_figure(make_schedule(halves(3), "zero-bubble", 3, EVEN), EVEN),
    ):
        plotly.graph_objects.Figure(figure.data, figure.layout)  # raises for any other


@pytest.mark.parametrize("epss", [(0.1,), (0.03, 0.1, 0.2)])
def test_lines_go_through_the_figures_and_look_different(epss):
    comparison = make_comparison(list(ways()), epss=epss)
    lines = lines_figure(comparison, "step_bytes", "MB", 10**6).data
    drawn = {
        (line["name"].split(",")[0], k, value)
        for line in lines
        for k, value in zip(line["x"], line["y"], strict=True)
    }
    assert drawn == {(row.strategy, row.k, row.step_bytes / 10**6) for row in comparison.outcomes}
    looks = {
        (
            line["line"]["color"],
            line["line"]["dash"],
            line["marker"]["symbol"][0].removesuffix("-open"),
        )
        for line in lines
    }
    assert len(looks) == len(lines)
    # Without colours, too.
    assert len({look[1:] for look in looks}) == len(lines)


def test_a_logarithmic_axis_has_no_zero():
    rows = [make_outcome("random", k, None, number) for k, number in ((1, 0), (2, 1), (4, 100))]
    comparison = dataclasses.replace(make_comparison([]), rows=tuple(rows))
    figure = lines_figure(comparison, "messages", "messages", 1)
    assert figure.layout["yaxis"]["type"] == "log"
    assert figure.data[0]["y"] == [None, 3, 300]


def test_an_axis_that_is_not_logarithmic_begins_at_0(comparison):
    load = lines_figure(comparison, "max_over_average", "max/avg load", 1).layout["yaxis"]
    assert (load["type"], load["rangemode"]) == ("linear", "tozero")
    sent = lines_figure(comparison, "step_bytes", "MB per step", 10**6).layout["yaxis"]
    assert sent["type"] == "log"
    assert sent["title"]["text"] == "MB per step (logarithmic)"


def test_bytes_and_seconds_stand_against_eps_where_there_are_several(comparison):
    drawn = drawn_on(comparison_page(comparison))["figures"]
    assert set(drawn) == {"step-bytes", "step-seconds", "max-over-average"}
    several = make_comparison(["coarse", "fine", "random"], epss=(0.2, 0.03, 0.1))
    drawn = drawn_on(comparison_page(several))["figures"]
    for name, attribute, size in (
        ("bytes-eps", "step_bytes", 10**6),
        ("seconds-eps", "step_seconds", 1),
    ):
        assert drawn[name]["layout"]["xaxis"]["ticktext"] == ["0.03", "0.1", "0.2"]
        assert [line["name"] for line in drawn[name]["data"]] == ["coarse", "fine"]
        for line in drawn[name]["data"]:
            assert line["x"] == [0.03, 0.1, 0.2]
            assert line["y"] == [
                getattr(row, attribute) / size
                for eps in line["x"]
                for row in several.outcomes
                if (row.strategy, row.k, row.eps) == (line["name"], 8, eps)
            ]
        plotly.graph_objects.Figure(drawn[name]["data"], drawn[name]["layout"])


def test_seconds_stand_against_k_where_they_are_known(comparison):
    drawn = drawn_on(comparison_page(comparison))["figures"]["step-seconds"]["data"]
    lines = {line["name"]: line["y"] for line in drawn}
    assert lines["random"] == [None] * len(KS)
    assert lines["data-parallel"] == [
        row.step_seconds for row in comparison.outcomes if row.strategy == "data-parallel"
    ]
    rows = tuple(dataclasses.replace(row, step_seconds=None) for row in comparison.outcomes)
    page = comparison_page(dataclasses.replace(comparison, rows=rows))
    assert "step-seconds" not in drawn_on(page)["figures"]


def test_a_chart_begins_with_eight_lines(comparison):
    lines = lines_figure(comparison, "step_bytes", "MB", 10**6).data
    shown = {line["name"] for line in lines if line["visible"] is True}
    ranked = sorted(
        (row.step_bytes, row.strategy) for row in comparison.outcomes if row.k == max(KS)
    )
    assert shown == {name for _, name in ranked[:MOST_LINES]}
    assert {line["visible"] for line in lines} == {True, "legendonly"}


def test_grids_are_the_records(report):
    drawn = traffic_grid(report, "MB")
    assert drawn.rows == drawn.columns == ["0", "1", "2", "3"]
    traffic, messages = report.partition.evaluation.traffic, report.partition.evaluation.messages
    for row, cells in enumerate(drawn.cells):
        assert [cell[0] for cell in cells] == np.flatnonzero(traffic[row]).tolist()
        for column, shade, figure, details in cells:
            assert figure == f"{traffic[row, column] / 1e6:,.3g}"
            assert details == f"{messages[row, column]:,} messages"
            assert shade == max(1, round(100 * traffic[row, column] / traffic.max()))

    drawn = layer_grid(report)
    assert drawn.rows[1] == "layer<0>&"
    assert len(drawn.rows) == 7  # with the input and the output
    layers = report.partition.shares.layer_work[1:6]
    for cells, work in zip(drawn.cells[1:6], layers, strict=True):
        expected = {at: 100 * work[at] / work.sum() for at in np.flatnonzero(work)}
        assert {at: float(figure) for at, _, figure, _ in cells} == pytest.approx(
            expected, rel=6e-3
        )


def test_what_has_no_room_is_taken_together(wide):
    drawn, work = layer_grid(wide), wide.partition.shares.layer_work
    assert sum(map(len, drawn.cells)) <= MOST_CELLS < np.count_nonzero(work)
    size = neighbours(work, (1,))
    assert drawn.columns == [f"{at}-{at + size - 1}" for at in range(0, 128, size)]
    expected = [100 * work[3][at : at + size].sum() / work[3].sum() for at in range(0, 128, size)]
    found = {at: float(figure) for at, _, figure, _ in drawn.cells[3]}
    assert [found.get(at, 0.0) for at in range(len(expected))] == pytest.approx(expected, rel=6e-3)
    traffic = traffic_grid(wide, "MB")
    assert (
        sum(map(len, traffic.cells))
        <= MOST_CELLS
        < np.count_nonzero(wide.partition.evaluation.traffic)
    )
    shown = sum(float(cell[2]) for cells in traffic.cells for cell in cells)
    assert shown == pytest.approx(wide.partition.evaluation.traffic.sum() / 1e6, rel=6e-3)


def test_the_smallest_shares_of_a_box_are_one(wide):
    work = wide.partition.shares.layer_work
    for box, own in zip(network(wide, "MB").boxes[1:-1], work[1:-1], strict=True):
        *shown, (others, rest) = [(part, width) for *_, width, _, part in box.tiles]
        assert (len(shown), others) == (MOST_SHARES - 1, OTHERS)
        assert [one for _, one in shown] == pytest.approx(
            [own[part] / own.sum() for part, _ in shown], abs=1e-4
        )
        smallest = min(own[part] for part, _ in shown)
        assert all(own[part] <= smallest for part in set(range(128)) - {part for part, _ in shown})
        assert rest == pytest.approx(1 - sum(one for _, one in shown), abs=1e-3)


@pytest.mark.full
@pytest.mark.long
def test_slices_that_have_no_room_are_left_out():
    assert slices_grid(make_report(layers=3, k=4, batch_size=8, slices=3)) is not None
    many = make_report(layers=150, k=16, batch_size=8, slices=4)
    assert slices_grid(many) is None
    assert "slices" not in drawn_on(plan_page(many))["grids"]


def test_the_network_is_the_records(report):
    """Bytes by the definition: a map goes once to each other part that has one of its readers."""
    drawn, k = network(report, "MB"), report.partition.k
    hypergraph, layers = report.partition.model.hypergraph, report.partition.model.vertex_layers
    sent, between = np.zeros(7, int), np.zeros((7, 7), int)
    for net, cost in enumerate(hypergraph.costs.tolist()):
        root, *readers = hypergraph.pins[slice(*hypergraph.pointers[net : net + 2])].tolist()
        away = {(layers[pin], report.partition.parts[pin]) for pin in readers}
        away -= {(layer, report.partition.parts[root]) for layer in range(7)}
        sent[layers[root]] += cost * len({part for _, part in away})
        for layer, _ in away:
            between[layers[root], layer] += cost
    assert sent.sum() == report.partition.evaluation.volume
    work = report.partition.shares.layer_work.sum(axis=1)
    for at, box in enumerate(drawn.boxes):
        assert box.name == report.partition.problem.graph.layers[at].name
        assert box.work == pytest.approx(work[at] / work.max(), abs=1e-4)
        assert sum(width for *_, width, _, _ in box.tiles) == pytest.approx(1, abs=1e-3 * k)
        sends, *shares = box.words
        megabytes = float(sends.removeprefix("sends ").removesuffix(" MB"))
        assert megabytes == pytest.approx(sent[at] / 1e6, rel=1e-3)
        assert len(shares) == len(box.tiles)
    for source, to, share, _ in drawn.edges:
        assert share == pytest.approx(between[source, to] / between.max(), abs=1e-4)
    assert {(source, to) for source, to, _, _ in drawn.edges} == {(at, at + 1) for at in range(6)}
    assert len(set(drawn.looks)) == k


class Dense(nn.Module):
    """Every layer reads the maps of all before it."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(4, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, maps):
        both = torch.cat([maps, self.left(maps)], 1)
        return torch.cat([both, self.right(both)], 1)


def test_a_map_that_several_layers_read_travels_once_to_each_part():
    """One line is thick, those to the other readers are thin."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Dense(), nn.Conv2d(12, 4, 1))
    graph = channel_graph(trace(model, torch.zeros(1, 3, 4, 4)))
    names = [layer.name for layer in graph.layers]
    first, *readers = map(names.index, ("0", "1.left", "1.right", "2"))
    modelling = Modelling()
    blocks = layer_blocks(modelling.views(graph))
    hypergraph = cnn_hypergraph(graph, flops(graph), blocks, modelling)
    parts = (hypergraph.vertex_layers > first).astype(np.int32)
    sent, between = traffic_of_layers(hypergraph, parts, 2)
    assert [between[first, reader] > 0 for reader in readers] == [True, False, False]
    assert between[first, readers[0]] == sent[first] == 32 * 4 * 16 * 4


def test_no_two_boxes_have_one_label():
    """Four layers of ResNet-50 were called 0.downsample.0."""
    stages = [f"layer{at}.{block}" for at in range(1, 5) for block in range(3)]
    names = ["conv1", *(f"{stage}.{conv}" for stage in stages for conv in ("conv1", "conv2"))]
    names += [f"layer{at}.0.downsample.0" for at in range(1, 5)]
    names += [f"a.very.long.name.of.{end}.module" for end in ("one", "another")]
    labels = labels_of(names)
    assert len(set(labels)) == len(names)
    assert labels[-6:-2] == [f"layer{at}…downsample.0" for at in range(1, 5)]
    assert labels[:2] == ["conv1", "layer1.0.conv1"]


def test_many_layers_are_drawn_by_their_modules():
    names = [f"stage.{cell}.conv{at}" for cell in range(200) for at in range(2)]
    boxes = grouped(["stem", *names])
    assert [len(box) for box in boxes] == [1, *[2] * 200]
    flat = grouped([f"conv{at}" for at in range(1000)])
    assert len(flat) <= MOST_BOXES
    assert [at for box in flat for at in box] == list(range(1000))


def test_memory_stands_against_its_limit(report):
    def memory_of(one):
        html = plan_page(one)
        return drawn_on(html)["figures"]["memory"]["data"], " ".join(Page(html).text)

    (needs,), said = memory_of(report)  # for Adam, where nothing was asked for
    shares = report.partition.shares
    assert needs["y"] == [
        one / 1e6 for one in (4 * shares.parameter_bytes + shares.activation_bytes).tolist()
    ]
    assert "4 copies of its parameters, and the feature maps" in said
    assert "No limit was asked for" in said
    limits = MemoryLimits((4000, 5000, 6000, 7000), copies=2)
    needed = limits.needed(report.partition.model, report.partition.parts)
    limited = changed(report, memory=limits, memory_bytes=needed)
    (needs, has), said = memory_of(limited)
    assert needs["y"] == [one / 1e6 for one in needed.tolist()]
    assert has["y"] == [one / 1e6 for one in (4000, *limits.bytes, 7000)]
    assert needs["marker"]["color"] == [part_colour(part) for part in range(4)]
    assert "2 copies of its parameters" in said


def test_a_limit_far_above_all_needs_does_not_crush_the_bars():
    far = memory_figure([100 * 10**6, 80 * 10**6], [12_600 * 10**6] * 2, "MB")
    assert far.layout["yaxis"]["range"] == [0, 125]
    assert far.layout["annotations"][0]["text"] == "↑ may have 12,600 MB, off the scale"
    near = memory_figure([100 * 10**6, 80 * 10**6], [200 * 10**6] * 2, "MB")
    assert "annotations" not in near.layout
    assert near.layout["yaxis"]["rangemode"] == "tozero"
    for figure in (far, near):
        plotly.graph_objects.Figure(figure.data, figure.layout)


@pytest.mark.parametrize("rule", RULES)
def test_the_picture_of_a_step_has_all_that_its_parts_do(rule, report):
    costs = Costs(work=1.0, message=0.25)
    planned = make_schedule(halves(3), rule, 3, costs)
    figure = step_figure(planned, costs)
    drawn = {part: set() for part in range(planned.k)}
    (lane,) = (look for look in figure.data if look["name"] == "planned")
    when = times(planned.outlines, planned.order, costs)
    columns = (lane[name] for name in ("y", "base", "x", "customdata"))
    for row, begin, length, (part, _, label, end) in zip(*columns, strict=True):
        assert row == part
        assert float(end) == pytest.approx(begin + length, rel=1e-3)
        letter, chunks = re.fullmatch(r"([FBMW]\d+)\.(\d+(?:-\d+)?)", label).groups()
        first, _, last = chunks.partition("-")
        drawn[part] |= {f"{letter}.{at}" for at in range(int(first), int(last or first) + 1)}
        did = [
            (1000 * start, 1000 * stop)
            for action, (start, stop) in zip(planned.order, when, strict=True)
            if action.part == part and begin - 1e-3 <= 1000 * start < begin + length - 1e-3
        ]
        assert sum(stop - start for start, stop in did) == pytest.approx(length, rel=1e-5)
    for part, sequence in enumerate(planned.sequences):  # but for chunks that take no time
        timed = {str(one) for one in sequence if costs.action(one, planned.chunk(one))}
        assert timed <= drawn[part] <= {*map(str, sequence)}
    boxes = zip(lane["customdata"], lane["marker"]["color"], strict=True)
    looks = {name: colour for (_, name, *_), colour in boxes}
    lightness = {luminance(colour) // 8 for colour in looks.values()}
    assert len(lightness) == len(looks) == len(figure.data) - 1  # each kind of box, in the legend
    html = plan_page(report, "MB", (planned, costs))
    assert 'id="step" role="img" aria-label="What each part does when' in html
    said = " ".join(Page(html).text)
    assert f"A step of training by {rule}, the batch in 3 micro-batches, simulated" in said


def luminance(colour):
    """Of Rec. 601, from 0 to 255."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return 0.299 * red + 0.587 * green + 0.114 * blue


# ------------------------------------------------------------------ in a browser


@pytest.mark.full
@in_a_browser
def test_a_broken_page_is_seen_to_be_broken(comparison, tmp_path):
    html = comparison_page(comparison).replace('id="max-over-average"', 'id="elsewhere"')
    _, problems, _ = browse(html, tmp_path, "return 0")
    assert any("max-over-average" in problem for problem in problems)


@pytest.mark.full
@in_a_browser
def test_a_comparison_in_a_browser(comparison, report, tmp_path):
    script = (
        PLOTS
        + """
        const shown = () => [...document.querySelectorAll("#comparison-table tbody tr")]
          .filter((row) => row.checkVisibility())
          .map((row) => [row.cells[0].firstChild.textContent, row.dataset.k]);
        const heading = (text) =>
          [...document.querySelectorAll("#comparison-table thead button")]
            .find((button) => button.textContent.startsWith(text));
        const choice = (k) => document.querySelector(`.choice button[data-k="${k}"]`);
        const pointed = document.getElementById("layers").tBodies[0].rows[3].cells[3].title;
        const result = { plots, grids, boxes, eight: shown(), pointed };
        choice("128").click();
        heading("sent a step").click();
        result.ascending = shown();
        heading("sent a step").click();
        result.descending = shown();
        result.sort = heading("sent a step").parentNode.ariaSort;
        heading("strategy").click();
        result.named = shown();
        choice("all").click();
        heading("k").click();
        result.all = shown();
        return result;
        """
    )
    html = comparison_page(comparison, report)
    seen, problems, page = browse(html, tmp_path, script, "--window-size=1400,900")
    assert problems == []
    buttons = {button.lower() for plot in seen["plots"].values() for button in plot["buttons"]}
    assert buttons == {"download plot as a png", "zoom", "pan", "reset axes"}  # none that shares
    assert seen["plots"]["step-bytes"]["lines"] == MOST_LINES
    assert seen["plots"]["max-over-average"]["lines"] == MOST_LINES
    assert seen["plots"]["load"]["bars"] == 2 * 4
    assert seen["boxes"] == 7
    assert seen["grids"]["traffic"]["filled"] == (report.partition.evaluation.traffic > 0).sum()
    assert [text for text in seen["grids"]["layers"]["rows"] if "&" in text] == [
        f"layer<{at}>&" for at in range(5)
    ]

    part = report.partition.shares.layer_work[3][2] / report.partition.shares.layer_work[3].sum()
    tasks = report.partition.shares.layer_tasks[3][2]
    assert seen["pointed"] == (f"layer<2>&, part 2: {100 * part:.3g} % of the layer, {tasks} tasks")

    names = list(ways())
    assert seen["eight"] == [[name, "8"] for name in names]
    of_128 = [row for row in comparison.outcomes if row.k == 128]
    ranked = [row.strategy for row in sorted(of_128, key=lambda row: row.step_bytes)]
    assert seen["ascending"] == [[name, "128"] for name in (*ranked, "layerwise")]
    assert seen["descending"] == [[name, "128"] for name in (*ranked[::-1], "layerwise")]
    assert seen["sort"] == "descending"
    assert [name for name, _ in seen["named"]] == sorted(names)
    assert [int(k) for _, k in seen["all"]] == sorted(row.k for row in comparison.rows)

    # Whatever was clicked, every figure is still that of the JSON.
    rows = tuple(sorted(comparison.rows, key=lambda row: (row.k, row.strategy)))
    check_comparison_table(page, dataclasses.replace(comparison, rows=rows))


@pytest.mark.full
@in_a_browser
@pytest.mark.parametrize(("theme", "background"), [(1, "#ffffff"), (0, "#14171b")])
def test_a_large_plan_in_a_narrow_window(theme, background, large, tmp_path):
    script = (
        PLOTS
        + """
        const body = getComputedStyle(document.body).backgroundColor;
        const root = document.documentElement;
        const summary = document.getElementById("summary-table");
        const cut = summary.scrollWidth - summary.parentNode.clientWidth;
        const overflow = root.scrollWidth - root.clientWidth;
        const numbers = document.querySelectorAll(".network .number").length;
        return { plots, grids, boxes, body, cut, overflow, numbers };
        """
    )
    seen, problems, page = browse(
        plan_page(large),
        tmp_path,
        script,
        "--window-size=500,900",
        f"--blink-settings=preferredColorScheme={theme}",
    )
    assert problems == []
    assert seen["overflow"] <= 0  # what is wide scrolls by itself
    assert seen["cut"] <= 0
    assert seen["numbers"] >= 200  # shares with room for it say whose they are
    assert len(page.figures("parts-table")) == 128
    assert {plot["background"] for plot in seen["plots"].values()} == {background}
    red, green, blue = (int(background[at : at + 2], 16) for at in (1, 3, 5))
    assert seen["body"] == f"rgb({red}, {green}, {blue})"
    assert len(seen["grids"]["layers"]["rows"]) == seen["boxes"] == 202
    assert seen["plots"]["load"]["bars"] == 2 * 128


@pytest.fixture(scope="module")
def wide():
    """Every device has something of every layer, but for its ends."""
    return make_report(layers=40, k=128, channels=512)


@pytest.fixture(scope="module")
def large():
    return make_report(layers=200, k=128)
