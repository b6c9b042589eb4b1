"""AlexNet: of 2012 (Krizhevsky et al.), of 2014 (Krizhevsky, "One weird trick"), and A. Leon's."""

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


def alexnet_of_leon(pixels: int, classes: int) -> nn.Module:
    """AlexNet as A. Leon trains it (Middlebury College, 2019, chapter 4), for small images.

    The text has the filters, kernel, stride and padding of the first convolution, the images (56 x
    56 of Tiny ImageNet, 128 x 128 of Dogs vs. Cats) and the classes (200, 2); all else is as in
    his programs (AumitLeon/accelerating-dnns on GitHub, `alexnet_baseline_*.py`). These have a norm
    behind each layer and four linear layers, where the text counts two and three (section 4.2.2).
    """

    def convolution(
        inputs: int, outputs: int, kernel: int, pool: nn.Module | None = None, stride: int = 1
    ) -> list[nn.Module]:
        padding = 0 if stride > 1 else kernel // 2
        convolved = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        norm = nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01)
        return [convolved, nn.ReLU(inplace=True), *([pool] if pool else []), norm]

    def linear(inputs: int, outputs: int) -> list[nn.Module]:
        norm = nn.BatchNorm1d(outputs, eps=0.001, momentum=0.01)
        return [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout(0.4), norm]

    last = (((pixels - 11) // 4 - 2) // 2 - 2) // 2 + 1  # pixels a side behind the second pooling
    features = nn.Sequential(
        *convolution(3, 96, 11, nn.MaxPool2d(3, stride=2), stride=4),
        *convolution(96, 256, 5, nn.MaxPool2d(3, stride=2)),
        *convolution(256, 384, 3),
        *convolution(384, 384, 3),
        *convolution(384, 256, 3, nn.MaxPool2d(3, stride=1, padding=1)),
    )
    classifier = nn.Sequential(
        *linear(256 * last**2, 4096),
        *linear(4096, 4096),
        *linear(4096, 1000),
        nn.Linear(1000, classes),
    )
    return named(features=features, flatten=nn.Flatten(), classifier=classifier)


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
