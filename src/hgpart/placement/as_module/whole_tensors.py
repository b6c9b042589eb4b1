"""Placement + the optimizers that step on it -> a warning for those that need whole parameters.

Most optimizers update each element by itself, or by the gradients of all parameters: for slices
they do the same as for whole tensors. Those that scale by a tensor's norm, or factor or
orthogonalise it, do something else where parts hold slices.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

# Parts of class names in torch.optim, timm, transformers, apex, and in papers.
KINDS = re.compile(
    "adafactor|adahessian|adamp|came|galore|kron|lamb|larc|lars|muon|novograd|sgdp|shampoo|sm3|soap"
)


class Divided(Protocol):
    """A placement, some of whose parameters are divided."""

    def divided_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Slices of parameters, with the names of the parameters."""


def needs_whole_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is known to compute with whole parameters.

    >>> needs_whole_tensors(torch.optim.Adafactor([torch.ones(1)]))
    True
    >>> needs_whole_tensors(torch.optim.AdamW([torch.ones(1)]))
    False
    """
    names = [kind.__name__.lower() for kind in type(optimizer).__mro__]
    return any(map(KINDS.search, names))


# Placements with divided parameters that no optimizer was warned about yet, while they exist.
_WATCHED: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_optimizers(placement: Divided) -> None:
    """Warn once if such an optimizer steps on divided parameters of a placement, while it exists.

    Nothing is watched if no parameter is divided.
    """
    if next(placement.divided_parameters(), None) is not None:
        _WATCHED.add(placement)
        _watch()


@cache
def _watch() -> None:
    """Watch all steps from now on; the hook stays, as torch iterates over its hooks in a step."""
    register_optimizer_step_pre_hook(_look)


def _look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _WATCHED or not needs_whole_tensors(optimizer):
        return
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    for placement in [*_WATCHED]:
        names = {id(weight): name for name, weight in placement.divided_parameters()}
        divided = [names[id(weight)] for weight in parameters if id(weight) in names]
        if divided:
            _WATCHED.discard(placement)
            warnings.warn(
                f"{type(optimizer).__name__} computes with parameters as a whole, and parts hold "
                f"slices of {divided[0]} ({len(divided)} of the {len(parameters)} that it has): "
                "it does not do what it does to the model; whole ones are marked in "
                'hgpart.param_groups(...)[0]["whole"]',
                stacklevel=2,
            )
