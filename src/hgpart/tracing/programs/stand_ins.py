"""Tensors on the meta device -> stand-ins on a real one, for as long as a model is traced.

A model may have its weights on the meta device and yet an index in a buffer, or in the code of its
forward pass, whose value has to be known. torch.export refuses tensors on two devices; a fake
tensor takes no memory either, and reports the CPU as its device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree


@contextmanager
def stand_ins(model: nn.Module, inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Replace a model's tensors on the meta device by stand-ins; yields those of the inputs.

    Stand-ins are on the device of its other tensors, or on the CPU if it has no others. They share
    memory where the tensors do.

    >>> with stand_ins(model := nn.Linear(2, 3, device="meta"), ()):
    ...     model.weight.device
    device(type='cpu')
    >>> model.weight.device
    device(type='meta')
    """
    tensors = [tensor for module in model.modules() for tensor in _tensors_in(vars(module))]
    device = next((tensor.device for tensor in tensors if not tensor.is_meta), torch.device("cpu"))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}
    distinct = {id(tensor): tensor for tensor in tensors if tensor.is_meta}
    sharing = Counter(storage_of(tensor) for tensor in distinct.values())
    bases: dict[tuple[int, torch.dtype], Tensor] = {}

    def empty_like(tensor: Tensor) -> Tensor:
        form = tensor.shape, tensor.stride()
        storage = storage_of(tensor)
        if sharing[storage] < 2:
            return torch.empty_strided(*form, dtype=tensor.dtype, device=device)
        if (storage, tensor.dtype) not in bases:
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            bases[storage, tensor.dtype] = torch.empty(size, dtype=tensor.dtype, device=device)
        return bases[storage, tensor.dtype].as_strided(*form, tensor.storage_offset())

    def stand_in(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in made:
            like = empty_like(tensor)
            if isinstance(tensor, nn.Parameter):
                like = nn.Parameter(like, requires_grad=tensor.requires_grad)
            made[id(tensor)] = like
        return made[id(tensor)]

    def replaced(value: Any) -> Any:
        return pytree.tree_map_only(Tensor, stand_in, value)

    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        with mode:
            for module in model.modules():
                for name, value in list(vars(module).items()):
                    if any(tensor.is_meta for tensor in _tensors_in(value)):
                        before.append((vars(module), name, value))
                        vars(module)[name] = replaced(value)
            replaced_inputs = tuple(map(replaced, inputs))
        yield replaced_inputs
    finally:
        for attributes, name, value in before:
            attributes[name] = value


def storage_of(tensor: Tensor) -> int:
    """A number that tensors have in common if they share memory."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def stood_for(tensor: Tensor) -> Tensor:
    """A tensor on the meta device for a stand-in; any other tensor as it is."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
