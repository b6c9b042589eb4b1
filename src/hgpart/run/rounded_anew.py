"""Model -> the same model for a while, whose numbers are rounded in another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from hgpart.operators.calls import has_gradients


class Rounding(TorchDispatchMode):
    """Moves what operators make of data to numbers beside it, by lot.

    Constants stay, because positions are made of them: the whole part of 0.5 * 2 would be 0.

    Attributes
    ----------
    smallest : torch.dtype
        The type of largest epsilon that numbers were rounded to, or the model's own.
    """

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.smallest = dtype
        self._generator = generator
        self._constants = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator, and move its results."""
        made = func(*args, **(kwargs or {}))
        taken = [*filter(_is_rounded, pytree.tree_leaves((args, kwargs)))]
        memory = {tensor.untyped_storage().data_ptr() for tensor in taken}
        is_constant = all(tensor in self._constants for tensor in taken)
        for value in filter(_is_rounded, pytree.tree_leaves(made)):
            if is_constant:
                self._constants[value] = True
            elif value.untyped_storage().data_ptr() not in memory:
                _move(value, self._generator)
                self.smallest = max(self.smallest, value.dtype, key=_epsilon)
        return made


@contextmanager
def rounded_anew(model: nn.Module, dtype: torch.dtype) -> Iterator[Rounding]:
    """Move each weight of a model in a type to a number beside it, and back; and all results."""
    generator = torch.Generator().manual_seed(0)
    weights = [*filter(_is_rounded, model.parameters())]
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            _move(weight, generator)
    try:
        with Rounding(dtype, generator) as rounding:
            yield rounding
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)


def _is_rounded(value: Any) -> bool:
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided
    return is_dense and has_gradients(value.dtype)


def _move(tensor: Tensor, generator: torch.Generator) -> None:
    steps = torch.randint(-1, 2, tensor.shape, generator=generator)
    tensor.mul_((1 + _epsilon(tensor.dtype) * steps.double()).to(tensor))


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
