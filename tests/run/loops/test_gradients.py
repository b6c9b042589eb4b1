"""Clipping and scaling in one process; in several: test_loops."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import hgpart
from hgpart.errors import ArgumentError


@pytest.fixture
def models():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), torch.randn(3, 4)
    placed = hgpart.place(copy.deepcopy(model), k=2, example=x)
    for each in (model, placed):
        each(x).square().sum().backward()
    return model, placed


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, math.inf])
def test_a_placement_is_clipped_like_its_model(models, norm_type):
    model, placed = models
    expected = nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type)
    torch.testing.assert_close(hgpart.clip_grad_norm_(placed, 0.1, norm_type), expected)
    clipped = dict(model.named_parameters())
    for part in range(2):
        for held, tensor in placed.held(part):
            torch.testing.assert_close(tensor.grad, held.take(clipped[held.name].grad))


def test_what_is_no_norm_is_refused(models):
    with pytest.raises(ArgumentError, match="norm_type 0: accepted are numbers above 0, and inf"):
        hgpart.clip_grad_norm_(models[0], 1.0, 0)
    models[0][0].weight.grad[0, 0] = math.nan
    with pytest.raises(ArgumentError, match="a total norm of nan: accepted are finite gradients"):
        hgpart.clip_grad_norm_(models[0], 1.0, error_if_nonfinite=True)


def test_a_model_without_gradients_has_none_to_clip():
    assert float(hgpart.clip_grad_norm_(nn.Linear(2, 2), 1.0)) == 0


def test_an_overflow_skips_a_step(models):
    _, placed = models
    optimizer = torch.optim.SGD(placed.parameters(), lr=0.1)
    before = copy.deepcopy(placed.state_dict())
    scaler = hgpart.GradScaler(placed, "cpu", init_scale=8.0)
    scaler.scale(placed(torch.full((3, 4), math.inf)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert all(torch.equal(value, before[name]) for name, value in placed.state_dict().items())
