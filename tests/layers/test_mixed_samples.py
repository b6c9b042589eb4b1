"""Samples are mixed where a result of one changes with another: on real data, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hgpart.layers.layering import channel_graph
from hgpart.layers.mixed_samples import mixed_samples
from hgpart.operators.table import channel_rule, record_of
from hgpart.tracing.traced_model import TracedModel, trace

BATCH, SHAPE = 6, (4, 6, 6)
Branch = Callable[["Branches", Tensor], Tensor]


def _windows(x: Tensor) -> Tensor:
    """Attention within windows, which lie in the batch."""
    batch, channels, height, width = x.shape
    own = x.view(batch, channels, 2, height // 2, 2, width // 2).permute(0, 2, 4, 3, 5, 1)
    own = own.reshape(-1, height * width // 4, channels)
    made = functional.scaled_dot_product_attention(own, own, own)
    made = made.view(batch, 2, 2, height // 2, width // 2, channels).permute(0, 5, 1, 3, 2, 4)
    return made.reshape(x.shape)


def _shifted(x: Tensor) -> Tensor:
    """Frames beside each other in time, which was taken for a dimension of the batch."""
    return functional.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]


def _modulated(m: Branches, x: Tensor) -> Tensor:
    """Each sample has weights of its own: samples lie along the channels of a convolution."""
    weight = x.mean((2, 3))[:, None, :, None, None] * m.weight
    made = functional.conv2d(x.reshape(1, -1, 6, 6), weight.reshape(-1, 4, 3, 3), groups=x.shape[0])
    return made.view(x.shape[0], 5, 4, 4)


def _masked(x: Tensor) -> Tensor:
    x = x.clone()
    x[x < 0] = 0
    return x


def _with(x: Tensor, place: Any, values: Any) -> Tensor:
    x = x.clone()
    x[place] = values
    return x


def _each(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


def _square(x: Tensor) -> Tensor:
    """A matrix of each sample that is symmetric, and no two of whose eigenvalues are close."""
    vectors = x.flatten(2)
    return vectors @ vectors.mT + torch.diag(torch.arange(4) * 50.0 + 1).to(x.dtype)


def _factors(x: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(_square(x))
    signs, logarithms = torch.linalg.slogdet(_square(x))
    return torch.cat(
        [values[..., None], vectors.abs(), (signs * logarithms)[:, None, None] + 0 * vectors], 2
    )


ALL = slice(None)
TWO, PAIR = torch.tensor([0, 3]), torch.tensor([[1], [4]])
FIRST = torch.tensor([0, 1])
MASK = torch.tensor([True, False, False, True])


def _sampled(m: Branches, x: Tensor) -> Tensor:
    theta = m.linear(x.mean((2, 3)))[:, :2, None].repeat(1, 1, 3)
    return functional.grid_sample(
        x, functional.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False
    )


def _last_state(m: Branches, x: Tensor) -> tuple[Tensor, Tensor]:
    made, (state, _) = m.recurrent(x.flatten(2))
    return made, state[0]


APART: dict[str, Branch] = {
    "convolution": lambda m, x: m.conv(x),
    "linear": lambda m, x: m.linear(x.mean((2, 3))),
    "transposed": lambda m, x: functional.conv_transpose2d(x, m.conv.weight),
    "modulated": _modulated,
    "weight standardised": lambda m, x: functional.conv2d(
        x,
        functional.batch_norm(m.conv.weight.reshape(1, 4, -1), None, None, training=True).view(
            4, 4, 3, 3
        ),
    ),
    "windows": lambda m, x: _windows(x),
    "tokens": lambda m, x: functional.scaled_dot_product_attention(*[x.flatten(2).mT] * 3),
    "shared heads": lambda m, x: functional.scaled_dot_product_attention(
        x, x[:, :2], x[:, 2:], enable_gqa=True
    ),
    "matrices": lambda m, x: (x.flatten(2) @ x.flatten(2).mT).softmax(-1),
    "bmm": lambda m, x: torch.bmm(x.flatten(2), x.flatten(2).mT),
    "einsum": lambda m, x: torch.einsum("bchw,bdhw->bcd", x, x),
    "einsum of the rest": lambda m, x: torch.einsum("...hw,...hk->...wk", x, x),
    "class token": lambda m, x: torch.cat([m.token.expand(x.shape[0], -1, -1), x.flatten(2).mT], 1),
    "positions": lambda m, x: x.flatten(2).mT + m.token.repeat(x.shape[0], 36, 1),
    "two views": lambda m, x: sum(m.linear(torch.cat([x, x.flip(3)]).mean((2, 3))).view(2, -1, 4)),
    "there and back": lambda m, x: m.conv(x.flip(0)).flip(0),
    "beside the channels": lambda m, x: x.transpose(0, 1).softmax(0).transpose(0, 1),
    "gate": lambda m, x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "group norm": lambda m, x: functional.group_norm(x, 2),
    "instance norm": lambda m, x: functional.instance_norm(x),
    "layer norm": lambda m, x: functional.layer_norm(x, [6, 6]),
    "pooling": lambda m, x: functional.interpolate(
        functional.max_pool2d(x, 2), scale_factor=2, mode="bilinear"
    ),
    "unfolded": lambda m, x: functional.unfold(x, 3),
    "sampled": _sampled,
    "sorted": lambda m, x: x.flatten(1).sort(1)[0],
    "largest": lambda m, x: x.flatten(1).topk(3, 1)[0],
    "picked": lambda m, x: x.flatten(1)[torch.arange(x.shape[0]), x.flatten(1).argmax(1)],
    "permuted channels": lambda m, x: x[:, torch.tensor([1, 0, 3, 2])],
    "embedded": lambda m, x: functional.embedding(x.mean((2, 3)).argmax(1), m.linear.weight),
    "frequencies": lambda m, x: torch.fft.irfft2(torch.fft.rfft2(x)),
    "masked": lambda m, x: _masked(x),
    "made of its size": lambda m, x: torch.cat([x, x.new_zeros(x.shape[0], 1, 6, 6)], 1),
    "scaled to its largest": lambda m, x: x / x.abs().amax((1, 2, 3), keepdim=True),
    "filled": lambda m, x: x * torch.ones(x.shape[0], 1, 1, 1) + torch.full_like(x, 2),
    "recurrent": lambda m, x: torch.cat([one.flatten(1) for one in _last_state(m, x)], 1),
    "pieces": lambda m, x: x.unfold(2, 3, 1).tril(),
    "distances of places": lambda m, x: torch.cdist(x.flatten(2), x.flatten(2)),
    "channel set": lambda m, x: _with(x, (ALL, 0), 5.0),
    "channels filled": lambda m, x: _with(x, (ALL, slice(2)), 0.0),
    "channels copied": lambda m, x: _with(x, (ALL, slice(2)), torch.ones(6, dtype=x.dtype)),
    "channels put": lambda m, x: _with(x, (ALL, TWO), 0.0),
    "others put": lambda m, x: _with(x, (ALL, TWO), x[:, 1:3]),
    "put apart": lambda m, x: _with(x, (ALL, TWO, ALL, PAIR), x[None, None, :, 0, 0]),
    "put by columns": lambda m, x: _with(x, (ALL, MASK), 0.0),
    "put in each": lambda m, x: _with(x.flatten(1), (_each(x), x.flatten(1).argmax(1)), 0.0),
    "several in each": lambda m, x: _with(
        x.flatten(1), (_each(x)[:, None], x.flatten(1).topk(3)[1]), x[:, 0, 0, :3]
    ),
    "picked of each": lambda m, x: x[_each(x), :, TWO[1:]] + x[_each(x), :, 1],
    "index added": lambda m, x: x.index_add(1, TWO, x[:, :2]).index_fill(2, TWO, 1.0),
    "index copied": lambda m, x: x.index_copy(-1, TWO, x[..., 1:3]),
    "scattered": lambda m, x: x.scatter(1, x.argmax(1, keepdim=True), 0.0),
    "inverse": lambda m, x: torch.linalg.inv(_square(x)) @ torch.linalg.cholesky(_square(x)),
    "determinant": lambda m, x: torch.linalg.det(_square(x) / 50)[:, None] * x.flatten(1),
    "factors": lambda m, x: _factors(x),
    "solved": lambda m, x: torch.linalg.solve(_square(x), x.flatten(2)),
    "solved by vectors": lambda m, x: torch.linalg.solve(_square(x), x[:, :, 0, 0]),
    "cross": lambda m, x: torch.linalg.cross(x[..., :3], x[..., 3:]),
    "tensordot": lambda m, x: torch.tensordot(x, m.conv.weight, ([1], [1])),
    "tensordot behind": lambda m, x: torch.tensordot(m.conv.weight, x, ([1], [1])).movedim(3, 0),
    "buckets": lambda m, x: x + torch.bucketize(x, torch.linspace(-1, 1, 5, dtype=x.dtype)),
    "searched": lambda m, x: torch.searchsorted(x.sort(-1)[0].detach(), x.detach()) + x,
    "diagonals": lambda m, x: torch.diag_embed(x.flatten(2), 1, 1, 3),
    "bags": lambda m, x: functional.embedding_bag(x.argmax(1).flatten(1), m.linear.weight),
    "triangle of maps": lambda m, x: x.triu(),
    "length of each": lambda m, x: x.flatten(1).renorm(2, 0, 0.5),
}
MIXED: dict[str, Branch] = {
    "centred": lambda m, x: x - x.mean(0, keepdim=True),
    "mix-up": lambda m, x: 0.7 * x + 0.3 * x.flip(0),
    "reversed": lambda m, x: x.flip(0),
    "rolled": lambda m, x: m.conv(x).roll(2, 0),
    "shifted": lambda m, x: _shifted(x),
    "another's": lambda m, x: x + x[:1],
    "own norm": lambda m, x: x / x.std((0, 2, 3), keepdim=True),
    "softmax": lambda m, x: x.softmax(0),
    "running sum": lambda m, x: x.cumsum(0),
    "sorted over samples": lambda m, x: x.sort(0)[0],
    "scaled to the batch": lambda m, x: x / x.abs().max(),
    "attention over samples": lambda m, x: functional.scaled_dot_product_attention(
        *[x.flatten(1)] * 3
    ),
    "similarities": lambda m, x: (x.flatten(1) @ x.flatten(1).T).tanh() @ x.flatten(1),
    "einsum over samples": lambda m, x: torch.einsum("bchw,dchw,dk->bk", x, x, x.flatten(1)),
    "windows across samples": lambda m, x: x.view(-1, 6, 6).softmax(0).view(x.shape),
    "distances of samples": lambda m, x: torch.cdist(x.flatten(1), x.flatten(1)).sum(1),
    "places": lambda m, x: x + torch.arange(x.shape[0]).view(-1, 1, 1, 1),
    "count": lambda m, x: x / x.shape[0],
    "filled with the count": lambda m, x: x + torch.full((x.shape[0], 1, 1, 1), x.shape[0]),
    "samples put": lambda m, x: _with(x, FIRST, 0.0),
    "put over samples": lambda m, x: _with(x.flatten(1), (ALL, x.flatten(1).argmax(1)), 0.0),
    "scattered in some": lambda m, x: x.flatten(1).scatter(1, TWO[None], 5.0),
    "columns by places": lambda m, x: x.flatten(1)[:, :8] + m.recurrent.weight_ih_l0[:, _each(x)].T,
    "places within": lambda m, x: x.flatten(1)[_each(x), _each(x)],
    "inverse over samples": lambda m, x: torch.linalg.pinv(x.flatten(1)).mT,
    "tensordot over samples": lambda m, x: (
        x.flatten(1) + torch.tensordot(x, x, ([0, 1], [0, 1])).sum()
    ),
    "searched among samples": lambda m, x: (
        x + torch.searchsorted(x[:, 0, 0, 0].detach().contiguous(), x.detach())
    ),
    "triangle": lambda m, x: x.flatten(1).triu(),
    "triangle of vectors": lambda m, x: x.flatten(1).tril(1),
    "length over samples": lambda m, x: x.flatten(1).renorm(2, 1, 0.5),
    "length of maps": lambda m, x: x.renorm(2, 1, 0.5),
    "repeated the other way": lambda m, x: (
        x.reshape(-1, 36) + m.token[0, 0].view(4, 1).repeat_interleave(x.shape[0], 0)
    ),
}


class Branches(nn.Module):
    """A result for each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4)
        self.recurrent = nn.LSTM(36, 2, batch_first=True)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.weight = nn.Parameter(torch.randn(1, 5, 1, 3, 3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: branch(self, x) for name, branch in {**APART, **MIXED}.items()}


@cache
def branches() -> tuple[dict[str, str], dict[str, bool]]:
    """By branch what the graph is said to mix, and whether samples of its result show it."""
    torch.manual_seed(0)
    model = Branches().double()
    images = torch.randn(BATCH, *SHAPE, dtype=torch.float64)
    traced = trace(model, images[:2])
    said = {
        name: mixed_samples(replace(traced, results=(node,))).operator
        for name, node in zip({**APART, **MIXED}, traced.results, strict=True)
    }
    changed = images.clone()
    changed[3] = torch.randn(SHAPE, dtype=torch.float64)
    halves = images[:4], images[4:]
    with torch.no_grad():
        whole, other, *parts = map(model, (images, changed, *halves))
    shown = {}
    for name, result in whole.items():
        each = len(result) // BATCH
        joined = torch.cat([part[name] for part in parts])
        kept = torch.arange(len(result)) // max(1, each) != 3
        apart = torch.allclose(result[kept], other[name][kept]) and torch.allclose(result, joined)
        shown[name] = not apart
    return said, shown


@pytest.mark.full  # a trace of them all
@pytest.mark.long
@pytest.mark.parametrize("name", [*APART, *MIXED])
def test_what_the_graph_says_is_what_samples_show(name: str) -> None:
    said, shown = branches()
    assert shown[name] == (name in MIXED)
    assert bool(said[name]) == shown[name], said[name]


@pytest.mark.long
@pytest.mark.full
def test_the_operator_its_module_and_line_are_named() -> None:
    said, _ = branches()
    assert said["softmax"].startswith("aten.softmax.int (softmax")
    assert "in the model itself, test_mixed_samples.py:" in said["softmax"]


# ------------------------------------------------------------------ what is no mixing, and what is


def traced_of(result: Callable[[nn.Module, Tensor], Any], train: bool = True) -> TracedModel:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Any:
            return result(self, self.linear(x))

    return trace(Model().train(train), torch.zeros(2, 3))


def mixing_of(branches: dict[str, Callable[[Tensor], Tensor]]) -> dict[str, str]:
    """By branch, of what a layer makes of each sample, what the graph is said to mix."""
    traced = traced_of(lambda m, x: {name: branch(x) for name, branch in branches.items()})
    return {
        name: mixed_samples(replace(traced, results=(node,))).operator
        for name, node in zip(branches, traced.results, strict=True)
    }


def test_a_models_own_loss_is_a_mean_over_samples() -> None:
    """Losses of micro-batches are added up: of means that is the mean, of others it is not."""

    def classes(x: Tensor, **options: Any) -> Tensor:
        return functional.cross_entropy(x, x.argmax(1), **options)

    means = {
        "classes": classes,
        "smoothed": lambda x: classes(x, label_smoothing=0.1),
        "in sum": lambda x: functional.mse_loss(x, x.relu()) * 0.5 + x.abs().mean() / 3 - 1,
    }
    others = {
        "sum": lambda x: classes(x, reduction="sum"),
        "some": lambda x: classes(x, ignore_index=0),
        "weighted": lambda x: classes(x, weight=torch.ones(4)),
        "length of the mean": lambda x: x.mean(0).square().sum(),
        "variance": lambda x: x.var(0).mean(),
        "ratio": lambda x: x.mean() / x.abs().mean(),
        "scaled by it": lambda x: x * x.mean(),
    }
    said = mixing_of({**means, **others})
    assert {name for name in said if said[name]} == {*others}


def test_what_a_models_own_mean_ignores_is_looked_for_in_targets_that_are_inputs() -> None:
    """A mean over targets but those of -100 was taken for one over all of them."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("classes", torch.tensor([2, -100, 0]))

        def forward(self, x: Tensor, labels: Tensor, floating: Tensor) -> list[Tensor]:
            padded = functional.pad(labels.view(-1, 1), (0, 1), value=-100)
            inputs = [padded[:, :1].flatten(), floating.long()]
            never = [x.argmax(1), (labels > 1).long(), torch.zeros(x.shape[0]).long(), x.softmax(1)]
            computed = [labels.masked_fill(labels == 1, -100), self.classes[labels]]
            return [functional.cross_entropy(x, one) for one in (*inputs, *never, *computed)]

    x, labels = torch.zeros(2, 4).double(), torch.tensor([0, 1])
    traced = trace(Model(), [x, labels, labels.double()])
    found = [mixed_samples(replace(traced, results=(node,))) for node in traced.results]
    assert [one.ignored for one in found] == [
        *((("labels", -100),), (("floating", -100),)),
        *([()] * 6),
    ]
    refused = "is a loss inside the model that leaves targets of -100 out of its mean"
    assert [refused in one.operator for one in found] == [False] * 6 + [True] * 2


def test_a_triangle_is_of_two_dimensions_and_a_norm_of_all_but_one() -> None:
    """Both were taken to keep samples apart wherever those lie."""
    said = mixing_of(
        {
            "triangle of each": lambda x: x.view(-1, 2, 2).triu(),
            "length of each": lambda x: x.renorm(2, 0, 0.5),
            "triangle": torch.triu,
            "other triangle": torch.tril,
            "length": lambda x: x.renorm(2, 1, 0.5),
        }
    )
    assert [name for name in said if said[name]] == ["triangle", "other triangle", "length"]


def test_what_is_written_at_constant_places_is_so_in_every_sample() -> None:
    """Numbers in the place of some channels were refused; in that of some samples they mix."""

    def with_zeros(x: Tensor, place: Any) -> Tensor:
        return _with(x, place, 0.0)

    some = torch.tensor([0, 1])
    said = mixing_of(
        {
            "channel": lambda x: with_zeros(x, (ALL, 0)),
            "channels": lambda x: with_zeros(x, (ALL, some)),
            "its own": lambda x: with_zeros(x, (_each(x), x.argmax(1))),
            "samples": lambda x: with_zeros(x, some),
            "all have": lambda x: with_zeros(x, (ALL, x.argmax(1))),
            "scattered": lambda x: x.scatter(1, some[None], 0.0),
            "by places": lambda x: x[_each(x), _each(x)],
        }
    )
    assert [name for name in said if said[name]] == [
        "samples",
        "all have",
        "scattered",
        "by places",
    ]


def test_gradients_by_counts_of_words_in_the_batch_mix_samples() -> None:
    """Nothing but the gradient shows it: a slice has counts of its own."""
    table = torch.zeros(4, 3)
    said = mixing_of(
        {
            "plain": lambda x: functional.embedding(x.argmax(1), table),
            "by counts": lambda x: functional.embedding(
                x.argmax(1), table, scale_grad_by_freq=True
            ),
        }
    )
    assert not said["plain"]
    assert said["by counts"].startswith("aten.embedding.default")


def test_norms_in_training_are_left_to_who_divides() -> None:
    found = mixed_samples(traced_of(lambda m, x: m.norm(x)))  # type: ignore[operator]
    assert found.of_norms("slice") == ""
    found = mixed_samples(traced_of(lambda m, x: m.norm(x), train=False))  # type: ignore[operator]
    assert found.of_norms("slice") == ""


def test_a_norm_without_running_statistics_takes_those_of_the_batch_in_evaluation() -> None:
    def normed(m: nn.Module, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)

    found = mixed_samples(traced_of(normed, train=False))
    assert "takes its statistics of the batch" in found.of_norms("slice")
    assert found.of_norms("batch") == ""
    assert mixed_samples(traced_of(normed)).of_norms("slice") == ""


def test_an_operator_that_nothing_is_known_of_mixes_what_it_is_given() -> None:
    @torch.library.custom_op("hgpart_test::unknown", mutates_args=())
    def unknown(x: Tensor) -> Tensor:
        return x * 2

    unknown.register_fake(torch.empty_like)
    traced = traced_of(lambda m, x: unknown(x))
    said = channel_graph(traced).mixing.operator
    assert "unknown" in said
    assert said.endswith("may mix samples of the batch: hgpart does not know this operator")

    @channel_rule(unknown._opoverload)
    def rule(call: Any) -> Any:
        return record_of(torch.ops.aten.relu.default).rule(call)  # type: ignore[misc]

    assert not mixed_samples(traced).operator


def test_a_batch_that_code_fixes_is_not_divided_and_its_dimension_is_named() -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, images: list[Tensor]) -> Tensor:
            return self.conv(torch.stack(images))

    found = mixed_samples(trace(Stacked(), [[torch.zeros(3, 8, 8)] * 4]))
    assert found.operator == (
        "the batch is the first dimension of images[0], and the model's code accepts only 3 there"
    )
