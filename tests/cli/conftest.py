"""Commands of these tests are of lenet5, traced once a mode, and print as on a wide terminal."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hgpart import terminal
from hgpart.placement import other_forms
from hgpart.tracing import traced_model
from hgpart.tracing.arguments import Arguments
from hgpart.zoo.architectures.lenet import lenet5

LENET5 = str(lenet5())
KEPT: dict[Any, traced_model.TracedModel] = {}


@pytest.fixture(autouse=True)
def _a_sentence_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a wide terminal, but where a test is of another one."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(autouse=True)
def _nothing_under_way_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it would stand where a test has a warning or an error."""
    monkeypatch.setattr(terminal, "FIRST_LINE", 10**6)


@pytest.fixture(autouse=True)
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced_model.trace_call

    def once(
        model: nn.Module, arguments: Arguments, *, any_batch: bool = True
    ) -> traced_model.TracedModel:
        if str(model) != LENET5 or not any_batch:
            return trace(model, arguments, any_batch=any_batch)
        tensors = [*model.parameters(), *arguments.tensors]
        facts = [(one.shape, one.dtype, one.device, one.requires_grad) for one in tensors]
        key = (model.training, *facts)
        if key not in KEPT:
            KEPT[key] = trace(model, arguments)
        return KEPT[key]

    for module in (traced_model, other_forms):
        monkeypatch.setattr(module, "trace_call", once)
