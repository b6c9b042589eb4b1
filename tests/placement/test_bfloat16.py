"""A model in bfloat16, norms too, in parts: as near to float64 as the model itself is."""

from __future__ import annotations

import copy

import pytest
import torch
from pipeline_ranks import Past
from placed_models import placed
from torch import nn

IMAGES = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 5


def trained(model: nn.Module, dtype: torch.dtype) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(IMAGES.to(dtype)).double(), LABELS)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_parts_train_as_near_to_float64_as_the_model(grain: str) -> None:
    """Sums of partial sums are rounded once more: three times the model's error, or 2 %."""
    torch.manual_seed(3)
    model = Past().bfloat16()
    exact = trained(copy.deepcopy(model).double(), torch.float64)
    parts = placed(model, (IMAGES.bfloat16(),), "random", 3, grain)
    found, whole = (trained(one, torch.bfloat16) for one in (parts, model))
    for ours, theirs, true in zip(found, whole, exact, strict=True):
        assert abs(ours - true) <= max(3 * abs(theirs - true), 0.02 * true)
    state = parts.state_dict()
    assert {name: one.dtype for name, one in state.items()} == {
        name: one.dtype for name, one in model.state_dict().items()
    }
    for name, one in model.state_dict().items():
        torch.testing.assert_close(state[name].double(), one.double(), rtol=0.05, atol=0.02)


def test_parts_turn_to_bfloat16_as_the_model_does() -> None:
    model = Past()
    parts = placed(model, (IMAGES,), "layers", 2).bfloat16()
    assert parts.dtype == torch.bfloat16
    assert torch.equal(parts(IMAGES.bfloat16()), model.bfloat16()(IMAGES.bfloat16()))
