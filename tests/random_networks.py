"""Random networks of many kinds of layers, and trials of them in parts beside the original.

`python tests/random_networks.py 0 1000` tries those of the seeds 0 to 999 and prints what is wrong.
"""

from __future__ import annotations

import copy
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import placements
import torch
from originals import wrong_figures
from torch import Tensor, nn
from torch.nn import functional

import hgpart
from hgpart.errors import HgpartError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partitioned_model import PartitionedModel
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.tracing.traced_model import trace

SIZE = 8  # rows and columns of the images
TOLERANCE = 1e-8
STEPS = 3
RATE = 0.05
SPLITS = {
    "single tasks": placements.of_single_tasks,
    "blocks": placements.of_random_blocks,
    "shared layers": placements.of_shared_layers,
    "data parallel": placements.of_data_parallel,
}


class Block(nn.Module):
    """A layer: its modules, and a function of maps that calls them."""

    def __init__(self, call: Callable[..., Tensor], **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.call = call
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *maps: Tensor) -> Tensor:
        return self.call(self, *maps)


class RandomNetwork(nn.Module):
    """Layers in a row, each of maps before it; some are read by none, some are used twice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.steps: list[tuple[int, tuple[int, ...]]] = []  # block, maps that it reads
        self.blocks = nn.ModuleList()
        self.kinds: list[str] = []
        self.shapes: list[tuple[int, ...]] = [(3, SIZE, SIZE)]
        self.several_inputs = self.draw.random() < 0.25
        if self.several_inputs:
            self.shapes.append(self.draw.choice([(6,), (3, SIZE, SIZE)]))
        inputs = len(self.shapes)
        self._add("conv", self._conv(self.shapes[0]), (0,))
        for _ in range(self.draw.randint(3, 9)):
            self._grow()
        if self.several_inputs and not any(1 in read for _, read in self.steps):
            self._add(
                "film", self._film(self.shapes[-1], self.shapes[1]), (len(self.shapes) - 1, 1)
            )
        self._end()
        self.structure = self.draw.choice(["tuple", "dict", "one"])
        if self.draw.random() < 0.15:
            for parameter in self.parameters():
                if self.draw.random() < 0.3:
                    parameter.requires_grad_(False)
        self.inputs = inputs
        del self.draw

    # -------------------------------------------------------------- growing

    def _add(self, kind: str, block: Block | int, read: tuple[int, ...]) -> None:
        """Put a layer behind; its shape is what it makes of two samples."""
        if isinstance(block, int):
            at = block
        else:
            at = len(self.blocks)
            self.blocks.append(block)
        own = self.blocks[at]
        mode = own.training
        with torch.no_grad():
            made = own.eval()(*(torch.rand(2, *self.shapes[one]) for one in read))
        own.train(mode)
        self.steps.append((at, read))
        self.kinds.append(kind)
        self.shapes.append(tuple(made.shape[1:]))

    def _maps(self) -> list[int]:
        return [at for at, shape in enumerate(self.shapes) if len(shape) == 3]

    def _grow(self) -> None:
        maps = self._maps()
        at = maps[-1] if self.draw.random() < 0.6 else self.draw.choice(maps)
        shape = self.shapes[at]
        alike = [one for one in maps if self.shapes[one] == shape and one != at]
        beside = [one for one in maps if self.shapes[one][1:] == shape[1:]]
        kinds: dict[str, Callable[[], tuple[Block | int, tuple[int, ...]]]] = {
            "conv": lambda: (self._conv(shape), (at,)),
            "conv ": lambda: (self._conv(shape), (at,)),
            "norm": lambda: (self._norm(shape), (at,)),
            "norm ": lambda: (self._norm(shape), (at,)),
            "activation": lambda: (self._activation(shape), (at,)),
            "gate": lambda: (self._gate(shape), (at,)),
            "move": lambda: (self._move(shape), (at,)),
            "mix": lambda: (self._mix(shape), (at,)),
            "learned map": lambda: (self._learned_map(shape), (at,)),
            "tokens": lambda: (self._tokens(shape), (at,)),
            "dropout": lambda: (self._dropout(), (at,)),
            "cat": lambda: (self._cat(), (at, self.draw.choice(beside))),
        }
        if alike:
            other = self.draw.choice(alike)
            kinds["sum"] = kinds["sum "] = lambda: (self._sum(shape), (at, other))
        if min(shape[1:]) >= 4:
            kinds["pool"] = lambda: (self._pool(), (at,))
        if min(shape[1:]) <= 8:
            kinds["grow"] = lambda: (self._upwards(shape), (at,))
        twice = [
            block for block, read in self.steps if [self.shapes[one] for one in read] == [shape]
        ]
        if twice:
            kinds["shared"] = lambda: (self.draw.choice(twice), (at,))
        if len(self.shapes) > 1 and self.several_inputs:
            kinds["film"] = lambda: (self._film(shape, self.shapes[1]), (at, 1))
        kind = self.draw.choice(sorted(kinds))
        block, read = kinds[kind]()
        self._add(kind.strip(), block, read)

    def _end(self) -> None:
        """One to three results: class scores, vectors of other lengths, whole maps."""
        maps = self._maps()
        self.results = []
        for number in range(self.draw.randint(1, 3)):
            at = maps[-1] if not number else self.draw.choice(maps)
            channels, rows, columns = self.shapes[at]
            kind = self.draw.choice(["flat", "mean", "map", "most"])
            if kind == "flat":
                block = Block(
                    lambda own, x: own.head(x.flatten(1)),
                    head=nn.Linear(channels * rows * columns, 5),
                )
            elif kind == "mean":
                block = Block(lambda own, x: own.head(x.mean((2, 3))), head=nn.Linear(channels, 4))
            elif kind == "most":
                block = Block(lambda own, x: own.head(x.amax((2, 3))), head=nn.Linear(channels, 3))
            else:
                block = Block(lambda own, x: own.head(x), head=nn.Conv2d(channels, 2, 1))
            self._add(kind, block, (at,))
            self.results.append(len(self.shapes) - 1)

    # -------------------------------------------------------------- layers

    def _conv(self, shape: tuple[int, ...]) -> Block:
        draw, channels = self.draw, shape[0]
        kernel = draw.choice([1, 3, 3, 5]) if min(shape[1:]) >= 5 else draw.choice([1, 3])
        out = draw.choice([3, 4, 6, 8, 12])
        divisors = [one for one in range(1, 13) if not channels % one and not out % one]
        groups = draw.choice(divisors) if draw.random() < 0.35 else 1
        made: nn.Module = nn.Conv2d(
            channels,
            out,
            kernel,
            draw.choice([1, 1, 1, 2]) if min(shape[1:]) >= 4 else 1,
            kernel // 2,
            groups=groups,
            bias=draw.random() < 0.6,
            padding_mode=draw.choice(["zeros", "zeros", "zeros", "circular"]),
        )
        if draw.random() < 0.1:
            made = nn.utils.parametrizations.weight_norm(made)
        relu = draw.random() < 0.5
        return Block(lambda own, x: own.conv(x).relu() if relu else own.conv(x), conv=made)

    def _norm(self, shape: tuple[int, ...]) -> Block:
        draw, (channels, rows, columns) = self.draw, shape
        affine, running = draw.random() < 0.7, draw.random() < 0.7
        groups = draw.choice([one for one in range(1, 13) if not channels % one])
        kind = draw.choice(["batch", "batch", "instance", "group", "layer", "rms", "width", "all"])
        if kind in ("batch", "all"):
            norm: nn.Module = nn.BatchNorm2d(
                channels, momentum=draw.choice([0.1, 0.3]), affine=affine
            )
        elif kind == "instance":
            if rows * columns == 1:
                return self._activation(shape)
            norm = nn.InstanceNorm2d(channels, affine=affine, track_running_stats=running)
        elif kind == "group":
            if rows * columns * channels // groups == 1:
                return self._activation(shape)
            norm = nn.GroupNorm(groups, channels, affine=affine)
            # torch's own backward pass crashes where channels lie last and maps need no gradients.
            return Block(lambda own, x: own.norm(x.contiguous()), norm=norm)
        elif kind == "layer":
            norm = nn.LayerNorm(channels, elementwise_affine=affine)
            return Block(
                lambda own, x: own.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=norm
            )
        elif kind == "rms":
            norm = nn.RMSNorm(channels, elementwise_affine=affine)
            return Block(lambda own, x: own.norm(x.transpose(1, 3)).transpose(1, 3), norm=norm)
        else:
            norm = draw.choice([nn.LayerNorm, nn.RMSNorm])(columns, elementwise_affine=affine)
        return Block(lambda own, x: own.norm(x), norm=norm)

    def _activation(self, shape: tuple[int, ...]) -> Block:
        kind = self.draw.choice(
            ["relu", "silu", "gelu", "prelu", "prelus", "softmax", "abs", "tanh"]
        )
        if kind == "prelu":
            return Block(lambda own, x: own.act(x), act=nn.PReLU())
        if kind == "prelus":
            return Block(lambda own, x: own.act(x), act=nn.PReLU(shape[0]))
        if kind == "softmax":
            dim = self.draw.choice([1, 2, 3])
            return Block(lambda own, x: x.softmax(dim))
        if kind == "abs":
            return Block(lambda own, x: x.abs().clamp(max=2.0))
        call = {"relu": functional.relu, "silu": functional.silu, "gelu": functional.gelu}
        chosen = call.get(kind, torch.tanh)
        return Block(lambda own, x: chosen(x))

    def _gate(self, shape: tuple[int, ...]) -> Block:
        """Squeeze and excitation; or a gate of each place."""
        channels, draw = shape[0], self.draw
        if draw.random() < 0.3:
            return Block(lambda own, x: x * own.gate(x).sigmoid(), gate=nn.Conv2d(channels, 1, 1))
        inner = draw.choice([2, 3, 4])
        return Block(
            lambda own, x: x * own.up(own.down(x.mean((2, 3), keepdim=True)).relu()).sigmoid(),
            down=nn.Conv2d(channels, inner, 1),
            up=nn.Conv2d(inner, channels, 1),
        )

    def _move(self, shape: tuple[int, ...]) -> Block:
        """Channels, rows or columns elsewhere: nothing is computed."""
        channels, rows, columns = shape
        draw = self.draw
        calls: list[Callable[[Any, Tensor], Tensor]] = [
            lambda own, x: x.flip(3),
            lambda own, x: x.flip(1),
            lambda own, x: x.roll(1, 1),
            lambda own, x: x.roll((1, 2), (2, 3)),
            lambda own, x: x.transpose(2, 3),
            lambda own, x: functional.pad(x, (1, 0, 2, 1)),
        ]
        if min(rows, columns) > 2:
            calls.append(lambda own, x: functional.pad(x, (1, 1, 1, 1), mode="reflect"))
            calls.append(lambda own, x: x[:, :, 1:, :-1])
            calls.append(lambda own, x: x[:, :, ::2])
        if channels > 2:
            calls += [
                lambda own, x: x[:, 1:],
                lambda own, x: x[:, ::2],
                lambda own, x: torch.cat([x[:, 1:], x[:, :1]], 1),
            ]
            chosen = sorted(draw.sample(range(channels), channels - 1), key=lambda one: one % 3)
            calls.append(lambda own, x: x[:, chosen])
        if not channels % 2:
            calls += [
                lambda own, x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2),
                lambda own, x: torch.cat(x.chunk(2, 1)[::-1], 1),
                lambda own, x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1].sigmoid(),
                lambda own, x: functional.glu(x, 1),
            ]
        if not rows % 2 and not columns % 2 and channels <= 6:
            calls.append(lambda own, x: functional.pixel_unshuffle(x, 2))
        return Block(draw.choice(calls))

    def _mix(self, shape: tuple[int, ...]) -> Block:
        """Channels or places by a learned matrix, written as an einsum or a product."""
        channels, _, columns = shape
        draw, out = self.draw, self.draw.choice([3, 4, 6])
        kind = draw.choice(["einsum", "matmul", "columns", "bilinear"])
        if kind == "einsum":
            weight = nn.Parameter(torch.randn(channels, out) / channels**0.5)
            return Block(lambda own, x: torch.einsum("nchw,cd->ndhw", x, own.weight), weight=weight)
        if kind == "matmul":
            linear = nn.Linear(channels, out, bias=draw.random() < 0.5)
            return Block(lambda own, x: own.f(x.movedim(1, -1)).movedim(-1, 1), f=linear)
        if kind == "columns":
            return Block(lambda own, x: own.f(x), f=nn.Linear(columns, columns))
        weight = nn.Parameter(torch.randn(out, channels) / channels**0.5)
        form = "oc,nchw->nohw"  # the mean itself, of what a norm made, is what rounding leaves
        return Block(
            lambda own, x: torch.einsum(form, own.weight, x * x.square().mean(1, keepdim=True)),
            weight=weight,
        )

    def _learned_map(self, shape: tuple[int, ...]) -> Block:
        """A parameter that is added to maps, or that scales them."""
        channels, rows, columns = shape
        sizes = self.draw.choice(
            [
                (1, channels, rows, columns),
                (channels, 1, 1),
                (1, 1, rows, columns),
                (columns,),
                (),
                (1, channels, 1, columns),
            ]
        )
        weight = nn.Parameter(torch.randn(sizes) / 2)
        if self.draw.random() < 0.5:
            return Block(lambda own, x: x + own.weight, weight=weight)
        return Block(lambda own, x: x * own.weight, weight=weight)

    def _tokens(self, shape: tuple[int, ...]) -> Block:
        """Places as tokens with a class token and positions, which attend to each other."""
        channels, rows, columns = shape
        width, places = self.draw.choice([4, 6]), rows * columns
        attends = self.draw.random() < 0.6
        norm = self.draw.choice([nn.LayerNorm, nn.RMSNorm, lambda size: nn.Identity()])(width)

        def call(own: Any, x: Tensor) -> Tensor:
            tokens = own.project(x).flatten(2).transpose(1, 2)
            tokens = torch.cat([own.token.expand(tokens.shape[0], -1, -1), tokens], 1) + own.place
            tokens = own.norm(tokens)
            if attends:
                query, key, value = own.qkv(tokens).chunk(3, -1)
                tokens = tokens + functional.scaled_dot_product_attention(query, key, value)
            rest = tokens[:, 1:] + tokens[:, :1]
            return rest.transpose(1, 2).unflatten(2, (rows, columns))

        modules: dict[str, nn.Module | nn.Parameter] = {
            "project": nn.Conv2d(channels, width, 1),
            "norm": norm,
            "token": nn.Parameter(torch.randn(1, 1, width)),
            "place": nn.Parameter(torch.randn(1, places + 1, width)),
        }
        if attends:
            modules["qkv"] = nn.Linear(width, 3 * width)
        return Block(call, **modules)

    def _dropout(self) -> Block:
        kind = self.draw.choice([nn.Dropout, nn.Dropout2d])
        return Block(lambda own, x: own.drop(x), drop=kind(0.3))

    def _cat(self) -> Block:
        return Block(lambda own, x, y: torch.cat([x, y], 1))

    def _sum(self, shape: tuple[int, ...]) -> Block:
        calls: list[Callable[[Any, Tensor, Tensor], Tensor]] = [
            lambda own, x, y: x + y,
            lambda own, x, y: (x + y).relu(),
            lambda own, x, y: x * y.sigmoid(),
            lambda own, x, y: torch.maximum(x, y),
            lambda own, x, y: torch.where(x > y, x, 0.5 * y),
            lambda own, x, y: torch.lerp(x, y, 0.3),
            lambda own, x, y: torch.stack([x, y], 2).flatten(1, 2),
            lambda own, x, y: torch.stack([x, y]).sum(0),
        ]
        return Block(self.draw.choice(calls))

    def _pool(self) -> Block:
        kinds = [
            nn.MaxPool2d(2),
            nn.MaxPool2d(3, 2, 1),
            nn.AvgPool2d(2),
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
            nn.AdaptiveAvgPool2d(3),
            nn.AdaptiveMaxPool2d(2),
            nn.LPPool2d(2, 2),
        ]
        return Block(lambda own, x: own.pool(x), pool=self.draw.choice(kinds))

    def _upwards(self, shape: tuple[int, ...]) -> Block:
        channels, draw = shape[0], self.draw
        kind = draw.choice(["nearest", "bilinear", "transposed", "shuffle"])
        if kind == "transposed":
            groups = draw.choice([1, 1, 2]) if not channels % 2 else 1
            layer = nn.ConvTranspose2d(channels, 4, 2, 2, groups=groups)
            return Block(lambda own, x: own.up(x), up=layer)
        if kind == "shuffle":
            return Block(
                lambda own, x: functional.pixel_shuffle(own.conv(x), 2),
                conv=nn.Conv2d(channels, 8, 1),
            )
        return Block(lambda own, x: functional.interpolate(x, scale_factor=2, mode=kind))

    def _film(self, shape: tuple[int, ...], other: tuple[int, ...]) -> Block:
        """Maps under a condition: a vector, or an image, that is another input."""
        channels = shape[0]
        if len(other) == 1:
            return Block(
                lambda own, x, y: (
                    x * own.scale(y)[:, :, None, None] + own.shift(y)[..., None, None]
                ),
                scale=nn.Linear(other[0], channels),
                shift=nn.Linear(other[0], channels),
            )
        return Block(
            lambda own, x, y: x + own.read(functional.adaptive_avg_pool2d(y, x.shape[2:])),
            read=nn.Conv2d(other[0], channels, 3, padding=1),
        )

    # -------------------------------------------------------------- as a model

    def forward(self, *inputs: Tensor) -> Any:
        maps = [*inputs]
        for block, read in self.steps:
            maps.append(self.blocks[block](*(maps[at] for at in read)))
        made = [maps[at] for at in self.results]
        if self.structure == "dict":
            return {f"result {at}": one for at, one in enumerate(made)}
        return tuple(made) if self.structure == "tuple" or len(made) > 1 else made[0]

    def example(self, samples: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(samples, *shape).double() for shape in self.shapes[: self.inputs])


# ------------------------------------------------------------------ trials


@dataclass(frozen=True)
class Trial:
    """How one network is divided and run."""

    k: int
    samples: int
    slices: int
    grain: str
    split: str
    norms: str
    training: bool
    rule: str | None
    micro_batches: int

    @property
    def norms_apart(self) -> bool:
        """Whether each slice is normalised by itself, where the original takes all of a batch."""
        return self.slices > 1 and self.norms == "slice"

    @classmethod
    def drawn(cls, draw: random.Random) -> Trial:
        rule = draw.choice(
            [None, "sequential", "gpipe", "1f1b", "zero-bubble", "greedy", "async", "async"]
        )
        slices = draw.choice([1, 1, 2, 3])
        most = 1 if rule in (None, "async") else 3 if slices == 1 else 2
        return cls(
            k=draw.choice([2, 3, 4]),
            samples=6,
            slices=slices,
            grain=draw.choice(["coarse", "fine"]),
            split=draw.choice(sorted(SPLITS)) if slices > 1 else "single tasks",
            norms="batch" if slices > 1 and rule != "async" else "slice",
            training=draw.random() < 0.75,
            rule=rule,
            micro_batches=draw.randint(1, most),
        )


def leaves(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return list(result.values() if isinstance(result, dict) else result)


def loss_of(result: Any, heads: Sequence[Tensor]) -> Tensor:
    """A mean over samples, of all results: each sample has heads of its own."""
    return (
        torch.stack(
            [
                (one * head).flatten(1).sum(1)
                for one, head in zip(leaves(result), heads, strict=True)
            ]
        )
        .sum(0)
        .mean()
    )


def gap(wanted: Tensor, found: Tensor, floor: float = 1e-3) -> float:
    """The largest difference, relative to the largest element (of all, where that is more)."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return float("inf")
    if not wanted.numel():
        return 0.0
    wanted, found = wanted.detach().double(), found.detach().double()
    size = max(float(wanted.abs().max()), floor)
    return float((wanted - found).abs().max()) / size


