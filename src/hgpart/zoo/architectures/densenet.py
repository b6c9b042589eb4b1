"""DenseNet-121 and a DenseNet-BC of 1,000 layers (Huang et al., 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import CIFAR_CLASSES, IMAGENET_CLASSES, named


class DenseLayer(nn.Sequential):
    """Pre-activated 1 x 1 then 3 x 3 convolution; its maps are appended to those it reads."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        bottleneck = 4 * growth
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, bottleneck, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bottleneck, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, inputs + growth, H, W)."""
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


def dense_features(
    stem: dict[str, nn.Module], channels: int, growth: int, depths: tuple[int, ...]
) -> tuple[nn.Module, int]:
    """What finds the features, and their number: dense blocks of these depths behind a stem.

    Each dense layer adds `growth` channels to the stem's `channels`.
    """
    features = dict(stem)
    for block, depth in enumerate(depths, start=1):
        if block > 1:
            features[f"transition{block - 1}"] = transition(channels)
            channels //= 2
        inputs = range(channels, channels + depth * growth, growth)
        layers = {f"denselayer{i}": DenseLayer(n, growth) for i, n in enumerate(inputs, start=1)}
        features[f"denseblock{block}"] = named(**layers)
        channels += depth * growth
    last = len(depths) + 1
    features[f"norm{last}"] = nn.BatchNorm2d(channels)
    features[f"relu{last}"] = nn.ReLU(inplace=True)
    return named(**features), channels


def classified(features: nn.Module, channels: int, classes: int) -> nn.Module:
    """Features, averaged over each map, then classified."""
    return named(
        features=features,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Linear(channels, classes),
    )


def densenet121() -> nn.Module:
    """DenseNet-121 with torchvision's parameter names: 7,978,856 parameters."""
    channels = 64
    stem = {
        "conv0": nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        "norm0": nn.BatchNorm2d(channels),
        "relu0": nn.ReLU(inplace=True),
        "pool0": nn.MaxPool2d(3, stride=2, padding=1),
    }
    features = dense_features(stem, channels, 32, (6, 12, 24, 16))
    return classified(*features, IMAGENET_CLASSES)


def densenet1000() -> nn.Module:
    """DenseNet-BC of 1,000 layers with growth 12, for CIFAR-10: as the paper's of 100, but deeper.

    Three blocks of 166 dense layers, two convolutions each; 2 x 12 channels in front of them.
    """
    channels = 24
    stem: dict[str, nn.Module] = {"conv0": nn.Conv2d(3, channels, 3, padding=1, bias=False)}
    features = dense_features(stem, channels, 12, (166,) * 3)
    return classified(*features, CIFAR_CLASSES)
