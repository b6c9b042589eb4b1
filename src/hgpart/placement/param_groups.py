"""Placement, or a model -> groups of its parameters for an optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hgpart.placement.placement import Placement

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: weights, which decay, and biases and the parameters of norms, which do not.

    Biases are all parameters with at most one dimension; norms are torch's norm modules and classes
    derived from them. For a placement, the modules and shapes of the original model count, so that
    an optimizer does the same to the parts as to the model. A group may be empty. In each group,
    ``"whole"`` says for each parameter whether it is a whole parameter of the model: only to these
    do optimizers that compute with whole tensors (LARS, LAMB, Adafactor, Muon) the same as to the
    model's.

    Parameters
    ----------
    model : nn.Module
        Model; of a placement or a `DistributedModel`, the parameters that this process holds.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> [len(group["params"]) for group in param_groups(model, 0.01)]
    [1, 3]
    >>> param_groups(model, 0.01)[0]["whole"]
    (True,)
    """
    model = getattr(model, "placement", model)  # of a DistributedModel
    of_norms = {
        f"{name}.{own}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, NORMS)
        for own, _ in module.named_parameters(recurse=False)
    }
    groups: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    for name, parameter in _named(model):
        groups[parameter.dim() > 1 and name not in of_norms].append(parameter)
    divided = dict[int, str]()
    if isinstance(model, Placement):
        divided = {id(parameter): name for name, parameter in model.divided_parameters()}
    return [
        {
            "params": parameters,
            "weight_decay": weight_decay if decays else 0.0,
            "whole": tuple(id(parameter) not in divided for parameter in parameters),
        }
        for decays, parameters in groups.items()
    ]


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(model, Placement):
        yield from model.named_parameters()
        return
    for part in model.programs.parts:
        yield from model.original_parameters(part)
