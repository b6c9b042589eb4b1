"""Schedules where each rank has its own part: all have the same, or all say why not."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest
from placed_models import model_of, placed

from hgpart.errors import ArgumentError, RunError
from hgpart.execution.threads.workers import Workers
from hgpart.placement import Placement
from hgpart.run.scheduling import schedule, wanted_schedule
from hgpart.schedule_wanted import Scheduling, scheduling_of
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule_files import save_schedule

K = 2


@dataclass
class Rank:
    """What `schedule` needs of a DistributedModel and its connection, in a thread."""

    placement: Placement
    rank: int
    values: list[Any]
    all_are_here: Barrier

    @property
    def connection(self):
        return self

    def gather(self, value):
        self.values[self.rank] = value
        self.all_are_here.wait()
        found = [*self.values]
        self.all_are_here.wait()
        return found


@pytest.fixture(scope="module")
def placements():
    """All parts, and each by itself."""
    return [
        placed(*model_of("residual"), "layers", K, parts=parts)
        for parts in (None, *([rank] for rank in range(K)))
    ]


def on_ranks(placements, call):
    """What each rank finds, or says."""
    values, all_are_here = [None] * K, Barrier(K, timeout=10)

    def found(rank):
        try:
            return call(Rank(placements[1 + rank], rank, values, all_are_here))
        except RunError as error:
            return str(error)

    return Workers(K).run([lambda rank=rank: found(rank) for rank in range(K)], stop=int)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_costs_of_rank_0_count_for_all(placements, recompute):
    """Each made an order by its own: one waited for what the other had yet to send."""
    costs = [Costs(message=1e-6), Costs(message=1e-1)]
    alone = [schedule(placements[0], "greedy", 4, one, recompute=recompute).order for one in costs]
    assert alone[0] != alone[1]

    def made(here):
        return schedule(here, "greedy", 4, costs[here.rank], recompute=recompute).order

    assert on_ranks(placements, made) == [alone[0]] * K


def test_ranks_that_ask_for_different_schedules_all_say_so(placements, tmp_path):
    for name in ("gpipe", "1f1b"):
        save_schedule(tmp_path / name, schedule(placements[0], name, 3))
    files = [scheduling_of(str(tmp_path / name), None) for name in ("gpipe", "1f1b")]
    greedy = scheduling_of("greedy", 3)

    def said(*wanted):
        first, second = on_ranks(
            placements, lambda here: wanted_schedule(here, wanted[here.rank], backward=True)
        )
        assert first == second
        assert first.startswith("rank 0 asks for a schedule by ")
        return first

    assert "rule greedy, micro_batches 3" in said(greedy, scheduling_of("greedy", 2))
    assert "rank 1 for one by rule gpipe" in said(greedy, scheduling_of("gpipe", 3))
    assert "recompute True" in said(greedy, scheduling_of("greedy", 3, recompute=True))
    fingerprint = files[0].file.fingerprint
    assert f"schedule by file {fingerprint}" in said(*files)
    assert f"rank 1 for one by file {fingerprint}" in said(greedy, files[0])


@pytest.mark.parametrize("batch_size", [-1, 0, 1.5, True, float("nan")])
def test_numbers_of_samples_that_are_none(placements, batch_size):
    """They made schedules, by costs of less than no work."""
    with pytest.raises(ArgumentError, match=f"batch size {batch_size}: accepted is"):
        schedule(placements[0], "gpipe", 1, batch_size=batch_size)
    with pytest.raises(ArgumentError, match="work -1: accepted is 0 or more"):
        Costs(work=-1)
    with pytest.raises(ArgumentError, match=r"1.5 micro-batches: accepted is 1 or more"):
        Scheduling("gpipe", 1.5)
