"""The benchmark suite: its nets, what is extrapolated, and where it goes on."""

from __future__ import annotations

import importlib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ASKED = Namespace(
    **{"only": "", "minutes": math.inf, "cell_seconds": 10.0, "rounds": 2, "steps": 1},
    retry=False,
)


@pytest.fixture
def suite() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("suite")
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "parameters", "sizes"),
    [
        # Parameters as the nets' source for CIFAR-10 has them; pixels a side of appendix A.
        ("cifar10_resnet18", 11_173_962, {"layer1": 32, "layer2": 16, "layer3": 8, "layer4": 4}),
        ("cifar10_resnet50", 23_520_842, {"layer1": 32, "layer4": 4}),
        ("cifar10_vgg16", 14_728_266, {"features": 1}),
        ("cifar10_mobilenet_v2", None, {"features.3": 32, "features.4": 16, "features": 4}),
        ("mnist_resnet18", None, {"layer1": 28, "layer2": 14, "layer3": 7, "layer4": 4}),
        ("mnist_vgg11", None, {"features.3": 14, "features": 1}),
        ("mnist_mobilenet_v2", None, {"features.3": 28, "features.7": 7, "features": 4}),
        ("tiny_imagenet_alexnet", None, {"features.0": 13, "features": 2}),
        ("dogs_vs_cats_alexnet", None, {"features.0": 31, "features": 4}),
    ],
)
def test_small_nets_have_the_maps_that_they_are_said_to_have(
    suite: ModuleType, name: str, parameters: int | None, sizes: dict[str, int]
) -> None:
    with torch.device("meta"):
        net, shape = getattr(importlib.import_module("suite_nets"), name)()
        found: dict[str, int] = {}
        for inner in sizes:
            net.get_submodule(inner).register_forward_hook(
                lambda _, __, result, inner=inner: found.update({inner: result.shape[-1]})
            )
        result = net(torch.empty(2, *shape))
    data = next(one for one in (*suite.DATA, *suite.ALEXNET_DATA) if name.startswith(one.name))
    assert (shape, found, result.shape) == (data.shape, sizes, (2, data.classes))
    assert parameters in (None, sum(one.numel() for one in net.parameters()))


def test_an_epoch_is_as_many_steps_as_its_images_fill(suite: ModuleType) -> None:
    run = next(run for run in suite.suite_runs("images") if run.name == "mnist/resnet18")
    cell = suite.Cell(run, "ddp", {"way": "ddp", "median_seconds": 0.5, "rounds": 2})
    assert suite.epoch_seconds(cell) == 0.5 * 70_000 / 32
    assert suite.epoch_seconds(suite.Cell(run, "ddp")) is None
    assert suite.speed_up(cell, [suite.Cell(run, "single", {"median_seconds": 0.8}), cell]) == 1.6


def test_all_cells_have_a_name_a_batch_that_all_share_and_images(suite: ModuleType) -> None:
    runs = [*suite.suite_runs("images")]
    assert len({run.name for run in runs}) == len(runs) == 4 * 6 + 2
    for run in runs:
        assert run.batch_size % 4 == 0  # micro-batches
        assert run.batch_size <= suite.WRITTEN // 2


FAKE = """
import json, sys, time
file, ways, turns = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
rows = [{"way": way, "median_seconds": 1.0, "rounds": turns} for way in ways if way != "bad"]
if turns:
    json.dump({"rows": rows}, open(file, "w"))
if "bad" in ways:
    sys.exit("hgpart: error: it is bad")
if not turns:
    time.sleep(60)
"""


def test_goes_on_where_it_stopped(
    suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_runs = importlib.import_module("bench_runs")
    turns, started = {"cheap": 2, "dear": 2, "endless": 0}, []

    def command(run, ways, file, asked):
        started.append((run.name, tuple(ways)))
        return [sys.executable, "-c", FAKE, str(file), ",".join(ways), str(turns[run.name])]

    monkeypatch.setattr(bench_runs, "command", command)
    dear = bench_runs.Run("dear", "net", ("a", "bad"), 8, cost=2.0)
    cheap = bench_runs.Run("cheap", "net", ("a", "b"), 8, cost=1.0)
    endless = bench_runs.Run("endless", "net", ("a", "b"), 8, cost=3.0)
    results = bench_runs.Results(tmp_path / "results")

    def go_on(runs, **changes):
        started.clear()
        bench_runs.run_all(runs, results, Namespace(**{**vars(ASKED), **changes}))
        return started

    assert go_on([dear, cheap], only="cheap/a$") == [("cheap", ("a",))]
    assert go_on([dear, cheap], minutes=0) == []
    assert go_on([dear, cheap], only="/(bad|a)$") == [("dear", ("a", "bad"))]
    assert [cell.reason for cell in results.cells(dear)] == [None, "it is bad"]
    assert go_on([dear, cheap], only="dear") == []
    assert go_on([dear, cheap], only="dear", retry=True) == [("dear", ("bad",))]
    assert go_on([endless], cell_seconds=0.1) == [("endless", ("a", "b"))]
    said = "no turn ended in 0.1 s"
    assert [cell.reason for cell in results.cells(endless)] == [said, None]  # b has not begun
    assert go_on([endless], cell_seconds=0.1) == [("endless", ("b",))]
    assert [cell.reason for cell in results.cells(endless)] == [said, said]
    assert go_on([endless], cell_seconds=0.1) == []
    starts = [json.loads(line) for line in (tmp_path / "results/runs.jsonl").open()]
    assert [(one["run"], one["over"]) for one in starts][-1] == ("endless", 0.1)


@pytest.mark.parametrize(
    ("row", "spent", "over", "why", "left", "again"),
    [
        (None, 0.0, 0.0, None, 10.0, 10.0),
        ({"rounds": 1}, 4.0, 0.0, None, 6.0, 6.0),
        ({"rounds": 2}, 4.0, 0.0, None, 0.0, 0.0),
        ({"rounds": 1}, 9.0, 10.0, None, 0.0, 0.0),  # its time was over
        ({"rounds": 1}, 5.0, 5.0, None, 5.0, 5.0),  # a shorter time was
        (None, 11.0, 10.0, None, 0.0, 10.0),
        (None, 3.0, 0.0, "no memory", 0.0, 10.0),
        ({"why": "died", "failed": True}, 3.0, 0.0, None, 0.0, 10.0),
        ({"why": "can't", "failed": False}, 3.0, 0.0, None, 0.0, 0.0),
    ],
)
def test_seconds_that_a_cell_may_still_have(
    suite: ModuleType, row, spent: float, over: float, why: str | None, left: float, again: float
) -> None:
    run = next(suite.suite_runs("images"))
    cell = suite.Cell(run, "ddp", row, spent, over, why)
    assert cell.left(ASKED) == left
    assert cell.left(Namespace(**{**vars(ASKED), "retry": True})) == again


def test_a_way_that_failed_in_a_later_turn_is_not_tried_again(
    suite: ModuleType,
) -> None:
    runs = importlib.import_module("bench_runs")
    run = runs.Run("mnist/toy", "toy", ("ddp",), 4, 1.0)
    row = {"rounds": 1, "median_seconds": 2.0, "ended": "rank 1 was ended by SIGKILL"}
    cell = runs.Cell(run, "ddp", row, spent=1.0)
    assert (cell.median, cell.reason) == (2.0, row["ended"])
    assert cell.left(ASKED) == 0.0
    assert cell.left(Namespace(**{**vars(ASKED), "retry": True})) == ASKED.cell_seconds
    assert runs.Cell(run, "ddp", {**row, "ended": None}, spent=1.0).left(ASKED) == 9.0
