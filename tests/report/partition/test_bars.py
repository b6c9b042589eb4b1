"""Bars of a terminal are the shares of the record, in letters or in colours."""

from __future__ import annotations

import io
import re
from collections import Counter

import numpy as np
import pytest
import torch
from random_reports import make_report
from torch import nn

from hgpart.partitioned_model import partition_model
from hgpart.report.page.drawing.network import network
from hgpart.report.partition.bars import MOST_ROWS, SYMBOLS, print_bars, rows
from hgpart.report.partition.looks import part_colour
from hgpart.report.partition.record import Report, work_of_layer
from hgpart.terminal import PlainConsole


def printed(report: Report, **options: object) -> list[str]:
    text = io.StringIO()
    print_bars(report, PlainConsole(file=text, **{"width": 80, **options}))
    return text.getvalue().splitlines()


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(layers=5, k=4, channels=16)


def test_characters_are_shares_of_layers(report: Report) -> None:
    title, *lines = printed(report)
    assert title == "Layers: share of the work, and the devices 0 to 3 that do it"
    work = report.partition.shares.layer_work[1:6]  # without input and output, which have none
    assert len(lines) == 5
    for at, (line, own) in enumerate(zip(lines, work, strict=True)):
        assert len(line) == 80
        name, share, bar = re.fullmatch(r"(\S+) +([\d.]+) % (\d+)", line).groups()
        assert name == f"layer<{at}>&"
        assert float(share) == pytest.approx(100 * own.sum() / work.sum(), abs=0.06)
        assert bar == "".join(sorted(bar))
        for part, mine in enumerate(own / own.sum()):
            assert bar.count(str(part)) == pytest.approx(mine * len(bar), abs=1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.b(self.a(x)))


def test_a_layer_that_is_used_twice_counts_once_each_time() -> None:
    """Each of its uses was as long as all of them."""
    result = partition_model(Twice(), torch.zeros(2, 3, 8, 8), k=2)
    one = Report(result.partition, "twice", (3, 8, 8), result.layerwise, {})
    work = {view.layer.name: work_of_layer(one, view).sum() for view in one.partition.model.views}
    macs = {layer.name: layer.macs * layer.tasks for layer in result.graph.layers}
    assert sum(macs.values()) == (3 + 8 + 8) * 8 * 9 * 64
    for name, own in macs.items():
        assert work[name] / sum(work.values()) == pytest.approx(own / sum(macs.values()))
    assert sum(row.work for row in rows(one)) == pytest.approx(1)
    boxes = [box.work for box in network(one, "MB").boxes if box.work]
    assert boxes == pytest.approx([3 / 8, 1, 1], abs=1e-4)


def test_colours_are_those_of_the_parts_everywhere(report: Report) -> None:
    plain = printed(report)
    coloured = printed(report, force_terminal=True, color_system="truecolor")
    for line, other in zip(plain[1:], coloured[1:], strict=True):
        cells = Counter[str]()
        for red, green, blue, text in re.findall(r"48;2;(\d+);(\d+);(\d+)m([^\x1b]*)", other):
            colour = "#" + bytes(map(int, (red, green, blue))).hex()
            symbol = text.strip()
            assert colour == part_colour(SYMBOLS.index(symbol))
            cells[symbol] += len(text)
        assert cells == Counter(line.rpartition(" ")[2])


def test_no_colours_where_the_reader_wants_none(report: Report) -> None:
    plain = printed(report)
    refused = printed(report, force_terminal=True, color_system="truecolor", no_color=True)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in refused] == plain


@pytest.mark.parametrize(
    "width", [40, *(pytest.param(n, marks=pytest.mark.full) for n in (80, 200))]
)
def test_many_layers_are_few_lines_of_the_terminal(width: int) -> None:
    report = make_report(layers=40, k=4, channels=16)
    lines = [line for line in printed(report, width=width) if " % " in line]
    assert len(lines) == MOST_ROWS
    assert {len(line) for line in lines} == {min(80, width)}
    found = rows(report)
    assert sum(row.layers for row in found) == 40
    assert sum(row.work for row in found) == pytest.approx(1)
    work = report.partition.shares.layer_work[1:41]
    begin = 0
    for row in found:  # of neighbours, together
        own = work[begin : begin + row.layers].sum(axis=0)
        assert row.shares == pytest.approx(own / own.sum())
        begin += row.layers


def test_layers_that_lie_alike_are_one(report: Report) -> None:
    alike = make_report(layers=9, k=1)
    (row,) = rows(alike)
    assert (row.first, row.last, row.layers) == ("layer<0>&", "layer<8>&", 9)
    assert np.array_equal(row.shares, [1.0])


@pytest.mark.few(2)
@pytest.mark.parametrize(("k", "last"), [(32, "v"), (62, "Z"), (128, "Q")])
def test_every_device_has_a_symbol(k: int, last: str) -> None:
    report = make_report(layers=2, k=k, channels=512)
    bars = "".join(line.split()[-1] for line in printed(report, width=80)[1:] if " % " in line)
    assert set(bars) <= set(SYMBOLS[: SYMBOLS.index(last) + 1])
    assert len(set(bars)) > 20
