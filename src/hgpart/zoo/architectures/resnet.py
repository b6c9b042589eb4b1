"""ResNet (He et al., 2015); bottlenecks stride in their 3 x 3 convolution ("v1.5").

ResNet-1001 for CIFAR has pre-activated bottlenecks (He et al., 2016).
"""

from __future__ import annotations

from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import CIFAR_CLASSES, IMAGENET_CLASSES, conv_bn, named

WIDTHS = (64, 128, 256, 512)
# (bottleneck blocks?, numbers of blocks of each width), by the number of layers with weights.
STAGES = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    101: (True, (3, 4, 23, 3)),
    152: (True, (3, 8, 36, 3)),
}


class ResidualBlock(nn.Module):
    """Convolutions whose result is added to the block's input, then ReLU.

    Layer i is ``conv{i}`` with batch norm ``bn{i}``; ``downsample`` fits the input to the result
    where channels or size differ.
    """

    def __init__(self, convolutions: list[nn.Conv2d], downsample: nn.Module | None) -> None:
        super().__init__()
        self.depth = len(convolutions)
        for i, convolution in enumerate(convolutions, start=1):
            self.add_module(f"conv{i}", convolution)
            self.add_module(f"bn{i}", nn.BatchNorm2d(convolution.out_channels))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, C', H / stride, W / stride)."""
        y = x
        for i in range(1, self.depth + 1):
            y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
            if i < self.depth:
                y = self.relu(y)
        y += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(y)
        return result


def residual(inputs: int, width: int, stride: int, *, bottleneck: bool) -> ResidualBlock:
    """A block: two 3 x 3 convolutions, or 1 x 1, 3 x 3, 1 x 1 with four times the width out."""

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)

    if bottleneck:
        outputs = 4 * width
        convolutions = [
            convolution(inputs, width, 1),
            convolution(width, width, 3, stride),
            convolution(width, outputs, 1),
        ]
    else:
        outputs = width
        convolutions = [convolution(inputs, width, 3, stride), convolution(width, width, 3)]
    fits = inputs == outputs and stride == 1
    return ResidualBlock(convolutions, None if fits else conv_bn(inputs, outputs, 1, stride=stride))


def resnet(depth: int) -> nn.Module:
    """ResNet of ``depth`` 18, 34, 50, 101 or 152 with torchvision's parameter names.

    ResNet-50 has 25,557,032 parameters.
    """
    bottleneck, repeats = STAGES[depth]
    layers: dict[str, nn.Module] = {}
    channels = 64
    for stage, (width, blocks) in enumerate(zip(WIDTHS, repeats, strict=True), start=1):
        layer = nn.Sequential()
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            layer.append(residual(channels, width, stride, bottleneck=bottleneck))
            channels = 4 * width if bottleneck else width
        layers[f"layer{stage}"] = layer
    return named(
        conv1=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(64),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        **layers,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(channels, IMAGENET_CLASSES),
    )


class PreActivatedBottleneck(nn.Module):
    """Batch norm, ReLU and convolution, three times; the result is added to the block's input.

    ``downsample`` fits the input, normalised and activated, to the result where they differ.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> (N, C', H / stride, W / stride)."""
        activated = self.relu(self.bn1(x))
        y = self.conv1(activated)
        y = self.conv2(self.relu(self.bn2(y)))
        y = self.conv3(self.relu(self.bn3(y)))
        shortcut: Tensor = x if self.downsample is None else self.downsample(activated)
        added: Tensor = shortcut + y
        return added


def resnet1001() -> nn.Module:
    """ResNet-1001 for CIFAR-10: three stages of 111 pre-activated bottlenecks.

    It has 10,327,706 parameters.
    """
    layers: dict[str, nn.Module] = {}
    channels = 16
    for stage, width in enumerate((16, 32, 64), start=1):
        layer = nn.Sequential()
        for block in range(111):
            stride = 2 if stage > 1 and block == 0 else 1
            layer.append(PreActivatedBottleneck(channels, width, stride))
            channels = 4 * width
        layers[f"layer{stage}"] = layer
    return named(
        conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
        **layers,
        bn=nn.BatchNorm2d(channels),
        relu=nn.ReLU(inplace=True),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(channels, CIFAR_CLASSES),
    )
