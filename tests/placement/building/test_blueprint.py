"""Buffers that a pass changes: by parameters, as power iterations of spectral norms, or a count."""

from functools import cache

import placements
import pytest
import torch
from torch import nn
from torch.nn.utils import spectral_norm as hooked
from torch.nn.utils.parametrizations import spectral_norm

from hgpart import place, schedule
from hgpart.errors import ArgumentError, PlacementError
from hgpart.hypergraph.modelling import Modelling

IMAGES = torch.randn(8, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Critic(nn.Module):
    """Its middle layer is called twice, so that a pass goes on with the power iteration twice."""

    def __init__(self, normed=spectral_norm):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.middle = normed(nn.Conv2d(4, 4, 3, padding=1))
        self.head = normed(nn.Linear(4, 2))

    def forward(self, image):
        maps = self.middle(self.middle(self.stem(image)).relu()).relu()
        return self.head(maps.mean((2, 3)))


def critic(normed=spectral_norm):
    torch.manual_seed(0)
    return Critic(normed).double()


@cache
def traced(normed):
    return placements.traced_model(critic(normed), [IMAGES])


def planned(facts, make=placements.of_random_blocks, k=3, seed=1, **modelling):
    return make(*facts, Modelling(batch_size=len(IMAGES), **modelling), k, seed=seed)


def mean_square(result, targets=None):
    return result.square().mean()


def check_training(model, placed, order=None, passes=1, evaluated=False):
    """Three steps, with an evaluation in between or not, make of both the same."""
    inputs = [IMAGES]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (model, placed)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for images in IMAGES.chunk(passes):
            (mean_square(model(images)) / passes).backward()
        placed.step(inputs, None, mean_square, order)
        for optimizer in optimizers:
            optimizer.step()
        if evaluated and step == 1:
            with torch.no_grad():
                assert torch.allclose(placed.eval()(IMAGES), model.eval()(IMAGES), atol=1e-12)
            model.train(), placed.train()
    found = placed.state_dict()
    for name, value in model.state_dict().items():
        assert torch.allclose(found[name], value, atol=1e-12), name


@pytest.mark.full
@pytest.mark.parametrize(
    ("normed", "grain"),
    [
        (spectral_norm, "coarse"),
        pytest.param(hooked, "fine", marks=pytest.mark.full),
    ],
)
def test_the_part_that_has_a_weight_goes_on_with_its_power_iteration(normed, grain):
    plan = planned(traced(normed), grain=grain)
    check_training(critic(normed), place(critic(normed), plan), evaluated=True)


@pytest.mark.full
@pytest.mark.parametrize("make", [placements.of_shared_layers, placements.of_data_parallel])
def test_each_part_goes_on_with_its_copy_once_however_many_slices_read_it(make):
    plan = planned(traced(spectral_norm), make, k=2, slices=4)
    check_training(critic(), place(critic(), plan))


@pytest.mark.full
@pytest.mark.parametrize(("norms", "passes"), [("micro-batch", 4), ("batch", 1)])
def test_a_power_iteration_is_of_each_micro_batch_or_of_the_batch(norms, passes):
    placed = place(critic(), planned(traced(spectral_norm)), norms=norms)
    order = schedule(placed, "greedy", micro_batches=4, recompute=True)
    check_training(critic(), placed, order, passes)


class Averaging(nn.Module):
    """It keeps an average of the weight of a convolution that parts divide."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("average", torch.zeros(4, 3, 3, 3))

    def forward(self, image):
        self.average.lerp_(self.conv.weight.detach(), 0.1)
        return self.conv(image)


class Penalised(Critic):
    def forward(self, image):
        return super().forward(image), self.head.weight.square().sum()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Averaging, r"buffer average from conv\.weight: accepted are"),
        (Penalised, r"_u from head\.parametrizations\.weight\.original: accepted are"),
    ],
)
def test_a_buffer_of_weights_that_no_part_has_alone_is_refused(kind, said):
    model = kind().double()
    with pytest.raises(PlacementError, match=said):
        place(model, planned(placements.traced_model(model, [IMAGES])))


def test_a_power_iteration_with_batches_in_flight_is_refused():
    placed = place(critic(), planned(traced(spectral_norm)))
    order = schedule(placed, "async", micro_batches=2)
    with pytest.raises(ArgumentError, match=r"_[uv], a buffer that is computed from weights"):
        placed.stream([(IMAGES, None)] * 2, mean_square, lambda part: None, order)


class Warmed(nn.Module):
    """What it makes grows from pass to pass."""

    def __init__(self, reads):
        super().__init__()
        self.layer, self.reads = nn.Linear(4, 6), reads
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes.add_(1)
        return self.layer(x) * self.passes if self.reads else self.layer(x)


@pytest.mark.parametrize("reads", [True, False])
def test_a_count_of_passes_that_the_model_reads_is_refused_where_a_batch_is_divided(reads):
    """A batch in two micro-batches was two passes, the second with another count."""
    x = torch.ones(4, 4)
    model = Warmed(reads)
    facts = placements.traced_model(model, [x])
    placed = place(model, placements.of_random_blocks(*facts, Modelling(), 2, 0))
    sliced = placements.of_random_blocks(*facts, Modelling(slices=2), 2, 0)
    if not reads:
        schedule(placed, "gpipe", 2)
        place(model, sliced)
        return
    said = "the model reads its buffer passes and changes it: accepted in {} are buffers that norms"
    with pytest.raises(PlacementError, match=said.format("micro-batches")):
        schedule(placed, "gpipe", 2)
    with pytest.raises(PlacementError, match=said.format("slices")):
        place(model, sliced)
