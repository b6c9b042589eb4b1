"""Losses that are no mean over samples: in micro-batches and slices those of the batch."""

from __future__ import annotations

import copy
from functools import partial

import placements
import pytest
import torch
from torch import nn
from torch.nn import functional

from hgpart import Modelling, flops, place
from hgpart.errors import ArgumentError, PlacementError
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.problem.problem import Problem
from hgpart.run.scheduling import schedule

WEIGHT = torch.tensor([1.0, 5.0, 0.5, 1.0, 9.0], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 0, 1, 4, 2, 3])
UNKNOWN = LABELS.masked_fill(LABELS == 0, -100)  # none in the first micro-batch counts


def masked(result, labels):
    """A sum, and what a mean divides it by."""
    counted = labels != 0
    return functional.cross_entropy(result, labels, reduction="none")[counted].sum(), counted.sum()


def mean_of(loss_fn):
    def mean(result, labels):
        total, count = loss_fn(result, labels)
        return total / count

    return mean


class Named(nn.CrossEntropyLoss):
    """A kind of one's own that computes what torch's does."""


class Doubled(nn.MSELoss):
    """One that computes something else: a mean over samples."""

    def forward(self, result, targets):
        return 2 * super().forward(result, targets) / len(targets)


LOSSES = {
    "ignored": (nn.CrossEntropyLoss(ignore_index=0), LABELS),
    "ignored by default": (functional.cross_entropy, UNKNOWN),
    "weights": (nn.CrossEntropyLoss(WEIGHT), LABELS),
    "weights and ignored": (nn.CrossEntropyLoss(WEIGHT, ignore_index=1), LABELS),
    "partial": (partial(functional.cross_entropy, weight=WEIGHT, label_smoothing=0.1), LABELS),
    "probabilities": (
        nn.CrossEntropyLoss(WEIGHT),
        torch.softmax(torch.arange(35.0, dtype=torch.float64).reshape(7, 5).sin(), 1),
    ),
    "likelihood": (nn.NLLLoss(WEIGHT, ignore_index=4), LABELS),
    "sum": (nn.CrossEntropyLoss(WEIGHT, ignore_index=0, reduction="sum"), LABELS),
    "squares": (partial(functional.mse_loss, reduction="sum"), torch.ones(7, 5).double()),
    "counted": (masked, LABELS),
    "of one's own name": (Named(WEIGHT, ignore_index=0), LABELS),
    "of one's own": (Doubled(reduction="sum"), torch.ones(7, 5).double()),
    "sum by older words": (partial(functional.cross_entropy, size_average=False), UNKNOWN),
    "mean by older words": (partial(functional.cross_entropy, size_average=True), UNKNOWN),
    "squares by older words": (
        partial(functional.mse_loss, size_average=False),
        torch.ones(7, 5).double(),
    ),
}


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)).double()
    return model, torch.randn(7, 3, 6, 6, dtype=torch.float64)


@pytest.fixture(scope="module")
def placed(original):
    """By filters, and by two slices on a part each: both have results."""
    model, images = original
    traced, graph = placements.traced_model(model, [images])
    modelling = Modelling(batch_size=7, slices=2)
    problem = Problem(graph, flops(graph), modelling, 2, 0.1)
    sliced = placements.partitioned(traced, graph, modelling, 2, *data_parallel(problem))
    return {
        "filters": place(copy.deepcopy(model), k=2, example=images),
        "slices": place(copy.deepcopy(model), sliced),
    }


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("by", ["filters", "slices"])
def test_they_are_those_of_the_whole_batch(original, placed, by, name):
    """Each micro-batch had a mean of its own: NaN where none of its targets counts."""
    (model, images), placement = original, placed[by]
    loss_fn, targets = LOSSES[name]
    model.zero_grad()
    whole = mean_of(loss_fn) if loss_fn is masked else loss_fn
    expected = whole(model(images), targets)
    expected.backward()
    for micro_batches in (1, 3):
        placement.zero_grad()
        order = schedule(placement, "greedy", micro_batches)
        loss = placement.step([images], targets, loss_fn, order)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
        for part in range(2):
            for held, tensor in placement.held(part):
                wanted = held.take(dict(model.named_parameters())[held.name].grad)
                torch.testing.assert_close(tensor.grad, wanted, rtol=1e-9, atol=1e-13)


