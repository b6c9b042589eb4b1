"""The order of ways is that of their goal, whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recommended import by_hand, machine, recommended

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Device, Link, Machine
from hgpart.recommendation.ranking import (
    GOALS,
    Recommendation,
    ServedWay,
    check_goal,
    ranked_by,
    served_ways,
)

seconds = st.sampled_from([0.5, 1.0, 2.0, 3.0])
figures = st.tuples(
    seconds,
    seconds,
    st.lists(st.none() | st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    st.none() | seconds,
)


@given(st.lists(figures, min_size=1, max_size=6), st.sampled_from(GOALS))
def test_no_way_stands_behind_a_worse_one(several: list[Any], goal: str) -> None:
    names = [str(at) for at in range(len(several))]
    ways = {name: by_hand(name, *one) for name, one in zip(names, several, strict=True)}
    order = [one.trial.name for one in ranked_by(goal, ways)]
    assert sorted(order) == sorted(names)

    def is_better(one: Any, other: Any) -> bool:
        """By the figures alone."""
        if (one[3] is None) != (other[3] is None):
            return other[3] is None
        taken = [each[0] + each[1] if each[3] is None else each[3] for each in (one, other)]
        needed = [inf if None in each[2] else max(each[2]) for each in (one, other)]
        if goal == "memory" and needed[0] != needed[1]:
            return bool(needed[0] < needed[1])
        return bool(taken[0] < taken[1])

    for at, first in enumerate(order):
        for behind in order[at + 1 :]:
            assert not is_better(several[int(behind)], several[int(first)])
            if not is_better(several[int(first)], several[int(behind)]):
                assert int(first) < int(behind)


def test_a_goal_that_is_none() -> None:
    with pytest.raises(ArgumentError, match="goal 'speed': accepted are time, memory, throughput"):
        check_goal("speed")


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommended(machine(2), time_limit=0)  # the likeliest order of each division


def test_a_summary_has_a_row_for_each_way_and_says_what_was_measured(
    found: Recommendation,
) -> None:
    summary = found.summary()
    assert summary.lines == ("model on toys, steps of 8 samples",)
    assert [row[0] for row in summary.rows] == [one.trial.text for one in found.ranked]
    best, first = found.best, summary.rows[0]
    assert first[1:4] == (best.scheduling.text, f"{1000 * best.seconds:,.4g}", "simulated")
    assert float(first[4]) == pytest.approx(found.one_device.seconds / best.seconds, abs=0.01)
    assert float(first[5]) == pytest.approx(best.sent_bytes / 1e6, rel=1e-3)
    measured = replace(best, measured_seconds=0.25)
    row = replace(found, ranked=(measured,)).summary().rows[0]
    assert row[2:5] == ("250", "measured", "-")  # one device was not
    assert found._repr_html_().count("<tr>") == 1 + len(found.ranked)


def test_parameter_servers_by_the_links() -> None:
    links = Link.of(latency=0.0, bandwidth=1e6)
    four = Machine("m", (Device("GPU"),) * 4, (4,), links)
    replicas: Any = SimpleNamespace(k=4, computing_seconds=3.0, update_seconds=0.25)
    alone: Any = SimpleNamespace(update_seconds=1.0)
    shared, one = served_ways(replicas, alone, 1_000_000, four)
    assert (shared.seconds, shared.workers) == (3.0 + 2 * 3 / 4 + 0.25, 4)
    assert (one.seconds, one.workers) == (4.0 + 2 * 3 + 1.0, 3)
    assert shared.sent_bytes == one.sent_bytes == 6_000_000


def test_parameter_servers_are_rows_of_the_table(found: Recommendation) -> None:
    alone = found.one_device.seconds
    faster, slower = (ServedWay("ps-sync", 3, 2, alone * by, 0.0, 0.0, 8) for by in (0.5, 2))
    rows = replace(found, served=(slower, faster)).rows
    assert (rows[0], rows[-1], len(rows)) == (faster, slower, len(found.ranked) + 2)
    assert found.speed_up(faster) == 2
    assert replace(found, served=(faster,), goal="memory").rows[-1] == faster


def test_a_recommendation_is_short_at_the_prompt(found: Recommendation) -> None:
    best = found.best
    said = f"{best.trial.text}, {best.scheduling.text}, {best.seconds:.3g} s a step"
    assert repr(found) == f"Recommendation('model', {said})"
