"""What follows an epoch: validation, the best weights, an end; and all that across a resume."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hgpart.partitioned_model import partition_model
from hgpart.placement import place
from hgpart.run.learner import Learner
from hgpart.run.placed_model import PlacedModel
from hgpart.run.training import epochs as module
from hgpart.run.training.checkpoints import check, checkpoints
from hgpart.run.training.data import Data, ImagesInMemory, load_data
from hgpart.run.training.epochs import Epoch
from hgpart.run.training.loop import train
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.resuming import Checkpointing
from hgpart.run.training.scores import accuracy


def network():
    torch.manual_seed(11)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def placed(model, k=2):
    plan = partition_model(model, torch.zeros(2, 1, 8, 8), k, 0.5, effort=0)
    return PlacedModel(place(model, plan))


KINDS = {"whole": Learner, "placed": placed}


@pytest.fixture(scope="module")
def data():
    """Sixty digits to train on and twenty to validate on: an epoch of 16 is three steps."""
    whole = load_data("digits", (1, 8, 8), 10, seed=2)
    train, validation = (
        ImagesInMemory(samples.images(range(count)), samples.labels(range(count)))
        for samples, count in ((whole.train, 60), (whole.validation, 20))
    )
    return Data("few", train, validation, 10, seed=2)


def state_of(learner):
    return [tensor.clone() for _, _, tensor in learner.held()]


def equal(one, other):
    return all(map(torch.equal, one, other)) and len(one) == len(other)


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_weights_are_those_of_the_first_best_epoch(kind, data, monkeypatch):
    scores, states = iter([0.25, 0.75, 0.5, 0.75, 0.625]), []
    learner = KINDS[kind](network())

    def validated(*_):
        states.append(state_of(learner))
        return next(scores)

    monkeypatch.setattr(module, "validated", validated)
    options = TrainingOptions(13, 16, lr=0.1)
    result = train(learner, data, options, best=True)
    assert [epoch.validation for epoch in result.epochs] == [0.25, 0.75, 0.5, 0.75]
    assert result.accuracy == 0.625  # of the last weights
    assert result.best == result.epochs[1] == Epoch(2, 0.1, 0.75)
    assert equal(state_of(learner), states[1])
    assert not equal(states[1], states[4])


def test_the_last_weights_stay_where_they_are_better_or_wanted(data, monkeypatch):
    for best, last_score in ((True, 0.9), (False, 0.1)):
        scores, states = iter([0.5, last_score]), []
        learner = Learner(network())
        monkeypatch.setattr(module, "validated", lambda *_, scores=scores: next(scores))
        result = train(
            learner,
            data,
            TrainingOptions(4, 16),
            on_step=lambda *_, of=learner, states=states: states.append(state_of(of)),
            best=best,
        )
        assert result.best is None
        assert equal(state_of(learner), states[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [5, 6, 7])
def test_a_resumed_training_is_to_the_bit_one_without_a_stop(kind, stop, data, tmp_path):
    """Losses, weights, the optimizer, the rate, the best weights, the end, and random numbers."""
    options = TrainingOptions(
        12, 16, "adam", lr=0.02, decay=True, until={"accuracy": 0.99}, warmup=2, seed=3
    )
    model = network()
    ends, expected = {}, {}
    for name, at in (("without", None), ("with", stop)):
        folder = tmp_path / name
        learner = KINDS[kind](copy.deepcopy(model))
        if at is not None:

            def pull(step, loss, at=at):
                if step == at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                train(learner, data, options, Checkpointing(folder, 2), pull)
            torch.manual_seed(99)  # a new process
            learner = KINDS[kind](network())
        again = Checkpointing(folder, 2, resume=at is not None)
        result = train(learner, data, options, again, best=True)
        ends[name] = (result.losses, result.epochs, result.accuracy, result.best)
        expected[name] = state_of(learner), torch.get_rng_state()
    assert ends["with"] == ends["without"]
    assert equal(expected["with"][0], expected["without"][0])
    assert torch.equal(expected["with"][1], expected["without"][1])
    parts = [torch.load(checkpoints(tmp_path / name)[0] / "part-0.pt")["held"] for name in expected]
    for ours, theirs in zip(*parts, strict=True):
        assert ours["tensors"].keys() == theirs["tensors"].keys() >= {"value", "best"}
        assert equal([*ours["tensors"].values()], [*theirs["tensors"].values()])


def test_the_best_weights_go_on_to_another_plan(data, tmp_path, monkeypatch):
    scores = iter([0.75, 0.5, 0.25])
    monkeypatch.setattr(module, "validated", lambda *_: next(scores))
    first, second = placed(network()), placed(network(), k=3)
    train(first, data, TrainingOptions(3, 16, lr=0.1), Checkpointing(tmp_path, 3))
    best = first.placement.state_dict()
    again = Checkpointing(tmp_path, 3, resume=True)
    result = train(second, data, TrainingOptions(9, 16), again, best=True)
    assert result.best.number == 1
    ours = second.placement.state_dict()
    assert all(torch.equal(ours[name], best[name]) for name in best)


def test_training_ends_after_the_epoch_that_reaches_its_goal(data, tmp_path, monkeypatch):
    scores = iter([0.25, 0.8, 0.9, 0.95, 0.95])
    monkeypatch.setattr(module, "validated", lambda *_: next(scores))
    options = TrainingOptions(30, 16, until={"val_accuracy": 0.9})
    result = train(Learner(network()), data, options, Checkpointing(tmp_path, 100))
    assert (len(result.losses), result.accuracy) == (9, 0.9)
    assert check(checkpoints(tmp_path)[0]).step == 9
    again = Checkpointing(tmp_path, 100, resume=True)
    assert train(Learner(network()), data, options, again).steps == 0
    higher = TrainingOptions(30, 16, until={"val_accuracy": 0.95})
    assert train(Learner(network()), data, higher, again).steps == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_accuracy_of_training_is_that_of_its_own_steps(kind, data, tmp_path):
    """Counted with the weights of each step, in the mode of training, through a stop as well."""
    seen = []

    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, images):
            scores = self.layers(images)
            if self.training and torch.is_grad_enabled():
                seen.append(scores.detach().argmax(1))
            return scores

    options = TrainingOptions(6, 16, lr=0.05, until={"accuracy": 1.0})
    train(Learner(Seen()), data, options)
    right = [
        (guesses == data.train.labels(data.training_indices(step, 16))).sum().item()
        for step, guesses in enumerate(seen)
    ]
    assert len(right) == 6
    for at in (4, 6):
        again = Checkpointing(tmp_path, 4, resume=True, warn=lambda message: None)
        stopped = TrainingOptions(at, 16, lr=0.05, until=options.until)
        result = train(KINDS[kind](network()), data, stopped, again)
    shares = [epoch.training for epoch in result.epochs]
    assert shares == pytest.approx([sum(right[:3]) / 48, sum(right[3:]) / 48], abs=1 / 48)
    if kind == "whole":
        assert shares == [sum(right[:3]) / 48, sum(right[3:]) / 48]


@pytest.mark.parametrize("before", [2, 3])
def test_an_accuracy_of_which_a_part_was_not_counted_is_none(before, data, tmp_path):
    train(Learner(network()), data, TrainingOptions(before, 16), Checkpointing(tmp_path, 9))
    options = TrainingOptions(6, 16, until={"accuracy": 1.0})
    result = train(Learner(network()), data, options, Checkpointing(tmp_path, 9, resume=True))
    assert result.epochs[0].training is None
    assert result.epochs[1].training is not None


def test_an_epoch_has_the_accuracy_after_it(data):
    learner = Learner(network())
    result = train(learner, data, TrainingOptions(3, 16))
    assert result.epochs == (Epoch(1, 0.001, accuracy(learner, data, 16)),)
    assert result.accuracy == result.epochs[0].validation