def attempt(seed: int) -> tuple[str, list[str]]:
    """Try one network; how it was tried, and what was wrong."""
    draw = random.Random(seed + 1_000_003)
    torch.manual_seed(seed)
    model = RandomNetwork(seed).double()
    trial = Trial.drawn(draw)
    model.train(trial.training)
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d) and trial.micro_batches > 1:
            module.p = 0.0  # a placement draws masks once for a batch, the original for each
        if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d) and trial.norms_apart:
            module.eval()  # in a stream each slice takes its own statistics
    batches = [model.example(trial.samples) for _ in range(STEPS)]
    with torch.no_grad():
        heads = [
            [torch.randn_like(one) for one in leaves(copy.deepcopy(model)(*batches[0]))]
        ] * STEPS
    said = f"{trial} {model.kinds}"
    traced = trace(model, tuple(one[:2] for one in batches[0]))
    graph = channel_graph(traced)
    modelling = Modelling(
        grain=trial.grain, batch_size=trial.samples, slices=trial.slices, norms=trial.norms
    )
    plan = SPLITS[trial.split](traced, graph, modelling, trial.k, seed)
    wrong = _steps(model, plan, trial, batches, heads)
    return said, wrong


def _steps(
    model: RandomNetwork,
    plan: PartitionedModel,
    trial: Trial,
    batches: Sequence[tuple[Tensor, ...]],
    heads: Sequence[Sequence[Tensor]],
) -> list[str]:
    original = copy.deepcopy(model)
    placed = hgpart.place(model, plan)
    learned = [one for one in original.parameters() if one.requires_grad]
    by = torch.optim.SGD(learned, RATE, momentum=0.9) if learned else None
    wrong = []
    if trial.rule == "async":
        return _stream(original, placed, batches, heads, by)
    ours = [one for one in placed.parameters() if one.requires_grad]
    ours_by = torch.optim.SGD(ours, RATE, momentum=0.9) if ours else None
    for step, (inputs, head) in enumerate(zip(batches, heads, strict=True)):
        torch.manual_seed(step)
        wanted, loss = _original_step(original, trial, inputs, head, by)
        torch.manual_seed(step)
        found, own_loss = _placed_step(placed, trial, inputs, head, ours_by)
        for at, (one, other) in enumerate(zip(leaves(wanted), leaves(found), strict=True)):
            if gap(one, other) > TOLERANCE:
                wrong.append(f"step {step}: result {at} differs by {gap(one, other):.1e}")
        if type(wanted) is not type(found):
            wrong.append(f"step {step}: {type(found)} where the original returns {type(wanted)}")
        if abs(loss - own_loss) > TOLERANCE * max(1.0, abs(loss)):
            wrong.append(f"step {step}: loss {own_loss} where the original has {loss}")
        wrong += [f"step {step}: {one}" for one in _traffic(placed, plan, trial, bool(learned))]
        wrong += [f"step {step}: {one}" for one in _state(original, placed)]
        if wrong:
            break
    return wrong


