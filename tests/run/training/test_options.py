"""The learning rate of each step is that of torch's schedulers."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from hgpart.errors import ArgumentError
from hgpart.run.training.options import TrainingOptions


def rates_of_torch(steps, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = CosineAnnealingLR(optimizer, steps - warmup)
    if warmup:
        rising = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
        scheduler = SequentialLR(optimizer, [rising, scheduler], [warmup])
    rates = []
    for _ in range(steps):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 2, 7])
def test_the_cosine_is_torchs(warmup):
    options = TrainingOptions(30, 1, lr=0.4, warmup=warmup, lr_schedule="cosine")
    ours = [0.4 * options.factor(step) for step in range(30)]
    assert ours == pytest.approx(rates_of_torch(30, warmup), abs=1e-12)
    assert ours[warmup] == 0.4


def test_a_warmup_alone_rises_and_stays():
    options = TrainingOptions(6, 1, warmup=4)
    assert [options.factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert options.course == "4 steps of warmup, constant"
    longer = TrainingOptions(3, 1, warmup=4, lr_schedule="cosine")
    assert [longer.factor(step) for step in range(3)] == [0.25, 0.5, 0.75]


def test_other_courses_are_refused():
    with pytest.raises(ArgumentError, match="rate 'step': accepted are constant and cosine"):
        TrainingOptions(3, 1, lr_schedule="step")
    with pytest.raises(ArgumentError, match="warmup -1: accepted is 0 or more"):
        TrainingOptions(3, 1, warmup=-1)
