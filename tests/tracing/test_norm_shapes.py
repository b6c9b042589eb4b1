"""Shapes of batch norms beside those that torch computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hgpart.tracing.norm_shapes import norms_by_shape


@pytest.mark.parametrize("form", ["plain", "channels last", "half", "without weights", "in use"])
def test_results_are_those_of_torch(form: str) -> None:
    with FakeTensorMode():
        dtype = torch.half if form == "half" else None
        norm = nn.BatchNorm2d(6, affine=form != "without weights", dtype=dtype)
        norm.train(form != "in use")
        maps = torch.empty(4, 6, 5, 5, dtype=dtype)
        if form == "channels last":
            maps = maps.to(memory_format=torch.channels_last)
        versions = []
        results = []
        for shaped in (False, True):
            before = [buffer._version for buffer in norm.buffers()]
            if shaped:
                with norms_by_shape():
                    results.append(norm(maps))
            else:
                results.append(norm(maps))
            versions.append([b._version - v for b, v in zip(norm.buffers(), before, strict=True)])
    facts = [(value.shape, value.stride(), value.dtype, value.requires_grad) for value in results]
    assert facts[0] == facts[1] and versions[0] == versions[1]
