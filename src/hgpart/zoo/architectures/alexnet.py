"""AlexNet: of 2012 (Krizhevsky et al.), and as of "One weird trick" (Krizhevsky, 2014)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, named


def alexnet() -> nn.Module:
    """AlexNet of 2014 with torchvision's parameter names: 61,100,840 parameters."""
    return _alexnet((64, 192, 384, 256, 256), padding=2)


def alexnet_2012() -> nn.Module:
    """AlexNet of 2012 on one device, for 227 x 227 images: 62,378,344 parameters.

    Widths are those of table 2.2 of the thesis. Each filter reads all maps, of which those of three
    layers read half on the two GPUs of 2012; there is no local response normalisation.
    """
    return _alexnet((96, 256, 384, 384, 256), padding=0)


def _alexnet(widths: Sequence[int], padding: int) -> nn.Module:
    """An AlexNet, given filters of each convolution and the padding of the first one."""

    def relu() -> nn.Module:
        return nn.ReLU(inplace=True)

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, stride=2)

    first, second, third, fourth, fifth = widths
    features = nn.Sequential(
        nn.Conv2d(3, first, 11, stride=4, padding=padding),
        relu(),
        pool(),
        nn.Conv2d(first, second, 5, padding=2),
        relu(),
        pool(),
        nn.Conv2d(second, third, 3, padding=1),
        relu(),
        nn.Conv2d(third, fourth, 3, padding=1),
        relu(),
        nn.Conv2d(fourth, fifth, 3, padding=1),
        relu(),
        pool(),
    )
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Linear(fifth * 6 * 6, 4096),
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
