"""What is drawn at random is what the whole model draws, wherever its tensors lie in memory."""

from __future__ import annotations

from collections.abc import Callable

import placements
import pytest
import torch
from torch import nn
from torch.nn import functional

from hgpart import Modelling
from hgpart.errors import PlacementError


class Random(nn.Module):
    """A random operator on maps that do not lie in memory in the order of their dimensions."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw = draw
        self.conv = nn.Conv2d(3, 6, 3)
        self.table = nn.Parameter(torch.randn(5, 6))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        maps = self.conv(image)
        last = self.draw(maps.permute(0, 2, 3, 1))
        behind = self.draw(maps.to(memory_format=torch.channels_last).relu())
        first = self.draw(maps.transpose(0, 1))  # the batch is not what lies furthest apart
        some = self.draw(maps[:, ::2, 1:])  # with gaps
        heads = maps.flatten(2).unflatten(1, (2, 3)).transpose(2, 3)
        attended = self.draw(functional.scaled_dot_product_attention(heads, heads, heads))
        table = functional.dropout(self.table.t(), 0.4, self.training)
        return last, behind, first, some, attended, table


class Unread(nn.Module):
    """A branch that is left out, as auxiliary heads are: it draws, and has a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)
        self.norm = nn.InstanceNorm2d(4, track_running_stats=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.first(image)
        functional.dropout(self.norm(maps) * 2, 0.4)
        torch.rand(len(image), 3)
        functional.alpha_dropout(maps, 0.4, training=True)
        return functional.dropout(self.second(maps), 0.4)


def test_what_nobody_reads_is_drawn_and_updates_statistics():
    """torch.export left it out: later masks were others, and statistics stayed as they began."""
    torch.manual_seed(0)
    model, inputs = Unread().double(), [torch.randn(4, 3, 5, 5, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    placements.check_equal(model, inputs, plan, seed=5)


def test_channels_that_lie_in_several_dimensions_are_dropped_alike():
    """Each part dropped by numbers of its own what was computed on whole tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.PixelShuffle(2), nn.Dropout(0.4), nn.Conv2d(2, 4, 1)),
    ).double()
    inputs = [torch.randn(2, 3, 4, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 3, 0)
    placements.check_equal(model, inputs, plan, seed=5)


def placed_draws(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The same beside a model that draws for maps whose channels lie last in memory."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return draw(self.conv(image).permute(0, 2, 3, 1))

    torch.manual_seed(0)
    model, inputs = Last().double(), [torch.randn(2, 3, 4, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 2, 0)
    placements.check_equal(model, inputs, plan, seed=5)


def test_numbers_drawn_in_place_and_by_numbers_that_were_drawn():
    """The first went by the order of dimensions, the second by numbers drawn once more."""
    placed_draws(lambda maps: maps + torch.empty_like(maps).exponential_())
    placed_draws(lambda maps: maps * torch.bernoulli(torch.rand_like(maps)))


def test_what_export_draws_in_another_order_is_refused():
    """In place it goes by the memory; what export writes for it, by the dimensions."""
    with pytest.raises(
        PlacementError, match=r"bernoulli.p \(the model itself\) draws in the order"
    ):
        placed_draws(lambda maps: maps * torch.empty_like(maps).bernoulli_(0.5))
    placed_draws(lambda maps: maps * maps.new_empty(maps.shape).bernoulli_(0.5))


@pytest.mark.full
@pytest.mark.parametrize(
    "draw",
    [
        lambda maps: functional.dropout(maps, 0.4),
        lambda maps: maps * torch.rand_like(maps),
        lambda maps: maps + torch.randn_like(maps),
        lambda maps: functional.gumbel_softmax(maps),
        lambda maps: maps + torch.empty_like(maps).normal_(),
        lambda maps: maps * torch.bernoulli(torch.rand_like(maps)),
    ],
)
def test_numbers_are_drawn_in_the_order_of_the_memory(draw):
    """They were drawn for tensors that lie in memory in the order of their dimensions."""
    torch.manual_seed(0)
    model, inputs = Random(draw).double(), [torch.randn(2, 3, 6, 5, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    plan = placements.of_single_tasks(traced, graph, Modelling(), 3, 0)
    for batch in (2, 3):
        images = [torch.randn(batch, 3, 6, 5, dtype=torch.float64)]
        placements.check_equal(model, images, plan, seed=5)