def _original_step(
    original: nn.Module,
    trial: Trial,
    inputs: Sequence[Tensor],
    heads: Sequence[Tensor],
    by: torch.optim.Optimizer | None,
) -> tuple[Any, float]:
    """One micro-batch after the other, by the model itself."""
    sizes = micro_batch_sizes(trial.samples, trial.micro_batches)
    results, total = [], 0.0
    if by is not None:
        by.zero_grad()
    for some, head, size in zip(
        zip(*(one.split(sizes) for one in inputs), strict=True),
        zip(*(one.split(sizes) for one in heads), strict=True),
        sizes,
        strict=True,
    ):
        made = original(*some)
        loss = loss_of(made, head) * (size / trial.samples)
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
        results.append(made)
    if by is not None:
        by.step()
    if len(results) == 1:
        return results[0], total
    cat = [torch.cat([*each]) for each in zip(*map(leaves, results), strict=True)]
    if isinstance(results[0], dict):
        return dict(zip(results[0], cat, strict=True)), total
    return (tuple(cat) if isinstance(results[0], tuple) else cat[0]), total


def _placed_step(
    placed: hgpart.Placement,
    trial: Trial,
    inputs: Sequence[Tensor],
    heads: Sequence[Tensor],
    by: torch.optim.Optimizer | None,
) -> tuple[Any, float]:
    if by is not None:
        by.zero_grad()
    if trial.rule is None:
        made = placed(*inputs)
        loss = loss_of(made, heads)
        if loss.requires_grad:
            loss.backward()
    else:
        schedule = hgpart.schedule(
            placed,
            trial.rule,
            trial.micro_batches,
            batch_size=trial.samples,
            backward=by is not None,
        )
        kept: list[tuple[Tensor, Any]] = []

        def keep(result: Any, targets: tuple[Tensor, list[Tensor]]) -> Tensor:
            kept.append((targets[0], result))
            return loss_of(result, targets[1])

        numbered = (torch.arange(trial.samples), list(heads))
        if by is None:
            with torch.no_grad():
                loss = placed.step(inputs, numbered, keep, schedule)
        else:
            loss = placed.step(inputs, numbered, keep, schedule)
        order = torch.cat([samples for samples, _ in kept]).argsort()
        cat = [
            torch.cat([*each]).detach()[order]
            for each in zip(*(leaves(result) for _, result in kept), strict=True)
        ]
        like = kept[0][1]
        made = cat[0] if isinstance(like, Tensor) else tuple(cat)
        if isinstance(like, dict):
            made = dict(zip(like, cat, strict=True))
    if by is not None:
        by.step()
    return made, loss.item()


