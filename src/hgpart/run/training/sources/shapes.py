"""Drawn polygons and stars -> samples whose class is the shape, in whatever place, size and colour.

The set is the same for any seed of a training: what differs between two trainings are weights and
order. No net gives all samples their class, as noise and patches hide some shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hgpart.run.training.sources.samples import generator_of

CORNERS = (3, 4, 5, 6, 7)  # of polygons, the first classes, and of stars, the others
CLASSES = 2 * len(CORNERS)
TRAINING, TEST = 20_000, 5_000  # samples
DENT = 0.55  # of a star's inner corners: their radius as a share of a polygon's inner radius
RADII = (0.5, 0.9)  # of shapes; the image is from -1 to 1
PATCHES, PATCH = 2, (0.1, 0.25)  # that hide what is behind them, and half of their sides
WAVES = (0.5, 3.0)  # of stripes across an image
STRIPED = 0.5  # the most that stripes change a colour
NOISE = 0.15  # standard deviation; colours are from -1 to 1
# Columns of a sample's draws: the shape's turn, radius, stretch, place, then three of stripes each
# for ground and shape, two colours each, and the patches' places, sizes and colours.
SHAPE, STRIPES, COLOURS = 5, 6, 12
DRAWS = SHAPE + STRIPES + COLOURS + PATCHES * 6


@dataclass(frozen=True)
class Shapes:
    """Images that are drawn when they are asked for, each from its number alone.

    Attributes
    ----------
    name : str
        The images and classes are drawn from this name and the sample's number.
    count : int
        Number of samples; the first of a larger set are those of a smaller one.
    channels : int
        1 (grey) or 3.
    """

    name: str
    count: int
    channels: int
    height: int
    width: int

    def __len__(self) -> int:
        """Number of samples."""
        return self.count

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """Draw some samples."""
        drawn = self._draws[list(indices)]
        labels = self._labels[list(indices)]
        size = 3, self.height, self.width
        noise = [
            torch.randn(size, generator=generator_of(0, f"{self.name} noise", at)) for at in indices
        ]
        images = _drawn(drawn, labels, self.height, self.width) + NOISE * torch.stack(noise)
        return images if self.channels == 3 else images.mean(1, keepdim=True)

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The labels of some samples."""
        return self._labels[list(indices)]

    @cached_property
    def _labels(self) -> Tensor:
        generator = generator_of(0, f"{self.name} labels")
        return torch.randint(CLASSES, (self.count,), generator=generator)

    @cached_property
    def _draws(self) -> Tensor:
        return torch.rand(self.count, DRAWS, generator=generator_of(0, f"{self.name} draws"))


def _drawn(draws: Tensor, labels: Tensor, height: int, width: int) -> Tensor:
    """Images without noise, (samples, 3, height, width)."""
    down, right = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    # (pixels of all samples, columns (sample, 1, 1))
    of_shape, of_stripes, of_colours, of_patches = (
        part[..., None, None]
        for part in torch.split(draws, [SHAPE, STRIPES, COLOURS, 6 * PATCHES], 1)
    )
    colours = (2 * of_colours - 1).reshape(-1, 2, 2, 3, 1, 1)  # two each of ground and shape
    ground, shape = (
        colours[:, at, 0]
        + STRIPED * colours[:, at, 1] * _stripes(of_stripes[:, 3 * at : 3 * at + 3], right, down)
        for at in range(2)
    )
    images = torch.where(inside(of_shape, labels, right, down)[:, None], shape, ground)
    for patch in of_patches.reshape(-1, PATCHES, 6, 1, 1).unbind(1):
        x, y, half_width, half_height, first, second = patch.unbind(1)
        sides = [PATCH[0] + (PATCH[1] - PATCH[0]) * half for half in (half_width, half_height)]
        hidden = ((right - 2 * x + 1).abs() < sides[0]) & ((down - 2 * y + 1).abs() < sides[1])
        colour = torch.stack((first, second, 1 - first), 1) * 2 - 1
        images = torch.where(hidden[:, None], colour, images)
    return images


def _stripes(draws: Tensor, right: Tensor, down: Tensor) -> Tensor:
    turn, frequency, phase = draws.unbind(1)
    turn, waves = torch.pi * turn, WAVES[0] + (WAVES[1] - WAVES[0]) * frequency
    along = right * turn.cos() + down * turn.sin()
    return torch.sin(torch.pi * waves * along + 2 * torch.pi * phase)[:, None]


def inside(draws: Tensor, labels: Tensor, right: Tensor, down: Tensor) -> Tensor:
    """Whether each pixel is in its sample's shape."""
    turn, size, stretch, x, y = draws.unbind(1)
    radius = RADII[0] + (RADII[1] - RADII[0]) * size
    free = 1 - 0.8 * radius  # the centre's distance from the middle, so that most of it is seen
    x, y = (right - free * (2 * x - 1)) / radius, (down - free * (2 * y - 1)) / radius
    wide = 1 + 0.5 * (stretch - 0.5)
    x, y = x * wide, y / wide
    corners = torch.tensor(CORNERS)[labels % len(CORNERS)].view(-1, 1, 1)
    half = torch.pi / corners
    angle = torch.remainder(torch.atan2(y, x) + 2 * torch.pi * turn, 2 * half)
    angle = torch.minimum(angle, 2 * half - angle)  # from the nearest outer corner, at radius 1
    inner = half.cos() * torch.where(labels < len(CORNERS), 1.0, DENT).view(-1, 1, 1)
    # Of the side from (1, 0) to the inner corner: the pixel is on the centre's side of it.
    distance = torch.hypot(x, y)
    across, along = distance * angle.sin(), distance * angle.cos()
    end_across, end_along = inner * half.sin(), inner * half.cos()
    return (along - 1) * end_across < across * (end_along - 1)
