"""A photo -> the pixels that a model learns from, by torchvision's usual recipe.

Training takes a random piece of each image, mirrored or not (RandomResizedCrop and
RandomHorizontalFlip, to the same pixels for the same draws), validation the middle (Resize and
CenterCrop); both are normalised. torchvision's own transforms draw from torch's generator, from
which dropout draws, too; these draw from the sample's, so that each process reads the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

AREA = (0.08, 1.0)  # of a piece, as a share of the image
RATIO = (3 / 4, 4 / 3)  # of its width to its height
TRIALS = 10  # draws of a piece, until one lies within the image
BORDER = 1 / 16  # of each side, which validation leaves out: 256 pixels -> 224
# Of the red, green and blue of ImageNet, by which most published weights are normalised.
MEANS, DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_piece(image: Image, width: int, height: int, generator: torch.Generator) -> Image:
    """A random piece of an image, scaled to a size, and mirrored half of the time."""
    from PIL.Image import Resampling, Transpose

    left, top, piece_width, piece_height = _box(image.width, image.height, generator)
    piece = image.crop((left, top, left + piece_width, top + piece_height))
    piece = piece.resize((width, height), Resampling.BILINEAR)
    is_mirrored = torch.rand(1, generator=generator).item() < 0.5
    return piece.transpose(Transpose.FLIP_LEFT_RIGHT) if is_mirrored else piece


def middle(image: Image, width: int, height: int, border: float = BORDER) -> Image:
    """The middle of an image without its border, scaled to cover a size."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    return ImageOps.fit(image, (width, height), Resampling.BILINEAR, border)


def normalised(pixels: Tensor) -> Tensor:
    """Pixels from 0 to 1, channels first, as numbers of mean 0 and deviation 1 over ImageNet."""
    means, deviations = torch.tensor(MEANS), torch.tensor(DEVIATIONS)
    if len(pixels) == 1:  # grey
        means, deviations = means.mean(0, keepdim=True), deviations.mean(0, keepdim=True)
    return (pixels - means.view(-1, 1, 1)) / deviations.view(-1, 1, 1)


def _box(width: int, height: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random piece; of the middle where none lies within."""
    low, high = torch.log(torch.tensor(RATIO)).tolist()
    for _ in range(TRIALS):
        area = width * height * _uniform(*AREA, generator)
        ratio = torch.exp(torch.empty(1).uniform_(low, high, generator=generator)).item()
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(torch.randint(height - tall + 1, (1,), generator=generator))
            return int(torch.randint(width - wide + 1, (1,), generator=generator)), top, wide, tall
    wide = min(width, round(height * RATIO[1]))
    tall = min(height, round(width / RATIO[0]))
    return (width - wide) // 2, (height - tall) // 2, wide, tall


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return torch.empty(1).uniform_(low, high, generator=generator).item()
