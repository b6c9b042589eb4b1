"""Steps of whole models, layer by layer: all of a model's work, and as often as one likes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builtin_graphs import UNLIKE, each_model, unlike
from torch import nn

from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.timing import whole_model as module
from hgpart.timing.whole_model import WholeModel, whole_model
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace

CPU = torch.device("cpu")


def prepared(model: nn.Module, *shape: int) -> tuple[nn.Module, TracedModel, ChannelGraph]:
    traced = trace(model, example_inputs(model, shape))
    return model, traced, channel_graph(traced)


def small() -> tuple[nn.Module, TracedModel, ChannelGraph]:
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    return prepared(nn.Sequential(*layers), 3, 6, 6)


def whole_of(what: tuple[nn.Module, TracedModel, ChannelGraph], *samples: int) -> WholeModel:
    whole = whole_model(*what, samples, CPU)
    assert whole is not None
    return whole


@pytest.mark.long
@pytest.mark.parametrize("name", each_model(names=UNLIKE, quick=("lenet5",)))
def test_every_layer_of_every_model_takes_time_in_a_step(name: str) -> None:
    model, shape = unlike(name)
    what = prepared(model, *shape)
    found = whole_of(what, 2).step(2)
    graph = what[2]
    assert found.shape == (len(graph.layers), 3)
    computed = [bool(layer.operators or layer.operations) for layer in graph.layers]
    assert [bool(row[0] > 0) for row in found] == computed
    learning = [layer.tied_to == at for at, layer in enumerate(graph.layers)]
    assert any(row[2] > 0 for row, learns in zip(found, learning, strict=True) if learns)


def test_gradients_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once and apart; and nothing of them is left for the next step."""
    whole = whole_of(small(), 3)
    seen: list[dict[str, torch.Tensor]] = []

    def keep(step: nn.Module) -> None:
        for name, parameter in step.named_parameters():
            assert parameter.grad is not None
            seen[-1][f"{name} {tuple(parameter.shape)}"] = parameter.grad.clone()

    monkeypatch.setattr(module, "_update", keep)
    for _ in range(2):
        seen.append({})
        whole.step(3)
    assert seen[0].keys() == seen[1].keys() and len(seen[0]) == 6
    for name, gradient in seen[0].items():
        assert gradient.abs().max() > 0 or "bias (4,)" in name  # in front of a norm
        torch.testing.assert_close(seen[1][name], gradient)
    whole.step(3, apart=True)
    assert all(one.grad is None for one in whole.program.module.parameters())


@pytest.mark.full
def test_weights_are_not_sent_to_other_processes() -> None:
    whole = whole_of(small(), 2, 3)
    text = whole.to_bytes()
    other = WholeModel.from_bytes(text)
    assert len(text) < 100_000
    assert other.layers == whole.layers and [*other.batches] == [2, 3]
    assert not any(one.is_meta for one in other.program.module.state_dict().values())
    assert (other.step(3) > 0).tolist() == (whole.step(3) > 0).tolist()


@pytest.mark.full
def test_batches_that_memory_has_no_room_for_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    what = small()
    weights = 3 * sum(one.nbytes for one in what[0].state_dict().values())

    def batches(left: int) -> Any:
        monkeypatch.setattr(module, "memory_left", lambda device: left)
        whole = whole_model(*what, (1, 2**20), CPU)
        return None if whole is None else [*whole.batches]

    assert batches(weights + 10**5) == [1]
    assert batches(weights) is None


class Gated(nn.Module):
    """A gate that is indexed: of one sample torch computes it in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.conv(image)
        gate = self.gate(maps.mean((2, 3))).sigmoid()
        return self.head((maps * gate[:, :, None, None]).mean((2, 3)))


@pytest.mark.full
def test_batches_that_are_computed_in_another_way_are_left_out() -> None:
    """One of a single sample ended a profile, and a recommendation, with an error."""
    assert [*whole_of(prepared(Gated(), 3, 6, 6), 1, 4, 8).batches] == [4, 8]


def test_a_norm_over_channels_takes_its_statistic_itself() -> None:
    """A model in one part has no step for the statistic: its layer takes no time."""
    what = prepared(nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 4)), 6, 5)
    seconds = whole_of(what, 2).step(2)
    kinds = [layer.kind for layer in what[2].layers]
    statistic = kinds.index("statistics")
    assert seconds[statistic, 0] == 0 < seconds[statistic + 1, 0]
