"""The steps of small models: operators that they call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart import partition_model, place

cat = torch.ops.aten.cat.default


class Dense(nn.Module):
    """Each layer reads the maps of all before it, which are joined one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 2 * at, 2, 1) for at in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x.relu()


def test_what_is_joined_several_times_over_is_copied_once() -> None:
    model, x = Dense(), torch.randn(2, 3, 4, 4)
    placed = place(model, partition_model(model, x, 1, 0.1), ["cpu"])
    steps = [*placed.programs.submodule(0).children()]
    joins = [[one for one in step.graph.nodes if one.target is cat] for step in steps]
    assert [len(found) for found in joins] == [0, 1, 1, 1, 1, 1]
    assert [len(found[0].args[0]) for found in joins[1:]] == [2, 3, 4, 5, 6]
    torch.testing.assert_close(placed(x), model(x))
