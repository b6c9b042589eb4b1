"""SqueezeNet 1.1 (Iandola et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, named

# (squeezed, expanded) channels of the fire modules before each pooling, and after the last.
FIRES = (
    ((16, 64), (16, 64)),
    ((32, 128), (32, 128)),
    ((48, 192), (48, 192), (64, 256), (64, 256)),
)


class Fire(nn.Module):
    """A 1 x 1 convolution that squeezes the channels, then a 1 x 1 and a 3 x 3 side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, 2 * expanded, H, W)."""
        x = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.expand1x1(x)), self.relu(self.expand3x3(x))], dim=1)


def squeezenet1_1() -> nn.Module:
    """SqueezeNet 1.1 with torchvision's parameter names: 1,235,496 parameters."""
    features = nn.Sequential(nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True))
    channels = 64
    for fires in FIRES:
        features.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
        for squeezed, expanded in fires:
            features.append(Fire(channels, squeezed, expanded))
            channels = 2 * expanded
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Conv2d(channels, IMAGENET_CLASSES, 1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
    )
    return named(features=features, classifier=classifier, flatten=nn.Flatten())
