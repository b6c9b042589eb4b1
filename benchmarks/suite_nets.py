"""Nets of the benchmark suite that hgpart does not have built in: those for smaller images.

A factory each, as in `hgpart trace benchmarks/suite_nets.py:cifar10_resnet18`. For MNIST and
CIFAR-10 they are those for ImageNet with these changes (appendix A of the suite's thesis): ResNet
and MobileNetV2 halve their maps two times less often at the beginning, VGG has norms, no pooling of
a single pixel, and one linear layer. AlexNet of Tiny ImageNet and of Dogs vs. Cats has two norms,
and pads what it pools, without which nothing would be left of 56 pixels.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from hgpart.zoo.architectures.alexnet import alexnet
from hgpart.zoo.architectures.mobilenet_v2 import mobilenet_v2
from hgpart.zoo.architectures.resnet import resnet
from hgpart.zoo.architectures.vgg import vgg

Built = tuple[nn.Module, tuple[int, ...]]
Shape = tuple[int, int, int]

SMALL = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
CLASSES = 10
# Pixels a side, classes, and pixels a side of the last maps.
ALEXNETS = {"tiny_imagenet": (56, 200, 2), "dogs_vs_cats": (128, 2, 4)}


def small_resnet(depth: int, shape: Shape) -> Built:
    """Begin with a 3 x 3 convolution of stride 1 and no pooling (tables A.2, A.5)."""
    net = resnet(depth)
    net.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
    del net.maxpool
    net.fc = nn.Linear(net.fc.in_features, CLASSES)
    return net, shape


def small_vgg(depth: int, shape: Shape) -> Built:
    """End with one linear layer, behind a single pixel (tables A.3, A.6)."""
    net = vgg(depth, batch_norm=True)
    net.features[0] = nn.Conv2d(shape[0], 64, 3, padding=1)
    if shape[1] < 32:
        del net.features[-1]  # the fifth pooling
    net.avgpool = nn.AdaptiveAvgPool2d(1)
    net.classifier = nn.Linear(512, CLASSES)
    return net, shape


def small_mobilenet_v2(shape: Shape) -> Built:
    """Have stride 1 in the first convolution, and where there are 24 channels (A.4, A.7)."""
    net = mobilenet_v2()
    net.features[0][0] = nn.Conv2d(shape[0], 32, 3, padding=1, bias=False)
    expansion_filter_projection = net.features[2].conv
    expansion_filter_projection[1][0].stride = (1, 1)
    net.classifier = nn.Linear(1280, CLASSES)
    return net, shape


def small_alexnet(size: int, classes: int, last: int) -> Built:
    """Five convolutions, three poolings, two norms and three linear layers."""
    net = alexnet()
    for at in (2, 5, 12):
        net.features[at] = nn.MaxPool2d(3, stride=2, padding=1)
    net.features.insert(5, nn.BatchNorm2d(192))
    net.features.insert(2, nn.BatchNorm2d(64))
    del net.avgpool
    net.classifier[1] = nn.Linear(256 * last * last, 4096)
    net.classifier[-1] = nn.Linear(4096, classes)
    return net, (3, size, size)


for _name, _shape in SMALL.items():
    for _depth in (18, 50, 152):
        globals()[f"{_name}_resnet{_depth}"] = partial(small_resnet, _depth, _shape)
    for _depth in (11, 16):
        globals()[f"{_name}_vgg{_depth}"] = partial(small_vgg, _depth, _shape)
    globals()[f"{_name}_mobilenet_v2"] = partial(small_mobilenet_v2, _shape)
for _name, _sizes in ALEXNETS.items():
    globals()[f"{_name}_alexnet"] = partial(small_alexnet, *_sizes)