def _stream(
    original: nn.Module,
    placed: hgpart.Placement,
    batches: Sequence[tuple[Tensor, ...]],
    heads: Sequence[Sequence[Tensor]],
    by: torch.optim.Optimizer | None,
) -> list[str]:
    """With one batch in flight a stream is training as ever."""
    if by is None:
        return []
    schedule = hgpart.schedule(
        placed, "async", len(batches), batch_size=len(batches[0][0]), in_flight=1
    )
    optimizers = {}
    for part in range(placed.k):
        held = [
            tensor
            for _, tensor in placed.held(part)
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad
        ]
        if held:
            optimizers[part] = torch.optim.SGD(held, RATE, momentum=0.9)

    def update(part: int) -> None:
        if part in optimizers:
            optimizers[part].step()
            optimizers[part].zero_grad()

    torch.manual_seed(0)
    losses = placed.stream(
        [(inputs, list(head)) for inputs, head in zip(batches, heads, strict=True)],
        loss_of,
        update,
        schedule,
    )
    torch.manual_seed(0)
    wrong = []
    for step, (inputs, head) in enumerate(zip(batches, heads, strict=True)):
        by.zero_grad()
        loss = loss_of(original(*inputs), head)
        if loss.requires_grad:
            loss.backward()
        by.step()
        if abs(loss.item() - float(losses[step])) > TOLERANCE * max(1.0, abs(loss.item())):
            wrong.append(f"batch {step}: loss {float(losses[step])}, original {loss.item()}")
    return wrong + _state(original, placed, gradients_kept=False)


