"""Operators and structures that can't be cut as they stand, and those that once failed."""

from __future__ import annotations

import copy
from functools import cache

import placements
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from placements import small
from torch import nn
from torch.nn import functional

from hgpart import Modelling, partition_model, place
from hgpart.errors import PlacementError


class Odd(nn.Module):
    """Operators that can't be cut as they stand: shuffles, softmax, norms, padding, data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.shuffle = nn.ChannelShuffle(3)
        self.grouped = nn.Conv2d(12, 24, 3, groups=4, padding=1)
        self.depthwise = nn.Conv2d(24, 48, 3, groups=24, padding=1)
        self.up = nn.ConvTranspose2d(48, 8, 2, stride=2)
        self.group_norm = nn.GroupNorm(4, 8)
        self.up_grouped = nn.ConvTranspose2d(8, 8, 2, groups=4)
        self.layer_norm = nn.LayerNorm([8, 17, 17])
        self.slope = nn.PReLU()
        self.slopes = nn.PReLU(8)
        self.gate = nn.Linear(8, 8)
        self.token = nn.Parameter(torch.randn(1, 8, 1, 1))
        self.normal = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 6, 1))
        self.instance = nn.InstanceNorm2d(6, affine=True)

    def forward(self, image):
        maps = self.depthwise(self.grouped(self.shuffle(self.stem(image)))).relu()
        maps = self.group_norm(self.up(maps))
        maps = self.slopes(self.slope(self.layer_norm(self.up_grouped(maps))))
        maps = maps * torch.sigmoid(self.gate(maps.mean((2, 3))))[:, :, None, None] + self.token
        maps = torch.softmax(maps, 1) + torch.cat([maps[:, 4:], maps[:, :4]], 1)
        maps = self.instance(self.normal(maps))
        variance, mean = torch.var_mean(maps, (2, 3), keepdim=True)
        maps = functional.pad((maps - mean) / (variance + 1).sqrt(), (0, 0, 0, 0, 1, 1)).sigmoid()
        values, indices = maps.flatten(1).max(1)
        return maps, values, indices


@cache
def odd():
    torch.manual_seed(0)
    model = Odd().double()
    inputs = [torch.randn(3, 3, 8, 8, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@given(
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(1, 5),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_odd_operators(grain, k, single, seed):
    model, inputs, traced, graph = odd()
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    plan = draw(traced, graph, Modelling(grain=grain), k, seed)
    placements.check_equal(model, inputs, plan, seed)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 5, 3), nn.FractionalMaxPool2d(2, output_ratio=0.7)), (3, 9, 9)),
        (nn.Sequential(nn.Conv3d(1, 4, 1), nn.FractionalMaxPool3d(2, output_size=2)), (1, 5, 5, 5)),
    ],
)
def test_pooling_in_steps_that_are_drawn_for_each_map(model, shape):
    """The numbers drawn for all maps came to a part of them: torch refused what did not fit."""
    model = copy.deepcopy(model).double()
    images = torch.randn(3, *shape, dtype=torch.float64)
    traced, graph = placements.traced_model(model, images)
    assert [layer.kind for layer in graph.layers] == ["input", "dense", "output"]
    plan = placements.of_single_tasks(traced, graph, Modelling(), 3, seed=0)
    placements.check_equal(model, images, plan)


class Beside(nn.Module):
    """Maps of two layers in one, which parameters meet at different places.

    Some tasks hold elements of `map` that are no box of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(3, 4, 4, 4)
        self.map, self.scale = nn.Parameter(torch.randn(4, 2, 4)), nn.Parameter(torch.randn(64))
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 9, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, image):
        both = torch.cat([self.left(image), self.right(image.flip(3))], 3) + self.map
        both = (both.transpose(1, 3).flatten(1) * self.scale[::2].exp()).unflatten(1, (8, 4))
        token = self.token.expand(len(image), -1, -1)
        tokens = self.left(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([token, tokens], 1) + self.positions[:, ::2]
        return self.head(both.mean(1)), self.head(tokens.tanh().sum(1))


@cache
def beside():
    torch.manual_seed(0)
    model = Beside().double()
    inputs = [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_parameters_that_meet_several_layers_at_different_places(grain):
    """Where a part's elements made up no box it held all of them, as others did."""
    model, inputs, traced, graph = beside()
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), k=3, seed=0)
    placed = placements.check_equal(model, inputs, plan)
    held = [one for part in range(3) for one, _ in placed.held(part)]
    assert "map" in {one.name for one in held if one.elements is not None}


