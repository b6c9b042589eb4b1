"""What processes did -> rows and files."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from bench_settings import SETTINGS

from hgpart.bench.results import (
    Bench,
    Measured,
    NotRun,
    bench_csv,
    bench_json,
    measured,
    rows_done,
)
from hgpart.bench.ways.way import way_of
from hgpart.bench.ways.worker import Lap
from hgpart.errors import FormatError, PlanError
from hgpart.files.row_files import with_rows
from hgpart.report.benches import fastest

EMPTY = Bench(**SETTINGS, steps=2)
SINGLE = Measured("single", 1, (4.0, 2.0), (2.3, 2.2, 2.1), (0.5,), 0.0, (100,))
DDP = Measured("ddp", 1, (1.0, 1.0), (2.3, 2.2, 2.1), (0.5, 1.0), 64.0, (70, 80))
GONE = NotRun("fsdp", "rank 1 was ended by SIGKILL", failed=True)


def lap(begin: float, *ends: float, losses=(), cpu=0.0, sent=None) -> Lap:
    return Lap(begin, ends, losses, cpu, sent, peak_bytes=7)


def test_a_step_lasts_until_the_last_process_has_ended_it() -> None:
    warm_up = [lap(0.0, 1.0, losses=(9.0,)), lap(0.0, 1.0, losses=(1.0,))]
    timed = [
        lap(10.0, 11.0, 14.0, 15.0, losses=(3.0, 2.0, 1.0), cpu=3.5, sent=60),
        lap(9.0, 12.0, 13.0, 16.0, losses=(1.0, 1.0, 1.0), cpu=9.0, sent=90),
    ]
    row = measured(way_of("ddp"), warm_up, timed, threads=1)
    assert row.seconds == (2.0, 2.0)  # from 12, where the first ends, to 14 to 16
    assert row.losses == (10.0, 4.0, 3.0, 2.0)
    assert row.busy == (0.5, 1.0)  # of the seven from 9 to 16
    assert row.sent_bytes == 50.0
    assert row.peak_bytes == (7, 7)


def test_steps_that_fill_a_stream_and_those_that_are_left_do_not_count() -> None:
    timed = [lap(0.0, 5.0, 6.0, 7.0, 9.0, 9.5, losses=(1.0,) * 5, sent=10)]
    row = measured(way_of("coarse:async"), [], timed, threads=1)  # two in flight
    assert row.seconds == (1.0, 2.0)
    assert row.sent_bytes == 2.0  # of all five
    assert len(row.losses) == 5


def test_processes_that_do_not_wait_count_by_their_rates_and_a_server_not_at_all() -> None:
    timed = [
        lap(0.0, 5.0, 6.0, 7.0, losses=(1.0,) * 3),
        lap(0.0, 5.0, 8.0, 11.0, losses=(2.0,) * 3),
    ]
    row = measured(way_of("ps-async"), [], [*timed, lap(1.0, sent=None)], threads=2)
    assert row.seconds == (1.5, 1.5)  # half a batch a second, and half of one in three
    assert row.losses == (3.0, 3.0, 3.0)
    assert row.sent_bytes is None
    assert len(row.busy) == 3


def test_rounds_add_up() -> None:
    other = replace(DDP, seconds=(3.0, 3.0), busy=(1.0, 0.0), sent_bytes=None, peak_bytes=(90, 10))
    both = DDP.and_then(other)
    assert both.rounds == 2
    assert both.seconds == (1.0, 1.0, 3.0, 3.0)
    assert both.busy == (0.75, 0.5)
    assert both.sent_bytes is None
    assert both.peak_bytes == (90, 80)
    assert both.quartiles == (1.0, 2.0, 3.0)


def test_the_first_number_is_how_much_faster_than_one_process() -> None:
    limit = replace(DDP, way="apart", seconds=(0.9,))
    late = replace(DDP, way="fsdp", seconds=(1.5,))
    rows = {row.way: row for row in (SINGLE, DDP, limit, late)}
    assert fastest(with_rows(rows, [*rows], EMPTY)) == (
        "ddp: 3.00 times as fast as one process of 1 thread, 8.0 samples/s, 1.50 times fsdp, the "
        "next, 90 % of processes that never talk"
    )
    assert fastest(with_rows(rows, ["ddp"], EMPTY)) == (
        "ddp: 3.00 times as fast as one process of 1 thread, 8.0 samples/s"
    )
    assert fastest(with_rows(rows, ["apart"], EMPTY)) == "toy: no way could be measured"


def test_rows_that_were_disturbed_are_named_and_stay_so(tmp_path) -> None:
    disturbed = replace(DDP, disturbed="others ran")
    both = DDP.and_then(disturbed), disturbed.and_then(DDP)
    assert [row.disturbed for row in both] == ["others ran"] * 2
    bench = with_rows({row.way: row for row in (SINGLE, disturbed)}, ["single", "ddp"], EMPTY)
    said = "can't be trusted: others ran while they were measured; repeat on an idle machine"
    assert bench.caution == f"The figures of ddp {said}"
    assert replace(bench, rows=(disturbed,)).caution == f"These figures {said}"
    assert replace(bench, rows=(SINGLE,)).caution == ""
    (tmp_path / "bench.json").write_text(bench_json(bench))
    assert rows_done(tmp_path / "bench.json", EMPTY)["ddp"] == disturbed


def test_a_pass_lasts_from_its_first_begin_to_its_last_end(tmp_path) -> None:
    timed = [
        replace(lap(0.0, 2.0, 5.0, 9.0, losses=(0.5,) * 3, sent=6), begins=(1.0, 4.0, 8.0)),
        replace(lap(0.0, 3.0, 4.8, 9.5, sent=0), begins=(1.5, 4.5, 7.5)),
    ]
    warm_up = [replace(lap(0.0, 1.0, losses=(0.5,)), begins=(0.0,)), lap(0.0, 1.0)]
    row = measured(way_of("spatial"), warm_up, timed, threads=1)
    assert row.seconds == (1.0, 2.0)  # without the first
    assert row.losses == (0.5,) * 4
    assert row.sent_bytes == 2.0
    assert row.unit == "pass"
    assert [row.percentile(percent) for percent in (50, 90, 100)] == [1.5, 1.9, 2.0]
    row = replace(row, note="3 of 5 layers fused", repeated=0.1)
    bench = replace(EMPTY, inference=True)
    path = tmp_path / "bench.json"
    path.write_text(bench_json(with_rows({row.way: row}, ["spatial"], bench)))
    assert rows_done(path, bench) == {"spatial": row}
    record = json.loads(path.read_text())["rows"][0]
    assert (record["p90_seconds"], record["passes"], record["samples_per_second"]) == (
        1.9,
        2,
        8 / 1.5,
    )
    assert bench_csv(with_rows({row.way: row}, ["spatial"], bench)).splitlines()[0] == (
        "way,rounds,p50_seconds,p90_seconds,p99_seconds,samples_per_second,speed_up,busy_share,"
        "waiting_share,sent_bytes,largest_peak_bytes,all_peak_bytes,passes,repeated,ended,why"
    )
    with pytest.raises(PlanError, match="its inference is True, this one's False"):
        rows_done(path, EMPTY)


def test_in_inference_replicas_are_a_way_like_others() -> None:
    """In training they are a limit, as they train several models."""
    fast = replace(SINGLE, way="apart", seconds=(1.0,))
    rows = with_rows({row.way: row for row in (SINGLE, fast)}, ["single", "apart"], EMPTY)
    assert fastest(rows).startswith("single: ")
    assert fastest(replace(rows, inference=True)).startswith("apart: 3.00 times as fast as one")


def test_csv_has_a_line_a_way_and_these_columns() -> None:
    bench = with_rows(
        {row.way: row for row in (GONE, DDP, SINGLE)}, ["single", "ddp", "fsdp"], EMPTY
    )
    lines = [*csv.DictReader(io.StringIO(bench_csv(bench)))]
    assert bench_csv(bench).splitlines()[0] == (
        "way,rounds,median_seconds,lower_seconds,upper_seconds,samples_per_second,speed_up,"
        "busy_share,waiting_share,sent_bytes,largest_peak_bytes,all_peak_bytes,first_loss,"
        "last_loss,ended,why"
    )
    assert [line["way"] for line in lines] == ["single", "ddp", "fsdp"]
    assert bench_csv(bench).splitlines()[2] == (
        "ddp,1,1.0,1.0,1.0,8.0,3.0,0.75,0.25,64.0,80,150,2.3,2.1,,"
    )
    assert lines[2]["why"] == GONE.why
    assert lines[2]["median_seconds"] == ""


def test_a_file_holds_what_can_be_gone_on_from(tmp_path) -> None:
    rows = {row.way: row for row in (SINGLE, DDP, GONE)}
    path = tmp_path / "bench.json"
    path.write_text(bench_json(with_rows(rows, ["ddp"], EMPTY)))
    assert rows_done(path, EMPTY) == rows
    path.write_text(bench_json(replace(with_rows(rows, ["ddp"], EMPTY), left_out=5)))
    assert json.loads(path.read_text())["left_out"] == 5
    assert rows_done(path, EMPTY) == rows  # which goes on
    assert rows_done(tmp_path / "none.json", EMPTY) == {}
    record = json.loads(path.read_text())
    assert (record["asked_count"], record["row_count"]) == (1, 3)
    assert record["rows"][0]["samples_per_second"] == 8.0
    assert record["rows"][0]["speed_up"] == 3.0  # over one process, which the file has besides
    with pytest.raises(PlanError, match="its batch_size is 8, this one's 9"):
        rows_done(path, replace(EMPTY, batch_size=9))
    with pytest.raises(PlanError, match="its machine is , this one's abacus"):
        rows_done(path, replace(EMPTY, machine="abacus"))
    with pytest.raises(PlanError, match="its input_shape is"):
        rows_done(path, replace(EMPTY, input_shape=(1, 9, 9)))


def test_a_loss_that_is_no_number_is_null_in_a_file(tmp_path) -> None:
    path = tmp_path / "bench.json"
    diverged = replace(DDP, losses=(2.0, math.nan), ended="rank 1 was ended by SIGKILL")
    path.write_text(bench_json(with_rows({"ddp": diverged}, ["ddp"], EMPTY)))
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["rows"][0]["last_loss"] is None
    found = rows_done(path, EMPTY)["ddp"]
    assert math.isnan(found.losses[1])
    assert replace(found, losses=()) == replace(diverged, losses=())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("seconds", []),
        ("seconds", [-1.0]),
        ("losses", ["x"]),
        ("ended", 1),
        ("busy", [2.0, 0.0]),
        ("peak_bytes", [1]),
        ("sent_bytes", "many"),
        ("way", 3),
    ],
)
def test_a_file_that_was_changed_is_refused_with_its_line(tmp_path, name, value) -> None:
    content = json.loads(bench_json(with_rows({"ddp": DDP}, ["ddp"], EMPTY)))
    content["rows"][0][name] = value
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(FormatError, match=rf'bench.json.*"{name}"'):
        rows_done(path, EMPTY)
