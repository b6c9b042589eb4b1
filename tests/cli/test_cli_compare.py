"""`hgpart compare` and `hgpart show`: what they write, how they go on, and how they end."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from comparisons import load_comparison
from progress_lines import without_progress

from hgpart.cli import run
from hgpart.compare.outcomes import Failed, NotApplicable
from hgpart.errors import BackendError

MODEL = """
from torch import nn

def net():
    head = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *head), (1, 16, 16)
"""
QUICK = "layerwise,horizontal,random,data-parallel,one-weird-trick"
LENET = ["compare", "lenet5", "--ways", QUICK]


def hgpart(*arguments):
    """Run a command that is to succeed."""
    assert run([str(argument) for argument in arguments]) == 0


@pytest.fixture
def net(tmp_path):
    """A model that takes images of any size."""
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    return f"{file}:net"


def fails(capsys, arguments, status, said):
    """The command fails with one line that says it."""
    assert run([str(argument) for argument in arguments]) == status
    out, err = capsys.readouterr()
    assert err.startswith("hgpart: error: ")
    assert err.count("\n") == 1
    assert said in err
    assert out == ""


def rows_of(path):
    """Rows without their seconds."""
    records = json.loads(path.read_text())["rows"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in records]


# ------------------------------------------------------------------ compare


@pytest.mark.full
@pytest.mark.long
def test_every_strategy_has_a_row_for_each_k(capsys, tmp_path):
    hgpart("compare", "lenet5", "--k", "2,40", "--slices", 2, "--json", tmp_path / "rows.json")
    out = capsys.readouterr().out
    found = load_comparison(tmp_path / "rows.json")
    assert [row.k for row in found.rows] == sorted(row.k for row in found.rows)
    by_k = [[row.strategy for row in found.rows if row.k == k] for k in (2, 40)]
    assert by_k[0] == by_k[1]
    assert len(by_k[0]) == len(set(by_k[0])) >= 12
    reasons = {row.strategy: row.why for row in found.rows if isinstance(row, NotApplicable)}
    assert reasons["layerwise"] == "40 devices, but only 5 layers that compute"
    for name in by_k[0]:
        assert f"\n{name} " in out
        assert reasons.get(name, "") in " ".join(out.split())


def test_json_csv_and_tables_have_the_same_figures(capsys, tmp_path):
    files = tmp_path / "rows.json", tmp_path / "rows.csv"
    hgpart(*LENET, "--k", 4, "--json", files[0], "--csv", files[1], "--unit", "MB", "--wide")
    out = capsys.readouterr().out
    shown = json.loads(files[0].read_text())
    assert out.startswith(shown["verdict"])
    with files[1].open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, shown["rows"], strict=True):
        assert {name: line[name] for name in row} == {
            name: "" if value is None else str(value) for name, value in row.items()
        }
        printed = next(text for text in out.splitlines() if text.startswith(row["strategy"] + " "))
        figures = [cell.rstrip("*!") for cell in printed.split()[1:]]
        assert float(figures[0]) == pytest.approx(row["step_bytes"] / 10**6, abs=5e-3)
        assert float(figures[1]) == pytest.approx(row["step_seconds"] * 1000, abs=5e-3)
        assert figures[2] == f"{row['max_over_average']:.2f}"
        assert figures[5] == f"{row['messages']:,}"


def test_where_nothing_is_balanced_the_eps_that_would_do_leads_on(capsys):
    """It ended without a word on what to do."""
    command = ["compare", "lenet5", "--k", "2", "--ways", "layerwise"]
    assert run(command) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    eps = re.fullmatch(r"Next: the same with --eps (\S+), the smallest that a way here meets", said)
    assert eps, said
    assert run([*command, "--eps", eps[1]]) == 0
    assert f"--eps {eps[1]} --way layerwise -o" in capsys.readouterr().out.splitlines()[-1]


def test_json_on_standard_output_is_all_that_is_printed_there(capsys):
    hgpart(*LENET, "--k", "2,3", "--json", "-")
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 10


def test_only_the_strategies_ks_and_eps_that_are_asked_for(tmp_path):
    file = tmp_path / "rows.json"
    hgpart(
        *("compare", "lenet5", "--ways", "random,coarse-kahypar", "--k", "3,2,3"),
        *("--eps", "0.2,0.3", "--batch-size", 8, "--modelling", "bytes-per-element=1,linear=layer"),
        *("--seed", 5, "--dataset-size", 100, "--json", file),
    )
    found = load_comparison(file)
    assert [(row.strategy, row.k, row.eps) for row in found.rows] == [
        *(("random", 3, None), ("coarse-kahypar", 3, 0.2), ("coarse-kahypar", 3, 0.3)),
        *(("random", 2, None), ("coarse-kahypar", 2, 0.2), ("coarse-kahypar", 2, 0.3)),
    ]
    assert (found.epss, found.seed, found.dataset_size) == ((0.2, 0.3), 5, 100)
    assert (found.batch_size, found.bytes_per_element, found.linear) == (8, 1, "layer")


@pytest.mark.full
@pytest.mark.long
def test_jobs_change_nothing_but_seconds(net, tmp_path):
    files = [tmp_path / name for name in "ab"]
    for jobs, file in enumerate(files, start=1):
        hgpart("compare", net, "--k", "2,3", "--jobs", jobs, "--json", file)
    assert rows_of(files[0]) == rows_of(files[1])


def test_resume_goes_on_from_the_rows_that_are_there(tmp_path):
    file = tmp_path / "rows.json"
    hgpart(*LENET, "--k", 2, "--json", file)
    before = load_comparison(file)
    hgpart(*LENET, "--k", "2,3", "--json", file, "--resume")
    after = load_comparison(file)
    assert after.rows[:5] == before.rows  # seconds too
    assert [row.k for row in after.rows] == [2] * 5 + [3] * 5
    # What was found before is not thrown away where less is asked for.
    hgpart(*LENET, "--k", 3, "--json", file, "--resume")
    fewer = load_comparison(file)
    assert [row.k for row in fewer.rows] == [3] * 5
    assert set(fewer.besides) == set(before.rows)
    assert set(fewer.rows) | set(fewer.besides) == set(after.rows)


@pytest.mark.full
def test_what_was_not_asked_for_now_is_kept_but_not_shown(capsys, tmp_path):
    file = tmp_path / "rows.json"
    job = ("compare", "lenet5", "--ways", "coarse-kahypar,layerwise", "--k", 2)
    hgpart(*job, "--eps", "0.5,0.2", "--json", file)
    capsys.readouterr()
    hgpart(*job, "--eps", "0.2", "--json", file, "--resume")
    out = capsys.readouterr().out
    found = load_comparison(file)
    assert (found.epss, [row.eps for row in found.besides]) == ((0.2,), [0.5])
    assert "(eps 0.2, batch 32)" in " ".join(out.split())
    assert out.count("\ncoarse-kahypar ") == 1
    assert "eps 0.2, seed 0" in " ".join(out.split())


def test_what_failed_is_kept_told_and_tried_again(capsys, monkeypatch, tmp_path):
    def fail(problem, seed):
        raise BackendError("ran out of time")

    file = tmp_path / "rows.json"
    job = [*LENET, "--k", "2", "--json", str(file)]
    with monkeypatch.context() as patch:
        patch.setattr("hgpart.partition.ways.built_in.random_parts", fail)
        assert run(job) == 9
    out, err = capsys.readouterr()
    assert "failed: ran out of time" in out
    assert err == "hgpart: error: 1 of 5 rows failed; --resume tries them again\n"
    before = load_comparison(file)
    assert before.failed == (Failed("random", 2, None, "ran out of time"),)
    assert len(before.outcomes) == 4  # the others went on
    hgpart(*job, "--resume")
    after = load_comparison(file)
    assert after.failed == ()
    assert set(before.outcomes) < set(after.outcomes)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(12, "Cannot allocate memory"), 1, "Cannot allocate memory"),
        (MemoryError(), 1, "out of memory"),
    ],
)
def test_only_standard_output_is_said_not_to_be_writable(error, status, said, capsys, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("hgpart.compare.comparison.check_grid", fail)
    fails(capsys, LENET, status, said)


def test_a_page_holds_the_rows_and_a_plan(tmp_path):
    page, plan = tmp_path / "page.html", tmp_path / "plan.json"
    hgpart("partition", "lenet5", "--k", 2, "--effort", 0, "-o", plan)
    hgpart(*LENET, "--k", 2, "--html", page, "--plan", plan)
    text = page.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "one-weird-trick" in text
    assert "lenet5 on 2 devices" in text


def test_measured_work_is_kept_and_compared(tmp_path):
    kept, file = tmp_path / "work.json", tmp_path / "rows.json"
    job = (*LENET, "--k", 2, "--batch-size", 2)
    hgpart(*job, "--work", f"profile,save={kept}")
    hgpart(*job, "--work", kept, "--json", file)
    assert load_comparison(file).work_source.startswith("profile cpu")
    hgpart(*job, "--work", kept, "--json", file, "--resume")


def test_slices_of_the_batch(tmp_path, capsys):
    file = tmp_path / "rows.json"
    job = ("compare", "lenet5", "--ways", "replicated-stages,layerwise", "--k", 2)
    hgpart(*job, "--slices", 4, "--json", file)
    stages, layers = load_comparison(file).rows
    assert (stages.smallest_batch, layers.smallest_batch) == (4, 1)
    assert load_comparison(file).slices == 4
    capsys.readouterr()
    fails(capsys, [*job, "--json", file, "--resume"], 12, "its slices is 4, this one's None")


MISTAKES = {
    "strategy": ([*LENET[:2], "--ways", "layer-wise"], 3, "did you mean layerwise"),
    "k is no number": ([*LENET, "--k", "two"], 2, "--k"),
    "k < 1": ([*LENET, "--k", "2,0"], 3, "k is 0"),
    "eps": ([*LENET, "--eps", "0.1,nan"], 3, "eps is nan"),
    "dataset size": ([*LENET, "--dataset-size", "0"], 3, "dataset size is 0"),
    "more slices than samples": ([*LENET, "--slices", "33"], 3, "from 1 to 32, for a batch of 32"),
    "slices": ([*LENET, "--slices", "2.5"], 2, "write a whole number, at least 1, or auto"),
    "jobs": ([*LENET, "--jobs", "0"], 3, "jobs is 0"),
    "unit": ([*LENET, "--unit", "mb"], 3, "MB, GB, MiB, GiB"),
    "resume without a file": ([*LENET, "--resume"], 3, "--json FILE"),
    "resume from standard output": ([*LENET, "--resume", "--json", "-"], 3, "--json FILE"),
    "plan without a page": ([*LENET, "--plan", "x"], 3, "--html FILE"),
    "no such plan": ([*LENET, "--html", "x", "--plan", "nowhere"], 6, "nowhere"),
    "one file for two": ([*LENET, "--json", "x", "--html", "x"], 3, "--json and --html"),
    "no such folder": ([*LENET, "--html", "nowhere/x"], 11, "nowhere"),
    "no plan to show": (["show", "nowhere"], 6, "nowhere"),
    "page is a folder": (["show", "nowhere", "--html", "."], 11, "folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_line(mistake, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(capsys, *MISTAKES[mistake])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_file_of_another_comparison_is_not_gone_on_from(net, capsys, tmp_path):
    file = tmp_path / "rows.json"
    job = ["compare", net, "--ways", "random", "--k", 2, "--json", file]
    hgpart(*job)
    before = file.read_text()
    capsys.readouterr()
    resumed = [*job, "--resume"]
    fails(capsys, [*resumed, "--seed", 1], 12, "its seed is 0")
    fails(capsys, [*resumed, "--input-shape", "1,18,18"], 12, "its fingerprint is")
    assert file.read_text() == before
    file.write_text(before[:300])
    fails(capsys, resumed, 6, "line")


# ------------------------------------------------------------------ interrupted


def test_an_interrupt_keeps_what_is_done(capsys, monkeypatch, tmp_path):
    """And does not wait for the strategy that is at work, in a thread."""
    ended, left = threading.Event(), []

    def stuck(problem, seed):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        left.append(ended.wait(60))
        sys.exit()

    job, files, options = job_and_files(tmp_path, jobs=1)
    with monkeypatch.context() as patch:
        patch.setattr("hgpart.partition.ways.built_in.random_parts", stuck)
        status = run([*job, *options])
        assert left == []
    ended.set()
    assert_kept(job, files, 2, status, *capsys.readouterr())


def job_and_files(folder, jobs):
    """A command, the files that it is to write, and its options that say so."""
    files = {name: folder / f"rows.{name}" for name in ("json", "csv", "html")}
    options = [text for name, file in files.items() for text in (f"--{name}", str(file))]
    return [*LENET, "--k", "2,3", "--jobs", str(jobs)], files, options


def assert_kept(job, files, count, status, out, err):
    """So many rows are in all files of an interrupted command, which goes on from there."""
    assert status == 130
    assert without_progress(err) == f"hgpart: interrupted with {count} of 10 rows done\n"
    done = load_comparison(files["json"])
    assert len(done.rows) == count
    assert len(files["csv"].read_text().splitlines()) == count + 1
    for shown in (out, files["html"].read_text()):
        assert "layerwise" in shown

    hgpart(*job, "--json", files["json"], "--resume")
    after = load_comparison(files["json"])
    assert len(after.rows) == 10
    assert set(done.rows) <= set(after.rows)


# A shell that runs the tests in the background has them ignore Ctrl-C, which children inherit.
STUCK = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from hgpart.partition.ways import built_in
from hgpart.cli import main

def stuck(problem, seed):
    open(f"{os.environ['STUCK']}{problem.k}", "w").close()
    time.sleep(600)

built_in.random_parts = stuck
main()
"""


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("jobs", "count"), [(1, 2), (2, 6)])
def test_an_interrupted_process_keeps_what_is_done(jobs, count, tmp_path):
    job, files, options = job_and_files(tmp_path, jobs)
    markers = [tmp_path / f"stuck{k}" for k in (2, 3)[:jobs]]
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, *job, *options],
        env={**os.environ, "STUCK": str(tmp_path / "stuck")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while child.poll() is None and not all(file.exists() for file in markers):
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert_kept(job, files, count, child.returncode, out, err)


@pytest.mark.full
@pytest.mark.long
def test_a_killed_process_leaves_the_rows_that_were_done(tmp_path):
    file = tmp_path / "rows.json"
    child = subprocess.Popen(
        [sys.executable, "-c", STUCK, *LENET, "--k", "2", "--jobs", "1", "--json", str(file)],
        env={**os.environ, "STUCK": str(tmp_path / "stuck")},
    )
    while child.poll() is None and not (tmp_path / "stuck2").exists():
        time.sleep(0.1)
    child.kill()
    assert child.wait(timeout=60) == -signal.SIGKILL
    assert [row.strategy for row in load_comparison(file).rows] == QUICK.split(",")[:2]


def test_an_interrupt_before_the_first_row_writes_nothing(capsys, monkeypatch, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("hgpart.compare.comparison.compare", interrupt)
    assert run([*LENET, "--json", str(tmp_path / "rows.json")]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hgpart: interrupted with 0 of 20 rows done\n")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ show


def without_seconds(path):
    figures = json.loads(path.read_text())
    del figures["seconds"]
    return figures


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.full),
        ["--modelling", "grain=fine", "--speeds", "1,1,2", "--seed", "3"],
        ["--modelling", "linear=layer,bytes-per-element=2", "--batch-size", "4", "--eps", "1"],
        ["--input-shape", "1,20,20", "--modelling", "input-vertex=no"],
    ],
)
def test_a_plan_shows_what_the_partition_showed(options, net, capsys, tmp_path):
    plan, first, second = (tmp_path / name for name in ("plan.json", "first", "second"))
    hgpart("partition", net, "--k", 3, "--effort", 0, *options, "-o", plan, "--json", first)
    lines = capsys.readouterr().out.splitlines(keepends=True)
    printed = "".join(line for line in lines if "--slices auto" not in line)  # what else to try
    hgpart("show", plan, "--model", net, "--json", second)
    again = capsys.readouterr().out
    assert without_seconds(first) == without_seconds(second)
    assert printed.rpartition("Wall seconds:")[0] == again.rpartition("Wall seconds:")[0] != ""


