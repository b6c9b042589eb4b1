"""Commands of these tests are of lenet5, traced once a mode, and print as on a wide terminal."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import hgpart.placement.placement
from hgpart.tracing import traced_model
from hgpart.zoo.architectures.lenet import lenet5

LENET5 = str(lenet5())
KEPT: dict[Any, traced_model.TracedModel] = {}


@pytest.fixture(autouse=True)
def _a_sentence_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a wide terminal, but where a test is of another one."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(autouse=True)
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced_model.trace

    def once(model: nn.Module, inputs: Any) -> traced_model.TracedModel:
        if str(model) != LENET5:
            return trace(model, inputs)
        tensors = [*model.parameters(), *inputs]
        facts = [(one.shape, one.dtype, one.device, one.requires_grad) for one in tensors]
        key = (model.training, *facts)
        if key not in KEPT:
            KEPT[key] = trace(model, inputs)
        return KEPT[key]

    for module in (traced_model, hgpart.placement, hgpart.placement.placement):
        monkeypatch.setattr(module, "trace", once)
