"""AlexNet in its one-tower form (Krizhevsky, "One weird trick", 2014)."""

from __future__ import annotations

from torch import nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, named


def alexnet() -> nn.Module:
    """AlexNet with torchvision's parameter names: 61,100,840 parameters."""

    def relu() -> nn.Module:
        return nn.ReLU(inplace=True)

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, stride=2)

    features = nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        relu(),
        pool(),
        nn.Conv2d(64, 192, 5, padding=2),
        relu(),
        pool(),
        nn.Conv2d(192, 384, 3, padding=1),
        relu(),
        nn.Conv2d(384, 256, 3, padding=1),
        relu(),
        nn.Conv2d(256, 256, 3, padding=1),
        relu(),
        pool(),
    )
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        relu(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        relu(),
        nn.Linear(4096, IMAGENET_CLASSES),
    )
    return named(
        features=features,
        avgpool=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(),
        classifier=classifier,
    )
