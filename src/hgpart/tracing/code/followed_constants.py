"""A forward pass on tensors without data -> the same, with the values of what constants decide.

torch.export has no values, not even those of `torch.ones(n, n).triu()`, and so fails where the code
goes on with the size of its `nonzero()`. `FollowedConstants` computes along what a pass makes of
plain numbers alone, and has the values where such a size, or a number in Python, depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

# Types of plain values.
PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)

_FACTORIES = frozenset(
    getattr(torch, name)
    for name in [
        "arange",
        "eye",
        "full",
        "linspace",
        "ones",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    ]
)
_SIZED = frozenset({"argwhere", "masked_select", "nonzero", "unique", "unique_consecutive"})
_NUMBERS = frozenset({"__bool__", "__float__", "__index__", "__int__", "__len__", "item", "tolist"})
_CHANGING = frozenset(
    {"__setitem__", "__set__"}
    | {
        f"__i{name}__"
        for name in [
            "add",
            "and",
            "floordiv",
            "lshift",
            "mod",
            "mul",
            "or",
            "pow",
            "rshift",
            "sub",
            "truediv",
            "xor",
        ]
    }
)
_LARGEST = 10**7  # elements; what is larger is not followed


class FollowedConstants(TorchFunctionMode):
    """Puts constants in the place of what depends on the values of constants alone.

    Parameters
    ----------
    are_kept : bool
        Whether the graph that is recorded keeps the constants; otherwise they only have the sizes.
    """

    def __init__(self, are_kept: bool) -> None:
        super().__init__()
        self._are_kept = are_kept
        self._values = WeakTensorKeyDictionary()

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function, or put what it makes of constants in its place."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if _changes(name, kwargs):
            self._values.clear()  # others may be views of what is changed
            return func(*args, **kwargs)
        is_known = self._is_known(func, args, kwargs)
        if is_known and name in _NUMBERS:
            return self._value(func, args, kwargs)
        if is_known and name in _SIZED:
            value = self._value(func, args, kwargs)
            made = pytree.tree_map_only(Tensor, self._constant, value)
        else:
            made = func(*args, **kwargs)
            tensors = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
            if not (is_known and tensors) or any(_is_large(tensor) for tensor in tensors):
                return made
            value = self._value(func, args, kwargs)
        for tensor, known in zip(pytree.tree_leaves(made), pytree.tree_leaves(value), strict=False):
            if isinstance(tensor, Tensor) and isinstance(known, Tensor):
                self._values[tensor] = known
        return made

    def _is_known(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call takes only plain numbers and constants whose values are known."""
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves):
            return False
        return all(tensor in self._values for tensor in tensors) if tensors else func in _FACTORIES

    def _value(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a known call makes; None if it draws random numbers."""
        args, kwargs = pytree.tree_map_only(Tensor, self._values.__getitem__, (args, kwargs))
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            value = func(*args, **kwargs)
            return value if torch.equal(before, torch.get_rng_state()) else None

    def _constant(self, value: Tensor) -> Tensor:
        """A tensor of the pass that stands for a value."""
        if self._are_kept:
            constant = torch.tensor(value.tolist(), dtype=value.dtype, device=value.device)
            return constant.reshape(value.shape)
        return torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _is_large(tensor: Tensor) -> bool:
    """Whether a tensor has too many elements, or sizes that are symbols."""
    if not all(isinstance(size, int) for size in tensor.shape):
        return True
    return math.prod(tensor.shape) > _LARGEST


def _changes(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function changes an argument in place."""
    in_place = name in _CHANGING or (name.endswith("_") and not name.endswith("__"))
    return in_place or kwargs.get("inplace") is True or kwargs.get("out") is not None
