"""A schedule is kept in a file, and is refused where it does not belong."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest
from toy_outlines import EVEN, halves, pipeline

from hgpart.errors import FormatError, PlanError
from hgpart.schedules import make_schedule
from hgpart.schedules.drawing import draw_schedule
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule_files import read_schedule, save_schedule


@pytest.mark.parametrize("rule", [*RULES, "async"])
def test_a_file_gives_the_schedule_back(tmp_path: Path, rule: str) -> None:
    made = make_schedule(halves(3), rule, 3, EVEN)
    save_schedule(tmp_path / "schedule.json", made)
    found = read_schedule(tmp_path / "schedule.json").of(halves(3))
    assert (found.rule, found.micro_batches, found.order) == (rule, 3, made.order)
    assert found.messages == made.messages
    assert found.in_flight == made.in_flight == (2 if rule == "async" else None)


def test_a_schedule_of_another_plan_is_refused(tmp_path: Path) -> None:
    save_schedule(tmp_path / "schedule.json", make_schedule(halves(3), "greedy", 2, EVEN))
    with pytest.raises(PlanError, match=r"is a schedule of another plan \(k=2\): accepted is one"):
        read_schedule(tmp_path / "schedule.json").of(pipeline(2))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"0:F0.0", ', "", r"accepted: \"order\": a valid order \(part 0 does not do F0.0\)"),
        ('"0:F0.0"', '"0:X0.0"', r"accepted: \"order\": actions as in 0:F2.5"),
        ('"0:F0.0"', "7", r"accepted: \"order\": actions as in 0:F2.5"),
        ('"micro_batches": 2', '"micro_batches": 0', "a whole number from 1 to"),
        ("schedule 1", "schedule 9", "hgpart schedule 1"),
    ],
)
def test_a_spoiled_file_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "schedule.json"
    save_schedule(path, make_schedule(halves(3), "greedy", 2, EVEN))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(FormatError, match=said):
        read_schedule(path).of(halves(3))


def test_micro_batches_that_nothing_is_done_for_take_no_time(tmp_path: Path) -> None:
    """The file is small, and so must be what is made to check it."""
    path = tmp_path / "schedule.json"
    save_schedule(path, make_schedule(halves(3), "greedy", 2, EVEN))
    path.write_text(path.read_text().replace('"micro_batches": 2', f'"micro_batches": {2**20}'))
    begun = process_time()
    with pytest.raises(FormatError, match=r"actions, where forward passes alone have \d+"):
        read_schedule(path).of(halves(3))
    assert process_time() - begun < 1


def test_it_is_drawn() -> None:
    """Digits forward, letters backward: the second stage begins as the first has ended."""
    text = draw_schedule(make_schedule(pipeline(2), "gpipe", 2, EVEN), EVEN)
    first, *rows = text.splitlines()
    assert first == "gpipe: 2 micro-batches on 2 parts, idle 33 % by costs"
    unit = "".join(dict.fromkeys(rows[0][3:-9]))
    assert unit == "01.ab"
    assert "".join(dict.fromkeys(rows[1][3:-9])) == ".01ab"
    assert [row.rpartition("| ")[2] for row in rows[:2]] == ["keeps 2"] * 2
    assert rows[2:] == ["0  F0.0 F1.0 B0.0 B1.0", "1  F0.0 F1.0 B0.0 B1.0"]


def test_a_stream_is_drawn() -> None:
    text = draw_schedule(make_schedule(pipeline(2), "async", 3, EVEN, in_flight=2), EVEN)
    first, *rows = text.splitlines()
    assert first == "async: 3 batches, 2 in flight at most, on 2 parts, idle 25 % by costs"
    assert [row.rpartition("| ")[2] for row in rows[:2]] == ["keeps 2", "keeps 1"]
    assert rows[2] == "0  F0.0 F1.0 B0.0 U0.0 F2.0 B1.0 U1.0 B2.0 U2.0"
