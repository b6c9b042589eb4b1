"""The training loop: the same losses however the weights are divided, and across a resume."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from changed_models import of_data_parallel
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from hgpart.errors import ArgumentError, CheckpointError, RunError
from hgpart.hypergraph.modelling import Modelling
from hgpart.partitioned_model import partition_model
from hgpart.placement import place
from hgpart.placement.cutting.slices import Slice
from hgpart.run import scheduling
from hgpart.run.learner import Learner
from hgpart.run.placed_model import PlacedModel
from hgpart.run.scheduling import schedule
from hgpart.run.training import epochs as epochs_of_training
from hgpart.run.training.checkpoints import LOCK, check, checkpoints
from hgpart.run.training.data import Data, ImagesInMemory, load_data
from hgpart.run.training.loop import train
from hgpart.run.training.manifest import MANIFEST, as_text
from hgpart.run.training.options import RATES, TrainingOptions
from hgpart.run.training.resuming import UNSAID, Checkpointing
from hgpart.run.training.scores import accuracy, class_scores, smoothed
from hgpart.schedule_wanted import Scheduling, scheduling_of
from hgpart.schedules.costs import Costs
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule_files import save_schedule


def network(dtype=torch.float32):
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(6 * 64, 10),
    ).to(dtype)


class Sliced(Learner):
    """The weights of a model cut into slices that are trained; put together to compute."""

    def __init__(self, model: nn.Module, parts: int) -> None:
        super().__init__(model)
        self.slices: list[tuple[int, Slice, torch.Tensor]] = []
        generator = np.random.default_rng(parts)
        for name, tensor in model.state_dict(keep_vars=True).items():
            owners = generator.integers(parts, size=tensor.shape)
            for part in range(parts):
                held = Slice(name, tuple(tensor.shape))  # a buffer of one number: every part has it
                if tensor.dim():
                    elements = np.flatnonzero(owners == part)
                    held = Slice(name, tuple(tensor.shape), elements=elements)
                local = held.take(tensor)
                if isinstance(tensor, nn.Parameter):
                    local = nn.Parameter(local)
                self.slices.append((part, held, local))

    def held(self) -> Iterator[tuple[int, Slice, torch.Tensor]]:
        yield from self.slices

    def forward(self, images, batch_size):
        state = {}
        for name, tensor in self.model.state_dict().items():
            pieces = [(held, local) for _, held, local in self.slices if held.name == name]
            if tensor.dim():
                elements = torch.from_numpy(np.concatenate([held.elements for held, _ in pieces]))
                values = torch.cat([local for _, local in pieces])
                state[name] = values[elements.argsort()].view(tensor.shape)
            else:
                state[name] = pieces[0][1].clone()
        images = images.to(dtype=self.dtype)
        result = functional_call(self.model, state, (images,))
        with torch.no_grad():
            for _, held, local in self.slices:
                if not isinstance(local, nn.Parameter):
                    local.copy_(held.take(state[held.name]))
        return result


@lru_cache
def plan(k, grain, dtype=torch.float32):
    """With its trace, so that `place` makes none."""
    model, images = network(dtype), torch.zeros(2, 1, 8, 8, dtype=dtype)
    return partition_model(model, images, k, 0.5, modelling=Modelling(grain=grain), effort=0)


LEARNERS = {
    "whole": Learner,
    "slices": lambda model: Sliced(model, 5),
    "placed coarse": lambda model: PlacedModel(
        place(model, plan(2, "coarse", model[0].weight.dtype))
    ),
    "placed fine": lambda model: PlacedModel(place(model, plan(3, "fine", model[0].weight.dtype))),
}
OPTIONS = {
    "sgd": TrainingOptions(20, 16, "sgd", lr=0.05, weight_decay=1e-3, seed=4),
    "plain sgd": TrainingOptions(20, 16, "sgd", lr=0.05, momentum=0, seed=4),
    "adam": TrainingOptions(20, 16, "adam", lr=0.003, weight_decay=1e-3, seed=4),
}


@pytest.fixture(scope="module")
def data():
    return load_data("digits", (1, 8, 8), 10, seed=2)


def by_hand(model, data, options):
    """The loop as any tutorial has it."""
    options = options.completed({})
    if options.optimizer == "adam":
        decay = {"weight_decay": options.weight_decay}
        optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, **decay)
    else:
        decay = {"weight_decay": options.weight_decay, "momentum": options.momentum}
        optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, **decay)
    torch.manual_seed(options.seed)
    losses = []
    dtype = next(model.parameters()).dtype
    for step in range(options.steps):
        chosen = data.training_indices(step, options.batch_size)
        images, labels = data.train.images(chosen), data.train.labels(chosen)
        loss = nn.functional.cross_entropy(model(images.to(dtype)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.long
@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [pytest.param(torch.float32, 1e-4, marks=pytest.mark.full), (torch.float64, 1e-9)],
)
def test_losses_are_those_of_the_original(kind, options, dtype, tolerance, data):
    model = network(dtype)
    expected = by_hand(copy.deepcopy(model), data, OPTIONS[options])
    told = []
    result = train(
        LEARNERS[kind](model), data, OPTIONS[options], on_step=lambda *step: told.append(step)
    )
    assert result.losses == pytest.approx(expected, rel=tolerance)
    assert result.losses[-1] < result.losses[0]
    assert told == [*enumerate(result.losses, start=1)]
    assert result.steps == 20
    assert result.samples_per_second > 0


@pytest.mark.parametrize("kind", ["whole", "placed fine"])
def test_the_rate_takes_its_course_and_labels_are_smoothed(kind, data):
    options = replace(OPTIONS["sgd"], steps=9, warmup=3, lr_schedule="cosine")
    model = network(torch.float64)
    by_step = copy.deepcopy(model)
    optimizer = torch.optim.SGD(by_step.parameters(), momentum=0.9, weight_decay=1e-3)
    torch.manual_seed(options.seed)
    expected = []
    for step in range(9):
        optimizer.param_groups[0]["lr"] = 0.05 * options.factor(step)
        chosen = data.training_indices(step, 16)
        scores = by_step(data.train.images(chosen).double())
        smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
        loss = smooth(scores, data.train.labels(chosen))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    result = train(LEARNERS[kind](model), data, options, loss=smoothed(0.2))
    assert result.losses == pytest.approx(expected, rel=1e-9)


def test_the_course_of_the_rate_and_the_loss_stay_when_resumed(data, tmp_path):
    options = TrainingOptions(8, 16, warmup=2, lr_schedule="cosine")
    expected = train(Learner(network()), data, options)
    interrupted(Learner(network()), data, options, tmp_path, at=6)
    said = []
    again = Checkpointing(tmp_path, 4, resume=True, warn=said.append)
    refused = {"2 steps of warmup, cosine, not constant": {"options": TrainingOptions(8, 16)}}
    refused["loss cross-entropy, not cross-entropy, smoothing 0.1"] = {"loss": smoothed(0.1)}
    for message, changed in refused.items():
        with pytest.raises(CheckpointError, match=message):
            train(Learner(network()), data, **{"options": options, **changed}, checkpointing=again)
    assert train(Learner(network()), data, options, again).losses == expected.losses
    assert said == []
    train(Learner(network()), data, replace(options, steps=9), again)
    assert said == [
        f"the learning rate falls until step 9 now, from step 9 on; {tmp_path / 'step-000008'} "
        "was written with 8"
    ]


def test_accuracy_counts_every_sample_once(data):
    model = network()
    options = TrainingOptions(60, 32, lr=0.05)
    result = train(Learner(model), data, options)
    everything = range(len(data.validation))
    model.eval()
    right = model(data.validation.images(everything)).argmax(1) == data.validation.labels(
        everything
    )
    assert result.accuracy == right.sum().item() / len(right) > 0.8
    few = ImagesInMemory(data.validation.images(range(5)), data.validation.labels(range(5)))
    small = Data("few", few, few, 10, 0)
    assert accuracy(Learner(model), small, 64) == right[:5].sum().item() / 5


def test_test_samples_are_classified_with_the_final_weights(data):
    model = network()
    held_out = Data("held out", data.train, data.train, 10, 2, test=data.validation)
    result = train(Learner(model), held_out, TrainingOptions(60, 32, lr=0.05))
    assert result.test == accuracy(Learner(model), data, 32) != result.accuracy
    assert train(Learner(model), data, TrainingOptions(1, 32)).test is None


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["whole", "placed coarse"])
def test_the_rate_decays_where_accuracy_does_not_improve_and_then_training_ends(
    kind, data, monkeypatch
):
    monkeypatch.setattr(epochs_of_training, "validated", lambda *_: 0.5)
    model, batch_size = network(torch.float64), 700
    expected, by_epoch = [], copy.deepcopy(model)
    optimizer = torch.optim.SGD(by_epoch.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(0)
    rates = [0.05 * 0.8**decays for decays in (0, 0, 0, 1, 1, 2, 2, 3, 3)]
    for epoch, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for step in (2 * epoch, 2 * epoch + 1):
            chosen = data.training_indices(step, batch_size)
            scores = by_epoch(data.train.images(chosen).double())
            loss = nn.functional.cross_entropy(scores, data.train.labels(chosen))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    options = TrainingOptions(100, batch_size, lr=0.05, decay=True)
    result = train(LEARNERS[kind](model), data, options)
    assert [epoch.validation for epoch in result.epochs] == [0.5] * 9
    assert [epoch.rate for epoch in result.epochs] == pytest.approx(rates)
    assert result.losses == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("wanted", [{"decay": True}, {"until": {"val_accuracy": 0.9}}])
def test_what_only_validation_can_decide_is_refused_without(wanted):
    synthetic = load_data("synthetic", (1, 8, 8), 10, seed=0)
    with pytest.raises(ArgumentError, match="needs validation samples, and synthetic has none"):
        train(Learner(network()), synthetic, TrainingOptions(2, 16, **wanted))


def test_there_is_no_accuracy_without_a_test_set():
    data = load_data("synthetic", (1, 8, 8), 10, seed=0)
    assert train(Learner(network()), data, TrainingOptions(1, 4)).accuracy is None


# ------------------------------------------------------------------ checkpoints


class PulledPlugError(Exception):
    pass


def interrupted(learner, data, options, folder, at, every=4):
    def pull(step, loss):
        if step == at:
            raise PulledPlugError

    with pytest.raises(PulledPlugError):
        train(learner, data, options, Checkpointing(folder, every), pull)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((kind, kind) for kind in LEARNERS),
        ("whole", "placed fine"),
        ("placed fine", "placed coarse"),
        ("placed coarse", "slices"),
        ("slices", "whole"),
    ],
)
@pytest.mark.parametrize("options", [pytest.param("sgd", marks=pytest.mark.full), "adam"])
def test_a_resumed_training_has_the_same_losses(options, before, after, data, tmp_path):
    options = OPTIONS[options]
    model = network()
    expected = train(LEARNERS[after](copy.deepcopy(model)), data, options)
    interrupted(LEARNERS[before](copy.deepcopy(model)), data, options, tmp_path, at=11)
    torch.manual_seed(99)  # a new process
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    learner = LEARNERS[after](model)
    result = train(learner, data, options, Checkpointing(tmp_path, 4, resume=True))
    assert result.steps == 12
    if before == after:
        assert result.losses == expected.losses
    assert result.losses == pytest.approx(expected.losses, rel=1e-4)
    assert result.accuracy == expected.accuracy
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000020", "step-000016"]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("norms", ["batch", pytest.param("micro-batch", marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", RULES)
def test_a_training_by_any_rule_is_resumed_to_the_same_losses(rule, norms, data, tmp_path):
    def learner():
        placement = place(network(), plan(3, "fine"), norms=norms)
        return PlacedModel(placement, Scheduling(rule, 3))

    options, data = replace(OPTIONS["adam"], steps=7), replace(data, validation=None)
    expected = train(learner(), data, options)
    interrupted(learner(), data, options, tmp_path, at=5, every=3)
    torch.manual_seed(99)  # a new process
    result = train(learner(), data, options, Checkpointing(tmp_path, 3, resume=True))
    assert (result.steps, result.losses) == (4, expected.losses)


def test_the_last_that_is_whole_is_resumed_with_a_warning(data, tmp_path):
    options = OPTIONS["sgd"]
    expected = train(Learner(network()), data, options)
    interrupted(Learner(network()), data, options, tmp_path, at=11)
    newest = tmp_path / "step-000008" / "part-0.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    warnings = []
    again = Checkpointing(tmp_path, 4, resume=True, warn=warnings.append)
    result = train(Learner(network()), data, options, again)
    assert (result.steps, result.losses) == (16, expected.losses)
    (warning,) = warnings
    assert f"{newest} has 1000 bytes" in warning
    assert f"going on from {tmp_path / 'step-000004'}" in warning


def test_resuming_from_nothing_begins_and_from_the_end_only_tests(data, tmp_path):
    options = OPTIONS["adam"]
    said: list[str] = []
    resuming = Checkpointing(tmp_path / "new", 100, resume=True, warn=said.append)
    first = train(Learner(network()), data, options, resuming)
    assert said == [f"there is no checkpoint in {tmp_path / 'new'}: the training begins at step 1"]
    again = train(Learner(network()), data, options, resuming)
    assert len(said) == 1
    assert (again.losses, again.accuracy) == (first.losses, first.accuracy)
    assert (again.steps, again.samples_per_second) == (0, None)


def test_what_would_not_go_on_to_the_same_losses_is_refused(data, tmp_path):
    train(Learner(network()), data, TrainingOptions(4, 16), Checkpointing(tmp_path, 2))

    def refused(message, learner, options, error=CheckpointError, resume=True):
        with pytest.raises(error, match=message):
            train(learner, data, options, Checkpointing(tmp_path, 2, resume))

    model = Learner(network())
    refused("has checkpoints already", model, TrainingOptions(8, 16), ArgumentError, resume=False)
    refused("batch size 16, not 8", model, TrainingOptions(8, 8))
    refused("optimizer sgd, not adam", model, TrainingOptions(8, 16, "adam"))
    refused("seed 0, not 1", model, TrainingOptions(8, 16, seed=1))
    refused("has already done 4 steps, and 3 are asked for", model, TrainingOptions(3, 16))
    refused("dtype float32, not float64", Learner(network().double()), TrainingOptions(8, 16))
    divided = PlacedModel(place(network(), plan(2, "coarse")), Scheduling("greedy", 2))
    refused("micro-batches 1, not 2", divided, TrainingOptions(8, 16))
    of_batch = PlacedModel(place(network(), plan(2, "coarse"), norms="batch"))
    refused("norms micro-batch, not batch", of_batch, TrainingOptions(8, 16))
    other = PlacedModel(place(network(), plan(2, "coarse")), Scheduling("gpipe", 2))
    save_schedule(tmp_path / "order", schedule(other.placement, "gpipe", 1))
    written = PlacedModel(other.placement, scheduling_of(str(tmp_path / "order"), None))
    refused("schedule sequential, not file [0-9a-f]{16}: only", written, TrainingOptions(8, 16))
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    refused("another model: 1.weight", Learner(wider), TrainingOptions(8, 16))
    folder = tmp_path / "divided"
    train(divided, data, TrainingOptions(1, 16), Checkpointing(folder, 1))
    with pytest.raises(CheckpointError, match="schedule greedy, not gpipe"):
        train(other, data, TrainingOptions(2, 16), Checkpointing(folder, 1, resume=True))


@pytest.mark.full
def test_what_an_older_checkpoint_does_not_say_is_as_it_was_then(data, tmp_path):
    options = TrainingOptions(4, 16)
    divided = PlacedModel(place(network(), plan(2, "coarse")), Scheduling("greedy", 2))
    first = PlacedModel(place(network(), plan(2, "coarse")))
    losses = train(first, data, options, Checkpointing(tmp_path, 4)).losses
    (path,) = checkpoints(tmp_path)
    manifest = check(path)
    settings = {name: value for name, value in manifest.settings.items() if name not in UNSAID}
    assert len(settings) < len(manifest.settings)
    (path / MANIFEST).write_text(as_text(replace(manifest, settings=settings)))
    resuming, options = Checkpointing(tmp_path, 4, resume=True), TrainingOptions(5, 16)
    with pytest.raises(CheckpointError, match="micro-batches 1, not 2"):
        train(divided, data, options, resuming)
    again = PlacedModel(place(network(), plan(2, "coarse")))
    result = train(again, data, options, resuming)
    assert (result.steps, result.losses[:4]) == (1, losses)


def streamed(in_flight, k=2, grain="coarse", stash=True):
    placement = place(network(), plan(k, grain))
    return PlacedModel(placement, Scheduling("async", 1, in_flight, stash))


@pytest.mark.full
@pytest.mark.parametrize("options", ["sgd", pytest.param("adam", marks=pytest.mark.full)])
def test_one_batch_in_flight_is_training_without(options, data, tmp_path):
    """And goes on from its checkpoints."""
    options = OPTIONS[options]
    plain = train(PlacedModel(place(network(), plan(2, "coarse"))), data, options)
    assert plain.staleness == ()
    interrupted(LEARNERS["placed coarse"](network()), data, options, tmp_path, at=11)
    resumed = train(streamed(1), data, options, Checkpointing(tmp_path, 4, resume=True))
    assert resumed.losses == plain.losses
    assert resumed.staleness == ((0,) * 12,) * 2


@pytest.mark.parametrize("stash", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_training_that_ended_with_batches_in_flight_is_resumed_to_the_bit(stash, data, tmp_path):
    options, every = OPTIONS["sgd"], 6
    learner = streamed(3, 2, "coarse", stash)
    whole = train(learner, data, options, Checkpointing(tmp_path / "whole", every))
    assert any(max(of_part) > 0 for of_part in whole.staleness)
    assert [len(of_part) for of_part in whole.staleness] == [20, 20]
    for of_part in whole.staleness:  # none is in flight then
        assert of_part[0] == of_part[6] == of_part[12] == of_part[18] == 0
    folder = tmp_path / "cut"
    interrupted(streamed(3, 2, "coarse", stash), data, options, folder, at=9, every=every)
    torch.manual_seed(99)
    again = streamed(3, 2, "coarse", stash)
    result = train(again, data, options, Checkpointing(folder, every, resume=True))
    assert (result.steps, result.losses, result.accuracy) == (14, whole.losses, whole.accuracy)
    ours, theirs = (one.placement.state_dict() for one in (again, learner))
    assert all(map(torch.equal, ours.values(), theirs.values()))

    def refused(message, learner, every=every, about=None):
        resuming = Checkpointing(folder, every, resume=True, about=about or {})
        with pytest.raises(CheckpointError, match=message):
            train(learner, data, options, resuming)

    refused("none every 6 steps, plan unnamed, not sequential:", LEARNERS["whole"](network()))
    refused("3 in flight.*, not async, 2 in flight", streamed(2, stash=stash))
    refused("none every 6 steps.*not async.*none every 5 steps", streamed(3, stash=stash), 5)
    refused("plan unnamed.*not async.*plan 12ab", streamed(3, stash=stash), about={"plan": "12ab"})
    refused("schedule async", streamed(3, stash=not stash))


@pytest.mark.full
def test_batches_in_flight_are_not_resumed_in_another_order(data, tmp_path, monkeypatch):
    """It depends on costs, so on the batch size that a plan was made for, and on measured work."""
    options = replace(OPTIONS["sgd"], steps=4)
    train(streamed(3, 2, "fine"), data, options, Checkpointing(tmp_path, 4))
    again = Checkpointing(tmp_path, 4, resume=True)
    assert train(streamed(3, 2, "fine"), data, options, again).steps == 0
    monkeypatch.setattr(scheduling, "costs_of", lambda *given: Costs(message=1e-7, step=0.0))
    with pytest.raises(CheckpointError, match=r"order [0-9a-f]{16}, .*, not async.*, order"):
        train(streamed(3, 2, "fine"), data, options, again)


@pytest.mark.full
def test_going_on_from_an_end_with_batches_in_flight_is_said_to_be_no_training_in_one_go(
    data, tmp_path
):
    """The end of a training is a step behind which none is in flight, as in no longer one."""
    options, data, warnings = replace(OPTIONS["sgd"], steps=12), replace(data, validation=None), []
    whole = train(streamed(3), data, options, Checkpointing(tmp_path / "whole", 4))

    def resumed(first, steps=12, in_flight=3):
        folder = tmp_path / f"{first} {in_flight}"
        short, longer = (replace(options, steps=count) for count in (first, steps))
        train(streamed(in_flight), data, short, Checkpointing(folder, 4))
        again = Checkpointing(folder, 4, resume=True, warn=warnings.append)
        return train(streamed(in_flight), data, longer, again).losses

    assert resumed(8) == whole.losses
    resumed(6, steps=6)
    resumed(6, in_flight=1)
    assert warnings == []
    assert resumed(7) != whole.losses
    (warning,) = warnings
    assert "step-000007 is the end of a training" in warning
    assert "losses from step 8 on differ from those of a training" in warning


def test_batches_in_flight_end_now_and_then(data, monkeypatch):
    """Where there are no checkpoints: an order is of so many batches at most."""
    monkeypatch.setattr("hgpart.run.training.loop.LONGEST", 8)
    found = train(streamed(3), data, OPTIONS["sgd"])
    for of_part in found.staleness:
        assert of_part[0] == of_part[8] == of_part[16] == 0
    assert max(map(max, found.staleness)) > 0


def fingerprinted(folder, fingerprint):
    return Checkpointing(folder, 2, resume=True, fingerprint=fingerprint)


def test_the_checkpoint_of_another_model_is_refused_by_its_fingerprint(data, tmp_path):
    """Names and shapes may be the same, and the fingerprint in the manifest was not looked at."""
    train(Learner(network()), data, TrainingOptions(2, 16), fingerprinted(tmp_path, "a1"))
    other = nn.Sequential(*network()[:2], nn.Sigmoid(), *network()[3:])
    with pytest.raises(CheckpointError, match="another model: its fingerprint is a1, this one's b"):
        train(Learner(other), data, TrainingOptions(4, 16), fingerprinted(tmp_path, "b2"))
    for known in ("a1", None):  # None: a training from Python need not say
        train(Learner(network()), data, TrainingOptions(4, 16), fingerprinted(tmp_path, known))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@given(rates=st.data())
def test_rates_are_the_checkpoints_unless_others_are_asked_for(rates, optimizer):
    """Others passed in silence: one that is asked for is taken and said, the rest stay."""
    data = load_data("synthetic", (1, 8, 8), 10, seed=0)
    drawn = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(RATES[optimizer], st.sampled_from([0.0, 0.03, 0.5]))
    )
    before, after = rates.draw(drawn), rates.draw(drawn)
    said = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = TrainingOptions(1, 4, optimizer, **before)
        train(Learner(network()), data, first, Checkpointing(folder, 2))
        resuming = Checkpointing(folder, 2, resume=True, warn=said.append)
        options = TrainingOptions(2, 4, optimizer, **after)
        result = train(Learner(network()), data, options, resuming)
        written = check(folder / "step-000002").about
    earlier = {**RATES[optimizer], **before}
    assert result.options.rates == {**earlier, **after}
    assert {name: written[name] for name in RATES[optimizer]} == result.options.rates
    changed = [name for name in after if after[name] != earlier[name]]
    assert said == [
        f"{name.replace('_', ' ')} {after[name]:g} from step 2 on; {folder / 'step-000001'} was "
        f"written with {earlier[name]:g}"
        for name in RATES[optimizer]
        if name in changed
    ]


@pytest.mark.full
@pytest.mark.parametrize("has_norms", [True, False])
def test_norms_of_other_samples_than_a_checkpoints_are_said(has_norms, data, tmp_path):
    """Other shares of the batch passed in silence, though norms then make other losses of it."""
    model = nn.Sequential(
        *(one for one in network() if has_norms or one._get_name()[:5] != "Batch")
    )
    said, data = [], replace(data, validation=None)
    for step, slices in enumerate((2, 2, 3, 1), start=1):
        sliced = of_data_parallel(model, [torch.zeros(16, 1, 8, 8)], slices)
        learner = PlacedModel(place(model, sliced))
        resuming = Checkpointing(tmp_path, 1, resume=True, warn=said.append)
        train(learner, data, TrainingOptions(step, 16), resuming)
        written = check(tmp_path / f"step-{step:06d}").about["samples of shares"]
        assert written == {1: "16", 2: "8+8", 3: "10+6"}[slices]
    whole = Learner(copy.deepcopy(model))
    train(whole, data, TrainingOptions(5, 16), resuming)
    assert said[0] == f"there is no checkpoint in {tmp_path}: the training begins at step 1"
    assert said[1:] == [
        f"norms take their statistics of {now} samples from step {step} on; "
        f"{tmp_path / f'step-00000{step - 1}'} was written with {then}"
        for step, now, then in ((3, "10+6", "8+8"), (4, "16", "10+6"))
        if has_norms
    ]


def test_a_momentum_that_was_switched_off_begins_anew(data, tmp_path):
    """The last one was kept through the steps without one, and went on where it had been."""

    def steps(count, momentum):
        options = TrainingOptions(count, 16, lr=0.05, momentum=momentum)
        resuming = Checkpointing(tmp_path, 9, resume=True, warn=lambda message: None)
        return train(Learner(model), data, options, resuming)

    model = network()
    for count, momentum in ((1, 0.9), (2, 0.0)):
        steps(count, momentum)
    state = torch.load(tmp_path / "step-000002" / "part-0.pt")
    assert all(item["tensors"].keys() == {"value"} for item in state["held"])


def test_a_rate_that_is_no_number_is_refused(data, tmp_path):
    train(Learner(network()), data, TrainingOptions(1, 4), Checkpointing(tmp_path, 2))
    path = tmp_path / "step-000001"
    about = {"lr": "fast"}
    (path / MANIFEST).write_text(as_text(replace(check(path), about=about)))
    with pytest.raises(CheckpointError, match="written with lr 'fast', which is no number"):
        resuming = Checkpointing(tmp_path, 2, resume=True)
        train(Learner(network()), data, TrainingOptions(2, 4), resuming)


def test_two_trainings_do_not_write_to_one_folder(data, tmp_path):
    """Each took the other's unfinished checkpoint for one that was left, and removed it."""
    options, refused = TrainingOptions(2, 4), []

    def another(step, loss):
        for resume in (False, True):
            with pytest.raises(CheckpointError) as caught:
                train(Learner(network()), data, options, Checkpointing(tmp_path, 1, resume))
            refused.append(str(caught.value))

    train(Learner(network()), data, options, Checkpointing(tmp_path, 1), another)
    assert len(refused) == 4
    assert {line.partition(":")[0] for line in refused} == {
        f"another training writes to {tmp_path}"
    }
    train(Learner(network()), data, TrainingOptions(3, 4), Checkpointing(tmp_path, 1, True))


