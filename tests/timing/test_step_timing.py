"""What is made of steps whose seconds are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hgpart.arrays import Float64
from hgpart.errors import RunError
from hgpart.timing import step_timing
from hgpart.timing.step_timing import time_steps
from hgpart.work.layer_times import Pass


class Steps:
    """A model of two layers, the second of which takes twice as long; the first step is slow."""

    device = torch.device("cpu")
    together = ([0, 1], [])

    def __init__(self, samples: Sequence[int], each: float) -> None:
        self.batches = dict.fromkeys(samples)
        self.each, self.beside, self.done = each, 1.0, list[tuple[int, bool]]()

    def step(self, samples: int, *, apart: bool = False) -> Float64:
        slow = 1 if samples in [size for size, _ in self.done] else 1.5
        self.done.append((samples, apart))
        row = np.array([1.0, 2.0, 3.0]) if apart else np.array([1.0, 4.0, 0.5])
        return slow * self.beside * self.each * samples * np.outer([1.0, 2.0], row)


def no_room(monkeypatch: pytest.MonkeyPatch, room: int = 0) -> None:
    monkeypatch.setattr(step_timing, "room_for", lambda device: room)


def test_medians_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    no_room(monkeypatch)
    found = time_steps(Steps((1, 4), 1e-3))  # type: ignore[arg-type]
    assert (found.samples, found.neighbours, found.beside) == ((1, 4), 0, 1.0)
    factors = {Pass.FORWARD: 1, Pass.BACKWARD: 4, Pass.MAPS: 2, Pass.WEIGHTS: 3, Pass.UPDATE: 0.5}
    for which, factor in factors.items():
        expected = 1e-3 * factor * np.outer([1, 2], [1, 4])
        np.testing.assert_allclose(found.seconds[which], expected)


def test_larger_batches_than_the_time_allows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    no_room(monkeypatch)
    steps = Steps((1, 2, 8, 32), 0.05)
    assert time_steps(steps).samples == (1, 2, 8)  # type: ignore[arg-type]
    assert max(samples for samples, _ in steps.done) == 8


class Beside:
    """Others, beside whom steps take half as long again."""

    def __init__(self, steps: Steps, samples: int, count: int) -> None:
        self.steps, self.told = steps, (samples, count)

    def __enter__(self) -> Any:
        self.steps.beside = 1.5

    def __exit__(self, *what: object) -> None:
        self.steps.beside = 1.0


class Started:
    def __init__(self, *what: Any) -> None:
        self.made = Beside(*what)
        TOLD.append(self.made.told)

    def __enter__(self) -> Beside:
        return self.made

    def __exit__(self, *what: object) -> None:
        pass


TOLD: list[tuple[int, int]] = []


def test_beside_others_in_batches_that_do_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    no_room(monkeypatch, 3)
    monkeypatch.setattr(step_timing, "neighbours", Started)
    found = time_steps(Steps((1, 4, 16), 0.02))  # type: ignore[arg-type]
    assert (found.samples, found.neighbours, found.beside) == ((1, 4, 16), 3, 1.5)
    assert TOLD == [(4, 3)]


def test_where_others_end_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*what: Any) -> Any:
        raise RunError("a process that should compute beside this one has ended")

    no_room(monkeypatch, 1)
    monkeypatch.setattr(step_timing, "neighbours", failing)
    found = time_steps(Steps((1,), 1e-3))  # type: ignore[arg-type]
    assert (found.neighbours, found.beside) == (0, 1.0)
    assert "beside this one has ended: the slow-down beside" in capsys.readouterr().err


def test_of_a_long_step_the_slow_first_one_only_divides_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It used to be the step: predictions of large batches came out a fifth too long."""
    no_room(monkeypatch)
    steps = Steps((4,), 0.1)
    found = time_steps(steps)  # type: ignore[arg-type]
    assert steps.done == [(4, True), (4, False)]
    whole = found.seconds[Pass.FORWARD] + found.seconds[Pass.BACKWARD]
    np.testing.assert_allclose(whole[:, 0], 0.1 * 4 * 5 * np.array([1, 2]))
    halves = found.seconds[Pass.MAPS] + found.seconds[Pass.WEIGHTS]
    assert halves.sum() == pytest.approx(whole.sum() * 5 / 6)
