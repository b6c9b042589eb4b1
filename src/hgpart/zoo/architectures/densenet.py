"""DenseNet-121 (Huang et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, named

GROWTH = 32  # channels that each dense layer adds
LAYERS = (6, 12, 24, 16)  # dense layers of each block


class DenseLayer(nn.Sequential):
    """Pre-activated 1 x 1 then 3 x 3 convolution; its maps are appended to those it reads."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        bottleneck = 4 * GROWTH
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, bottleneck, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bottleneck, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, inputs + GROWTH, H, W)."""
        y = x
        for layer in self:
            y = layer(y)
        return torch.cat([x, y], dim=1)


def transition(inputs: int) -> nn.Module:
    """Halve the channels, then height and width."""
    return named(
        norm=nn.BatchNorm2d(inputs),
        relu=nn.ReLU(inplace=True),
        conv=nn.Conv2d(inputs, inputs // 2, 1, bias=False),
        pool=nn.AvgPool2d(2),
    )


def densenet121() -> nn.Module:
    """DenseNet-121 with torchvision's parameter names: 7,978,856 parameters."""
    channels = 64
    features: dict[str, nn.Module] = {
        "conv0": nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        "norm0": nn.BatchNorm2d(channels),
        "relu0": nn.ReLU(inplace=True),
        "pool0": nn.MaxPool2d(3, stride=2, padding=1),
    }
    for block, depth in enumerate(LAYERS, start=1):
        if block > 1:
            features[f"transition{block - 1}"] = transition(channels)
            channels //= 2
        layers = {f"denselayer{i + 1}": DenseLayer(channels + i * GROWTH) for i in range(depth)}
        features[f"denseblock{block}"] = named(**layers)
        channels += depth * GROWTH
    features["norm5"] = nn.BatchNorm2d(channels)
    features["relu5"] = nn.ReLU(inplace=True)
    return named(
        features=named(**features),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(channels, IMAGENET_CLASSES),
    )
