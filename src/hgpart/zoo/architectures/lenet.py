"""LeNet-5 (LeCun et al., 1998), as laid out in table 2.1 of the thesis."""

from __future__ import annotations

from torch import nn

from hgpart.zoo.architectures.blocks import named


def lenet5() -> nn.Module:
    """LeNet-5 for 32 x 32 grey images and 10 classes: 61,706 parameters.

    The third convolution (120 filters of 5 x 5 on maps of 5 x 5) reads all 16 maps, as does the
    second one; average pooling has no parameters. Returns logits: softmax belongs to the loss.
    """
    return named(
        conv1=nn.Conv2d(1, 6, 5),
        tanh1=nn.Tanh(),
        pool1=nn.AvgPool2d(2),
        tanh2=nn.Tanh(),
        conv2=nn.Conv2d(6, 16, 5),
        tanh3=nn.Tanh(),
        pool2=nn.AvgPool2d(2),
        tanh4=nn.Tanh(),
        conv3=nn.Conv2d(16, 120, 5),
        tanh5=nn.Tanh(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(120, 84),
        tanh6=nn.Tanh(),
        fc2=nn.Linear(84, 10),
    )
