"""A box shows, tile by tile, which part has which filters of which samples and rows."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import banded_graphs
import numpy as np
import pytest
from browser import Page, browse, in_a_browser
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hgpart.hypergraph.blocks import layer_blocks, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.report.page.drawing.boxes import MOST_TILES, LayerBox
from hgpart.report.page.drawing.network import network
from hgpart.report.page.plan import plan_page
from hgpart.report.partition.divided_layers import divided_layers
from hgpart.report.partition.printing import print_report
from hgpart.report.partition.record import Report
from hgpart.work.figures import flops

K = 3


def banded_report(seed: int, modelling: Modelling, whole_layers: bool = False) -> Report:
    """A small network in tiles, scattered at random by blocks of filters or whole layers."""
    graph = banded_graphs.graph_of(seed)
    problem = Problem(graph, flops(graph), modelling, K, 0.1)
    blocks = (
        layer_blocks(modelling.views(graph)) if whole_layers else single_blocks(graph, modelling)
    )
    model = cnn_hypergraph(graph, problem.work, blocks, modelling)
    parts = banded_graphs.random_parts(model, seed)
    found = evaluated(problem, model, parts, seed=0, backend="random", start="random", bound=0)
    layerwise = evaluate_layerwise(graph, problem.work, modelling, K)
    return Report(found, "net", (3, 14, 10), layerwise, {"total": 1.0})


def shares_of_tiles(model: CnnHypergraph, parts: np.ndarray, at: int) -> np.ndarray:
    """Each part's share of the work of each tile, vertex by vertex; shape (slices, bands, K)."""
    view = model.views[at]
    shares = np.zeros((model.modelling.slices, view.bands, K))
    counts = np.zeros_like(shares)
    sizes = np.diff(model.blocks.rows[view.first])
    for vertex in range(model.vertices):
        slice_, within = divmod(vertex, model.slice_vertices)
        if model.vertex_layers[vertex] == view.first and computes(model, vertex):
            place = slice_, model.vertex_bands[within], parts[vertex]
            shares[place] += model.weights[vertex]
            counts[place] += sizes[model.vertex_rows[vertex]]
    for place in np.ndindex(shares.shape[:2]):
        if not shares[place].any():
            shares[place] = counts[place]
        shares[place] /= shares[place].sum()
    return shares


def computes(model: CnnHypergraph, vertex: int) -> bool:
    """Whether a vertex computes rows: what adds up partial sums does not."""
    is_sum = model.views[model.vertex_layers[vertex]].total is not None
    return not is_sum or bool(model.vertex_columns[vertex] >= 0)


def parts_of_tiles(model: CnnHypergraph, parts: np.ndarray, at: int) -> list[list[list[int]]]:
    """The part of each vertex of each tile of a layer: slice by slice, band by band."""
    owns = np.array(
        [
            layer == model.views[at].first and computes(model, vertex)
            for vertex, layer in enumerate(model.vertex_layers[: model.slice_vertices])
        ]
    )
    return [
        [own[owns & (model.vertex_bands == band)].tolist() for band in range(model.views[at].bands)]
        for own in parts.reshape(model.modelling.slices, -1)
    ]


def painted(box: LayerBox, slice_: int, band: int) -> np.ndarray:
    """The share of a tile of a box in the colour of each part."""
    shares = np.zeros(K)
    left, right = box.columns[slice_ : slice_ + 2]
    top, bottom = box.stripes[band : band + 2]
    for x, y, width, height, part in box.tiles:
        across = min(right, x + width) - max(left, x)
        if across > 0 and y <= (top + bottom) / 2 < y + height:
            shares[part] += across / (right - left)
    return shares


@settings(max_examples=8)
@given(st.integers(0, 2), banded_graphs.modellings())
def test_boxes_are_painted_by_the_parts_of_tiles(seed: int, modelling: Modelling) -> None:
    """All of a box, and each tile that lies as none beside it: such as do are drawn as one."""
    report = banded_report(seed, modelling)
    model, parts = report.partition.model, report.partition.parts
    shown = [view for view in model.views if view.exists]
    for view, box in zip(shown, network(report, "MB").boxes, strict=True):
        shares = shares_of_tiles(model, parts, view.at)
        assert len(box.columns) == modelling.slices + 1
        assert len(box.stripes) == view.bands + 1
        rows = [end - begin for begin, end in pairwise(view.cell_cuts)]
        assert np.diff(box.stripes) * view.cell_cuts[-1] == pytest.approx(rows, abs=0.01)
        assert np.diff(box.columns) * modelling.batch_size == pytest.approx(
            modelling.samples, abs=0.01
        )
        assert sum(w * h for _, _, w, h, _ in box.tiles) == pytest.approx(1, abs=5e-3)
        area = np.zeros(K)
        for _, _, width, height, part in box.tiles:
            area[part] += width * height
        sizes = np.outer(modelling.samples, rows) / (modelling.batch_size * view.cell_cuts[-1])
        assert area == pytest.approx(np.einsum("sb,sbk->k", sizes, shares), abs=5e-3)
        lies = parts_of_tiles(model, parts, view.at)
        for slice_, band in np.ndindex(shares.shape[:2]):
            beside = [lies[at][band] for at in (slice_ - 1, slice_ + 1) if 0 <= at < len(lies)]
            if lies[slice_][band] not in beside:
                assert painted(box, slice_, band) == pytest.approx(shares[slice_, band], abs=2e-3)


