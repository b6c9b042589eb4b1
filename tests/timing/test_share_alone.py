from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.timing.share_alone import LayerShares, ShareAlone
from hgpart.tracing.traced_model import TracedModel, trace

CPU = torch.device("cpu")


class Net(nn.Module):
    """Dense, grouped and depthwise convolutions, norms, a residual add, dropout, a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(32, 6), nn.Linear(6, 5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.first(image)
        maps = maps + self.depthwise(maps)
        return self.last(self.pool(torch.relu(maps + self.grouped(maps))))


@cache
def prepared() -> tuple[nn.Module, TracedModel, ChannelGraph]:
    torch.manual_seed(0)
    model = Net()
    traced = trace(model, torch.randn(2, 3, 4, 4))
    return model, traced, channel_graph(traced)


def shares() -> LayerShares:
    return LayerShares(*prepared(), CPU)


def computing(graph: ChannelGraph) -> list[int]:
    return [at for at, layer in enumerate(graph.layers) if layer.operators]


def called(share: ShareAlone, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """What a step makes of the first channels of given maps."""
    values = []
    for name in share.step.operands:
        one = share.operands.get(name)
        if one is None:
            values.append(3)
        elif one.axes:
            values.append(given[name].narrow(one.axes[0], 0, one.count))
        else:
            values.append(given[name])
    return share.step.module(*values)


@pytest.mark.full
def test_some_tasks_make_what_all_of_them_make_of_the_same_maps() -> None:
    graph, made = prepared()[2], shares()
    tasks = {graph.layers[at].name: graph.layers[at].tasks for at in computing(graph)}
    assert {8, 6, 5} <= {*tasks.values()}
    for at in computing(graph):
        count = graph.layers[at].tasks
        whole = made.share(at, count)
        made.fill(whole)
        given = {name: one.make(3, CPU).detach() for name, one in whole.operands.items()}
        expected = called(whole, given)
        assert expected.shape[1] % count == 0
        for some in {1, count // 2, count - 1}:
            share = made.share(at, some)
            made.fill(share)
            found = called(share, given)
            of_them = expected[:, : some * (expected.shape[1] // count)]
            torch.testing.assert_close(found, of_them, atol=1e-5, rtol=1e-4)


def test_it_reads_the_channels_that_its_tasks_need_and_holds_their_weights() -> None:
    graph, made = prepared()[2], shares()
    at = {graph.layers[at].name: at for at in computing(graph)}
    channels = {"first.0": 3, "depthwise": 2, "grouped": 4}
    for name, expected in channels.items():
        share = made.share(at[name], 2)
        pieces = [one for one in share.step.operands if one.startswith("from_")]
        assert [share.operands[one].shape(3)[1] for one in pieces] == [expected], name
        assert 4 * sum(one.numel() for one in share.step.module.parameters()) == (
            graph.layers[at[name]].parameters
        )


def test_gradients_go_where_training_needs_them() -> None:
    model, _, graph = prepared()
    made = shares()
    learns = [
        [one.learns for name, one in made.share(at, 1).operands.items() if "draw" not in name]
        for at in computing(graph)
    ]
    assert learns[0] == [False]  # the model's input
    assert all(all(one) for one in learns[1:])
    model.first[0].weight.requires_grad_(False)
    try:
        frozen = shares().share(computing(graph)[0], 8)
    finally:
        model.first[0].weight.requires_grad_(True)
    learning = {name: one.requires_grad for name, one in frozen.step.module.named_parameters()}
    assert sorted(learning.values()) == [False, True, True, True]
    whole = made.share(computing(graph)[0], 8)
    assert frozen.text(2) != whole.text(2)


@pytest.mark.few(1)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_layers_that_compute_the_same_have_equal_texts(device: str) -> None:
    with torch.device(device):
        convolutions = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)]
        model = nn.Sequential(*convolutions[:3], nn.ReLU(), convolutions[3], nn.Conv2d(4, 6, 1))
    traced = trace(model, torch.zeros(2, 4, 8, 8, device=device))
    graph = channel_graph(traced)
    made = LayerShares(model, traced, graph, CPU)
    texts = [made.share(at, graph.layers[at].tasks).text(2) for at in computing(graph)]
    first, second, rectified, fourth, last = texts
    assert second == fourth  # in the middle, whoever they are
    assert len({first, second, rectified, last}) == 4
    assert made.share(2, 4).text(3) != second
