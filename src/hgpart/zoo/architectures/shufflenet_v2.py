"""ShuffleNetV2 at width 1.0 (Ma et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, conv_bn, named

STAGES = ((116, 4), (232, 8), (464, 4))  # channels and units of stages 2 to 4


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels: (N, C, H, W) -> the same shape."""
    batch, channels, height, width = x.shape
    pairs = x.view(batch, 2, channels // 2, height, width).transpose(1, 2)
    return pairs.reshape(batch, channels, height, width)


def depthwise(channels: int, stride: int) -> nn.Sequential:
    """3 x 3 convolution of each channel by itself, without activation."""
    return conv_bn(channels, channels, 3, stride=stride, groups=channels)


def pointwise(inputs: int, outputs: int) -> nn.Sequential:
    """1 x 1 convolution with ReLU."""
    return conv_bn(inputs, outputs, 1, activation=nn.ReLU(inplace=True))


class BasicUnit(nn.Module):
    """Half of the channels passes by the convolutions; then the halves are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            *pointwise(half, half), *depthwise(half, stride=1), *pointwise(half, half)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) -> the same shape."""
        kept, convolved = x.chunk(2, dim=1)
        return shuffle(torch.cat([kept, self.branch2(convolved)], dim=1))


class DownsamplingUnit(nn.Module):
    """Two branches read all channels at stride 2, then their halves are shuffled."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.branch1 = nn.Sequential(*depthwise(inputs, stride=2), *pointwise(inputs, half))
        self.branch2 = nn.Sequential(
            *pointwise(inputs, half), *depthwise(half, stride=2), *pointwise(half, half)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, outputs, H / 2, W / 2)."""
        return shuffle(torch.cat([self.branch1(x), self.branch2(x)], dim=1))


class GlobalMean(nn.Module):
    """Mean of each map."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, C)."""
        return x.mean([2, 3])


def shufflenet_v2_x1_0() -> nn.Module:
    """ShuffleNetV2 x1.0 with torchvision's parameter names: 2,278,604 parameters."""
    channels = 24
    stages: dict[str, nn.Module] = {}
    for number, (outputs, units) in enumerate(STAGES, start=2):
        plain = (BasicUnit(outputs) for _ in range(units - 1))
        stages[f"stage{number}"] = nn.Sequential(DownsamplingUnit(channels, outputs), *plain)
        channels = outputs
    return named(
        conv1=conv_bn(3, 24, 3, stride=2, activation=nn.ReLU(inplace=True)),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        **stages,
        conv5=pointwise(channels, 1024),
        mean=GlobalMean(),
        fc=nn.Linear(1024, IMAGENET_CLASSES),
    )
