"""Batch norms of fake tensors -> the shapes of their results, without computing them.

torch makes a batch norm of a dozen operators to know what it returns: a quarter of the time of
tracing a deep model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import FakeTensor

ACCURATE = {torch.float32, torch.float64}  # types that torch computes a norm in
COMPUTED_BY = "native_batch_norm_helper"  # of torch 2.13; where there is none, torch computes


@contextmanager
def norms_by_shape() -> Iterator[None]:
    """Let batch norms of fake tensors of one type return new ones of the right shapes."""
    computed = getattr(decompositions, COMPUTED_BY, None)
    if computed is None:
        yield
        return

    def shaped(
        value: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        *rest: Any,
    ) -> Any:
        statistics = running_mean, running_var
        tensors = [own for own in (value, weight, bias, *statistics) if own is not None]
        is_fake = all(isinstance(own, FakeTensor) for own in tensors)
        dtypes, functional = {own.dtype for own in tensors}, rest[-1]
        is_plain = len(dtypes) == 1 and dtypes <= ACCURATE and value.is_contiguous()
        if not (is_fake and is_plain and training) or functional:
            return computed(value, weight, bias, *statistics, training, *rest)
        mean = value.new_empty(value.shape[1])
        for own in statistics:
            if own is not None:
                own.copy_(mean)
        return torch.empty_like(value), mean, torch.empty_like(mean), *statistics

    with mock.patch.object(decompositions, COMPUTED_BY, shaped):
        yield
