"""States with another index or mask than a placement was made with are refused, others load."""

from __future__ import annotations

import copy

import placements
import pytest
import torch
from torch import nn

from hgpart import place
from hgpart.errors import PlacementError
from hgpart.hypergraph.modelling import Modelling

ROLES = ("index", "mask", "level", "later")


class Indexed(nn.Module):
    """An index, a mask, integers that are data, and an index that evaluation alone reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(4, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.register_buffer("index", torch.tensor([5, 1, 3, 7, 0, 2]))
        self.register_buffer("mask", torch.tensor([1, 1, 1, 0, 0, 1], dtype=torch.bool))
        self.register_buffer("level", torch.arange(4)[:, None, None])
        self.register_buffer("later", torch.tensor([5, 4, 3, 2, 1, 0]))

    def forward(self, image):
        maps = torch.index_select(self.a(image), 1, self.index)[:, self.mask] * self.level
        maps = self.norm(self.b(maps))
        return maps if self.training else maps[:, self.later]


def changed(model: nn.Module, role: str) -> nn.Module:
    other = copy.deepcopy(model)
    for one in other.parameters():
        torch.nn.init.normal_(one)
    other.norm.num_batches_tracked += 7
    setattr(other, role, getattr(other, role).flip(0))
    return other


@pytest.fixture(scope="module")
def placed():
    torch.manual_seed(0)
    model, image = Indexed().double(), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [image])
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 1)
    return model, image, plan


@pytest.mark.few(1)
@pytest.mark.parametrize("role", ROLES)
def test_another_index_is_refused_and_other_integers_load(placed, role):
    # The parts held and sent what the first index said: results were wrong without a word.
    model, image, plan = placed
    placement, other = place(model, plan), changed(model, role)
    before = placement.state_dict()
    if role in ("index", "mask"):
        with pytest.raises(PlacementError, match=rf"{role} has other values than the model was"):
            placement.load_state_dict(other.state_dict())
        assert all(torch.equal(one, before[name]) for name, one in placement.state_dict().items())
        return
    placement.load_state_dict(other.state_dict())
    for training in (True, False):
        other.train(training)
        assert torch.allclose(placement.train(training)(image), other(image)), training
    for name, one in placement.state_dict().items():
        assert torch.allclose(one, other.state_dict()[name]), name


def test_an_index_of_either_mode_counts_once_that_is_traced(placed):
    model, _, plan = placed
    placement = place(model, plan).eval()
    with pytest.raises(PlacementError, match="later has other values"):
        placement.load_state_dict(changed(model, "later").state_dict())


def test_a_shape_is_checked_where_no_part_has_the_tensor(placed):
    model, _, plan = placed
    state = model.state_dict()
    state["later"] = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(PlacementError, match=r"later has shape \(5,\), expected \(6,\)"):
        place(model, plan, parts=[1]).load_state_dict(state)