def test_a_plan_has_a_page_a_csv_and_units(capsys, tmp_path):
    plan, page, parts = (tmp_path / name for name in ("plan.json", "page.html", "parts.csv"))
    hgpart("partition", "lenet5", "--k", 2, "--effort", 0, "-o", plan)
    capsys.readouterr()
    hgpart("show", plan, "--unit", "MiB", "--html", page, "--csv", parts)
    assert "MiB" in capsys.readouterr().out
    assert "lenet5 on 2 devices" in page.read_text()
    assert len(parts.read_text().splitlines()) == 3
    hgpart("show", plan, "--json", "-")
    assert json.loads(capsys.readouterr().out)["k"] == 2


@pytest.mark.full
def test_a_plan_of_another_model_is_refused(net, capsys, tmp_path):
    plan = tmp_path / "plan.json"
    hgpart("partition", net, "--k", 2, "--effort", 0, "-o", plan)
    capsys.readouterr()
    page = tmp_path / "x.html"
    job = ["compare", "alexnet", "--ways", "random", "--html", page, "--plan", plan]
    fails(capsys, job, 12, f"the plan {plan} is for")
    text = plan.read_text()
    plan.write_text(text.replace('"input_shape": [1, 16, 16]', '"input_shape": [1, 18, 18]'))
    fails(capsys, ["show", plan, "--model", net], 12, "changed")
    plan.write_text(text[:200])
    fails(capsys, ["show", plan], 6, "line")
