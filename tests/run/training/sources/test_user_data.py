"""A user's own data and loss: read, divided, averaged, refused."""

from __future__ import annotations

import copy
import random
import re

import numpy as np
import pytest
import torch
import user_training
from torch import nn

from hgpart.errors import ArgumentError
from hgpart.partitioned_model import partition_model
from hgpart.placement import place
from hgpart.run.learner import Learner
from hgpart.run.placed_model import PlacedModel
from hgpart.run.training.data import load_data
from hgpart.run.training.loop import train
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.resuming import Checkpointing
from hgpart.run.training.scores import user_loss, validated
from hgpart.schedule_wanted import Scheduling

SHAPE, OPTIONS = (1, 12, 12), TrainingOptions(7, 16, lr=0.1, seed=4)


def named(name):
    return f"{user_training.__file__}:{name}"


def data_of(name, seed=3, classes=None):
    return load_data(named(name), SHAPE, classes, seed)


def network():
    torch.manual_seed(1)
    return user_training.network().double()


def by_hand(model, data):
    """The mean over the known pixels of each batch."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    steps = data.steps_per_epoch(16)
    for step in range(OPTIONS.steps):
        epoch, chosen = step // steps, data.training_indices(step, 16)
        images, masks = data.train.images(chosen, epoch), data.train.labels(chosen, epoch)
        if isinstance(masks, list):
            masks = torch.stack([one["target"]["mask"] for one in masks])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images.double()), masks, ignore_index=255)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("data", "loss"), [("masks", "known_pixels"), ("dicts", "summed")], ids=["tensors", "dicts"]
)
@pytest.mark.parametrize("kind", ["whole", "slices"])
def test_a_loss_of_pixels_is_the_mean_over_those_of_the_batch(data, loss, kind):
    """In micro-batches and slices too, whose numbers of known pixels are unequal."""
    model, data, loss = network(), data_of(data), user_loss(named(loss))
    expected = by_hand(copy.deepcopy(model), data)
    learner = Learner(model)
    if kind == "slices":
        example = torch.zeros(16, *SHAPE, dtype=torch.float64)
        plan = partition_model(model, example, 2, 0.5, effort=0, slices=2)
        learner = PlacedModel(place(model, plan), Scheduling("greedy", 3))
    result = train(learner, data, OPTIONS, loss=loss)
    assert result.losses == pytest.approx(expected, rel=1e-9)
    assert result.accuracy is None
    assert [epoch.validation for epoch in result.epochs] == sorted(
        (epoch.validation for epoch in result.epochs), reverse=True
    )
    assert result.validation_loss == pytest.approx(validated(learner, data, 16, loss), rel=1e-12)


def test_the_validation_loss_is_the_mean_over_whole_batches():
    model, data = network(), data_of("masks")
    loss = user_loss(named("known_pixels"))
    chosen = [at % 10 for at in range(16)]
    scores = model(data.validation.images(chosen).double())
    expected = nn.functional.cross_entropy(scores, data.validation.labels(chosen), ignore_index=255)
    assert validated(Learner(model), data, 16, loss) == pytest.approx(expected.item())


def test_a_sample_depends_on_seed_epoch_and_number_alone():
    """Whatever its transforms draw from; and nobody else's numbers are other for it."""
    first, again = data_of("masks").train, data_of("masks").train
    images, masks = first.images(range(9), 2), first.labels(range(9), 2)
    assert not torch.equal(images, first.images(range(9), 3))
    assert not torch.equal(images, data_of("masks", seed=4).train.images(range(9), 2))
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    for at in (5, 0, 8):
        assert torch.equal(again.labels([at], 2)[0], masks[at])  # without its image
        assert torch.equal(again.images([at], 2)[0], images[at])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]


def test_a_sample_is_read_once_for_its_image_and_its_target():
    samples = data_of("masks").train
    samples._dataset.read.clear()
    samples.images([3, 1], 0)
    samples.labels([1, 3], 0)
    assert samples._dataset.read == [3, 1]


