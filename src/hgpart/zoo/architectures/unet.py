"""U-Net (Ronneberger et al., 2015) with padded convolutions and batch norm."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import conv_bn

WIDTHS = (64, 128, 256, 512, 1024)
CLASSES = 2  # foreground and background


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""
    return nn.Sequential(
        conv_bn(inputs, outputs, 3, activation=nn.ReLU(inplace=True)),
        conv_bn(outputs, outputs, 3, activation=nn.ReLU(inplace=True)),
    )


class UNet(nn.Module):
    """Contracting path, expanding path, and skips that carry each level's maps across."""

    def __init__(self) -> None:
        super().__init__()
        levels = list(pairwise(WIDTHS))
        self.stem = double_convolution(3, WIDTHS[0])
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(double_convolution(upper, lower) for upper, lower in levels)
        self.upsample = nn.ModuleList(
            nn.ConvTranspose2d(lower, upper, 2, stride=2) for upper, lower in reversed(levels)
        )
        self.up = nn.ModuleList(
            double_convolution(2 * upper, upper) for upper, _ in reversed(levels)
        )
        self.head = nn.Conv2d(WIDTHS[0], CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 3, H, W), H and W multiples of 16 -> class maps (N, CLASSES, H, W)."""
        x = self.stem(x)
        skips = []
        for convolutions in self.down:
            skips.append(x)
            x = convolutions(self.pool(x))
        for upsample, convolutions in zip(self.upsample, self.up, strict=True):
            x = convolutions(torch.cat([skips.pop(), upsample(x)], dim=1))
        y: Tensor = self.head(x)
        return y


def unet() -> nn.Module:
    """U-Net for two classes: 31,037,698 parameters."""
    return UNet()
