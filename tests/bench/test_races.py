"""Ways to an accuracy."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from bench_settings import SETTINGS

from hgpart.bench.races import Point, Race, Races, races_csv, races_done, races_json
from hgpart.bench.results import NotRun
from hgpart.errors import FormatError, PlanError
from hgpart.files.row_files import with_rows
from hgpart.report.benches import winner

EMPTY = Races(**SETTINGS, data="digits", until=0.9, epochs=2)
SLOW = Race("single", (Point(10, 2.0, 2.3, 0.5), Point(20, 4.0, 1.0, 0.9)))
FAST = Race("ddp", (Point(10, 1.0, 2.3, 0.95),))
NEVER = Race("apart", (Point(10, 1.0, 2.3, 0.1), Point(20, 2.0, 2.3, 0.1)))
GONE = NotRun("fsdp", "rank 1 was ended by SIGKILL", failed=True)
ROWS = {row.way: row for row in (SLOW, FAST, NEVER, GONE)}


def test_who_is_first_at_the_goal() -> None:
    races = with_rows(ROWS, [*ROWS], EMPTY)
    assert races.finish(SLOW) == SLOW.points[1]
    assert races.finish(NEVER) is None
    assert (races.speed_up(FAST), races.speed_up(NEVER)) == (4.0, None)
    assert winner(races) == (
        "ddp: 4.00 times as fast as one process of 1 thread, 90 % of the test samples in 1.0 s of "
        "training, 4.00 times as fast as single, the next"
    )
    assert (
        winner(with_rows(ROWS, ["apart"], EMPTY)) == "toy: no way came to 90 % of the test samples"
    )


def test_csv_has_a_line_an_epoch() -> None:
    lines = races_csv(with_rows(ROWS, ["single", "fsdp"], EMPTY)).splitlines()
    assert lines == [
        "way,epoch,steps,seconds,loss,accuracy,why",
        "single,1,10,2.0,2.3,0.5,",
        "single,2,20,4.0,1.0,0.9,",
        "fsdp,,,,,,rank 1 was ended by SIGKILL",
    ]


def test_a_file_holds_what_can_be_gone_on_from(tmp_path) -> None:
    path = tmp_path / "race.json"
    path.write_text(races_json(with_rows(ROWS, ["ddp"], EMPTY)))
    assert races_done(path, EMPTY) == ROWS
    assert json.loads(path.read_text())["rows"][0]["steps"] == 10
    with pytest.raises(PlanError, match=r"its until is 0.9, this one's 0.8"):
        races_done(path, replace(EMPTY, until=0.8))


@pytest.mark.parametrize(
    "point",
    [
        [1, 2],
        [None, 1.0, 2.0, 0.5],
        [math.nan, 1.0, 2.0, 0.5],
        [1.5, 1.0, 2.0, 0.5],
        [1, None, 2.0, 0.5],
        [1, 1.0, 2.0, None],
        [1, 1.0, 10**400, 0.5],
        [1, 1.0, "2", 0.5],
        [True, 1.0, 2.0, 0.5],
    ],
)
def test_a_file_that_was_changed_is_refused_with_its_line(tmp_path, point) -> None:
    """Null, which is the loss of a training that diverged, was taken for any figure."""
    path = tmp_path / "race.json"
    content = json.loads(races_json(with_rows(ROWS, ["ddp"], EMPTY)))
    content["rows"][0]["points"] = [point]
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(FormatError, match=r'race.json.*"points"'):
        races_done(path, EMPTY)


def test_a_loss_that_is_no_number_is_null_in_a_file(tmp_path) -> None:
    path = tmp_path / "race.json"
    diverged = Race("ddp", (Point(10, 1.0, math.nan, 0.1),))
    path.write_text(races_json(with_rows({"ddp": diverged}, ["ddp"], EMPTY)))
    assert (
        json.loads(path.read_text(), parse_constant=pytest.fail)["rows"][0]["points"][0][2] is None
    )
    found = races_done(path, EMPTY)["ddp"]
    assert math.isnan(found.points[0].loss)


def test_one_process_may_be_of_the_file_that_was_gone_on_from() -> None:
    resumed = with_rows(ROWS, ["ddp"], EMPTY)
    assert resumed.speed_up(FAST) == 4.0
