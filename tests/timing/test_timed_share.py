from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from hgpart.layers.layering import channel_graph
from hgpart.timing.share_alone import LayerShares, TimedShare
from hgpart.tracing.traced_model import trace

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.first(image)
        made = self.second(maps)
        return torch.cat([maps, made], 1).mean((2, 3)) + torch.cat([made, maps], 1).amax((2, 3))


def timed() -> list[TimedShare]:
    model = Net()
    traced = trace(model, torch.zeros(2, 3, 6, 6))
    graph = channel_graph(traced)
    shares, found = LayerShares(model, traced, graph, CPU), []
    for at, layer in enumerate(graph.layers):
        if layer.operators:
            share = shares.share(at, max(1, layer.tasks // 2))
            shares.fill(share)
            found.append(TimedShare(share, 3, CPU))
    return found


def test_each_pass_takes_time_and_can_be_repeated() -> None:
    for share in timed():
        for _ in range(2):
            seconds = share.run()
            assert len(seconds) == 4
            assert seconds[0] > 0 and seconds[1] > 0
            assert all(0 <= one < 60 for one in seconds)


def test_weights_are_left_to_their_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for between two looks at the clock: first maps, then weights."""
    ticks = itertools.count()
    asked: list[tuple[int, list[object]]] = []
    differentiate, backward = torch.autograd.grad, torch.autograd.backward
    looks = [0]

    def clock() -> int:
        looks[0] = next(ticks)
        return looks[0]

    def grad(heads: Any, wanted: Any, *rest: Any, **options: Any) -> Any:
        asked.append((looks[0], [edge.node.name().rpartition(":")[2] for edge in wanted]))
        return differentiate(heads, wanted, *rest, **options)

    def accumulate(edges: Any, gradients: Any, inputs: Any = None) -> Any:
        asked.append((looks[0], [tuple(one.shape) for one in inputs or ()]))
        return backward(edges, gradients, inputs=inputs)

    first, second, *_ = timed()
    monkeypatch.setattr(second, "_now", clock)
    monkeypatch.setattr(first, "_now", clock)
    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.setattr(torch.autograd, "backward", accumulate)
    assert second.run() == (1, 1, 1, 1)
    convolution = "ConvolutionBackward0"
    assert asked == [(2, ["AccumulateGrad", convolution]), (3, [(2, 4, 3, 3), (2,)])]
    asked.clear()
    first.run()
    assert [wanted for _, wanted in asked] == [[convolution], [(2, 3, 3, 3), (2,)]]


def test_without_parameters_there_is_nothing_to_learn() -> None:
    *_, last = timed()
    assert last.run()[2:] == pytest.approx((0, 0), abs=1e-3)


def test_weights_stay_as_they_are() -> None:
    for share in timed():
        before = [one.clone() for one in share._module.parameters()]
        share.run()
        for parameter, value in zip(share._module.parameters(), before, strict=True):
            assert parameter.grad is None
            assert torch.equal(parameter, value)
