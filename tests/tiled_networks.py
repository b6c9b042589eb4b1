"""Small random networks whose rows can be divided: windows of all kinds, skips, norms, dropout."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

HEIGHT, WIDTH = 19, 11
Layer = tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor], int]  # a module, its call, channels


def _called(module: nn.Module, maps: Tensor) -> Tensor:
    return module(maps)


def _skip(module: nn.Module, maps: Tensor) -> Tensor:
    return maps + module(maps)


def _gate(module: nn.Module, maps: Tensor) -> Tensor:
    """Squeeze and excite: all rows of the maps scale each of them."""
    return maps * torch.sigmoid(module(maps.mean((2, 3), keepdim=True)))


def _twice(module: nn.Module, maps: Tensor) -> Tensor:
    return torch.sigmoid(module(maps)) * maps + maps


def _joined(module: nn.Module, maps: Tensor) -> Tensor:
    first, second = module.children()
    return torch.cat([first(maps), second(maps)], 1)


def _by_row(_: nn.Module, maps: Tensor) -> Tensor:
    return maps + 0.1 * torch.arange(maps.shape[2], dtype=maps.dtype).reshape(-1, 1)


def _unshuffled(_: nn.Module, maps: Tensor) -> Tensor:
    even = maps[:, :, : maps.shape[2] // 2 * 2, : maps.shape[3] // 2 * 2]
    return functional.pixel_unshuffle(even, 2)[:, : maps.shape[1]]


MOVES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda maps: maps[:, :, 1:-1],
    lambda maps: maps[:, :, ::2],
    lambda maps: maps.flip(2),
    lambda maps: maps.roll(1, 2),
)


def _convolutions(draw: random.Random, count: int) -> Iterator[Layer]:
    kernel, made = draw.randint(1, 7), draw.choice([2, 4, 6])
    sizes = draw.randint(1, 2), draw.randint(0, kernel), draw.randint(1, 3)
    after = draw.choice([nn.ReLU(), nn.SiLU(), nn.Hardswish(), nn.PReLU()])
    yield nn.Sequential(nn.Conv2d(count, made, kernel, *sizes), after), _called, made
    size, mode = draw.choice([2, 3, 5]), draw.choice(["reflect", "replicate", "circular"])
    framed = nn.Conv2d(count, 3, size, draw.randint(1, 2), size // 2, padding_mode=mode)
    yield framed, _called, 3
    yield nn.Conv2d(count, 2, draw.choice([2, 3, 4]), padding="same"), _called, 2
    depthwise = nn.Conv2d(count, 2 * count, 3, draw.randint(1, 2), 1, groups=count)
    yield depthwise, _called, 2 * count
    stride, dilation = draw.randint(1, 3), draw.randint(1, 2)
    more = draw.randint(0, max(stride, dilation) - 1)
    up = nn.ConvTranspose2d(
        count, 4, draw.randint(1, 4), stride, draw.randint(0, 1), more, dilation=dilation
    )
    yield up, _called, 4
    yield nn.ConvTranspose2d(count, 2 * count, 3, 2, 1, groups=count), _called, 2 * count
    yield nn.Conv2d(count, count, 3, padding=1), _skip, count
    yield nn.Conv2d(count, count, 1), _gate, count
    yield nn.Conv2d(count, count, 1), _twice, count
    pair = nn.ModuleList([nn.Conv2d(count, 2, 3, padding=1), nn.Conv2d(count, 3, 1)])
    yield pair, _joined, 5


def _norms(draw: random.Random, count: int) -> Iterator[Layer]:
    yield (
        nn.Sequential(nn.Conv2d(count, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        _called,
        4,
    )
    yield nn.BatchNorm2d(count), _called, count
    pooled = nn.Sequential(nn.Conv2d(count, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1))
    yield pooled, _called, 4
    yield nn.GroupNorm(1, count), _called, count
    dropped = draw.choice([nn.Dropout(0.3), nn.Dropout2d(0.3)])
    yield nn.Sequential(nn.Conv2d(count, 4, 3, padding=1), dropped), _called, 4


def _windows(draw: random.Random, count: int) -> Iterator[Layer]:
    mode = draw.choice(["nearest", "bilinear", "bicubic"])
    corners = {} if mode == "nearest" else {"align_corners": draw.random() < 0.5}
    sized = draw.choice(
        [{"scale_factor": draw.choice([2, 1.5])}, {"size": (draw.randint(5, 20), 9)}]
    )
    yield nn.Upsample(mode=mode, **sized, **corners), _called, count
    yield nn.MaxPool2d(draw.randint(2, 3), 2, 1, ceil_mode=draw.random() < 0.5), _called, count
    yield nn.AvgPool2d(3, 2, 1, count_include_pad=draw.random() < 0.5), _called, count
    yield nn.AdaptiveAvgPool2d((draw.randint(2, 7), 4)), _called, count
    yield nn.AdaptiveMaxPool2d((draw.randint(2, 7), 4)), _called, count
    frames = (
        nn.ZeroPad2d((1, 2, 3, 1)),
        nn.ReflectionPad2d(2),
        nn.ReplicationPad2d((0, 1, 2, 3)),
        nn.ConstantPad2d((1, 0, -1, 2), 1.5),
    )
    yield draw.choice(frames), _called, count
    yield nn.Sequential(nn.Conv2d(count, 8, 1), nn.PixelShuffle(2)), _called, 2
    yield nn.Identity(), _unshuffled, count
    yield nn.Identity(), _by_row, count
    move = draw.choice(MOVES)
    yield nn.Identity(), lambda _, maps: move(maps), count


KINDS = (_convolutions, _convolutions, _norms, _windows)


class TiledNetwork(nn.Module):
    """A few layers in a row, and perhaps a head that needs all rows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw, count = random.Random(seed), 3
        self.layers, self.calls = nn.ModuleList(), []
        for _ in range(draw.randint(2, 5)):
            module, call, count = draw.choice([*draw.choice(KINDS)(draw, count)])
            self.layers.append(module)
            self.calls.append(call)
        heads = (
            nn.Identity(),
            nn.Sequential(nn.Flatten(), nn.LazyLinear(5)),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(count, 4)),
            nn.Conv2d(count, 1, 1),
        )
        self.head = draw.choice(heads)

    def forward(self, maps: Tensor) -> Tensor:
        for module, call in zip(self.layers, self.calls, strict=True):
            maps = call(module, maps)
        return self.head(maps)


def tiled_network(seed: int, samples: int) -> tuple[nn.Module, Tensor] | None:
    """A network in float64 and a batch of images; None if it is too small for its windows."""
    torch.manual_seed(seed)
    model = TiledNetwork(seed).double()
    images = torch.randn(samples, 3, HEIGHT, WIDTH, dtype=torch.float64)
    try:
        result = model(images)
    except RuntimeError:
        return None
    return (model, images) if result.numel() and result.requires_grad else None
