"""Modules that can't be traced are refused by name, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hgpart.errors import TraceError
from hgpart.tracing.traced_model import trace

IMAGES = torch.zeros(2, 3, 6, 6)


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3)))


def partly_traced() -> nn.Module:
    return nn.Sequential(nn.ReLU(), torch.jit.trace(nn.Conv2d(3, 4, 3), IMAGES))


def of_integers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), torch.ao.nn.quantized.dynamic.Linear(108, 4))


def quantising() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), torch.ao.quantization.default_fake_quant())


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")  # torch's own, of what is to be deprecated
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (scripted, "^the model itself is a RecursiveScriptModule of TorchScript: accepted are"),
        (partly_traced, "^1 is a TopLevelTracedModule of TorchScript: accepted are modules as"),
        (of_integers, "^1 is a quantised Linear, which computes with integers: accepted is the"),
        (quantising, "it quantises: accepted is the model without fake quantisation"),
    ],
)
def test_it_is_refused_by_name(make: Callable[[], nn.Module], said: str) -> None:
    """The words were torch's, of symbols and attributes of its own."""
    with pytest.raises(TraceError, match=said) as refused:
        trace(make(), IMAGES)
    assert "\n" not in str(refused.value)