def _state(
    original: nn.Module, placed: hgpart.Placement, *, gradients_kept: bool = True
) -> list[str]:
    """Weights, running statistics, and the gradients that parts hold, each element once."""
    wanted, found = original.state_dict(), placed.state_dict()
    if list(wanted) != list(found):
        return [f"names of the state: {set(wanted) ^ set(found)}"]
    wrong = [
        f"{name} differs by {gap(wanted[name], found[name]):.1e}"
        for name in wanted
        if gap(wanted[name], found[name]) > TOLERANCE
    ]
    gradients = {
        name: one.grad if gradients_kept else None for name, one in original.named_parameters()
    }
    largest = max(
        (float(one.abs().max()) for one in gradients.values() if one is not None), default=1.0
    )
    counts = {name: torch.zeros(one.shape) for name, one in original.named_parameters()}
    for part in range(placed.k):
        for held, tensor in placed.held(part):
            if held.name not in counts:
                continue
            mark = torch.zeros_like(counts[held.name])
            held.put(mark, torch.ones(tensor.shape))
            counts[held.name] += mark
            if gradients[held.name] is None:
                continue
            own = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            if gap(held.take(gradients[held.name]), own, 1e-3 * largest) > TOLERANCE:
                wrong.append(f"the gradient of {held.name} in part {part} differs")
    wrong += [
        f"{name} is not held once" for name, one in counts.items() if not bool((one == 1).all())
    ]
    return wrong