def test_targets_that_are_no_numbers_stay_with_their_samples():
    labels = data_of("dicts").train.labels([4, 2])
    assert [sorted(label["target"]) for label in labels] == [["mask", "name"]] * 2


def test_a_users_classes_are_learned_by_cross_entropy():
    data = data_of("classes", classes=2)
    assert data.validation is None
    assert data.train.labels([1, 2]).tolist() == [1, 0]
    result = train(Learner(network()), data, TrainingOptions(2, 4))
    assert len(result.losses) == 2


def test_the_least_loss_is_the_best_and_all_is_resumed(tmp_path):
    loss, options = user_loss(named("known_pixels")), TrainingOptions(8, 16, lr=0.1)
    whole, cut = (Learner(network()) for _ in range(2))
    expected = train(whole, data_of("masks"), options, loss=loss, best=True)

    def pull(step, value):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(cut, data_of("masks"), options, Checkpointing(tmp_path, 3), pull, loss=loss)
    cut, again = Learner(network()), Checkpointing(tmp_path, 3, resume=True)
    result = train(cut, data_of("masks"), options, again, loss=loss, best=True)
    assert (result.losses, result.epochs) == (expected.losses, expected.epochs)
    assert result.best == min(result.epochs, key=lambda epoch: epoch.validation)
    states = (learner.model.state_dict().values() for learner in (whole, cut))
    assert all(map(torch.equal, *states))


@pytest.mark.parametrize(
    ("name", "classes", "said"),
    [
        ("nothing", None, "returns NoneType: accepted is a dataset with __len__ and __getitem__, "),
        ("empty", None, "returns an empty list: accepted is a dataset"),
        ("stream", None, "returns Stream: accepted is a dataset"),
        ("alone", None, "sample 0 is Tensor: accepted is (input, target), with an input of shape"),
        ("arrays", None, "sample 0 is an input of type ndarray: accepted is (input, target)"),
        ("small", None, "sample 0 is an input of shape (1, 6, 6): accepted is (input, target), wi"),
        ("masks", 2, "has targets that are no numbers of classes: accepted with them is --loss F"),
        ("dicts", 2, "has targets that are no numbers of classes: accepted with them is --loss F"),
        ("failing", None, "KeyError: 'photos'"),
        ("mask", None, "unknown data 'mask'; nearest: masks; "),
    ],
)
def test_what_is_no_data_is_refused_in_one_line(name, classes, said):
    with pytest.raises(ArgumentError) as caught:
        data_of(name, classes=classes)
    assert said in str(caught.value)
    assert "user_training.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_only_other_samples_show_is_refused_when_they_are_read():
    with pytest.raises(ArgumentError, match=r"of the shapes \(1,\), \(2,\): accepted are tensors"):
        data_of("uneven").train.labels([0, 1])
    with pytest.raises(ArgumentError, match="has the classes 0 to 2: accepted are 0 to 1, of"):
        data_of("far", classes=2).train.labels([0, 1, 2])


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("no_tensor", "a loss of 0.5: accepted is a tensor of one element"),
        ("failing_loss", r"user_training.py:\d+: AttributeError"),
    ],
)
def test_a_loss_that_is_none_is_one_line(loss, said):
    learner = PlacedModel(place(network(), k=2, example=torch.zeros(2, *SHAPE).double()))
    with pytest.raises(ArgumentError) as caught:
        train(learner, data_of("masks"), OPTIONS, loss=user_loss(named(loss)))
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)


def test_an_accuracy_is_no_end_with_a_users_loss():
    options = TrainingOptions(1, 4, until={"val_accuracy": 0.9})
    with pytest.raises(ArgumentError, match="an accuracy to end at with the loss"):
        train(Learner(network()), data_of("masks"), options, loss=user_loss(named("known_pixels")))
