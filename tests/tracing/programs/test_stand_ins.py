"""Models on the meta device are traced as on the CPU, and are afterwards as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hgpart.errors import TraceError
from hgpart.layers.layering import channel_graph
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.tracing.programs.stand_ins import stand_ins, stood_for
from hgpart.tracing.traced_model import trace


class Indexed(nn.Module):
    """Values that say which channels are which: in a buffer, in an attribute, in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 1)
        self.b = nn.Conv2d(6, 8, 1)
        self.c = nn.Conv2d(6, 8, 1)
        self.c.weight = self.b.weight
        self.norm = nn.BatchNorm2d(6)
        self.register_buffer("index", torch.tensor([5, 1, 3, 7, 0, 2]))
        self.order = {"back": [torch.tensor([5, 4, 3, 2, 1, 0])]}

    def forward(self, image):
        image = image - torch.tensor([0.4, 0.5, 0.6])[:, None, None]
        maps = self.norm(torch.index_select(self.a(image), 1, self.index))
        return self.b(maps[:, self.order["back"][0]]) + self.c(maps)[:, [7, 6, 5, 4, 3, 2, 1, 0]]


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
def test_a_model_without_weights_is_traced_like_one_with_them(training):
    # Its index was not known, or "expected all tensors to be on the same device".
    model, image = Indexed().train(training), torch.zeros(2, 3, 4, 4)
    expected = channel_graph(trace(model, image))
    bare = skeleton(model)
    traced = trace(bare, image.to("meta"))
    assert channel_graph(traced).fingerprint == expected.fingerprint
    assert not any(layer.kind == "whole" for layer in expected.layers)
    assert traced.values["b_index"].tolist() == [5, 1, 3, 7, 0, 2]
    assert {name for name, one in traced.values.items() if one.is_floating_point()} == {
        "c_lifted_tensor_0"
    }
    assert all(one.is_meta for one in bare.parameters())
    assert bare.b.weight is bare.c.weight


def test_stand_ins_are_shared_as_what_they_stand_for_and_go():
    model = Indexed().to("meta")
    model.c.weight = model.b.weight
    model.order = {"back": [torch.zeros(3, device="meta")]}
    before = {**model.state_dict(keep_vars=True)}
    with pytest.raises(ZeroDivisionError), stand_ins(model, (before["index"], 7)) as (index, seven):
        assert {one.device.type for one in model.state_dict().values()} == {"cpu"}
        assert model.b.weight is model.c.weight
        assert index is model.index
        assert seven == 7
        assert model.order["back"][0].device.type == "cpu"
        assert stood_for(model.a.weight).is_meta
        raise ZeroDivisionError
    assert all(one is before[name] for name, one in model.state_dict(keep_vars=True).items())
    assert model.order["back"][0].is_meta


def test_nothing_stands_in_for_tensors_with_values():
    model, image = Indexed(), torch.zeros(1)
    before = copy.copy(vars(model))
    with stand_ins(model, (image,)) as inputs:
        assert inputs[0] is image
        assert vars(model) == before
        assert stood_for(image) is image


def test_what_can_not_be_traced_is_so_on_the_meta_device_too():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).to("meta")
    with pytest.raises(TraceError, match="can't trace Sequential with input 2x3x8x8"):
        trace(model, torch.zeros(2, 3, 8, 8, device="meta"))
    assert all(one.is_meta for one in model.parameters())
