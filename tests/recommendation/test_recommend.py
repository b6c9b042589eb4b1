"""All stages in one call: what is given is taken, and what is not is measured.

Measuring itself is tested with the command, which does the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recommended import machine, network, recommended
from toy_times import in_proportion

from hgpart.errors import ArgumentError
from hgpart.recommendation import recommend as module
from hgpart.recommendation.recommend import recommend

EXAMPLE = torch.zeros(2, 3, 8, 8)


def test_it_is_what_the_stages_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of machine and times that stand for what is measured here."""
    asked: list[Any] = []

    def times_here(model: Any, traced: Any, graph: Any, *how: int) -> Any:
        asked.append(how)
        return in_proportion(graph)

    def machine_here(k: int, threads: int, otherwise: str, tell: Any) -> Any:
        asked.append((k, threads))
        return machine(k), f"Assumed: toys; {otherwise}"

    monkeypatch.setattr(module, "times_here", times_here)
    monkeypatch.setattr(module, "machine_here", machine_here)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = recommend(network(), EXAMPLE, 2, batch_size=8, seed=1, time_limit=0)
    expected = recommended(machine(2), time_limit=0)
    assert asked == [(2, 3), (8, 3)]
    assert found.model == "Sequential"
    assert "Assumed: toys; machine=... for others" in str(found.summary())
    assert found.ranked[0].simulated_seconds == pytest.approx(expected.ranked[0].simulated_seconds)
    asked.clear()
    given = recommend(network(), EXAMPLE, batch_size=8, machine=machine(2), time_limit=0, name="n")
    assert asked == [(8, machine(2).devices[0].threads)]
    assert (given.devices, given.best.plan.model) == (2, "n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "neither devices nor a machine: accepted is devices=4, say"),
        ({"devices": 0}, "0 devices: accepted is 1 or more"),
        ({"devices": 3, "machine": machine(2)}, "3 devices of a machine of 2: accepted are 1 to 2"),
        ({"devices": 2, "batch_size": 0}, "batch size 0: accepted is 1 or more"),
        ({"devices": 2, "goal": "money"}, "goal 'money'"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(options: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{said}"):
        recommend(network(), EXAMPLE, **options)


def test_a_model_in_evaluation_mode_is_not_to_be_trained() -> None:
    with pytest.raises(ArgumentError, match=r"evaluation mode: accepted is model\.train\(\)$"):
        recommend(network().eval(), EXAMPLE, 2)
