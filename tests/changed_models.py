"""A model of which some learns and some does not, its batch in slices, and ways to change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import placements
import torch
from torch import Tensor, nn

from hgpart import Modelling, Placement
from hgpart.partitioned_model import PartitionedModel

SAMPLES = 5

# The last two leave the version that torch counts as it is.
CHANGES: Mapping[str, Callable[[Tensor], object]] = {
    "in place": lambda tensor: tensor.mul_(0.5),
    "data in place": lambda tensor: tensor.data.mul_(0.75),
    "other data": lambda tensor: setattr(tensor, "data", tensor.data * 1.25),
}


class Taught(nn.Module):
    """It has a frozen teacher, a scale, a head with a frozen bias, and an aid in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.teacher = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 3).requires_grad_(False)
        self.head, self.aid = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1)
        self.head.bias.requires_grad_(False)
        self.register_buffer("scale", torch.full((4, 1, 1), 1.5))

    def forward(self, image: Tensor) -> Tensor:
        maps = self.stem(image).relu() + self.teacher(image)
        scores = self.head(maps) * self.scale
        return scores + self.aid(maps) if self.training else scores


def taught() -> tuple[nn.Module, list[Tensor], Tensor]:
    """The model in float64, a batch, and targets."""
    torch.manual_seed(3)
    image = torch.randn(SAMPLES, 3, 6, 6, dtype=torch.float64)
    return Taught().double(), [image], torch.randn(SAMPLES, 4, 4, 4, dtype=torch.float64)


def of_data_parallel(
    model: nn.Module, inputs: list[Tensor], slices: int, k: int = 2
) -> PartitionedModel:
    """The whole model on each part, for a run of slices."""
    traced, graph = placements.traced_model(model, inputs)
    modelling = Modelling(batch_size=len(inputs[0]), slices=slices)
    return placements.of_data_parallel(traced, graph, modelling, k)


def change(placement: Placement, how: str) -> None:
    """Change what does not learn, in evaluation everything, of parts that are here."""
    for part in placement.programs.parts:
        for _, tensor in placement.held(part):
            if not (tensor.requires_grad and placement.training):
                with torch.no_grad():
                    CHANGES[how](tensor)


def freeze(placement: Placement, name: str) -> None:
    """Let a parameter learn no more, of parts that are here."""
    for part in placement.programs.parts:
        for held, tensor in placement.held(part):
            if held.name == name:
                tensor.requires_grad_(False)