def test_ctrl_c_while_writing_leaves_nothing_half(data, tmp_path, monkeypatch):
    options = TrainingOptions(8, 16)
    monkeypatch.setattr("hgpart.run.training.checkpoints.MANIFEST", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        train(Learner(network()), data, options, Checkpointing(tmp_path, 4))
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


class Interrupting:
    """Ctrl-C between the parts' files and the manifest."""

    def __rtruediv__(self, folder):
        assert list(folder.iterdir()) == [folder / "part-0.pt"]
        raise KeyboardInterrupt


def test_tied_and_frozen_parameters_and_unused_ones(data, tmp_path):
    model = network()
    model[0].weight.requires_grad_(False)
    model.again = model[5].bias  # a second name
    model.unused = nn.Parameter(torch.ones(3))
    model.forward = lambda images: nn.Sequential.forward(nn.Sequential(*list(model)[:6]), images)
    frozen = model[0].weight.clone()
    train(Learner(model), data, TrainingOptions(4, 16, "adam"), Checkpointing(tmp_path, 2))
    assert torch.equal(model[0].weight, frozen)
    train(Learner(model), data, TrainingOptions(6, 16, "adam"), Checkpointing(tmp_path, 2, True))
    assert torch.equal(model.unused, torch.ones(3))


# ------------------------------------------------------------------ results and options


def test_maps_of_scores_are_averaged_and_first_results_count():
    scores = torch.rand(2, 10, 3, 4)
    assert torch.allclose(class_scores(scores, 2), scores.mean((2, 3)))
    assert class_scores((scores[:, :, 0, 0], scores), 2).shape == (2, 10)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"out": torch.rand(2, 10), "aux": torch.rand(2, 10)}, "a dict of 'out', 'aux'"),
        (torch.rand(2), "float32 numbers, 2"),
        (torch.tensor(3.0), "one float32 number"),
        (torch.rand(2, 1), "float32 numbers, 2 x 1"),
        (torch.rand(2, 100, 10), "float32 numbers, 2 x 100 x 10"),  # boxes are no classes
        (torch.rand(5, 10), "float32 numbers, 5 x 10"),  # nor is something else a sample
        (torch.rand(2, 10).long(), "int64 numbers, 2 x 10"),
        (torch.rand(2, 10) + 1j, "complex64 numbers, 2 x 10"),
        ([torch.rand(2), torch.rand(2, 10)], "a list that begins with float32 numbers, 2"),
        ((), "a tuple"),
        ("scores", "a str"),
    ],
)
def test_what_are_no_scores_is_refused_and_named(result, said):
    with pytest.raises(RunError) as caught:
        class_scores(result, 2)
    assert str(caught.value) == (
        f"for 2 samples the model returns {said}: accepted are class scores, 2 x classes, or maps "
        "of them, alone, first in a tuple, or a dict's logits"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"batch_size": 0},
        {"optimizer": "rmsprop"},
        {"lr": -0.1},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"lr": 1e308},  # no float32: torch's addition raises
        {"momentum": 1.0},
        {"momentum": float("nan")},
        {"momentum": 0.5, "optimizer": "adam"},
        {"weight_decay": -1.0},
        {"seed": -1},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(
        ArgumentError, match=f"{name.replace('_', ' ')} .*{re.escape(str(value))}.*: "
    ):
        TrainingOptions(**{"steps": 1, "batch_size": 1, **wrong})


def test_a_checkpoint_every_zero_steps_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="every 0 steps: accepted is 1 or more"):
        Checkpointing(tmp_path, 0)
    with pytest.raises(ArgumentError, match="accepted is a name without NUL"):
        Checkpointing(tmp_path / "a\0b", 1)
