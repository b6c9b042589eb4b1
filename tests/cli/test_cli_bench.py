"""`hgpart bench`: ways on the clock, whatever becomes of one of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from progress_lines import without_progress

from hgpart.cli import run

TOY = """
import os, signal, time
import torch
from torch import nn

class Toy(nn.Sequential):
    def forward(self, images):
        if {trouble}:
            {happens}
        return super().forward(images)

def toy():
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
    return Toy(*layers, nn.Linear(64, 3)), (1, 8, 8)
"""
OF_RANK = 'os.environ.get("RANK") == "{}" and torch.is_grad_enabled()'


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """One thread a process, and not as if torchrun had started the tests."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RANK", raising=False)


def toy(folder: Path, happens: str = "pass", trouble: str = OF_RANK.format(1)) -> str:
    path = folder / "toy.py"
    path.write_text(TOY.replace("{happens}", happens).replace("{trouble}", trouble))
    return f"{path}:toy"


def bench(model: str, *arguments: object) -> int:
    return run(["bench", model, "--batch-size", "4", "--effort", "0", *map(str, arguments)])


def fails(capfd, status, said, code):
    """The command failed with one line that says it, before any process was started."""
    assert code == status
    out, err = capfd.readouterr()
    assert err.startswith("hgpart: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert out == ""


@pytest.mark.full
@pytest.mark.long
def test_a_table_and_files_of_ways_in_turns_and_further_rounds(tmp_path, capfd):
    model, ways = toy(tmp_path), "single,ddp,ps-sync:distributed,horizontal:1f1b:2"
    files = [str(tmp_path / name) for name in ("b.json", "b.csv", "b.html")]
    options = ["--json", files[0], "--csv", files[1], "--html", files[2], "--steps", 2]
    assert bench(model, "--ways", ways, "--rounds", 1, *options) == 0
    out, err = capfd.readouterr()
    assert without_progress(err) == ""
    for way in ways.split(","):
        assert f"\n{way} " in out
    assert "speed-up: over single, one process of 1 thread;" in out
    first = json.loads(Path(files[0]).read_text())
    assert [row["way"] for row in first["rows"]] == ways.split(",")
    assert "torch" in first["machine"]
    for row in first["rows"]:
        assert len(row["seconds"]) == 2
        assert len(row["losses"]) == 4
        assert row["losses"] == pytest.approx(first["rows"][0]["losses"], rel=1e-4)
        assert row["speed_up"] == pytest.approx(
            first["rows"][0]["median_seconds"] / row["median_seconds"]
        )
        assert 0 < row["busy_share"] <= 1
    assert Path(files[1]).read_text().startswith("way,rounds,median_seconds,")
    page = Path(files[2]).read_text()
    assert all(way in page for way in ways.split(","))

    assert bench(model, "--ways", "ddp", "--rounds", 2, "--resume", *options) == 0
    second = json.loads(Path(files[0]).read_text())
    assert second["rows"][0]["way"] == "ddp"
    found = {row["way"]: row for row in second["rows"]}
    for row in first["rows"]:
        seconds = found[row["way"]]["seconds"]
        assert seconds[:2] == row["seconds"]
        assert len(seconds) == (4 if row["way"] == "ddp" else 2)
    _, err = capfd.readouterr()
    assert re.search(r"^hgpart: ddp: .* s a step, .*, turn 2 of 2 \(\d+ s\)$", err, re.MULTILINE)

    fails(
        *(capfd, 12, "can't be resumed: its steps is 2, this one's 3"),
        bench(model, "--ways", "ddp", "--resume", "--json", files[0], "--steps", 3),
    )
    assert bench(model, "--ways", ways, "--rounds", 3, "--time-limit", 1e-3, *options[:2]) == 0
    assert "11 turns left out, as the time was up; --json FILE --resume goes on" in (
        " ".join(capfd.readouterr().out.split())
    )


@pytest.mark.full
def test_passes_forward_one_at_a_time(tmp_path, capfd):
    file, page = tmp_path / "b.json", tmp_path / "b.html"
    options = ["--steps", 3, "--rounds", 1, "--json", file, "--html", page]
    ways = ["spatial", "fused-tiles"]
    assert bench(toy(tmp_path), "--inference", "--ways", ",".join(ways), *options) == 0
    out, err = capfd.readouterr()
    assert without_progress(err) == ""
    assert "Passes forward" in out
    assert "fused-tiles: 2 of 3 layers fused, to 2, in 2 bands; " in out
    rows = json.loads(file.read_text())["rows"]
    assert [row["way"] for row in rows] == ways
    for row in rows:
        assert row["passes"] == len(row["seconds"]) == 3
        assert row["p50_seconds"] <= row["p90_seconds"] <= row["p99_seconds"]
        assert row["losses"] == pytest.approx([rows[0]["losses"][0]] * 5, rel=1e-5)
    assert rows[1]["sent_bytes"] == 4 * 4 * 2 * 4 * 4  # floats: samples, channels, rows, columns
    assert "Seconds a pass" in page.read_text()


@pytest.mark.full
def test_a_way_whose_process_dies_has_a_reason_and_the_others_go_on(tmp_path, capfd):
    model = toy(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    options = ["--ways", "ddp,single", "--steps", 1, "--rounds", 1, "--json", tmp_path / "b.json"]
    assert bench(model, *options) == 14
    out, err = capfd.readouterr()
    assert "ddp failed: rank 1 was ended by SIGKILL" in out
    assert "\nsingle " in out
    said = "hgpart: error: ddp failed, the others are measured; --resume tries again\n"
    assert without_progress(err) == said
    assert re.search(r"^hgpart: ddp failed: rank 1 was ended by SIGKILL.* \(\d+ s\)$", err, re.M)
    rows = {row["way"]: row for row in json.loads((tmp_path / "b.json").read_text())["rows"]}
    assert rows["ddp"]["failed"] is True
    assert rows["single"]["rounds"] == 1

    toy(tmp_path)  # the same model, and no trouble any more
    assert bench(model, *options, "--resume") == 0
    rows = {row["way"]: row for row in json.loads((tmp_path / "b.json").read_text())["rows"]}
    assert [row["rounds"] for row in rows.values()] == [1, 1]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "rank"), [("single", 0), ("ddp", 1), ("ps-async", 1), ("horizontal", 1)]
)
def test_a_process_that_hangs_is_that_ways_affair(tmp_path, capfd, way, rank):
    model = toy(tmp_path, "time.sleep(600)", OF_RANK.format(rank))
    assert bench(model, "--ways", way, "--rounds", 1, "--timeout", 2) == 14
    out, err = capfd.readouterr()
    assert f"{way} failed: rank" in out
    assert without_progress(err) == f"hgpart: error: {way} failed, the others are measured\n"
    if way == "single":
        assert "rank 0 had not " in out
        assert " in 2 s, the timeout" in out


