"""Sizes that depend on the values of constants alone are known, and in parts nothing differs."""

from __future__ import annotations

import placements
import pytest
import torch
from torch import nn

from hgpart.errors import TraceError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import trace


class Picked(nn.Module):
    """Some channels of a convolution, that a mask picks."""

    def __init__(self, pick) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(5, 4, 1)
        self.pick = pick
        self.register_buffer("mask", torch.tensor([1, 0, 1, 1, 0, 1, 1, 0], dtype=torch.bool))

    def forward(self, image):
        return self.b(self.pick(self.a(image), self.mask).relu())


PICKS = {
    "nonzero": lambda maps, mask: maps[:, mask.nonzero().squeeze(1)],
    "nonzero as a tuple": lambda maps, mask: maps[:, mask.nonzero(as_tuple=True)[0]],
    "where": lambda maps, mask: maps[:, torch.where(mask)[0]],
    "mask": lambda maps, mask: maps[:, mask],
    "other mask": lambda maps, mask: maps[:, ~mask.flip(0) | mask][:, :5],
    "masked select": lambda maps, mask: maps[:, torch.masked_select(torch.arange(8), mask)],
    "of floats": lambda maps, mask: maps[:, torch.ones(8).cumsum(0).gt(3).nonzero()[:, 0]],
}


class EachPick(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(map(Picked, PICKS.values()))

    def forward(self, image):
        return [one(image) for one in self.each]


@pytest.mark.full
@pytest.mark.long
def test_what_constants_pick_is_known():
    # "its shape depends on the data": only shapes that the batch decides were known.
    torch.manual_seed(0)
    model, inputs = EachPick().double(), [torch.randn(3, 3, 4, 4).double()]
    traced, graph = placements.traced_model(model, inputs)
    assert "whole" not in [layer.kind for layer in graph.layers]
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 1)
    placed = placements.check_equal(model, inputs, plan)
    with torch.no_grad():  # for whatever batch
        torch.testing.assert_close(placed(inputs[0][:2]), model(inputs[0][:2]))


class Triangle(nn.Module):
    """The upper triangle of the channels' products, as covariance pooling takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 1)
        self.b = nn.Linear(10, 3)

    def forward(self, image):
        maps = self.a(image).flatten(2)
        places = torch.ones(4, 4).triu().view(16).nonzero()
        return self.b((maps @ maps.transpose(1, 2)).reshape(-1, 16)[:, places].flatten(1))


@pytest.mark.full
def test_places_in_a_triangle():
    torch.manual_seed(0)
    model, inputs = Triangle().double(), [torch.randn(3, 3, 4, 4).double()]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 2, 1)
    placements.check_equal(model, inputs, plan)
    on_meta = channel_graph(trace(model.to("meta"), inputs[0].to("meta")))
    assert on_meta.fingerprint == graph.fingerprint


class Counted(Triangle):
    """The same, with a size and a number that its code goes on with in Python."""

    def forward(self, image):
        maps = self.a(image).flatten(2)
        places = torch.ones(4, 4).triu().view(16).nonzero().squeeze(1)
        weights = torch.stack([torch.tensor(float(at)) for at in range(places.shape[0])])
        weights = weights * int(torch.full((3,), 2).sum())
        products = (maps @ maps.transpose(1, 2)).reshape(-1, 16)[:, places]
        return self.b(products * weights)


@pytest.mark.few(1)
def test_what_the_code_asks_of_constants_is_known():
    """torch.export said that it could not guard on an expression of u0."""
    torch.manual_seed(0)
    model, inputs = Counted().double(), [torch.randn(3, 3, 4, 4).double()]
    traced, _ = placements.traced_model(model, inputs)
    assert traced.has_dynamic_batch
    plan = placements.of_single_tasks(*placements.traced_model(model, inputs), Modelling(), 2, 1)
    placements.check_equal(model, inputs, plan)


class Replaced(Triangle):
    """A constant that data change before its values decide a size."""

    def forward(self, image):
        kept = torch.ones(4, 4)
        kept.view(16)[0] = image.mean()
        return image.flatten()[: int(kept.sum())]


def test_constants_that_data_change_decide_nothing():
    with pytest.raises(TraceError, match="it needs the values of tensors, as a number"):
        trace(Replaced(), torch.zeros(2, 3, 4, 4))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "pick",
    [
        lambda maps, mask: maps[:, maps.mean((0, 2, 3)) > 0],
        lambda maps, mask: maps[maps > 0],
        lambda maps, mask: maps[:, torch.rand(8) > 0.5],
    ],
)
def test_what_data_or_chance_decides_is_refused_by_name(pick):
    model = Picked(pick)
    model.b = nn.Identity()  # a convolution would say how many channels there are
    with pytest.raises(TraceError, match=r"\(index in .* depends on the data"):
        channel_graph(trace(model, torch.zeros(2, 3, 4, 4)))


@pytest.mark.full
def test_a_mask_without_values_decides_nothing():
    model, image = Picked(PICKS["mask"]).to("meta"), torch.zeros(2, 3, 4, 4, device="meta")
    assert "whole" in [layer.kind for layer in channel_graph(trace(model, image)).layers]
    model.b = nn.Identity()
    with pytest.raises(TraceError, match="depends on the data"):
        channel_graph(trace(model, image))
