"""InputShape + samples -> a random batch of a model's inputs."""

from __future__ import annotations

from inspect import Signature

import torch
from torch import Tensor

from hgpart.tracing.arguments import Inputs
from hgpart.tracing.input_shape import FLOAT, TYPES, InputShape, InputTensor


def random_batch(
    input_shape: InputShape, forward: Signature, samples: int, dtype: torch.dtype = torch.float32
) -> Inputs:
    """Draw a batch on the CPU, by torch's generator.

    Parameters
    ----------
    forward : inspect.Signature
        Signature of the model's forward.
    dtype : torch.dtype
        Type of the tensors of weights' type.

    >>> from inspect import signature
    >>> from torch import nn
    >>> shape = InputShape(["2,2", "target=:int64:10"])
    >>> batch = random_batch(shape, signature(nn.CrossEntropyLoss().forward), 3)
    >>> batch["input"].shape, 0 <= batch["target"].min() <= batch["target"].max() < 10
    (torch.Size([3, 2, 2]), tensor(True))
    """

    def drawn(tensor: InputTensor) -> Tensor:
        sizes = samples, *tensor.sizes
        own = dtype if tensor.type == FLOAT else getattr(torch, tensor.type)
        values = tensor.values or TYPES[tensor.type]
        if values is None:
            return torch.randn(sizes, dtype=own)
        return torch.randint(values, sizes).to(own)

    batch: Inputs = input_shape.inputs(forward, drawn)
    return batch
