"""Calls of operators as channel rules see them, without a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from hgpart.operators.effects import Call
from hgpart.operators.table import effect_of


def per_channel(*shape: int, axis: int = 1) -> torch.Tensor:
    """Ids of a map with channels 0, 1, ... along an axis, expanded along the others."""
    view = [1] * len(shape)
    view[axis] = -1
    return torch.arange(shape[axis], dtype=torch.int32).reshape(view).expand(shape)


def effect(operator: Any, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> Any:
    node = fx.Graph().call_function(operator)
    return effect_of(Call(node, args, kwargs, shape))