def test_data_dependent_buffers_are_refused_by_name():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("average", torch.zeros(4))

        def forward(self, image):
            maps = self.conv(image)
            self.average.mul_(0.9).add_(maps.detach().mean((0, 2, 3)), alpha=0.1)
            return maps

    model, images = Average(), torch.randn(2, 3, 8, 8)
    plan = partition_model(model, images, k=2, eps=0.5, effort=0)
    with pytest.raises(PlacementError, match="buffer average"):
        place(model, plan)


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["residual", "branches", "grouped"])
def test_gradients_of_inputs(name, grain):
    model, inputs, traced, graph = small(name)
    plan = placements.of_random_blocks(traced, graph, Modelling(grain=grain), 3, 1)
    placed = place(model, plan)
    gradients = []
    for one in (copy.deepcopy(model), placed):
        given = [value.clone().requires_grad_() for value in inputs]
        results = one(*given)
        loss = results if isinstance(results, torch.Tensor) else sum(r.sum() for r in results)
        loss.sum().backward()
        gradients.append([value.grad for value in given])
    for expected, found in zip(*gradients, strict=True):
        assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.full
@pytest.mark.long
def test_compiled_steps():
    model, inputs, traced, graph = small("residual")
    placed = place(model, placements.of_random_blocks(traced, graph, Modelling(), 2, 3))
    placed.compile(backend="aot_eager")
    assert torch.allclose(placed(*inputs), model(*inputs), atol=1e-12)
    placed(*inputs).sum().backward()
    assert all(one.grad is not None for one in placed.parameters())


class PerPass(nn.Module):
    """Has maps that are as large whatever the batch: of another input, and of all samples."""

    def __init__(self, fixed=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)
        self.table = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 6))
        self.fixed = fixed

    def forward(self, image, table):
        if self.fixed:
            image = image.reshape([2, 3, 7, 7])
        scale = self.table(table).mean(0)
        maps = self.first(image) * scale[:, None, None]
        centred = maps - maps.mean(0, keepdim=True).softmax(1)
        return self.second(centred), torch.cat([scale, centred.mean((0, 2, 3))])


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("fixed", [False, True])
def test_maps_that_do_not_grow_with_the_batch_cost_what_they_send(fixed, grain):
    """All were counted per sample: the bytes of another batch than that of the example differed."""
    torch.manual_seed(0)
    model, table = PerPass(fixed).double(), torch.randn(5, 4, dtype=torch.float64)
    images = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    traced, graph = placements.traced_model(model, (images, table))
    for seed in range(3):
        split = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed)
        for batch in [images] if fixed else [images, torch.randn(7, 3, 7, 7, dtype=torch.float64)]:
            placed = placements.check_equal(model, (batch, table), split)
    report = placed.report()
    assert report.batch_size == 2 if fixed else 32
    assert (
        report.sent_bytes.tolist() == placed.programs.expected(report.batch_size).traffic.tolist()
    )
    with pytest.raises(PlacementError, match=r"\(2, 4\): accepted is \(5, 4\)"):
        placed(images, table[:2])


