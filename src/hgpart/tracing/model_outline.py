"""nn.Module -> its outline: models of equal outlines are traced alike.

The outline is everything that a model's code depends on, except the values of its parameters and
buffers: the kinds of its modules, their attributes and hooks, the shapes and types of their
tensors. It takes a thousandth of a trace's time. Models of other outlines may be traced alike too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hgpart.tracing.code.contents import digest_of
from hgpart.tracing.code.reachable import NO_STATE

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class ModelOutline(NamedTuple):
    """What a model's code depends on.

    Attributes
    ----------
    modules : tuple
        For each module its path, kind, code, tensors, attributes and hooks.
    modes : tuple of bool
        Whether each module is in training mode.
    opaque : bool
        Whether an object could not be looked into, and may have changed inside.
    """

    modules: tuple[Hashable, ...]
    modes: tuple[bool, ...]
    opaque: bool


def outline_of(model: nn.Module) -> ModelOutline:
    """The outline of a model as it is now.

    >>> first, second = nn.Dropout(0.1), nn.Dropout(0.1)
    >>> outline_of(first) == outline_of(second)
    True
    >>> second.p = 0.2
    >>> outline_of(first) == outline_of(second)
    False
    """
    named = [*model.named_modules(remove_duplicate=False)]
    names = _Names(named)
    modules = tuple(
        (
            path,
            names(module),
            type(module),
            type(module).forward,
            *_tensors(module, names),
            *((name, names.content(value)) for name, value in _attributes(module)),
        )
        for path, module in named
    )
    return ModelOutline(modules, tuple(module.training for _, module in named), names.opaque)


def content_in(model: nn.Module) -> Callable[[Any], Hashable]:
    """A function that tells contents of values apart, given a model's present modules."""
    return _Names([*model.named_modules(remove_duplicate=False)]).content


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name in _HOOKS:
            yield name, list(value.values())
        elif name not in NO_STATE and name != "training":
            yield name, value


def _tensors(module: nn.Module, names: _Names) -> Iterator[Hashable]:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        known = None
        if tensor is not None:
            kept = name not in module._non_persistent_buffers_set
            known = tuple(tensor.shape), tensor.dtype, tensor.requires_grad, kept, names(tensor)
        yield name, known


class _Names:
    """Names of a model's modules and tensors, wherever they are met."""

    def __init__(self, named: list[tuple[str, nn.Module]]) -> None:
        self.known: dict[int, str] = {}
        self.opaque = False
        for path, module in named:
            self.known.setdefault(id(vars(module)), path)
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self.known.setdefault(id(tensor), f"{path}.{name}")

    def __call__(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self.known[id(vars(value))]  # any other module can't be looked into
        if isinstance(value, Tensor):
            return self.known.get(id(value)) or _values_of(value)
        return None

    def content(self, value: Any) -> Hashable:
        """A key that equal contents share; where contents can't be read, the object itself."""
        if isinstance(value, (bool, int, float, str, type(None))):
            return type(value), value
        if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
            return _Itself(value)
        if isinstance(value, dict):
            return dict, tuple((name, self.content(item)) for name, item in value.items())
        if isinstance(value, (list, tuple)):
            return type(value), tuple(map(self.content, value))
        digest = digest_of(value, self)
        self.opaque |= digest is None
        return digest or _Itself(value)


class _Itself:
    """An object that is equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _values_of(tensor: Tensor) -> Any:
    """A key that equal constants of the code share."""
    facts = tuple(tensor.shape), str(tensor.dtype)
    if tensor.is_meta:
        return facts
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return *facts, hashlib.sha256(flat.numpy().tobytes()).digest()
