"""What a process gets of a forward pass has gradients in that pass's own backward alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hgpart import place
from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.run.distributed import DistributedModel

FIRST, SECOND = torch.randn(2, 4, 3, dtype=torch.float64)


class Alone:
    """What a `DistributedModel` needs of a connection, of one process."""

    rank, k, nccl, device = 0, 1, False, torch.device("cpu")

    def __init__(self):
        self.told = []

    def gather(self, value):
        return [value]

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


def test_two_passes_and_one_backward_are_refused(placed):
    """The first pass was forgotten: its part of the gradient was that of the second's results."""
    first, second = placed(FIRST), placed(SECOND)
    with pytest.raises(
        RunError, match="the loss depends on the result of an earlier forward pass: accepted"
    ):
        placed.backward(first.square().sum() + second.square().sum())
    assert len(placed.connection.told) == 1
    assert all(one.grad is None for one in placed.parameters())


def test_the_loss_of_a_pass_before_the_last_is_refused(placed):
    first = placed(FIRST)
    placed(SECOND)
    with pytest.raises(RunError, match="the loss depends on the result of an earlier forward pass"):
        placed.backward(first.square().sum())


@pytest.mark.full
def test_a_step_whose_targets_are_what_a_pass_returned_is_refused(placed):
    first = placed(FIRST)
    with pytest.raises(RunError, match="the loss depends on the result of an earlier forward pass"):
        placed.step([SECOND], first, nn.functional.mse_loss)


def test_backward_of_the_loss_itself_is_refused(placed):
    """Nobody went on from the results: parameters had no gradients."""
    loss = placed(FIRST).square().sum()
    with pytest.raises(RunError, match=r"accepted is model\.backward\(loss\), in all processes"):
        loss.backward()
    assert placed.connection.told[0].startswith("loss.backward() on the result of a Distributed")


def test_a_second_backward_is_refused(placed):
    loss = placed(FIRST).square().sum()
    placed.backward(loss)
    with pytest.raises(RunError, match=r"without a forward pass in grad mode before it: accepted"):
        placed.backward(loss)


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


def test_ranks_compare_both_modes_before_they_begin(placed):
    """One in evaluation and one in training made a result of no model."""
    begun = []
    placed._together.agreement.check = lambda own, senders, receivers: begun.append(own)
    placed(FIRST)
    with torch.no_grad():
        placed(FIRST)
        placed.eval().step([FIRST])
    placed.step([FIRST], SECOND[:, :2], nn.functional.mse_loss)
    grad_modes, trainings = zip(*((one.grad_mode, one.training) for one in begun), strict=True)
    assert grad_modes == (True, False, False, True)
    assert trainings == (True, True, False, False)
    assert [one.learns for one in begun] == [False, False, False, True]


def test_those_in_another_mode_are_refused_before_what_all_do_together(placed):
    """It gathered what the others had gathered long before, who did not answer."""

    def refuse(own, senders, receivers):
        raise ArgumentError("another mode")

    placed(FIRST)
    placed.eval()
    placed._together.agreement.check, placed.connection.gather = refuse, None
    with pytest.raises(ArgumentError, match="another mode"):
        placed(FIRST)


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
    with pytest.raises(ArgumentError, match="rank 0 got no loss: accepted is one on rank 0, where"):
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


def test_an_input_that_requires_a_gradient_is_refused(placed):
    """Its gradient, as that of another model's result, would never come."""
    x = FIRST.clone().requires_grad_()
    with torch.no_grad():
        placed(x)
    with pytest.raises(PlacementError, match=r"an input requires a gradient, .*: accepted are"):
        placed(x)


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
