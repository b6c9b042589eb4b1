"""MobileNetV2 (Sandler et al., 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, conv_bn, named

# Expansion, output channels, blocks, stride of the first block (table 2 of the paper).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand by 1 x 1, filter depthwise, project by 1 x 1; add the input where shapes agree."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        expand = [conv_bn(inputs, width, 1, activation=nn.ReLU6(inplace=True))]
        self.conv = nn.Sequential(
            *(expand if expansion > 1 else []),
            conv_bn(
                width, width, 3, stride=stride, groups=width, activation=nn.ReLU6(inplace=True)
            ),
            *conv_bn(width, outputs, 1),
        )
        self.adds_input = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.conv(x)
        return x + y if self.adds_input else y


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 with torchvision's parameter names: 3,504,872 parameters."""
    channels = 32
    features = nn.Sequential(conv_bn(3, channels, 3, stride=2, activation=nn.ReLU6(inplace=True)))
    for expansion, outputs, blocks, stage_stride in STAGES:
        for block in range(blocks):
            stride = stage_stride if block == 0 else 1
            features.append(InvertedResidual(channels, outputs, stride=stride, expansion=expansion))
            channels = outputs
    features.append(conv_bn(channels, 1280, 1, activation=nn.ReLU6(inplace=True)))
    return named(
        features=features,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, IMAGENET_CLASSES)),
    )
