"""Building blocks of several architectures: named layers, normalised convolutions, branches."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

IMAGENET_CLASSES = 1000
CIFAR_CLASSES = 10


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in a row; the keywords become the first parts of the parameter names."""
    return nn.Sequential(OrderedDict(layers))


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution that keeps height and width (over stride), batch norm, activation if given.

    Parameters are named ``0.weight`` (convolution) and ``1.*`` (batch norm).
    """
    convolution = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    norm = nn.BatchNorm2d(outputs)
    return nn.Sequential(convolution, norm, *([activation] if activation else []))


def conv_bn_relu(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padded: bool = True,
) -> nn.Sequential:
    """Chain convolution, batch norm (eps 0.001) and ReLU: the unit of the Inception family.

    ``padded`` convolutions keep height and width (over stride). Parameters are named
    ``conv.weight`` and ``bn.*``.
    """
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2) if padded else (0, 0)
    return named(
        conv=nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False),
        bn=nn.BatchNorm2d(outputs, eps=0.001),
        relu=nn.ReLU(inplace=True),
    )


def halve(inputs: int, outputs: int) -> nn.Module:
    """3 x 3 convolution that halves height and width."""
    return conv_bn_relu(inputs, outputs, 3, stride=2, padded=False)


class Concatenate(nn.Module):
    """Branches that read the same maps; their outputs are concatenated channel by channel."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, sum of the branches' channels, H', W')."""
        return torch.cat([branch(x) for branch in self.children()], dim=1)
