"""What was run goes before what was simulated; what failed is no way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from recommended import machine, recommended

from hgpart.bench.results import Measured
from hgpart.bench.session import WayError
from hgpart.bench.ways.job import Job
from hgpart.errors import RunError
from hgpart.recommendation import measuring
from hgpart.recommendation import ways as module
from hgpart.recommendation.measuring import with_measured
from hgpart.recommendation.ranking import Recommendation
from hgpart.recommendation.trials import trials
from hgpart.work.watching import Watch

JOB = Job("toy", (3, 8, 8), 6, 8, 2)
SECONDS = {"single": 3.0, "data-parallel on 2 devices": 2.0, "ddp": 1.5}


@pytest.fixture(scope="module")
def found() -> Iterator[Recommendation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trials", lambda k, *_, **__: trials(k)[:3])
        yield recommended(machine(2))


def run(found: Recommendation, count: int, failing: str, monkeypatch: Any, **options: Any) -> Any:
    """With turns that take what `SECONDS` says, or 1 s; and which turns there were."""
    turns: list[tuple[str, int, bool]] = []

    def turn(way: Any, job: Job, layout: Any, steps: int, watch: Watch) -> Measured:
        turns.append((way.text, job.workers, layout is not None))
        if way.text == failing or failing == "all":
            raise WayError("rank 0 died")
        return Measured(way.text, 1, (SECONDS.get(way.text, 1.0),), (), (1.0,), 0.0, (0,))

    monkeypatch.setattr(measuring, "turn_of", turn)
    return with_measured(found, JOB, count, lambda what, done: None, **options), turns


def test_the_order_is_that_of_what_was_measured(found, monkeypatch) -> None:
    ran, turns = run(found, 3, "", monkeypatch)
    assert [one.seconds for one in ran.ranked] == [1.0, 2.0, 3.0]
    assert ran.best.trial.name == "one-weird-trick"
    assert ran.measured == {"torch ddp": 1.5}
    assert ran.speed_up(ran.best) == 3.0
    assert ("single", 1, True) in turns
    assert ("ddp", 2, False) in turns
    assert len(turns) == 4  # and none of them is near to the fastest


def test_one_device_is_run_beside_the_best(found, monkeypatch) -> None:
    ran, turns = run(found, 1, "", monkeypatch)
    assert ("single", 1, True) in turns
    assert ran.one_device.measured_seconds == 3.0


def test_what_is_near_to_the_fastest_has_a_second_turn_in_the_opposite_order(
    found, monkeypatch
) -> None:
    monkeypatch.setitem(SECONDS, "data-parallel on 2 devices", 1.05)
    _, turns = run(found, 3, "", monkeypatch)
    first, again = [text for text, *_ in turns[:4]], [text for text, *_ in turns[4:]]
    near = {"data-parallel on 2 devices", "one-weird-trick on 2 devices"}
    assert again == [text for text in reversed(first) if text in near]


def test_when_time_is_up_the_best_of_each_kind_and_ddp_are_run(found, monkeypatch) -> None:
    _, turns = run(found, 3, "", monkeypatch, lasting=0.0)
    replicas, other = "data-parallel on 2 devices", "one-weird-trick on 2 devices"
    assert [text for text, *_ in turns] == ["ddp", replicas, "single", other]


def test_a_way_that_fails_is_dropped(found, monkeypatch) -> None:
    ran, turns = run(found, 3, "data-parallel on 2 devices", monkeypatch)
    assert [one.trial.name for one in ran.ranked] == ["one-weird-trick", "single"]
    assert [(one.what, one.why) for one in ran.dropped][-1:] == [
        ("data-parallel on 2 devices", "rank 0 died")
    ]
    assert len(turns) == 4
    with pytest.raises(RunError, match=r"no way could be run; .*: rank 0 died"):
        run(found, 3, "all", monkeypatch)
