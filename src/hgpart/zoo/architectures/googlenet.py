"""GoogLeNet, the first Inception (Szegedy et al., 2014), with batch norm."""

from __future__ import annotations

from torch import nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, Concatenate, conv_bn_relu, named


def inception(
    inputs: int,
    direct: int,
    middle: tuple[int, int],
    large: tuple[int, int],
    pooled: int,
) -> Concatenate:
    """Four branches: 1 x 1; 1 x 1 then 3 x 3 (``middle``, ``large``); pooling then 1 x 1.

    Numbers are channels. ``large`` stands for the paper's 5 x 5, which the public checkpoints
    have as 3 x 3.
    """

    def reduced(channels: tuple[int, int]) -> nn.Module:
        reduction, outputs = channels
        return nn.Sequential(
            conv_bn_relu(inputs, reduction, 1), conv_bn_relu(reduction, outputs, 3)
        )

    pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)
    return Concatenate(
        branch1=conv_bn_relu(inputs, direct, 1),
        branch2=reduced(middle),
        branch3=reduced(large),
        branch4=nn.Sequential(pool, conv_bn_relu(inputs, pooled, 1)),
    )


def googlenet() -> nn.Module:
    """GoogLeNet with torchvision's parameter names: 6,624,904 parameters.

    Built without the two auxiliary classifiers, so that there is one output: a torchvision
    checkpoint loads less its ``aux1.*`` and ``aux2.*`` entries. (torchvision feeds its pretrained
    weights images normalised to mean 0.5 and deviation 0.5: its ``transform_input``.)
    """

    def pool(kernel: int) -> nn.Module:
        return nn.MaxPool2d(kernel, stride=2, ceil_mode=True)

    return named(
        conv1=conv_bn_relu(3, 64, 7, stride=2),
        maxpool1=pool(3),
        conv2=conv_bn_relu(64, 64, 1),
        conv3=conv_bn_relu(64, 192, 3),
        maxpool2=pool(3),
        inception3a=inception(192, 64, (96, 128), (16, 32), 32),
        inception3b=inception(256, 128, (128, 192), (32, 96), 64),
        maxpool3=pool(3),
        inception4a=inception(480, 192, (96, 208), (16, 48), 64),
        inception4b=inception(512, 160, (112, 224), (24, 64), 64),
        inception4c=inception(512, 128, (128, 256), (24, 64), 64),
        inception4d=inception(512, 112, (144, 288), (32, 64), 64),
        inception4e=inception(528, 256, (160, 320), (32, 128), 128),
        maxpool4=pool(2),
        inception5a=inception(832, 256, (160, 320), (32, 128), 128),
        inception5b=inception(832, 384, (192, 384), (48, 128), 128),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(0.2),
        fc=nn.Linear(1024, IMAGENET_CLASSES),
    )