def _traffic(
    placed: hgpart.Placement, plan: PartitionedModel, trial: Trial, learns: bool
) -> list[str]:
    """What was counted, beside the plan's hypergraph (of the whole batch at once) or the table."""
    counted = placed.runtime.last.traffic
    sizes = micro_batch_sizes(trial.samples, trial.micro_batches)
    table = placed.programs.expected_traffic(sizes, backward=learns)
    apart = {"uncounted_bytes"}  # state that does not learn: counted apart
    others = [one for one in wrong_figures(counted, table) if one not in apart]
    wrong = [f"{name} is not the table's" for name in others[:1]]
    volume = int(counted.forward_bytes.sum())
    planned = plan.partition.evaluation.volume
    whole = learns and trial.training and trial.micro_batches == 1 and not _frozen(placed)
    if whole and volume != planned:
        wrong.append(f"{volume} bytes forward, {planned} by the plan")
    return wrong


def _frozen(placed: hgpart.Placement) -> bool:
    return not all(one.requires_grad for one in placed.parameters())


def main(first: int, last: int) -> None:
    """Try networks of seeds `first` to `last` - 1."""
    told: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            said, wrong = attempt(seed)
        except HgpartError as error:
            told["refused"] += 1
            print(f"{seed} refused: {type(error).__name__}: {str(error)[:240]}", flush=True)
            continue
        except Exception:
            told["failed"] += 1
            print(f"{seed} failed", traceback.format_exc()[-1500:], flush=True)
            continue
        told["wrong" if wrong else "right"] += 1
        kinds.update(set(RandomNetwork(seed).kinds))
        if wrong:
            print(f"{seed} WRONG {wrong[:4]}\n    {said}", flush=True)
    print(f"seeds {first} to {last - 1}: {dict(told)}; networks with {dict(kinds)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
