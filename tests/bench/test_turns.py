"""Turns of ways, whatever becomes of one."""

from __future__ import annotations

import errno
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hgpart.bench import turns
from hgpart.bench.races import Race
from hgpart.bench.results import Measured, NotRun
from hgpart.bench.turns import attempted, is_failed, take_turns
from hgpart.bench.ways.way import way_of


def test_a_way_for_which_the_machine_has_no_room_is_that_ways_affair() -> None:
    def run(layout: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    subject: Any = SimpleNamespace(check=lambda way: None)
    job: Any = SimpleNamespace(workers=2, batch_size=4, inference=False)
    row = attempted(way_of("ddp"), subject, job, {"ddp": None}, run)
    assert isinstance(row, NotRun)
    assert row.failed
    assert row.why.endswith("Resource temporarily unavailable")


def test_what_fails_in_a_later_round_keeps_the_earlier_ones(monkeypatch) -> None:
    """Its row was replaced by the failure, and the seconds of its earlier rounds were lost."""
    one = Measured("ddp", 1, (1.0,), (2.0,), (0.5,), 8.0, (100,))
    gone = NotRun("ddp", "rank 1 was ended by SIGKILL", failed=True)
    answers = iter([one, one, gone])
    monkeypatch.setattr(turns, "attempted", lambda *_: next(answers))
    nothing: Any = None

    def rounds(before: dict[str, Any], number: int) -> list[Any]:
        told: list[Any] = []
        options = nothing, nothing, 1, number, before, lambda *_: None, told.append
        take_turns([way_of("ddp")], *options)
        return told

    told = rounds({}, 5)
    assert [row.rounds for row in told] == [1, 2, 2]
    assert told[-1] == replace(told[1], ended=gone.why)
    assert is_failed(told[-1])
    answers = iter([one])
    assert rounds({"ddp": told[-1]}, 3) == [told[1].and_then(one)]  # --resume tries again


def test_a_line_a_turn_says_what_is_left_and_a_time_limit_leaves_turns_out(monkeypatch) -> None:
    now = [100.0]  # seconds
    seconds = {"single": (2.0,), "ddp": (1.0,)}

    def ten_seconds(way: Any, *_: Any) -> Any:
        now[0] += 10
        if way.name == "fsdp":
            return NotRun("fsdp", "no room", failed=True)
        return Measured(way.text, 1, seconds[way.text], (2.0,), (0.5,), 8.0, (100,))

    monkeypatch.setattr(turns, "attempted", ten_seconds)
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now[0]))
    nothing: Any = None
    told: list[tuple[str, float]] = []
    rows: dict[str, Any] = {}
    lines: list[str] = []

    def run(time_limit: float, before: dict[str, Any]) -> int:
        return take_turns(
            [way_of("single"), way_of("fsdp"), way_of("ddp")],
            *(nothing, nothing, 1, 3, before),
            lambda what, done: told.append((what, done)),
            lambda row: rows.__setitem__(row.way, row),
            lines.append,
            time_limit,
        )

    assert run(35, {}) == 3
    assert lines == [
        "single: 2 s a step, turn 1 of 3; 8 turns to come, about 80 s",
        "fsdp failed: no room; 5 turns to come, about 50 s",
        "ddp: 1 s a step, 2.00 times as fast as single, turn 1 of 3; 4 turns to come, about 40 s",
        "ddp: 1 s a step, 2.00 times as fast as single, turn 2 of 3; 3 turns to come, about 30 s",
    ]
    assert told == [
        ("round 1: single", 0.0),
        ("round 1: fsdp", 10 / 35),
        ("round 1: ddp", 20 / 35),
        ("round 2: ddp", 30 / 35),
    ]
    assert [rows[way].rounds for way in ("single", "ddp")] == [1, 2]
    assert run(1000, dict(rows)) == 0  # goes on; and what failed is tried again
    assert [rows[way].rounds for way in ("single", "ddp")] == [3, 3]
    assert lines[-1] == "ddp: 1 s a step, 2.00 times as fast as single, turn 3 of 3"


def test_a_race_that_was_run_has_not_failed() -> None:
    """It was asked for what only rows of turns have, and the command ended with a traceback."""
    assert not is_failed(Race("ddp", ()))
    assert is_failed(NotRun("ddp", "", failed=True))