@pytest.mark.few(1)
@pytest.mark.parametrize("swapped", [False, True])
def test_results_that_counts_are_asked_with_lie_in_memory_as_those_of_the_model(swapped):
    """They were views of one sample, which no loss can flatten."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 6).double()

        def forward(self, x):
            scores = self.layer(x)
            return scores.transpose(1, 2) if swapped else scores

    def counted(result, labels):
        scores = result.transpose(1, 2) if swapped else result
        return masked(scores.view(-1, 6), labels.view(-1))

    torch.manual_seed(0)
    x, labels = torch.randn(6, 4, 3, dtype=torch.float64), torch.arange(24).reshape(6, 4) % 5
    model = Words()
    placement = place(copy.deepcopy(model), k=2, example=x)
    loss = placement.step([x], labels, counted, schedule(placement, "greedy", 4))
    torch.testing.assert_close(loss, mean_of(counted)(model(x), labels).detach())


def test_a_count_that_follows_from_results_is_refused(original, placed):
    _, images = original

    def of_sure_ones(result, labels):
        sure = result.argmax(1) == labels
        return functional.cross_entropy(result, labels, reduction="sum"), sure.sum() + 1

    placement = placed["filters"]
    order = schedule(placement, "greedy", 7)
    with pytest.raises(ArgumentError, match="accepted in micro-batches are counts that follow"):
        placement.step([images], placement(images).argmax(1), of_sure_ones, order)


def test_what_is_no_sum_and_count_is_refused(original, placed):
    _, images = original
    placement = placed["filters"]
    with pytest.raises(ArgumentError, match=r"accepted is a tensor, or \(sum, count\)"):
        placement.step([images], LABELS, lambda result, _: (result.sum(), 1, 2))


class WithLoss(nn.Module):
    """It returns a loss, too."""

    def __init__(self, **options):
        super().__init__()
        self.layer, self.loss = nn.Linear(3, 6).double(), nn.CrossEntropyLoss(**options)

    def forward(self, x, labels):
        scores = self.layer(x)
        return self.loss(scores, labels), scores


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"ignore_index": 0}, {"weight": torch.arange(6.0).double()}],
)
def test_a_loss_that_the_model_computes_is_a_mean_over_samples(options):
    torch.manual_seed(0)
    x, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 5
    model = WithLoss(**options)
    placement = place(copy.deepcopy(model), k=2, example=[x, labels])

    def own(result, _):
        return result[0]

    whole = placement.step([x, labels], None, own)
    torch.testing.assert_close(whole, model(x, labels)[0].detach())
    if options:
        message = r"cross_entropy_loss.* is a loss inside the model that is not a mean over sam"
        with pytest.raises(PlacementError, match=message):
            schedule(placement, "greedy", 3)
    else:
        order = schedule(placement, "greedy", 3)
        torch.testing.assert_close(placement.step([x, labels], None, own, order), whole)


@pytest.mark.parametrize("slices", [1, 2])
def test_targets_that_a_loss_in_the_model_ignores_are_refused_where_the_batch_is_divided(slices):
    """Each micro-batch and slice had a mean of its own: a quarter without a target made NaN."""
    torch.manual_seed(0)
    x, labels = torch.randn(6, 3, dtype=torch.float64), torch.arange(6) % 5
    model = WithLoss()
    traced, graph = placements.traced_model(model, [x, labels])
    plan = placements.of_random_blocks(traced, graph, Modelling(slices=slices), 2, 0)
    placement = place(copy.deepcopy(model), plan)
    orders = {count: schedule(placement, "gpipe", count) for count in (1, 3)}
    some = labels.masked_fill(labels == 1, -100)
    message = "^labels holds -100, which a mean that the model computes over targets leaves out: "

    def loss_of(targets, micro_batches):
        return placement.step([x, targets], None, lambda made, _: made[0], orders[micro_batches])

    for targets in (labels, some):
        expected = model(x, targets)[0].detach()
        for micro_batches in orders:
            if targets is labels or slices * micro_batches == 1:
                torch.testing.assert_close(loss_of(targets, micro_batches), expected)
                continue
            with pytest.raises(PlacementError, match=message):
                loss_of(targets, micro_batches)
            for part in {*placement.programs.output_parts}:  # as in a process
                with pytest.raises(PlacementError, match=message):
                    placement.passes.divided([x, some], [6 // micro_batches] * micro_batches, part)
    if slices > 1:
        with pytest.raises(PlacementError, match=message):
            placement(x, some)
