"""Tensors on the meta device -> stand-ins on a real one, for as long as a model is traced.

A model can have its weights on the meta device and all the same an index in a buffer, or in the
code of its forward pass, whose value is to be known. torch.export refuses what has tensors on two
devices; a fake tensor takes no memory either, and says that it is on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


@contextmanager
def stand_ins(model: nn.Module, inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Let a model have stand-ins for its tensors on the meta device; yields those of the inputs.

    They are where its other tensors are; on the CPU if there are none.

    >>> with stand_ins(model := nn.Linear(2, 3, device="meta"), ()):
    ...     model.weight.device
    device(type='cpu')
    >>> model.weight.device
    device(type='meta')
    """
    tensors = [one for module in model.modules() for one in _tensors_in(vars(module))]
    device = next((one.device for one in tensors if not one.is_meta), torch.device("cpu"))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}

    def stand_in(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in made:
            with mode:
                like = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
                )
                if isinstance(tensor, nn.Parameter):
                    like = nn.Parameter(like, requires_grad=tensor.requires_grad)
            made[id(tensor)] = like
        return made[id(tensor)]

    def replaced(value: Any) -> Any:
        return pytree.tree_map_only(Tensor, stand_in, value)

    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if any(one.is_meta for one in _tensors_in(value)):
                    before.append((vars(module), name, value))
                    vars(module)[name] = replaced(value)
        yield tuple(replaced(value) for value in inputs)
    finally:
        for attributes, name, value in before:
            attributes[name] = value


def stood_for(tensor: Tensor) -> Tensor:
    """A tensor on the meta device for a stand-in; any other as it is."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensors_in(value: Any) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(value) if isinstance(one, Tensor)]
