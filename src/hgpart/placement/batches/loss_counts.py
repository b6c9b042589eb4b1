"""A loss function + targets -> what its mean divides by, if not by the number of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn._reduction import legacy_get_string
from torch.nn.modules.loss import _Loss

OF_CLASSES: Mapping[Any, Callable[..., Tensor]] = {
    nn.CrossEntropyLoss: functional.cross_entropy,
    nn.NLLLoss: functional.nll_loss,
}


@dataclass(frozen=True, eq=False)
class ClassLoss:
    """A class loss of torch, whose mean is over targets, weighted by their classes.

    Attributes
    ----------
    total : callable
        Function (result, target) -> sum over the targets.
    weight : Tensor or None
        Weight of each class.
    ignore_index : int
        Class of targets that do not count.
    """

    total: Callable[[Any, Tensor], Tensor]
    weight: Tensor | None
    ignore_index: int

    def count(self, target: Any) -> float:
        """The number that the mean over some targets divides by.

        >>> from torch.nn.functional import cross_entropy
        >>> loss = class_loss(partial(cross_entropy, ignore_index=0))
        >>> loss.count(torch.tensor([0, 1, 2, 2]))
        3.0
        """
        counted = target[target != self.ignore_index]
        if self.weight is None:
            return float(len(counted))
        return float(self.weight.to(counted.device, torch.float64)[counted].sum())


def class_loss(loss_fn: object) -> ClassLoss | None:
    """The class loss of torch behind a loss function, if it is a mean of one."""
    function, options = _called(loss_fn)
    for kind, of_kind in OF_CLASSES.items():
        if isinstance(function, kind) and type(function).forward is kind.forward:
            module, function = function, of_kind
            of_module = ("weight", "ignore_index", "label_smoothing", "reduction")
            options = {name: getattr(module, name) for name in of_module if hasattr(module, name)}
    if function not in OF_CLASSES.values() or options.get("reduction", "mean") != "mean":
        return None
    total = partial(function, **{**options, "reduction": "sum"})
    return ClassLoss(total, options.get("weight"), options.get("ignore_index", -100))


def is_sum(loss_fn: object) -> bool:
    """Whether a loss function is one of torch's that add up instead of averaging.

    >>> is_sum(nn.MSELoss(reduction="sum")), is_sum(nn.MSELoss())
    (True, False)
    """
    function, options = _called(loss_fn)
    if isinstance(function, _Loss) and type(function).forward.__module__ == _Loss.__module__:
        return function.reduction == "sum"
    of_torch = getattr(function, "__module__", None) == functional.__name__
    return of_torch and options.get("reduction") == "sum"


def adds_up(loss_fn: object) -> bool:
    """Whether a loss function is one of torch's: in micro-batches it gives the batch's loss.

    Any other function may compare samples with each other.

    >>> adds_up(nn.MSELoss()), adds_up(functional.cross_entropy), adds_up(lambda one, other: one)
    (True, True, False)
    """
    function, options = _called(loss_fn)
    if isinstance(function, _Loss):
        own = type(function).forward.__module__ == _Loss.__module__
        return own and function.reduction != "none"
    of_torch = getattr(function, "__module__", None) == functional.__name__
    return of_torch and options.get("reduction") != "none"


def _called(loss_fn: object) -> tuple[Any, dict[str, Any]]:
    """The function behind partials, and its keyword arguments.

    torch's older `size_average` and `reduce` are translated to a reduction, as torch does.
    """
    options: dict[str, Any] = {}
    while isinstance(loss_fn, partial) and not loss_fn.args:
        options = {**loss_fn.keywords, **options}
        loss_fn = loss_fn.func
    if getattr(loss_fn, "__module__", None) == functional.__name__:
        average, reduce = options.pop("size_average", None), options.pop("reduce", None)
        if average is not None or reduce is not None:
            options["reduction"] = legacy_get_string(average, reduce, emit_warning=False)
    return loss_fn, options