@pytest.mark.full
def test_a_process_that_raises_says_what(tmp_path, capfd):
    model = toy(tmp_path, "raise KeyError('no such thing')")
    assert bench(model, "--ways", "ddp", "--rounds", 1) == 14
    out, _ = capfd.readouterr()
    assert "ddp failed: rank 1: KeyError: 'no such thing'" in out


WIDE = """
from torch import nn

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, images):
        first = self.first(images).tanh()
        return (self.third(self.second(first)) + first).mean((2, 3))

def wide():
    return Wide(), (4, 8, 8)
"""


@pytest.mark.full
def test_a_way_that_the_model_has_no_use_for_says_why(tmp_path, capfd):
    (tmp_path / "wide.py").write_text(WIDE)
    model, ways = f"{tmp_path / 'wide.py'}:wide", "one-weird-trick,pipeline-gpipe:3,single"
    options = ["--processes", 3, "--batch-size", 6, "--steps", 1, "--rounds", 1]
    assert bench(model, "--ways", ways, *options) == 0
    out, _ = capfd.readouterr()
    assert "one-weird-trick can't be used: the model does not end in linear layers" in out
    assert "pipeline-gpipe:3 can't be used: 2 stages (submod_pp_1, submod_pp_2) read one" in out
    assert "\nsingle " in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ways", "dpd"], "PLAN.json; did you mean ddp?"),
        (["--processes", 1], "--processes 1: accepted are 2 to 64"),
        (["--processes", "two"], "--processes two: accepted is a whole number, at least 2"),
        (["--ways", "ddp", "--processes", 3], "accepted are batches of a multiple of 3"),
        (["--ways", "layerwise", "--processes", 4], "4 devices, but only 3 layers that compute"),
        (["--ways", "hybrid-3"], "2 devices for 3 replicas: accepted are data-parallel"),
        (["--ways", "single,ddp", "--inference"], "ddp trains: accepted with --inference are"),
        (
            ["--ways", "fused-tiles"],
            "fused-tiles runs passes forward: accepted is with --inference",
        ),
        (["--inference", "--data", "digits"], "--data digits with --inference: accepted are"),
        (
            ["--inference", "--data", "digits", "--until", 0.9],
            "--until 0.9 with --inference: accepted is one of them",
        ),
        (["--steps", 0], "--steps 0: accepted is 1 or more"),
        (["--rounds", 0], "--rounds 0: accepted is 1 or more"),
        (["--time-limit", 0], "--time-limit 0.0: accepted is more than 0 s"),
        (["--until", 0.9], "accepted are --data digits"),
        (["--until", "0.9,epochs=0", "--data", "digits"], "accepted are 1 epoch or more"),
        (
            ["--until", 0.9, "--data", "digits", "--steps", 3],
            "--steps 3 with --until 0.9, for which each",
        ),
        (["--until", 2, "--data", "digits"], "--until 2: accepted is a number above 0"),
        (["--data", "cifar"], "data 'cifar': accepted are synthetic, digits"),
        (["--lr", "nan"], "--lr nan: accepted"),
        (["--timeout", 0], "timeout is 0 s, expected more than 0"),
        (["--resume"], "--resume needs --json FILE"),
        (["--unit", "kB"], "unit 'kB': accepted are MB"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, capfd, monkeypatch, arguments, said):
    def none(*_):
        raise AssertionError("a process was to be started")

    monkeypatch.setattr("hgpart.bench.session.Session.__init__", none)
    fails(capfd, 3, said, bench(toy(tmp_path), *arguments))


