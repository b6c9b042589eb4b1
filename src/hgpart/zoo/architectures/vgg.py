"""VGG (Simonyan and Zisserman, 2014), plain and with batch norm."""

from __future__ import annotations

from torch import nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, named

WIDTHS = (64, 128, 256, 512, 512)
# Convolutions of each width, by the number of layers with weights (table 1 of the paper).
REPEATS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def vgg(depth: int, *, batch_norm: bool = False) -> nn.Module:
    """VGG of ``depth`` 11, 13, 16 or 19 with torchvision's parameter names.

    VGG16 has 138,357,544 parameters.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in zip(WIDTHS, REPEATS[depth], strict=True):
        for _ in range(repeats):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(2))
    classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, IMAGENET_CLASSES),
    )
    return named(
        features=nn.Sequential(*layers),
        avgpool=nn.AdaptiveAvgPool2d(7),
        flatten=nn.Flatten(),
        classifier=classifier,
    )
