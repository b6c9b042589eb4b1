"""Weights decay, biases and norms do not: in the parts as in the model."""

from __future__ import annotations

import copy

import pytest
import torch
from placed_models import Forked
from torch import nn

from hgpart.hypergraph.modelling import Modelling
from hgpart.partitioned_model import partition_model
from hgpart.placement import Placement, place
from hgpart.placement.param_groups import param_groups


class Normed(nn.Module):
    """Norms of all kinds, one of whose weights has three dimensions, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.group = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.again, self.layer = nn.Conv2d(8, 8, 3, padding=1), nn.LayerNorm([8, 6, 6])
        self.again.weight = self.second.weight
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.batch(self.first(x)).relu()
        x = self.group(self.second(x)).relu()
        return self.head(self.layer(self.again(x)).relu().mean((2, 3)))


IMAGES = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)).double()
LABELS = torch.arange(8) % 4


def placed(model: nn.Module, slices: int = 1) -> Placement:
    modelling = Modelling(grain="fine", batch_size=8, slices=slices)
    return place(model, partition_model(model, IMAGES, 2, 0.3, modelling=modelling, effort=0))


def trained(model: nn.Module, groups: list[dict[str, object]]) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


def test_groups_of_a_model_are_those_of_its_modules() -> None:
    model = Normed()
    decaying, others = param_groups(model, 0.1)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    names = {id(one): name for name, one in model.named_parameters()}
    found = {names[id(one)] for one in decaying["params"]}
    assert found == {"first.weight", "second.weight", "head.weight"}
    assert len(decaying["params"]) + len(others["params"]) == len(names)


@pytest.mark.full
@pytest.mark.parametrize("slices", [1, 2])
def test_parts_train_as_the_model_does(slices: int) -> None:
    torch.manual_seed(2)
    model = Normed().double()
    if slices > 1:  # which have statistics of their own
        model.batch = nn.GroupNorm(4, 8).double()
    parts, other = placed(model, slices), copy.deepcopy(model)
    all_decay = trained(other, [{"params": [*other.parameters()], "weight_decay": 0.5}])
    found = trained(parts, param_groups(parts, 0.5))
    whole = trained(model, param_groups(model, 0.5))
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)
    difference = (all_decay["layer.weight"] - whole["layer.weight"]).abs().max()
    assert difference > 0.01  # three steps of 0.01, each 0.5 of a weight near 1


def test_names_of_a_part_are_the_models() -> None:
    model = Forked().double()
    parts = placed(model)
    elements: dict[str, int] = {}
    for part in range(2):
        for name, parameter in parts.original_parameters(part):
            elements[name] = elements.get(name, 0) + parameter.numel()
    assert elements == {name: one.numel() for name, one in model.named_parameters()}
    held = {id(one) for part in range(2) for _, one in parts.original_parameters(part)}
    assert held == {id(one) for one in parts.parameters()}


def test_a_process_has_groups_of_its_part() -> None:
    model = Normed().double()
    result = partition_model(model, IMAGES, 2, 0.3, effort=0)
    halves = [place(model, result, parts=[part]) for part in range(2)]
    for half in halves:
        groups = param_groups(half, 0.1)
        ours = [id(one) for group in groups for one in group["params"]]
        assert sorted(ours) == sorted(id(one) for one in half.parameters())
