"""A pass that a process calls, of a single part; in several processes: test_loops."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hgpart
from hgpart import place
from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.run.distributed import DistributedModel
from hgpart.run.processes.begun import TYPES, Begun
from hgpart.run.processes.connection import Connection

FIRST, SECOND = torch.randn(2, 4, 3, dtype=torch.float64)


class Alone(Connection):
    """A connection of one process to itself."""

    def __init__(self):
        super().__init__(0, 1, torch.device("cpu"), False, SimpleNamespace(call=""))
        self.told = []

    def numbers(self, own, dtype=torch.int64):
        return [torch.tensor(own, dtype=dtype).tolist()]

    def gather(self, value, call=None):
        return [value]

    def sum_of(self, tensor):
        return tensor.clone()

    def fail(self, error):
        self.told.append(str(error))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


@pytest.fixture
def placed(model):
    return DistributedModel(place(copy.deepcopy(model), k=1, example=FIRST), Alone())


def assert_same_gradients(placed, model):
    held = {one.name: tensor for one, tensor in placed.placement.held(0)}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(held[name].grad, parameter.grad, rtol=1e-12, atol=1e-14)


def test_two_passes_and_one_backward_add_up(placed, model):
    """The first pass was forgotten, and later refused."""
    (placed(FIRST).square().sum() + placed(SECOND).square().sum()).backward()
    (model(FIRST).square().sum() + model(SECOND).square().sum()).backward()
    assert_same_gradients(placed, model)


def test_passes_go_back_in_any_order_and_not_all_of_them(placed, model):
    passes = [placed(x).square().sum() for x in (FIRST, SECOND, FIRST)]
    passes[2].backward()
    passes[0].backward()
    (2 * model(FIRST).square().sum()).backward()
    assert_same_gradients(placed, model)


def test_a_second_backward_is_refused(placed):
    loss = placed(FIRST).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RunError, match="backward after backward, accepted is one forward"):
        loss.backward()


def test_second_derivatives_are_refused_before_anything_is_sent(placed):
    """A gradient penalty would have found nothing and gone on."""
    x = FIRST.clone().requires_grad_()
    with pytest.raises(PlacementError, match="create_graph=True: a placement has no second"):
        torch.autograd.grad(placed(x).sum(), x, create_graph=True)
    assert not placed.connection.told


def test_one_pass_after_the_other_adds_up(placed, model):
    for x in (FIRST, SECOND):
        placed.backward(placed(x).square().sum())
    (model(FIRST).square().sum() + model(SECOND).square().sum()).backward()
    assert_same_gradients(placed, model)


@pytest.mark.few(2)
@pytest.mark.parametrize("between", ["called", "step", "evaluation"])
def test_what_has_no_gradients_may_come_between_a_pass_and_its_backward(placed, model, between):
    """It forgot the pass."""
    result = placed(FIRST)
    (events,) = placed.runtime.last.by_part
    placed.train(between != "evaluation")
    with torch.no_grad():
        placed.step([SECOND]) if between == "step" else placed(SECOND)
    placed.train()
    placed.backward(result.square().sum())
    assert placed.runtime.last.by_part[0] is events
    model(FIRST).square().sum().backward()
    assert_same_gradients(placed, model)


def test_ranks_compare_modes_before_they_begin(placed, monkeypatch):
    """One in evaluation and one in training made a result of no model."""
    begun = []
    monkeypatch.setattr(
        placed.connection, "numbers", lambda own, dtype=None: [begun.append(own) or own]
    )
    placed(FIRST)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        placed.eval()(FIRST)
    calls = [own for own in begun if isinstance(own, Begun)]
    assert [own.grad_mode for own in calls] == [True, False]
    assert [own.training for own in calls] == [True, False]
    assert [own.autocast for own in calls] == [0, 1 + TYPES.index(torch.bfloat16)]


@pytest.mark.few(2)
@pytest.mark.parametrize("batch_size", [0, -1, 2.0])
def test_a_batch_size_that_is_none_ends_no_connection(placed, batch_size):
    for call, inputs in ((placed, FIRST), (placed.step, [FIRST])):
        with pytest.raises(ArgumentError, match=f"batch size {batch_size}: accepted are whole"):
            call(inputs, batch_size=batch_size)
    assert not placed.connection.told
    placed(FIRST)


def test_who_is_to_have_a_loss_is_said(placed):
    placed(FIRST)
    with pytest.raises(ArgumentError, match="rank 0 got no loss: accepted is one on each rank"):
        placed.backward()


def test_results_without_gradients_are_given_as_they_are():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, x):
            y = self.layer(x)
            return {"y": y, "class": y.argmax(1), "x": x}

    torch.manual_seed(0)
    model, x = Several().double(), FIRST
    placed = DistributedModel(place(copy.deepcopy(model), k=1, example=x), Alone())
    found, expected = placed(x), model(x)
    assert [one.requires_grad for one in found.values()] == [True, False, False]
    for name, one in expected.items():
        assert torch.equal(found[name], one)


def test_an_input_gets_its_gradient(placed, model):
    x, other = (FIRST.clone().requires_grad_() for _ in range(2))
    placed(x).square().sum().backward()
    model(other).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-12, atol=1e-14)
    assert_same_gradients(placed, model)


def test_a_step_refuses_an_input_that_requires_a_gradient(placed):
    with pytest.raises(PlacementError, match="an input requires a gradient, which a step does not"):
        placed.step([FIRST.clone().requires_grad_()], SECOND, nn.functional.mse_loss)


def test_a_frozen_model_returns_what_has_no_gradient(placed):
    placed.requires_grad_(False)
    assert not placed(FIRST).requires_grad
    assert placed(FIRST.clone().requires_grad_()).requires_grad


def test_what_goes_over_all_parameters_takes_the_model_itself(placed):
    """A module around it counted as one of this process alone: each clipped by its own norm."""
    around = nn.Sequential(placed)
    optimizer = torch.optim.SGD(placed.parameters(), lr=0.1)
    for use in (
        lambda: hgpart.clip_grad_norm_(around, 1.0),
        lambda: hgpart.GradScaler(around, "cpu"),
        lambda: hgpart.LBFGS(around),
        lambda: hgpart.gathered_optimizer_state(around, optimizer),
    ):
        with pytest.raises(ArgumentError, match="a Sequential with a DistributedModel in it: acc"):
            use()


def test_a_copy_has_parameters_of_its_own(placed, model):
    """It copied the connection, which can't be."""
    mean = torch.optim.swa_utils.AveragedModel(placed)
    assert mean.module.connection is placed.connection
    for _ in range(2):
        placed.zero_grad()
        placed.backward(placed(FIRST).square().sum())
        torch.optim.SGD(placed.parameters(), lr=0.1).step()
        mean.update_parameters(placed)
    expected = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        model.zero_grad()
        model(FIRST).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        expected.update_parameters(model)
    torch.testing.assert_close(mean(SECOND), expected(SECOND))
