"""A rule for an operator of your own, so that its results are divided like any layer's maps."""

from typing import Any

import torch
from torch import Tensor, nn

import hgpart


@torch.library.custom_op("example::soft_clip", mutates_args=())
def soft_clip(x: Tensor) -> Tensor:
    """Bring all elements between -1 and 1."""
    return x / (1 + x.abs())


@soft_clip.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    """Keep what the backward pass needs."""
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, gradient: Tensor) -> Tensor:
    """Return the gradient of the operand."""
    x: Tensor = ctx.saved_tensors[0]
    return gradient / (1 + x.abs()) ** 2


soft_clip.register_autograd(backward, setup_context=keep)


class Net(nn.Module):
    """Two convolutions with the operator between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps of the second convolution."""
        maps: Tensor = self.second(soft_clip(self.first(images)))
        return maps


def layers(net: nn.Module, images: Tensor) -> str:
    """List the layers, with the tasks that they can be divided into."""
    graph = hgpart.channel_graph(hgpart.trace(net, images))
    return ", ".join(f"{layer.name} {layer.tasks} ({layer.kind})" for layer in graph.layers)


def main() -> None:
    """Show what the rule changes, and that the parts compute the same."""
    torch.manual_seed(0)
    net, images = Net().double(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    print("without a rule:", layers(net, images))

    # Each element depends on the one in the same place, so a channel on that channel alone.
    hgpart.channel_rule(torch.ops.example.soft_clip)(hgpart.operators.same_place)
    print("with it:       ", layers(net, images))

    placed = hgpart.place(net, k=3, example=images)
    print(placed.summary())
    for name, weight in placed.original_parameters(1):
        print(f"part 1 has {tuple(weight.shape)} of {name} {tuple(net.get_parameter(name).shape)}")
    print("the same results:", torch.allclose(placed(images), net(images)))
    images.requires_grad_()
    in_parts, whole = (
        torch.autograd.grad(model(images).sum(), images)[0] for model in (placed, net)
    )
    print("the same gradients:", torch.allclose(in_parts, whole))


if __name__ == "__main__":
    main()
