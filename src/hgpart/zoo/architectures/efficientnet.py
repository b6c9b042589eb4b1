"""EfficientNet-B0 (Tan and Le, 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from hgpart.zoo.architectures.blocks import IMAGENET_CLASSES, conv_bn, named

# Expansion, kernel, stride of the first block, output channels, blocks (table 1 of the paper).
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
DROP_RATE = 0.2  # for the classifier, and for a residual branch past the last block


class StochasticDepth(nn.Module):
    """While training, drop whole samples of a residual branch (Huang et al., 2016)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) -> the same; each sample times 0 or 1 / (1 - probability)."""
        if not self.training or self.probability == 0:
            return x
        survival = 1 - self.probability
        return x * x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(survival).div_(survival)


class SqueezeExcitation(nn.Module):
    """Scale each map by a gate computed from the means of all maps (Hu et al., 2017)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.SiLU(inplace=True)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels, H, W) -> the same shape."""
        squeezed = self.activation(self.fc1(self.avgpool(x)))
        gate: Tensor = self.scale_activation(self.fc2(squeezed))
        return x * gate


class MBConv(nn.Module):
    """Inverted residual with a squeeze-and-excitation gate after its depthwise convolution."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int,
        expansion: int,
        drop_probability: float,
    ) -> None:
        super().__init__()
        width = inputs * expansion
        expand = [conv_bn(inputs, width, 1, activation=nn.SiLU(inplace=True))]
        self.block = nn.Sequential(
            *(expand if expansion > 1 else []),
            conv_bn(
                width, width, kernel, stride=stride, groups=width, activation=nn.SiLU(inplace=True)
            ),
            SqueezeExcitation(width, inputs // 4),
            conv_bn(width, outputs, 1),
        )
        self.adds_input = stride == 1 and inputs == outputs
        self.stochastic_depth = StochasticDepth(drop_probability)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.block(x)
        if self.adds_input:
            y = self.stochastic_depth(y)
            y += x
        return y


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0 with torchvision's parameter names: 5,288,548 parameters."""
    blocks_in_all = sum(blocks for *_, blocks in STAGES)
    channels = 32
    features = nn.Sequential(conv_bn(3, channels, 3, stride=2, activation=nn.SiLU(inplace=True)))
    block_number = 0
    for expansion, kernel, stage_stride, outputs, blocks in STAGES:
        stage = nn.Sequential()
        for block in range(blocks):
            stage.append(
                MBConv(
                    channels,
                    outputs,
                    kernel,
                    stride=stage_stride if block == 0 else 1,
                    expansion=expansion,
                    drop_probability=DROP_RATE * block_number / blocks_in_all,
                )
            )
            channels = outputs
            block_number += 1
        features.append(stage)
    features.append(conv_bn(channels, 1280, 1, activation=nn.SiLU(inplace=True)))
    classifier = nn.Sequential(
        nn.Dropout(DROP_RATE, inplace=True), nn.Linear(1280, IMAGENET_CLASSES)
    )
    return named(
        features=features,
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        classifier=classifier,
    )
