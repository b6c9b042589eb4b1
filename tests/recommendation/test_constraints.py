"""Ways that break constraints are left out; one device is what the others are compared with."""

from __future__ import annotations

import pytest
from recommended import machine, recommended

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
