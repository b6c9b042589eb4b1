"""ResNet (He et al., 2015); bottlenecks stride in their 3 x 3 convolution ("v1.5")."""

from __future__ import annotations

from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, conv_bn, named

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