@pytest.mark.full
@pytest.mark.long
def test_ways_to_an_accuracy(tmp_path, capfd):
    files = [str(tmp_path / name) for name in ("r.json", "r.csv", "r.html")]
    options = ["--data", "digits", "--until", "0.5,epochs=3", "--lr", 0.3, "--json", files[0]]
    options += ["--csv", files[1], "--html", files[2], "--ways", "single,ddp,horizontal:async"]
    model = toy(tmp_path).replace(":toy", ":ten")
    path = Path(model.rpartition(":")[0])
    path.write_text(path.read_text().replace("def toy", "def ten").replace("64, 3)", "64, 10)"))
    assert run(["bench", model, "--batch-size", "64", "--effort", "0", *map(str, options)]) == 0
    out, err = capfd.readouterr()
    assert without_progress(err) == ""
    rows = {row["way"]: row for row in json.loads(Path(files[0]).read_text())["rows"]}
    points = [rows[way]["points"] for way in ("single", "ddp")]
    for plain, other in zip(*points, strict=True):
        assert plain[0] == other[0]  # steps
        assert plain[2:] == pytest.approx(other[2:], abs=2e-2)  # loss and accuracy
    assert rows["single"]["reached"] is True
    assert out.count("50 % of the test samples") == 2
    assert Path(files[1]).read_text().startswith("way,epoch,steps,seconds,loss,accuracy,why\n")
    assert "horizontal:async" in Path(files[2]).read_text()
    again = [*map(str, options), "--resume"]
    assert run(["bench", model, "--batch-size", "64", "--effort", "0", *again]) == 0
    assert rows == {row["way"]: row for row in json.loads(Path(files[0]).read_text())["rows"]}
