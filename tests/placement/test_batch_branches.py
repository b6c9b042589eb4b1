"""Models whose code goes by the size of their batch: a placement does what they do with each."""

from __future__ import annotations

import copy

import pytest
import torch
from branching_models import Branching, batch
from placements import Modelling, of_random_blocks, traced_model
from torch import nn
from torch.nn.functional import mse_loss

import hgpart
from hgpart.errors import ArgumentError, PlacementError
from hgpart.placement.accounting import disagreements
from hgpart.run.placed_model import PlacedModel
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling


class Grouped(nn.Module):
    """Samples are in groups of four at most, and half of the batch is another view of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, image):
        maps = self.first(image).mean((2, 3))
        groups = maps.view(min(4, maps.shape[0]), -1, 6)
        one, other = self.last(maps + groups.std((0, 1), unbiased=False)).chunk(2)
        return one * other


def placed_for(model, samples, training=True):
    torch.manual_seed(3)
    model = model.double().train(training)
    return model, hgpart.place(copy.deepcopy(model), k=2, example=batch(samples))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "training"),
    [
        (Branching, True),
        (Grouped, False),
        pytest.param(Branching, False, marks=pytest.mark.full),
        pytest.param(Grouped, True, marks=pytest.mark.full),
    ],
)
def test_each_batch_is_computed_as_the_model_does(model, training):
    """Other sizes than the traced one took its branch; sizes in groups were refused."""
    model, placed = placed_for(model(), 8, training)
    sizes = (8, 2) if isinstance(model, Grouped) else (8, 3, 1, 8)
    for samples in sizes:
        assert verify(model, placed, batch(samples)).failures == ()
        assert placed.forms.takes(samples)
        assert disagreements(placed.report(samples), placed) == ()


def test_a_batch_of_one_has_no_programs_of_its_own_where_it_is_as_others():
    model, placed = placed_for(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(96, 2)), 2)
    programs = placed.programs.parts
    assert not placed.forms.takes(1)  # which is not known yet
    assert torch.allclose(placed(batch(1)), model(batch(1)))
    assert placed.forms.takes(1)
    assert placed.programs.parts is programs


@pytest.mark.full
def test_the_mode_is_switched_in_the_same_branch():
    model, placed = placed_for(Branching(), 8)
    placed(batch(3))
    for one in (model, placed):
        one.eval()
    assert torch.allclose(placed(batch(3)), model(batch(3)))
    assert placed.forms.is_as_placed is False


def test_micro_batches_take_the_branch_of_their_batch():
    """Those of one sample are of a batch of several, whose results are as they are."""
    model, placed = placed_for(Branching(), 3)
    order = hgpart.schedule(placed, "gpipe", 2, batch_size=2)
    for samples in (2, 4):
        model.zero_grad()
        placed.zero_grad()
        targets = torch.zeros(samples, 4).double()
        mse_loss(model(batch(samples)), targets).backward()
        placed.step(batch(samples), targets, mse_loss, order)
        for part in range(2):
            for held, tensor in placed.held(part):
                whole = model.get_parameter(held.name).grad if tensor.requires_grad else None
                if whole is not None:
                    assert torch.allclose(held.take(whole), tensor.grad), held.name


@pytest.mark.full
def test_learners_order_each_batch_by_what_is_done_with_it():
    model, placed = placed_for(Branching(), 8)
    learner = PlacedModel(placed, Scheduling("1f1b", 2))
    losses = [learner.step(batch(n), torch.zeros(n, 4).double(), n, mse_loss) for n in (8, 3, 8)]
    alone = [mse_loss(model(batch(n)), torch.zeros(n, 4).double()) for n in (3,)]
    assert torch.allclose(losses[1], alone[0])


@pytest.mark.full
def test_what_is_refused_names_the_accepted_sizes():
    with pytest.raises(PlacementError, match=r"batch of 6: accepted are 8, and others that the"):
        placed_for(Grouped(), 8)[1](batch(6))
    _, placed = placed_for(Branching(), 3)
    message = r"norm.* is divided in another way in training with .* accepted are batches of 2 to 4"
    with pytest.raises(PlacementError, match=message):
        placed(batch(5))
    placed(batch(4))
    with pytest.raises(ArgumentError, match="batch size 0: accepted is"):
        placed.for_batch(0)
    _, grouped = placed_for(Grouped(), 8)
    with pytest.raises(
        PlacementError, match=r"accepts only 8 there: accepted is the whole batch at"
    ):
        grouped.step(batch(8), torch.zeros(4, 4), mse_loss, hgpart.schedule(grouped, "gpipe", 2))
    first = hgpart.to_pipeline_stages(placed)[0]
    with pytest.raises(PlacementError, match="a batch of 5: accepted are 2 to 4"):
        first(batch(5))


def test_a_stream_keeps_to_the_present_branch():
    _, placed = placed_for(Branching(), 8)
    order = hgpart.schedule(placed, "async", 2)
    batches = [(batch(n), torch.zeros(n, 4).double()) for n in (3, 3)]
    with pytest.raises(PlacementError, match=r"a batch of 3: accepted at present are 5 or more, "):
        placed.stream(batches, mse_loss, lambda part: None, order)


def test_a_layer_that_was_not_there_has_its_parameters_where_they_are():
    """They lie with part 0, unused; they would have gone to who computes what the layer reads."""

    class Deeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.more = nn.Conv2d(3, 6, 3), nn.Linear(6, 6)
            self.last = nn.Linear(6, 4)

        def forward(self, image):
            maps = self.first(image).mean((2, 3))
            return self.last(self.more(maps) if image.shape[0] > 4 else maps)

    model, placed = placed_for(Deeper(), 2)
    assert verify(model, placed, batch(8)).failures == ()
    assert [*map(len, placed.state_dict().values())] == [6, 6, 6, 6, 4, 4]


class Attending(nn.Module):
    """Attention with heads beside the batch in one dimension, before it or behind it."""

    def __init__(self, heads: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True) if heads == "torch" else None
        self.order = (2, 0, 1, 3) if heads == "first" else (0, 2, 1, 3)

    def forward(self, x):
        maps, (batch, steps) = torch.relu(self.first(x)), x.shape[:2]
        if self.attention is not None:
            found, weights = self.attention(maps, maps, maps)
            return self.last(found), weights
        order = self.order
        apart = maps.view(batch, steps, 2, 3).permute(order)
        heads = apart.reshape(-1, steps, 3)
        found = torch.softmax(heads * 0.5 @ heads.transpose(1, 2), -1) @ torch.tanh(heads)
        back = [order.index(dim) for dim in range(4)]
        return self.last(found.view(apart.shape).permute(back).reshape(batch, steps, 6))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("heads", "steps"),
    [
        ("torch", 1),
        ("first", 2),
        pytest.param("torch", 3, marks=pytest.mark.full),
        pytest.param("last", 2, marks=pytest.mark.full),
    ],
)
def test_heads_beside_the_batch_are_those_of_any_batch(heads, steps):
    """Their places were those of the batch that was traced: an IndexError with any other."""
    torch.manual_seed(0)
    model, x = Attending(heads).double(), torch.randn(6, steps, 4).double()
    traced, graph = traced_model(model, [x[:4]])
    placed = hgpart.place(copy.deepcopy(model), of_random_blocks(traced, graph, Modelling(), 2, 1))
    for samples in (4, 1, 6):
        found, expected = placed(x[:samples]), model(x[:samples])
        torch.testing.assert_close(found, expected)

    def loss(made, _):
        return (made if isinstance(made, torch.Tensor) else made[0]).square().mean()

    whole = loss(model(x), None)
    in_two = placed.step(x, None, loss, hgpart.schedule(placed, micro_batches=2))
    torch.testing.assert_close(in_two, whole, check_dtype=False)
    assert disagreements(placed.report(6), placed) == ()


class Between(nn.Module):
    """Samples between features in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        rows = self.first(x).view(-1, 2, 3).transpose(0, 1).reshape(-1, 1)
        return self.last(torch.tanh(rows).view(2, -1, 3).transpose(0, 1).reshape(-1, 6))


@pytest.mark.full
def test_what_merges_samples_otherwise_is_traced_for_each_batch():
    torch.manual_seed(0)
    model, x = Between().double(), torch.randn(6, 4).double()
    traced, graph = traced_model(model, [x[:4]])
    placed = hgpart.place(copy.deepcopy(model), of_random_blocks(traced, graph, Modelling(), 2, 1))
    for samples in (4, 6, 3):
        torch.testing.assert_close(placed(x[:samples]), model(x[:samples]))
    with pytest.raises(PlacementError, match=r"micro-batches: .* merges samples and channels"):
        hgpart.schedule(placed, micro_batches=3)