@given(st.integers(0, 2), banded_graphs.modellings())
def test_boxes_of_whole_layers_and_their_words(seed: int, modelling: Modelling) -> None:
    """Each tile is in one colour, and one line says whose its samples and rows are."""
    report = banded_report(seed, modelling, whole_layers=True)
    model, parts = report.partition.model, report.partition.parts
    shown = [view for view in model.views if view.exists]
    for view, box in zip(shown, network(report, "MB").boxes, strict=True):
        owners = shares_of_tiles(model, parts, view.at)
        for slice_, band in np.ndindex(owners.shape[:2]):
            assert painted(box, slice_, band) == pytest.approx(owners[slice_, band], abs=2e-3)
        by_row = np.repeat(owners.argmax(2), np.diff(view.cell_cuts), axis=1)
        by_sample = np.repeat(by_row, modelling.samples, axis=0)
        said = np.full_like(by_sample, -1)
        lines = [re.fullmatch(r"(.*?(?:samples?|rows?).*): part (\d)", line) for line in box.words]
        for line in filter(None, lines):
            where, part = line.groups()
            spans = dict(re.findall(r"(sample|row)s? ([\d-]+)", where))
            bounds = [
                [int(bound) for bound in spans.get(name, f"0-{count - 1}").split("-")]
                for name, count in (("sample", modelling.batch_size), ("row", view.cell_cuts[-1]))
            ]
            place = tuple(slice(span[0], span[-1] + 1) for span in bounds)
            assert (said[place] == -1).all()
            said[place] = int(part)
        if (owners == owners[:1, :1]).all():
            assert not any(lines)
        elif any(lines):
            assert (said == by_sample).all()
        else:
            assert len(box.tiles) > 12


def test_too_many_tiles_are_drawn_as_one() -> None:
    report = banded_report(1, Modelling(batch_size=16, slices=16, bands=8), whole_layers=True)
    boxes = network(report, "MB").boxes
    (box,) = (box for box in boxes if box.name == "third")
    assert box.columns == box.stripes == [0, 1]
    assert len(box.tiles) <= K
    count, rest = box.words[-1].split(" ", 1)
    assert int(count) > MOST_TILES
    assert rest == "tiles or groups of tiles, drawn as one"


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_bands_are_on_the_terminal_and_on_the_page(slices: int, training: bool) -> None:
    modelling = Modelling(batch_size=4, slices=slices, bands=3, training=training)
    report = banded_report(3, modelling, whole_layers=True)
    console = Console(width=1000)
    with console.capture() as printed:
        print_report(report, console, "MB")
    page = Page(plan_page(report))
    lines, text = printed.get().splitlines(), " ".join(page.text)
    borders = f"{report.border_bytes / 10**6:.4g} MB"
    (said,) = (line for line in lines if line.startswith("Of the maps forward, "))
    assert borders.rstrip(" MB0") in said
    assert said in text
    step = [line for line in lines if line.startswith("A step sends ")]
    assert bool(step) == training == ("step-table" in page.tables)
    if training:
        assert step[0] in text
        shown = dict(page.figures("step-table"))
        names = ("maps forward", "gradients", "statistics")
        volume = sum(shown[name]["volume"] for name in names)
        assert volume == report.partition.evaluation.volume
        assert "statistics of norms" in step[0]
        assert lines[0].endswith("each way per training step of 4 samples")
    told = [[cell["text"] for cell in row] for row in page.tables["divided-table"][1:]]
    expected = [
        [line.layers, line.divided, str(line.parts), line.who] for line in divided_layers(report)
    ]
    assert told == expected
    start = next(at for at, line in enumerate(lines) if line.startswith("layers "))
    assert [re.split(r"  +", line) for line in lines[start + 2 : start + 2 + len(told)]] == expected
    named = {line.divided for line in divided_layers(report)}
    assert named & ({"bands"} if slices == 1 else {"bands", "slices, bands"})


@pytest.mark.full
@in_a_browser
def test_boxes_in_a_browser(tmp_path: Path) -> None:
    """Rectangles and words are those of the records, and no line is cut off."""
    report = banded_report(3, Modelling(batch_size=4, slices=2, bands=3))
    script = """
      const picture = document.querySelector(".network > .wide > svg");
      const [left, top, width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
      const drawn = [...picture.querySelectorAll(".edge, .box > rect")].map((one) => one.getBBox());
      const inside = drawn.every((box) => box.x >= left && box.x + box.width <= left + width);
      const boxes = [...document.querySelectorAll(".network .box")].map((box) => ({
        words: box.querySelector("title").textContent.split("\\n"),
        tiles: box.querySelectorAll("rect:not(.outline)").length,
        cuts: box.querySelector(".cut").getAttribute("d").split("M").length - 1,
      }));
      return { inside, boxes };
    """
    seen, problems, _ = browse(plan_page(report), tmp_path, script, "--window-size=1400,900")
    assert problems == []
    assert seen["inside"]
    for shown, box in zip(seen["boxes"], network(report, "MB").boxes, strict=True):
        assert shown["words"] == [box.name, *box.words]
        assert shown["tiles"] == len(box.tiles)
        assert shown["cuts"] == len(box.columns) - 2 + len(box.stripes) - 2
