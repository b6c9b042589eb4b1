"""Most commands of these tests are of lenet5: a process that runs them traces it once."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hgpart.tracing import traced_model
from hgpart.zoo.architectures.lenet import lenet5

LENET5 = str(lenet5())
KEPT: dict[Any, traced_model.TracedModel] = {}


@pytest.fixture(autouse=True)
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced_model.trace

    def once(model: nn.Module, inputs: Any) -> traced_model.TracedModel:
        if str(model) != LENET5:
            return trace(model, inputs)
        key = (model.training, *((one.shape, one.dtype, one.device) for one in inputs))
        if key not in KEPT:
            KEPT[key] = trace(model, inputs)
        return KEPT[key]

    monkeypatch.setattr(traced_model, "trace", once)
