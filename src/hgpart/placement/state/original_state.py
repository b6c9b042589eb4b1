"""Names and shapes in a model's state_dict, which a placement loads and saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from hgpart.errors import PlacementError


@dataclass(frozen=True)
class Original:
    """An entry of the model's state_dict; entries that are one tensor are held under one name.

    Attributes
    ----------
    held_as : str
        Name under which the tensor is held.
    shape : tuple of int
    parameter : bool
        Whether it is a parameter, not a buffer.
    """

    held_as: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameter: bool


def original_state(model: nn.Module, used: Iterable[str]) -> dict[str, Original]:
    """Entries of a model's state_dict by name; tensors with several names have a `used` one."""
    tensors = {
        **dict(model.named_buffers(remove_duplicate=False)),
        **dict(model.named_parameters(remove_duplicate=False)),
    }
    names: dict[int, str] = {}
    for name in (*used, *tensors):
        names.setdefault(id(tensors[name]), name)
    return {
        name: Original(
            names[id(tensors[name])],
            tuple(tensors[name].shape),
            tensors[name].dtype,
            isinstance(tensors[name], nn.Parameter),
        )
        for name in model.state_dict()
        if name in tensors
    }


def compared_names(
    state: Iterable[str], original: Iterable[str], strict: bool = True
) -> tuple[list[str], list[str]]:
    """Names of a model's state that another state lacks, and names that only the other state has.

    Raises
    ------
    PlacementError
        If there are any such names, and `strict`.
    """
    have, wanted = dict.fromkeys(state), dict.fromkeys(original)
    missing = [name for name in wanted if name not in have]
    unknown = [name for name in have if name not in wanted]
    if strict and (missing or unknown):
        what, names = ("lacks", missing) if missing else ("has unknown", unknown)
        raise PlacementError(f"the state {what} {names[0]} ({len(names)} names): not this model's")
    return missing, unknown


def hooked(model: nn.Module) -> Iterator[str]:
    """Hooks of a model that run in its backward pass, each with its module or parameter."""
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            yield f"a hook on the module {name or type(model).__name__}"
    for name, parameter in model.named_parameters():
        if has_hooks(parameter):
            yield f"a hook on the parameter {name}"


def has_hooks(parameter: torch.Tensor) -> bool:
    """Whether anything is called with its gradient."""
    return bool(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    )
