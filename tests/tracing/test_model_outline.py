"""Models of equal outlines are traced alike: what their code goes by is in them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hgpart.placement.as_module.original_modules import skeleton
from hgpart.tracing.model_outline import outline_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.act: Callable[[torch.Tensor], torch.Tensor] = torch.relu
        self.scales, self.names = torch.ones(4, 1, 1), {"sizes": [1, 2], "of": self.first}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.norm(self.first(x))) * self.scales


def changed(change: Callable[[Net], object]) -> Net:
    model = Net()
    change(model)
    return model


CHANGES: dict[str, Callable[[Net], object]] = {
    "a number": lambda net: setattr(net.norm, "momentum", 0.5),
    "a number in a tuple": lambda net: setattr(net.first, "stride", (2, 2)),
    "a function": lambda net: setattr(net, "act", torch.tanh),
    "a function without a name": lambda net: setattr(net, "act", lambda x: x),
    "a constant": lambda net: net.scales.mul_(2),
    "an item": lambda net: net.names.update(sizes=[1, 3]),
    "a module in a dict": lambda net: net.names.update(of=net.norm),
    "a module": lambda net: setattr(net, "norm", nn.InstanceNorm2d(4)),
    "a parameter": lambda net: setattr(net.first, "bias", None),
    "a parameter's type": lambda net: net.double(),
    "a shared parameter": lambda net: setattr(net.norm, "weight", net.norm.bias),
    "a frozen parameter": lambda net: net.first.requires_grad_(False),
    "a hook": lambda net: net.first.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_code_goes_by_changes_the_outline(name: str) -> None:
    assert outline_of(changed(CHANGES[name])).modules != outline_of(Net()).modules


def test_copies_weights_and_modes() -> None:
    model = Net()
    expected = outline_of(model)
    with torch.no_grad():
        model(torch.ones(2, 3, 8, 8))
        model.first.weight.zero_()
    for one in (model, Net(), copy.deepcopy(model), skeleton(model), model.to("meta")):
        assert outline_of(one) == expected
    model.norm.eval()
    assert outline_of(model) != expected
    assert outline_of(model).modules == expected.modules
    model.act = lambda x: x
    assert outline_of(copy.deepcopy(model)) == outline_of(model)


def test_what_can_not_be_looked_into_is_equal_to_itself_alone() -> None:
    class Local:
        pass

    model = Net()
    model.names["thing"] = Local()
    before = outline_of(model)
    assert before == outline_of(model)
    assert before.opaque and not outline_of(Net()).opaque  # it may have changed in place
    model.names["thing"] = Local()
    assert outline_of(model) != before
