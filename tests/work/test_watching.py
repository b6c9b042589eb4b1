"""What others did while something was measured, of invented accounts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from hgpart.work import watching
from hgpart.work.watching import Conditions, Spent, Watch, spent_so_far

IDLE, LOADED = (0.01, 0.5), (0.5, 0.0)  # others, and what is left, of two cores


def accounts(*shares: tuple[float, float], seconds: float = 2.0) -> Iterator[Spent]:
    """What was spent before and behind each measurement, on two cores, by turns."""
    now = own = busy = idle = 0.0
    for others, left in shares:
        yield Spent("here", {0: (busy, idle), 1: (busy, idle)}, own, own, now)
        now += seconds
        busy, idle = busy + (1 - left) * seconds, idle + left * seconds
        own += 2 * (1 - left - others) * seconds
        yield Spent("here", {0: (busy, idle), 1: (busy, idle)}, own, own, now)


def watched(*shares: tuple[float, float], measurements: int) -> tuple[list[int], Watch]:
    """The number of the run that each measurement is taken from."""
    read = accounts(*shares)
    watch, runs = Watch(read=lambda: next(read)), iter(range(100))
    kept = [watch.measure(lambda: next(runs)) for _ in range(measurements)]
    assert next(read, None) is None
    return kept, watch


def test_nothing_is_said_or_repeated_on_an_idle_machine() -> None:
    kept, watch = watched(IDLE, (0.03, 0.0), IDLE, measurements=3)
    assert kept == [0, 1, 2]
    assert watch.disturbed == ""


def test_what_passes_costs_a_repetition_and_is_forgotten() -> None:
    kept, watch = watched(IDLE, LOADED, IDLE, LOADED, IDLE, measurements=3)
    assert kept == [0, 2, 4]
    assert watch.disturbed == ""


def test_what_lasts_is_repeated_once_and_said() -> None:
    kept, watch = watched((0.6, 0.0), LOADED, LOADED, (0.7, 0.0), measurements=3)
    assert kept == [1, 2, 3]
    assert watch.disturbed == "other programs took 70 % of the cores' time"


def test_short_measurements_are_judged_together() -> None:
    read = accounts(*[LOADED] * 4, seconds=0.2)
    watch = Watch(read=lambda: next(read))
    for _ in range(4):
        watch.measure(lambda: None)
        assert watch.seen[-1].text == ""
    assert watch.disturbed == "other programs took 50 % of the cores' time"


def test_a_thread_without_a_core_and_unequal_repetitions_are_signs_too() -> None:
    read = accounts((0.0, 0.7), (0.0, 0.7), seconds=1.0)  # 0.6 s of computing in each
    watch = Watch(read=lambda: next(read))
    watch.measure(lambda: None, computes=True)
    assert watch.disturbed == "a thread that never waits had a core for 60 % of the time"
    assert Conditions(1.0, others=0.2, idle=0.6, spread=0.2).text.startswith("other programs took")
    assert Conditions(1.0, others=0.0, idle=0.6, spread=0.2).text == ""
    assert "differ by 60 %" in Conditions(1.0, idle=0.6, spread=0.6).text


def test_processes_of_a_node_are_no_others_to_each_other() -> None:
    """Each has a core of its own; on the second node others have half of both."""
    seconds = 2.0

    def spent(node: str, core: int, own: float) -> Spent:
        return Spent(node, {core: (seconds, 0.0)}, own, own, seconds)

    def passed(gathered: list[Spent], own: Spent) -> list[Spent]:
        return gathered

    one, other = spent("a", 0, 2.0), spent("a", 1, 2.0)
    nothing = Spent("a", {0: (0.0, 0.0)}, 0.0, 0.0, 0.0)
    for gathered, said in (
        ([one, other], ""),
        ([one, spent("b", 0, 1.0), other, spent("b", 1, 1.0)], "other programs took 50 %"),
    ):
        read = iter([nothing, one, nothing, one])
        watch = Watch(partial(passed, gathered), partial(next, read))
        watch.measure(lambda: None)
        assert watch.disturbed.startswith(said)
        assert bool(watch.disturbed) == bool(said)


def test_processes_that_measure_together_judge_alike() -> None:
    """Where one took less than can be judged and the other more, one alone would have repeated."""
    start = Spent("a", {0: (0.0, 0.0)}, 0.0, 0.0, 0.0)
    spent = [Spent("a", {0: (seconds, 0.0)}, 0.1, 0.1, seconds) for seconds in (0.49, 0.51)]
    judged = []
    for own in spent:
        read = iter([start, own, start, own])
        watch = Watch(lambda own: spent, partial(next, read))
        watch.measure(lambda: None)
        judged.append((watch.seen, next(read, None)))
    assert judged[0] == judged[1]
    assert judged[0][0][0].text
    assert judged[0][1] is None  # both have repeated


def process(folder: Path, number: int, parent: int, ticks: str) -> None:
    (folder / str(number)).mkdir()
    fields = f"{number} (a (name) of 3) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 20 0"
    (folder / str(number) / "stat").write_text(fields)


def test_the_accounts_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: {1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    lines = ["cpu  0 0 0 0 0 0 0 0 0 0"]
    lines += [f"cpu{core} 100 20 30 400 50 60 70 {core} 0 0" for core in range(2)]
    (tmp_path / "stat").write_text("\n".join([*lines, "intr 1 2 3"]))
    own = os.getpid()
    process(tmp_path, own, 1, "1 2 3 4")
    process(tmp_path, 10**7, own, "10 20 30 40")
    process(tmp_path, 10**7 + 1, 10**7, "100 0 0 0")
    process(tmp_path, 1, 0, "5000 0 0 0")
    found = spent_so_far()
    assert found.cores == {1: (1.51, 4.5)}
    assert found.own == 2.1


def test_elsewhere_the_load_average_of_other_programs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PROC", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, others in ((1.2, 0.05), (4.0, 0.75), (9.0, 1.0)):
        loads = iter((1.0, load))  # at the beginning and at the end
        monkeypatch.setattr(os, "getloadavg", lambda loads=loads: (next(loads), 0.0, 0.0))
        watch = Watch(read=spent_so_far)
        watch.measure(lambda: None)
        assert watch.seen[0].others == pytest.approx(others)
