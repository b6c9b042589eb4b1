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
    job: Any = SimpleNamespace(workers=2, batch_size=4)
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


def test_a_race_that_was_run_has_not_failed() -> None:
    """It was asked for what only rows of turns have, and the command ended with a traceback."""
    assert not is_failed(Race("ddp", ()))
    assert is_failed(NotRun("ddp", "", failed=True))
