"""Inception v3 (Szegedy et al., "Rethinking the Inception Architecture", 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, conv_bn_relu, halve, named

# A convolution, or two that read the same maps and end the branch.
Step = nn.Module | tuple[nn.Module, nn.Module]


class Mixed(nn.Module):
    """Branches of convolutions and one that begins with pooling, concatenated in that order.

    A branch's only convolution has the branch's name; otherwise step i is ``{branch}_{i}``, and
    two side by side are ``{branch}_{i}a`` and ``{branch}_{i}b`` (torchvision's names). The pooled
    branch is ``pool``, then ``branch_pool`` if it has a convolution.
    """

    def __init__(
        self, branches: dict[str, list[Step]], pool: nn.Module, branch_pool: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.branches: list[list[list[str]]] = []
        for branch, steps in branches.items():
            named_steps = []
            for i, step in enumerate(steps, start=1):
                name = branch if len(steps) == 1 else f"{branch}_{i}"
                if isinstance(step, tuple):
                    layers = {f"{name}a": step[0], f"{name}b": step[1]}
                else:
                    layers = {name: step}
                for layer, module in layers.items():
                    self.add_module(layer, module)
                named_steps.append(list(layers))
            self.branches.append(named_steps)
        self.pool = pool
        self.branch_pool = branch_pool if branch_pool is not None else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, sum of the branches' channels, H', W')."""
        outputs: list[Tensor] = []
        for steps in self.branches:
            maps = [x]
            for layers in steps:
                maps = [self.get_submodule(layer)(maps[0]) for layer in layers]
            outputs += maps
        outputs.append(self.branch_pool(self.pool(x)))
        return torch.cat(outputs, dim=1)


def average() -> nn.Module:
    """Average pooling that keeps height and width."""
    return nn.AvgPool2d(3, stride=1, padding=1)


def mixed_35(inputs: int, pooled: int) -> Mixed:
    """Block on maps of 35 x 35: 1 x 1, 5 x 5 and double 3 x 3 (figure 5 of the paper)."""
    return Mixed(
        {
            "branch1x1": [conv_bn_relu(inputs, 64, 1)],
            "branch5x5": [conv_bn_relu(inputs, 48, 1), conv_bn_relu(48, 64, 5)],
            "branch3x3dbl": [
                conv_bn_relu(inputs, 64, 1),
                conv_bn_relu(64, 96, 3),
                conv_bn_relu(96, 96, 3),
            ],
        },
        average(),
        conv_bn_relu(inputs, pooled, 1),
    )


def mixed_35_to_17(inputs: int) -> Mixed:
    """Block that halves 35 x 35 to 17 x 17 (figure 10)."""
    return Mixed(
        {
            "branch3x3": [halve(inputs, 384)],
            "branch3x3dbl": [
                conv_bn_relu(inputs, 64, 1),
                conv_bn_relu(64, 96, 3),
                halve(96, 96),
            ],
        },
        nn.MaxPool2d(3, stride=2),
    )


def mixed_17(inputs: int, width: int) -> Mixed:
    """Block on maps of 17 x 17: 7 x 7 factorised into 1 x 7 and 7 x 1 (figure 6)."""
    return Mixed(
        {
            "branch1x1": [conv_bn_relu(inputs, 192, 1)],
            "branch7x7": [
                conv_bn_relu(inputs, width, 1),
                conv_bn_relu(width, width, (1, 7)),
                conv_bn_relu(width, 192, (7, 1)),
            ],
            "branch7x7dbl": [
                conv_bn_relu(inputs, width, 1),
                conv_bn_relu(width, width, (7, 1)),
                conv_bn_relu(width, width, (1, 7)),
                conv_bn_relu(width, width, (7, 1)),
                conv_bn_relu(width, 192, (1, 7)),
            ],
        },
        average(),
        conv_bn_relu(inputs, 192, 1),
    )


def mixed_17_to_8(inputs: int) -> Mixed:
    """Block that halves 17 x 17 to 8 x 8."""
    return Mixed(
        {
            "branch3x3": [conv_bn_relu(inputs, 192, 1), halve(192, 320)],
            "branch7x7x3": [
                conv_bn_relu(inputs, 192, 1),
                conv_bn_relu(192, 192, (1, 7)),
                conv_bn_relu(192, 192, (7, 1)),
                halve(192, 192),
            ],
        },
        nn.MaxPool2d(3, stride=2),
    )


def mixed_8(inputs: int) -> Mixed:
    """Block on maps of 8 x 8: branches that end in 1 x 3 beside 3 x 1 (figure 7)."""

    def beside() -> tuple[nn.Module, nn.Module]:
        return conv_bn_relu(384, 384, (1, 3)), conv_bn_relu(384, 384, (3, 1))

    return Mixed(
        {
            "branch1x1": [conv_bn_relu(inputs, 320, 1)],
            "branch3x3": [conv_bn_relu(inputs, 384, 1), beside()],
            "branch3x3dbl": [conv_bn_relu(inputs, 448, 1), conv_bn_relu(448, 384, 3), beside()],
        },
        average(),
        conv_bn_relu(inputs, 192, 1),
    )


def inception_v3() -> nn.Module:
    """Inception v3 with torchvision's parameter names: 23,834,568 parameters.

    Built without the auxiliary classifier, so that there is one output: a torchvision checkpoint
    (27,161,264 parameters) loads less its ``AuxLogits.*`` entries. (torchvision feeds its
    pretrained weights images normalised to mean 0.5 and deviation 0.5: its ``transform_input``.)
    """
    return named(
        Conv2d_1a_3x3=conv_bn_relu(3, 32, 3, stride=2, padded=False),
        Conv2d_2a_3x3=conv_bn_relu(32, 32, 3, padded=False),
        Conv2d_2b_3x3=conv_bn_relu(32, 64, 3),
        maxpool1=nn.MaxPool2d(3, stride=2),
        Conv2d_3b_1x1=conv_bn_relu(64, 80, 1),
        Conv2d_4a_3x3=conv_bn_relu(80, 192, 3, padded=False),
        maxpool2=nn.MaxPool2d(3, stride=2),
        Mixed_5b=mixed_35(192, 32),
        Mixed_5c=mixed_35(256, 64),
        Mixed_5d=mixed_35(288, 64),
        Mixed_6a=mixed_35_to_17(288),
        Mixed_6b=mixed_17(768, 128),
        Mixed_6c=mixed_17(768, 160),
        Mixed_6d=mixed_17(768, 160),
        Mixed_6e=mixed_17(768, 192),
        Mixed_7a=mixed_17_to_8(768),
        Mixed_7b=mixed_8(1280),
        Mixed_7c=mixed_8(2048),
        avgpool=nn.AdaptiveAvgPool2d(1),
        dropout=nn.Dropout(0.5),
        flatten=nn.Flatten(),
        fc=nn.Linear(2048, IMAGENET_CLASSES),
    )
