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


class Dropping(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = torch.bernoulli(torch.full((1,), 0.5))
        return super().forward(x) * float(drawn)


class Freeing(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x).relu()
        x.data.set_()
        return made


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        (Dropping, 2, r"it needs the values of tensors, as a number \(float\(\), int"),
        (Freeing, 2, r"it gives a tensor other memory, or none, by set_\(\): accepted are"),
    ],
)
def test_its_line_and_what_that_does_are_said(kind: type[nn.Conv2d], line: int, said: str) -> None:
    """Stochastic depth and reversible blocks: the words were of guards and constants."""
    at = kind.forward.__code__.co_firstlineno + line
    with pytest.raises(TraceError, match=f"input 2x3x6x6 at {__file__}:{at}: {said}"):
        trace(kind(3, 4, 3), IMAGES)


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
