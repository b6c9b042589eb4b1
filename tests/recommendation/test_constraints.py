"""Ways that break constraints are left out; one device is what the others are compared with."""

from __future__ import annotations

import pytest
from recommended import machine, recommended

from hgpart.errors import InfeasibleError
from hgpart.recommendation import ways as module
from hgpart.recommendation.trials import trials


@pytest.mark.parametrize("goal", ["time", "memory"])
def test_what_breaks_a_pin_is_not_recommended(goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("single", "data-parallel", "coarse")
    chosen = [trial for trial in trials(2) if trial.way.name in names]
    monkeypatch.setattr(module, "trials", lambda *asked, **how: chosen)
    pins = {"pin": ["0=1", "4=0"]}
    ranked = recommended(machine(2), goal=goal, constraints=pins, micro_batches=1)
    assert {way.trial.way.name for way in ranked.ranked} == {"coarse"}
    assert all(not way.plan.partition.broken for way in ranked.ranked)
    assert ranked.one_device.trial.way.name == "single"
    dropped = {drop.what: drop.why for drop in ranked.dropped}
    assert "does not keep to pin 0=1; pin 4=0" in dropped["data-parallel on 2 devices"]


def test_searches_get_the_eps_that_pins_leave_and_other_devices_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = [trial for trial in trials(4) if trial.way.name in ("single", "coarse", "horizontal")]
    monkeypatch.setattr(module, "trials", lambda *asked, **how: chosen)
    pins = {"pin": ["0=3", "2=3"]}  # nearly all work on one of four devices
    ranked = recommended(machine(4), constraints=pins, micro_batches=1)
    best = next(way for way in ranked.ranked if way.k == 4)
    assert best.trial.eps == best.partition.problem.eps > 2
    assert best.partition.feasible
    assert [way.trial.way.name for way in ranked.ranked if way.k == 4] == ["coarse"]
    assert ranked.notes[0].startswith(
        f"Constraints leave room for eps {best.trial.eps:g} or more on 4 devices"
    )
    reasons = [drop.why for drop in ranked.dropped if drop.what == "all ways on 2 devices"]
    assert reasons == ["pin 0=3 for k=2: accepted are devices 0 to 1"]


def test_constraints_that_contradict_each_other_are_refused_at_once() -> None:
    with pytest.raises(InfeasibleError, match="contradict each other: pin 0=0; pin 0=1"):
        recommended(machine(2), constraints={"pin": ["0=0", "0=1"]})


def test_more_devices_than_are_simulated_one_by_one_leave_each_way_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was an error of the whole recommendation."""
    chosen = [trial for trial in trials(64) if trial.way.name in ("single", "data-parallel")]
    monkeypatch.setattr(module, "trials", lambda *asked, **how: chosen)
    ranked = recommended(machine(64), constraints={"pin": ["0=0"]}, micro_batches=1)
    assert ranked.ranked[0].trial.way.name == "single"
    reasons = [drop.why for drop in ranked.dropped if "data-parallel" in drop.what]
    assert reasons and all("accepted are 32 at most" in why for why in reasons)
