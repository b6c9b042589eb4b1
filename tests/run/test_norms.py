"""Running statistics of batches in micro-batches: updated once, from all that norms were given."""

from __future__ import annotations

import copy

import pytest
import torch
from placed_models import Twice, batch_of, model_of, placed
from torch import nn

from hgpart.errors import ArgumentError, PlacementError
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.rules import RULES


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["depthwise", "grouped", "forked"])
def test_all_is_as_of_a_model_that_updates_once(name, grain, rule):
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 5)
    placement = placed(model, inputs, grain=grain, norms="batch")
    for micro_batches in (1, 3):
        found = verify(model, placement, inputs, scheduling=Scheduling(rule, micro_batches))
        assert found.failures == ()
    assert verify(model, placement, inputs).failures == ()  # called like the model


@pytest.mark.parametrize("k", [1, 2])
def test_norms_that_are_called_twice(k):
    torch.manual_seed(0)
    model, inputs = Twice().double(), [torch.randn(6, 3, 8, 8).double()]
    placement = placed(model, inputs, k=k, norms="batch")
    for _ in range(2):
        assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 3)).failures == ()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3, momentum=0.25), nn.Conv2d(3, 4, 3)).double()


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_statistics_of_what_no_norm_changed_are_those_of_the_whole_batch(k, compiled):
    model, images = network(), torch.randn(7, 3, 6, 6).double() * 5 + 100
    before = copy.deepcopy(model.state_dict())
    placement = placed(model, [images], k=k, norms="batch")
    if compiled:
        placement.compile(backend="eager")

    def loss(result, _):
        return result.square().mean()

    def fails(result, _):
        raise ZeroDivisionError("in the loss")

    with pytest.raises(ZeroDivisionError):
        placement.step([images], None, fails, schedule(placement, "greedy", 4))
    assert torch.equal(placement.state_dict()["0.running_mean"], before["0.running_mean"])
    placement.load_state_dict(before)
    placement.step([images], None, loss, schedule(placement, "greedy", 4))
    model(images)
    found = placement.state_dict()
    for name, expected in model[0].named_buffers():
        torch.testing.assert_close(found[f"0.{name}"], expected, rtol=1e-13, atol=0)
    assert found["0.num_batches_tracked"] == 1


def test_evaluation_and_what_is_refused():
    model, inputs = model_of("grouped")
    placement = placed(model, inputs, norms="batch").eval()
    model.eval()
    assert verify(model, placement, inputs, scheduling=Scheduling("greedy", 2)).failures == ()
    assert placement.train().programs.norms == "batch"
    with pytest.raises(ArgumentError, match="norms 'slice': accepted are micro-batch and batch"):
        placed(model, inputs, norms="slice")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True))
    images = [torch.randn(2, 3, 6, 6)]
    assert placed(model, images, k=2).programs.norms == "micro-batch"
    with pytest.raises(PlacementError, match=r"^1 updates running statistics by .*instance_norm"):
        placed(model, images, k=2, norms="batch")
