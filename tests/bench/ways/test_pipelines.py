"""What torch's pipelining can't train is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from hgpart.bench.ways.pipelines import check_readers
from hgpart.errors import PlacementError


class Shared(nn.Module):
    """Its two halves may have a weight, or a norm, in common."""

    def __init__(self, shares: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.shares_norm = shares == "norm"
        if shares in ("weight", "frozen"):
            self.second.weight = self.first.weight
            self.first.weight.requires_grad_(shares == "weight")

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(x)))
        return self.norm(x) if self.shares_norm else x


@pytest.mark.parametrize(
    ("shares", "refused"),
    [
        ("nothing", None),
        ("frozen", None),
        ("weight", "first.weight"),
        ("norm", "norm.running_mean"),
    ],
)
def test_what_stages_have_in_common(shares: str, refused: str | None) -> None:
    """Torch gives each stage a copy, which changes by itself: the copies drift apart."""
    model = Shared(shares)
    split = {"second": SplitPoint.BEGINNING}
    stages = pipeline(model, mb_args=(torch.ones(2, 4),), split_spec=split).split_gm
    if refused is None:
        check_readers(stages, model)
    else:
        with pytest.raises(PlacementError, match=rf"2 stages \(.*\) have {refused}"):
            check_readers(stages, model)
