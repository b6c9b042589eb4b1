"""Inception-ResNet-v2 (Szegedy et al., "Inception-v4, Inception-ResNet", 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hgpart.zoo.architectures.blocks import (
    IMAGENET_CLASSES,
    Concatenate,
    conv_bn_relu,
    halve,
    named,
)


class ScaledResidual(nn.Module):
    """Concatenated branches, back to ``channels`` by a 1 x 1, scaled and added to the input."""

    def __init__(
        self, channels: int, scale: float, *branches: nn.Module, width: int, relu: bool = True
    ) -> None:
        super().__init__()
        self.depth = len(branches)
        for i, branch in enumerate(branches):
            self.add_module(f"branch{i}", branch)
        self.conv2d = nn.Conv2d(width, channels, 1)
        self.scale = scale
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) -> the same shape."""
        branches = [self.get_submodule(f"branch{i}")(x) for i in range(self.depth)]
        y: Tensor = self.conv2d(torch.cat(branches, dim=1)) * self.scale + x
        return functional.relu(y) if self.relu else y


def block35(scale: float) -> ScaledResidual:
    """Block on maps of 35 x 35 (figure 16 of the paper)."""
    return ScaledResidual(
        320,
        scale,
        conv_bn_relu(320, 32, 1),
        nn.Sequential(conv_bn_relu(320, 32, 1), conv_bn_relu(32, 32, 3)),
        nn.Sequential(conv_bn_relu(320, 32, 1), conv_bn_relu(32, 48, 3), conv_bn_relu(48, 64, 3)),
        width=128,
    )


def block17(scale: float) -> ScaledResidual:
    """Block on maps of 17 x 17 (figure 17)."""
    return ScaledResidual(
        1088,
        scale,
        conv_bn_relu(1088, 192, 1),
        nn.Sequential(
            conv_bn_relu(1088, 128, 1),
            conv_bn_relu(128, 160, (1, 7)),
            conv_bn_relu(160, 192, (7, 1)),
        ),
        width=384,
    )


def block8(scale: float, *, relu: bool = True) -> ScaledResidual:
    """Block on maps of 8 x 8 (figure 19)."""
    return ScaledResidual(
        2080,
        scale,
        conv_bn_relu(2080, 192, 1),
        nn.Sequential(
            conv_bn_relu(2080, 192, 1),
            conv_bn_relu(192, 224, (1, 3)),
            conv_bn_relu(224, 256, (3, 1)),
        ),
        width=448,
        relu=relu,
    )


def inception_resnet_v2(
    blocks: tuple[int, int, int] = (10, 20, 9),
    *,
    linear_block: bool = True,
    classes: int = IMAGENET_CLASSES,
) -> nn.Module:
    """Inception-ResNet-v2 with timm's parameter names: 55,843,464 parameters.

    Parameters
    ----------
    blocks : tuple of int
        Numbers of consecutive `block35`, `block17` and `block8`.
    linear_block : bool
        Whether another `block8`, without an activation, follows.
    """
    of_35, of_17, of_8 = blocks
    last = {"block8": block8(1.0, relu=False)} if linear_block else {}
    mixed_5b = Concatenate(
        branch0=conv_bn_relu(192, 96, 1),
        branch1=nn.Sequential(conv_bn_relu(192, 48, 1), conv_bn_relu(48, 64, 5)),
        branch2=nn.Sequential(
            conv_bn_relu(192, 64, 1), conv_bn_relu(64, 96, 3), conv_bn_relu(96, 96, 3)
        ),
        branch3=nn.Sequential(
            nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
            conv_bn_relu(192, 64, 1),
        ),
    )
    mixed_6a = Concatenate(
        branch0=halve(320, 384),
        branch1=nn.Sequential(
            conv_bn_relu(320, 256, 1), conv_bn_relu(256, 256, 3), halve(256, 384)
        ),
        branch2=nn.MaxPool2d(3, stride=2),
    )
    mixed_7a = Concatenate(
        branch0=nn.Sequential(conv_bn_relu(1088, 256, 1), halve(256, 384)),
        branch1=nn.Sequential(conv_bn_relu(1088, 256, 1), halve(256, 288)),
        branch2=nn.Sequential(
            conv_bn_relu(1088, 256, 1), conv_bn_relu(256, 288, 3), halve(288, 320)
        ),
        branch3=nn.MaxPool2d(3, stride=2),
    )
    return named(
        conv2d_1a=conv_bn_relu(3, 32, 3, stride=2, padded=False),
        conv2d_2a=conv_bn_relu(32, 32, 3, padded=False),
        conv2d_2b=conv_bn_relu(32, 64, 3),
        maxpool_3a=nn.MaxPool2d(3, stride=2),
        conv2d_3b=conv_bn_relu(64, 80, 1),
        conv2d_4a=conv_bn_relu(80, 192, 3, padded=False),
        maxpool_5a=nn.MaxPool2d(3, stride=2),
        mixed_5b=mixed_5b,
        repeat=nn.Sequential(*(block35(0.17) for _ in range(of_35))),
        mixed_6a=mixed_6a,
        repeat_1=nn.Sequential(*(block17(0.10) for _ in range(of_17))),
        mixed_7a=mixed_7a,
        repeat_2=nn.Sequential(*(block8(0.20) for _ in range(of_8))),
        **last,
        conv2d_7b=conv_bn_relu(2080, 1536, 1),
        global_pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head_drop=nn.Dropout(0.2),
        classif=nn.Linear(1536, classes),
    )
