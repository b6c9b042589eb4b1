"""What torch's pipelining can't train is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from hgpart.bench.ways.pipelines import check_readers
from hgpart.errors import PlacementError


class Tied(nn.Module):
    """Its first and its last layer may have one weight."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        if is_tied:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("is_tied", [False, True])
def test_stages_with_a_parameter_in_common(is_tied: bool) -> None:
    """Torch gives each stage a copy, which has a gradient of its own: the copies drift apart."""
    split = {"second": SplitPoint.BEGINNING}
    model = Tied(is_tied)
    stages = pipeline(model, mb_args=(torch.ones(2, 4),), split_spec=split).split_gm
    if is_tied:
        with pytest.raises(PlacementError, match=r"2 stages \(.*\) have first.weight"):
            check_readers(stages, model)
    else:
        check_readers(stages, model)
