"""Optimizers that compute with a parameter as a whole are warned of where parts hold slices."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from hgpart import Placement, param_groups, partition_by, partition_model, place
from hgpart.partitioned_model import PartitionedModel

IMAGES = torch.randn(2, 3, 5, 5)


@cache
def found() -> tuple[nn.Module, PartitionedModel]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
    return model, partition_model(model, IMAGES, k=2, eps=1, effort=0)


def divided(way: str) -> tuple[nn.Module, PartitionedModel]:
    model, one = found()
    return model, replace(one, partition=partition_by(way, one.graph, one.work, k=2))


class Lars(torch.optim.SGD):
    """Known by its name."""


def said(placed: Placement, optimizer: Any, steps: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(steps):
            placed(IMAGES).square().mean().backward()
            optimizer.step()
    return [str(one.message) for one in found if "as a whole" in str(one.message)]


def test_the_first_step_says_what_is_divided_once() -> None:
    placed = place(*divided("horizontal"))
    for one in (copy.deepcopy(placed), placed):
        (text,) = said(one, torch.optim.Adafactor(one.parameters()))
        assert text.startswith("Adafactor computes with parameters as a whole, and parts hold")
        assert "0.weight" in text and "of the 8 that" in text
        assert not said(one, Lars(one.parameters(), lr=0.1))


def test_nothing_is_said_of_others_of_whole_parameters_and_of_other_models() -> None:
    placed, whole = place(*divided("horizontal")), place(*divided("layerwise"))
    assert not said(placed, torch.optim.AdamW(placed.parameters()))
    assert not said(whole, Lars(whole.parameters(), lr=0.1))
    other = nn.Parameter(torch.ones(2))
    other.grad = torch.ones(2)
    assert not said(placed, Lars([other], lr=0.1))


def test_each_of_several_placements_that_live_is_warned_of_once_and_none_is_kept() -> None:
    """A hook that went away within a step was an error of torch's, which goes through them all."""
    several = [place(*divided("horizontal")) for _ in range(3)]
    for one in several[:2]:
        assert len(said(one, torch.optim.Adafactor(one.parameters()))) == 1
        assert not said(one, torch.optim.Adafactor(one.parameters()))
    others = [weakref.ref(one) for one in several]
    del several, one
    gc.collect()
    assert not any(one() for one in others)


@pytest.mark.parametrize("way", ["horizontal", "layerwise"])
def test_groups_say_which_parameters_are_whole(way: str) -> None:
    """Those of which no other part has anything, by what all parts hold."""
    placed = place(*divided(way))
    names = [name for part in range(2) for name, _ in placed.original_parameters(part)]
    tensors = {id(one) for part in range(2) for _, one in placed.original_parameters(part)}
    marks = [mark for group in param_groups(placed, 0.1) for mark in group["whole"]]
    assert len(marks) == len(tensors)
    assert sum(marks) == sum(names.count(name) == 1 for name in names)
    model = divided(way)[0]
    assert all(all(group["whole"]) for group in param_groups(model, 0.1))
