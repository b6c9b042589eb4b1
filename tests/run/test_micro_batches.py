"""Steps in micro-batches, by every rule, are those of the model that adds them up."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from partitioned_models import MODELS
from placed_models import Twice, batch_of, compiled_once, model_of, placed
from torch import nn

from hgpart.errors import ArgumentError, PlacementError, PlanError
from hgpart.execution.step_run import StepRun
from hgpart.placement.ordering.ordered import outlines_here
from hgpart.run.scheduling import load_schedule, schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.costs import Costs
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule_files import save_schedule


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "rule", "grain"),
    [
        (name, rule, ("coarse", "fine")[(of_name + of_rule) % 2])
        for of_name, name in enumerate([*MODELS, "forked"])
        for of_rule, rule in enumerate(RULES)
    ],
)
def test_results_gradients_statistics_and_bytes(name, rule, grain):
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 5)
    placement = placed(model, inputs, grain=grain)
    for micro_batches in (1, 3):
        found = verify(model, placement, inputs, scheduling=Scheduling(rule, micro_batches))
        assert found.failures == ()
        sent = placement.programs.expected_traffic(Scheduling(rule, micro_batches).sizes(5), True)
        assert found.traffic.forward_bytes.sum() == sent.forward_bytes.sum()


def test_one_part_and_evaluation():
    model, inputs = model_of("forked")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs, k=1)
    assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 2)).failures == ()
    model.eval()
    placement.eval()
    assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 3)).failures == ()


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", RULES)
def test_statistics_that_a_pass_leaves_to_the_next(rule):
    torch.manual_seed(0)
    model, inputs = Twice().double(), [torch.randn(6, 3, 8, 8).double()]
    placement = placed(model, inputs, k=2)
    assert all(outline.serial for outline in outlines_here(placement))
    assert verify(model, placement, inputs, scheduling=Scheduling(rule, 3)).failures == ()


def test_micro_batches_are_the_batch_where_nothing_mixes_samples():
    """Without norms, and with masks drawn for the whole batch, even if it does not divide."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(128, 5)),
    ).double()
    images, labels = torch.randn(7, 3, 8, 8).double(), torch.arange(7) % 5
    loss_fn = nn.functional.cross_entropy
    placement = placed(copy.deepcopy(model), [images])
    torch.manual_seed(1)
    expected = loss_fn(model(images), labels)
    expected.backward()
    torch.manual_seed(1)
    loss = placement.step([images], labels, loss_fn, schedule(placement, "greedy", 3))
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    gradients = dict(model.named_parameters())
    for _, held, tensor in ((part, *each) for part in range(3) for each in placement.held(part)):
        wanted = held.take(gradients[held.name].grad)
        torch.testing.assert_close(tensor.grad, wanted, rtol=1e-9, atol=1e-15)


def test_all_rules_give_the_same_bits():
    """As each part goes through micro-batches in their order, chunk by chunk.

    Not where layers share weights: a chunk of one may come before or after a chunk of another.
    """
    model, inputs = model_of("residual")
    inputs, outcomes = batch_of(inputs, 6), []
    for rule in (*RULES, "greedy"):
        placement = placed(copy.deepcopy(model), inputs)
        order = schedule(placement, rule, 4)
        loss = placement.step(inputs, None, lambda result, _: result.square().mean(), order)
        outcomes.append([loss, *(one.grad for one in placement.parameters())])
    for other in outcomes[1:]:
        assert all(torch.equal(*pair) for pair in zip(outcomes[0], other, strict=True))


@pytest.mark.full
def test_compiled_steps_go_backward_at_once():
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 5)
    placement = placed(model, inputs)
    compiled_once(placement)
    assert verify(model, placement, inputs, scheduling=Scheduling("zero-bubble", 2)).failures == ()


