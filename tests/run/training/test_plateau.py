"""When the learning rate decays, and when a training ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.run.training.plateau import Plateau


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=30))
def test_the_rate_decays_after_two_epochs_without_a_new_best_and_training_ends_after_three_decays(
    accuracies: list[float],
) -> None:
    rule = Plateau(rate=1.0)
    best, without, decays, rate = -1.0, 0, 0, 1.0  # decays since the best
    for epoch, accuracy in enumerate(accuracies, start=1):
        goes_on = rule.goes_on(accuracy)
        assert (len(rule.rates), rule.rates[-1]) == (epoch, pytest.approx(rate))
        assert rule.accuracies == accuracies[:epoch]
        if accuracy > best:
            best, without, decays = accuracy, 0, 0
        else:
            without += 1
        assert goes_on == (without < 2 or decays < 3)
        if not goes_on:
            return
        if without == 2:
            without, decays, rate = 0, decays + 1, rate * 0.8
        assert rule.rate == pytest.approx(rate)
