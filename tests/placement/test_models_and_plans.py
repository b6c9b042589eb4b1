"""Which model a partitioned model or a plan is for."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import nn

from hgpart import partition_model, place
from hgpart.errors import PlacementError, PlanError
from hgpart.plan import Plan


class Branching(nn.Module):
    """Of equal parameters and channels, whatever its numbers."""

    def __init__(self, act=torch.relu, stride=1, skip=False, scale=2.0, order=(1, 0, 2, 3)):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, stride, 1)
        self.act, self.skip, self.scale = act, skip, scale
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x):
        y = self.act(self.first(x))[:, self.order] * torch.tensor(self.scale)
        return self.second(y) + y if self.skip else self.second(y)


@cache
def branching():
    return partition_model(Branching(), torch.randn(2, 3, 6, 6), k=2, eps=1, effort=0)


@pytest.mark.parametrize(
    "others",
    [
        {"act": torch.tanh},
        {"order": (0, 1, 2, 3)},
        *(pytest.param(one, marks=pytest.mark.full) for one in ({"stride": 2}, {"skip": True})),
    ],
)
def test_a_partitioned_model_is_for_no_other_model(others):
    """It computed what was traced, with the weights of the other."""
    with pytest.raises((PlanError, PlacementError), match=r"is another one|has other values"):
        place(Branching(**others), branching())


def test_a_partitioned_model_is_for_a_model_of_another_constant_with_its_constant():
    images, other = torch.randn(2, 3, 6, 6), Branching(scale=3.0)
    torch.testing.assert_close(place(other, branching())(images), other(images))


def test_a_partitioned_model_is_not_for_what_the_model_has_become():
    """Also where the tensor that was traced with was changed in place, or the model is narrower."""
    model, images = Branching(), torch.randn(2, 3, 6, 6)
    result = partition_model(model, images, k=2, eps=1, effort=0)
    model.order.copy_(torch.arange(4))
    with pytest.raises(PlacementError, match="order has other values"):
        place(model, result)
    model.first, model.second = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)
    model.order = torch.tensor([1, 0])
    with pytest.raises(PlanError, match='the plan is for "Branching" with fingerprint'):
        place(model, result)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("planned", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_plan_of_the_other_mode(planned):
    """What was partitioned in training computed as in training, though the model no longer did."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    images = 3 * torch.randn(2, 3, 8, 8) + 1
    result = partition_model(model.train(planned), images, k=2, eps=0.5, effort=0)
    plan = Plan(result.partition, "model", (3, 8, 8))
    model.train(not planned)
    for given_ in (result, plan):
        placed = place(model, given_)
        assert placed.training == model.training
        assert torch.allclose(placed(images), copy.deepcopy(model)(images), atol=1e-5)
    placed = place(model.double(), plan)
    assert torch.allclose(placed(images.double()), model(images.double()), atol=1e-12)