def test_a_parameter_that_is_returned():
    class Returned(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.scale = nn.Parameter(torch.randn(8, 1, 1))

        def forward(self, image):
            return self.conv(image) * self.scale, self.scale * 2, self.conv.bias

    torch.manual_seed(0)
    model = Returned().double()
    inputs = [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed in range(4):
        plan = placements.of_random_blocks(traced, graph, Modelling(), 3, seed)
        placements.check_equal(model, inputs, plan)


class Two(nn.Module):
    def __init__(self, second: int = 3) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.b = nn.Conv2d(6, 6, 1)
        self.c = nn.Conv2d(second, 6, 3, padding=1)


class WithoutGrad(Two):
    def forward(self, image):
        with torch.no_grad():
            maps = self.a(image)
        return self.b(maps) + self.b(self.c(image).detach())


class Expanded(Two):
    def forward(self, image):
        maps = self.a(image)
        return self.b(maps * maps.mean(1, keepdim=True).expand_as(maps))


class Normalised(Two):
    def forward(self, image):
        return self.b(functional.normalize(self.a(image), dim=1))


class Discarded(Two):
    """The second convolution's channels are cut off again."""

    def forward(self, image):
        return self.b(torch.cat([self.a(image), self.c(image)], 1)[:, :6])


class DiscardedChain(Two):
    def __init__(self) -> None:
        super().__init__(6)

    def forward(self, image):
        maps = self.a(image)
        return self.b(torch.cat([maps, self.c(maps)], 1)[:, :6])


class Compared(Two):
    def forward(self, image):
        return self.b(self.a(image)), self.c(image) > 0


class Squared(Two):
    def forward(self, image):
        maps = self.b(self.a(image))
        return (maps * maps).mean(1), (mixed := self.c(image)) + mixed.flip(1)


class Stacked(Two):
    """An operator of 130 operands: their positions together are more than 32 bits count."""

    def forward(self, image):
        return torch.stack([self.a(image)] * 130, 2).relu().sum(2)


class DroppedConstants(Two):
    """Dropout of a parameter, and of what is computed of some: its mask was taken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1, 6, 1, 1))
        self.table = nn.Linear(5, 6)
        self.register_buffer("places", torch.randn(64, 5))

    def forward(self, image):
        scale = functional.dropout(self.scale, 0.4)
        offsets = functional.dropout(self.table(self.places), 0.4).transpose(0, 1)
        return self.b(self.a(image) * scale + offsets.reshape(1, 6, 8, 8))


class WritesSlices(Two):
    """What a slice is overwritten by travels on; torch's `copy` has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, image):
        maps, other = self.a(image).clone(), self.c(image)
        maps[:, :2] = other[:, 3:5]
        maps[:, 2] = other.mean(1)
        maps[:, 3:5] = self.scale
        maps[:, 5, 1:3] = other[:, :1, :1].mean(3)
        return self.b(maps), torch.zeros_like(image).copy_(other[:, 1:4]).relu()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.lstm = nn.LSTM(64, 5, batch_first=True)

    def forward(self, image):
        return self.lstm(self.a(image).flatten(2))[0]


class ConditionalFilters(Two):
    """Filters for each sample are a mixture of experts' (CondConv)."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(6, 4)
        self.experts = nn.Parameter(torch.randn(4, 6 * 6 * 3 * 3))

    def forward(self, image):
        maps = self.a(image)
        filters = torch.sigmoid(self.route(maps.mean((2, 3)))) @ self.experts
        filters = filters.view(-1, 6, 3, 3)
        made = functional.conv2d(maps.view(1, -1, 8, 8), filters, padding=1, groups=len(image))
        return self.b(made.view(-1, 6, 8, 8))


class LessExact(nn.Module):
    """Converts maps, which travel in half the bytes; the table had them in the model's type."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, image):
        integers = (64 * self.a(image)).ceil().float()  # exact in this type, too
        return self.b(integers.double() + integers.softmax(1).gt(0.5).double())


@pytest.mark.long
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize(
    "kind",
    [
        WithoutGrad,
        Expanded,
        Normalised,
        Discarded,
        DiscardedChain,
        Compared,
        Squared,
        Stacked,
        DroppedConstants,
        WritesSlices,
        Recurrent,
        ConditionalFilters,
        LessExact,
    ],
)
def test_structures_that_once_failed(kind, grain):
    torch.manual_seed(0)
    model, inputs = kind().double(), [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed, draw in enumerate([placements.of_random_blocks, placements.of_single_tasks] * 2):
        plan = draw(traced, graph, Modelling(grain=grain), 2 + seed // 2, seed)
        placements.check_equal(model, inputs, plan, seed)


def test_random_numbers_that_depend_on_maps_are_refused_by_name():
    model, images = nn.Sequential(nn.Conv2d(3, 6, 3), nn.RReLU()), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"aten.rrelu.default \(1\) draws random numbers"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    model.eval()
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    assert torch.allclose(placed(images), model(images), atol=1e-6)


def test_random_numbers_that_depend_on_parameters_are_refused_by_name():
    # They were drawn from parameters without values.
    class Sampled(Two):
        def forward(self, image):
            return self.a(image) * torch.bernoulli(self.b.bias.sigmoid())[:, None, None]

    model, images = Sampled(), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"aten.bernoulli.*depend on maps, parameters or buf"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))


def test_the_mask_of_dropout_as_a_result_is_refused():
    # It was given the result itself.
    class Masked(Two):
        def forward(self, image):
            maps, mask = torch.native_dropout(self.a(image), 0.5, True)
            return self.b(maps) * mask

    model, images = Masked(), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"reads result 1 of native_dropout"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))


class Named(nn.Module):
    """A layer is called what a part calls a piece of another: that piece was lost to it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.a, self.name = nn.Conv2d(3, 4, 1), name
        self.add_module(name, nn.Conv2d(4, 4, 1))

    def forward(self, image):
        maps = self.a(image)
        values, indices = maps.topk(2, 1)
        return self.get_submodule(self.name)(maps), values + maps.mean(1, keepdim=True), indices


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["topk_1", "a_from_0", "channels_0", "batch_size"])
def test_layers_that_are_called_as_pieces_of_others(name):
    model, inputs = Named(name).double(), [torch.randn(2, 3, 4, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed in range(3):
        plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 2, seed)
        placements.check_equal(model, inputs, plan)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["a\nb", 'q"uo\\te', "\r"])
def test_state_whose_name_torch_does_not_quote_in_the_code_that_it_writes(name):
    """A step reads what it holds by a name of its own: the state's ended a line or a text in it."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 1)
            self.register_parameter(name, nn.Parameter(torch.rand(4, 1, 1)))
            self.register_buffer(f"{name}_", torch.rand(4, 1, 1))

        def forward(self, images):
            return self.convolution(images) * getattr(self, name) + getattr(self, f"{name}_")

    model, images = Named(), torch.rand(2, 3, 2, 2)
    placed = place(model, partition_model(model, images, 2, 0.1, effort=0.1))
    torch.testing.assert_close(placed(images), model(images))
    assert placed.state_dict().keys() == model.state_dict().keys()