def test_a_step_without_gradients_returns_results_or_the_loss():
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 5)
    placement = placed(model, inputs)
    order = schedule(placement, "greedy", 2)
    with torch.no_grad():
        results = placement.step(inputs, schedule=order)
        loss = placement.step(inputs, None, lambda result, _: result.mean(), order)
    assert [len(result) for result in results] == [3, 2]
    torch.testing.assert_close(torch.cat(results), model(*inputs).detach())
    torch.testing.assert_close(loss, model(*inputs).mean().detach())
    assert all(parameter.grad is None for parameter in placement.parameters())
    assert not placement.runtime.last.traffic.backward_bytes.any()


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", RULES)
def test_forward_passes_keep_few_micro_batches(rule, monkeypatch):
    """As many as the schedule says, however many a batch has, where messages are soon there."""
    costs = Costs(byte=0.0, message=0.0)
    model, inputs = model_of("residual")
    inputs = batch_of(inputs, 24)
    placement = placed(model, inputs)
    orders = [schedule(placement, rule, count, costs, backward=False) for count in (12, 24)]
    keeps = [order.alive for order in orders]
    assert keeps[0] == keeps[1]
    assert max(keeps[1]) <= 6
    assert max(schedule(placement, "gpipe", 24).alive) == 24
    kept, finish = {}, StepRun._finish_forward

    def count(step, micro_batch):
        part = step._part.turns[0].part
        kept[part] = max(kept.get(part, 0), len(step._runs))
        finish(step, micro_batch)

    monkeypatch.setattr(StepRun, "_finish_forward", count)
    with torch.no_grad():
        placement.step(inputs, schedule=orders[1])
    assert kept == dict(enumerate(keeps[1]))


def test_an_error_in_a_step_comes_out_and_the_placement_stays_usable():
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs)
    order = schedule(placement, "greedy", 2)

    def fails(result, targets):
        raise ZeroDivisionError("in the loss")

    with pytest.raises(ZeroDivisionError, match="in the loss"):
        placement.step(inputs, None, fails, order)
    assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 2)).passed


class Windows(nn.Module):
    """Drops elements of a map in which samples and channels are one dimension."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(3, 4, 1), nn.Dropout(0.5)

    def forward(self, x):
        x = self.conv(x)
        return self.drop(x.flatten(0, 1)).flip(1).unflatten(0, (-1, 4))  # flip keeps them joined


@pytest.mark.full
@pytest.mark.parametrize("how", ["called", "step", "verify"])
def test_a_norm_with_one_value_per_channel_is_refused(how):
    """As torch does where the model calls it; its operator would make the variance NaN."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8)),
        *(nn.Flatten(), nn.Linear(8, 5)),
    ).double()
    inputs = [torch.randn(4, 3, 8, 8).double()]
    placement = placed(model, inputs, k=2)
    before = copy.deepcopy(placement.state_dict())
    with pytest.raises(PlacementError, match=r"^3 has one value per channel in a .*-batch of 1: "):
        if how == "called":
            placement(inputs[0][:1])
        elif how == "step":
            order = schedule(placement, "greedy", 3)  # of 2, 1 and 1 samples
            placement.step(inputs, None, lambda result, _: result.mean(), order)
        else:
            verify(model, placement, inputs, scheduling=Scheduling("greedy", 4))
    assert all(torch.equal(before[name], value) for name, value in placement.state_dict().items())
    assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 2)).failures == ()
    placement.eval()
    assert placement(inputs[0][:1]).isfinite().all()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (
            lambda images: [images, images],
            ArgumentError,
            r"too many positional arguments: accepted are inputs for Sequential.forward\(input\)",
        ),
        (lambda images: [], ArgumentError, "missing a required argument: 'input': accepted are"),
        (lambda images: [None], ArgumentError, "input is None: accepted is a tensor, as Sequent"),
        (lambda images: [images.sum()], PlacementError, "no input has samples: accepted are inp"),
    ],
)
def test_other_inputs_than_the_models_are_refused(inputs, error, message):
    model, (images,) = model_of("plain")
    images = torch.randn(4, *images.shape[1:], dtype=images.dtype)
    placement = placed(model, [images])
    with pytest.raises(error, match=message):
        placement.step(inputs(images), None, lambda result, _: result.mean())
    with pytest.raises(error, match=message):
        placement(*inputs(images))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("loss_of", "message"),
    [
        (lambda result: 0.5, "a loss of 0.5: accepted is a tensor of one element"),
        (lambda result: result.mean(1), r"a loss of shape \(2,.*\): accepted is a tensor of one"),
        (lambda result: result.mean().detach(), "a loss without gradients: accepted in grad mode"),
    ],
)
def test_losses_that_no_backward_pass_begins_with_are_refused(loss_of, message):
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs)
    order = schedule(placement, "greedy", 2)
    with pytest.raises(ArgumentError, match=message):
        placement.step(inputs, None, lambda result, _: loss_of(result), order)
    with pytest.raises(ArgumentError, match="schedule 'greedy': accepted is what hgpart"):
        placement.step(inputs, None, lambda result, _: result.mean(), "greedy")
    for wrong in (2.5, "3", 0):
        with pytest.raises(ArgumentError, match=f"{wrong!r} micro-batches: accepted is 1 or more"):
            schedule(placement, "greedy", wrong)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("counts", [(1, 2, 0, 5), (4, 4, 4, 4)])
