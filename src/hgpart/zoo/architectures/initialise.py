"""nn.Module without values -> the same module with random weights."""

from __future__ import annotations

import math

from torch import nn


def initialise(model: nn.Module) -> None:
    """Draw every weight from torch's global CPU generator, layer by layer in module order.

    Weights of convolutions and linear layers are normal with variance 2 / fan-in (He et al.,
    "Delving Deep into Rectifiers", 2015, equation 10), so that signals neither die out nor blow
    up in the models without batch norm. Biases are uniform in +-1/sqrt(fan-in), torch's own
    default: none is zero, so a bias that ends up with the wrong channel shows. Batch norm starts
    as the identity, and recurrent layers as torch starts them.
    """
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound)
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.RNNBase)):
            layer.reset_parameters()
