"""A model -> what commands change in it: types, modes, and values that a trace may depend on."""

from __future__ import annotations

import hashlib
import re
from itertools import chain

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from hgpart.tracing.cache.graphs import bytes_of

_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


def state_of(model: nn.Module) -> str:
    """The state of a model as a text, without the values of parameters and running statistics."""
    tensors = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    values = [
        hashlib.blake2b(bytes_of(buffer), digest_size=16).hexdigest()
        for module in model.modules()
        if not isinstance(module, _NormBase)
        for buffer in module._buffers.values()
        if buffer is not None and not buffer.is_meta
    ]
    return repr(
        (
            _ADDRESS.sub("", repr(model)),
            [module.training for module in model.modules()],
            [(name, described(tensor)) for name, tensor in tensors],
            values,
        )
    )


def described(tensor: Tensor) -> str:
    """A tensor without its values."""
    size, stride = tuple(tensor.shape), tensor.stride()
    return f"{size} {stride} {tensor.dtype} {tensor.device} {tensor.requires_grad}"