def test_a_list_of_dicts_has_one_for_each_sample(kind, counts):
    """Where each sample had as many boxes as the batch samples, boxes were divided, not samples."""
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs)
    targets = kind({"boxes": torch.full((n, 2), 2.0 * n + at)} for at, n in enumerate(counts))

    def loss_of(result, targets):
        each = [one.mean() * target["boxes"].sum() for one, target in zip(result, targets)]  # noqa: B905  # as people do
        return sum(each) / len(result)

    loss = placement.step(inputs, targets, loss_of, schedule(placement, "greedy", 2))
    torch.testing.assert_close(loss.detach(), loss_of(model(*inputs), targets).detach())


def test_lists_of_targets_that_are_refused():
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs)
    order = schedule(placement, "greedy", 2)
    boxes = [torch.zeros(4, 2)] * 4
    for received in (boxes, tuple(boxes), {"boxes": boxes}, [None, boxes]):
        with pytest.raises(ArgumentError, match="a target of 4 tensors of 4 each, for 4 samples"):
            placement.step(inputs, received, lambda result, _: result.mean(), order)
    with pytest.raises(ArgumentError, match="a target of 3 dicts: accepted is one for each of 4"):
        placement.step(inputs, [{}] * 3, lambda result, _: result.mean(), order)
    placement.step(inputs, (*boxes[:2], {"boxes": boxes[0]}), lambda r, _: r.mean(), order)


def test_what_is_refused(tmp_path):
    model, inputs = model_of("plain")
    inputs = batch_of(inputs, 4)
    placement = placed(model, inputs)
    order = schedule(placement, "greedy", 2)

    def mean(result, targets):
        return result.mean()

    with pytest.raises(ArgumentError, match="2 micro-batches of a batch of 1: accepted are 1 to 1"):
        placement.step([inputs[0][:1]], None, mean, order)
    with pytest.raises(ArgumentError, match=r"a target of shape \(3,\): accepted are 4 samples"):
        placement.step(inputs, torch.zeros(3), mean, order)
    with pytest.raises(ArgumentError, match="in grad mode with no loss function: accepted are"):
        placement.step(inputs, schedule=order)
    with pytest.raises(ArgumentError, match="with a schedule without backward passes: accepted"):
        placement.step(inputs, None, mean, order.forward_only)
    with pytest.raises(PlacementError, match="an input requires a gradient, which a step does not"):
        placement.step([inputs[0].requires_grad_()], None, mean, order)
    images = inputs[0].detach()
    for received in ([0, 1, 2, 3], {"labels": np.arange(4)}):
        with pytest.raises(ArgumentError, match=r"a target of type (int|ndarray): accepted"):
            placement.step([images], received, mean, order)
    other = placed(model, inputs, kind="layers", k=3)
    with pytest.raises(PlanError, match="the greedy schedule of 3 parts is for other chunks than"):
        other.step([inputs[0].detach()], None, mean, order)
    save_schedule(tmp_path / "schedule.json", order)
    assert load_schedule(tmp_path / "schedule.json", placement).order == order.order
    with pytest.raises(PlanError, match=r"schedule.json is a schedule of another plan \(k=3\)"):
        load_schedule(tmp_path / "schedule.json", other)
    windows, images = Windows(), torch.randn(2, 3, 4, 4)
    placement = placed(windows, [images], k=2)
    with pytest.raises(PlacementError, match=r"draw_0 has .* whose samples can't be told"):
        placement.step([images], None, mean, schedule(placement, "greedy", 2))
