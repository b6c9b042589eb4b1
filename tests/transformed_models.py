"""Small models with residual cells, of the kinds that packages build, for tests of `transform`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.inception_resnet_v2 import ScaledResidual


class Basic(nn.Module):
    """ResNet's cell of two convolutions, with norms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        out += x
        return torch.relu(out)


class Inverted(nn.Module):
    """MobileNetV2's: expands, a depthwise convolution, narrows, no activation behind."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.conv = nn.Sequential(
            nn.Conv2d(channels, wide, 1),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide),
            nn.ReLU6(),
            nn.Conv2d(wide, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class ChannelsLast(nn.Module):
    """ConvNeXt's: a depthwise convolution, a norm and linear layers with channels last, a scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide = nn.Linear(channels, 2 * channels)
        self.narrow = nn.Linear(2 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out = self.narrow(nn.functional.gelu(self.wide(out))) * self.gamma
        return out.permute(0, 3, 1, 2) + x


def inception(channels: int) -> nn.Module:
    """Inception-ResNet's: branches, concatenated, scaled, added."""
    return ScaledResidual(
        channels,
        0.2,
        nn.Conv2d(channels, 4, 1),
        nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1)),
        width=12,
    )


CELLS = {
    "basic": Basic,
    "inverted": Inverted,
    "channels last": ChannelsLast,
    "inception": inception,
}


def model_of(cells: str, count: int = 2, channels: int = 8) -> nn.Module:
    """A stem, so many equal cells, a classifier: for images of 3 x 8 x 8, in float64."""
    torch.manual_seed(0)
    body = nn.Sequential(*(CELLS[cells](channels) for _ in range(count)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    return nn.Sequential(nn.Conv2d(3, channels, 3), body, head).double()


EXAMPLE = torch.zeros(2, 3, 8, 8, dtype=torch.float64)
