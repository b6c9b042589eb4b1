"""Verification passes right placements, and finds everything that can be wrong with one."""

from __future__ import annotations

import math
from dataclasses import replace

import placements
import pytest
import torch
from partitioned_models import MODELS
from placed_models import model_of, placed
from rich.console import Console
from torch import nn

from hgpart import Modelling, channel_graph, place, trace
from hgpart.errors import ArgumentError, RunError
from hgpart.execution.engine import PartRun
from hgpart.placement.accounting import account, disagreements
from hgpart.placement.programs import Programs
from hgpart.report.verifying import print_verification
from hgpart.run import verifying
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling


def spoiled(placement, part, name, change):
    """Change a tensor that a part holds."""
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(placement.programs.submodule(part).get_submodule(owner), attribute)
    with torch.no_grad():
        change(tensor)


def held(placement, name):
    """A part that holds some of a parameter or buffer, and what it calls that."""
    for part in range(placement.k):
        for attribute, one in placement.programs.slices[part].items():
            if one.name == name and math.prod(one.local_shape):
                return part, attribute
    raise AssertionError(name)


# ------------------------------------------------------------------ what is right


class OverWidth(nn.Sequential):
    """A scale that all channels of a layer share, as the norm of rows and the slope have it."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 2, 3), nn.LayerNorm(4), nn.PReLU(), nn.Conv2d(2, 3, 3))


class Token(nn.Module):
    """A parameter in front of tokens, which a task of what follows reads; and as a result."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 4, 3, 3), nn.Linear(4, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 5, 4))

    def forward(self, image):
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(image.shape[0], -1, -1), tokens], 1) + self.positions
        return self.head(tokens.mean(1)), self.token


class Joined(Token):
    """Two parameters of one task, of which what follows reads the second alone, too.

    The table sent both to all that read either.
    """

    def __init__(self):
        super().__init__()
        self.patches, self.mixed = nn.Conv2d(3, 4, 2, 2), nn.Linear(4, 4)
        self.positions = nn.Parameter(torch.randn(1, 10, 4))

    def forward(self, image):
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        joined = torch.cat([self.token + self.positions[:, :1], self.positions[:, 1:]], 1)
        tokens = torch.cat([self.token.expand(image.shape[0], -1, -1), tokens], 1)
        return self.head((self.mixed(tokens + joined) + self.positions)[:, 0])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("make", "grain"), [(OverWidth, "coarse"), (Token, "fine"), (Joined, "coarse")]
)
def test_what_channels_share_goes_to_each_part_once_whatever_the_slices(make, grain):
    """The table had it once for each slice, the parts once for slices that lie alike."""
    model, inputs = make().double(), torch.randn(6, 3, 6, 6, dtype=torch.float64)
    traced, modelling = trace(model, inputs), Modelling(grain=grain, batch_size=6, slices=6)
    graph = channel_graph(traced)
    drawn = placements.of_single_tasks(traced, graph, modelling, 3, seed=1).partition
    two_ways = drawn.parts.reshape(6, -1)[[0, 1, 0, 0, 1, 1]].ravel()
    plan = placements.partitioned(traced, graph, modelling, 3, drawn.model, two_ways)
    placement = place(model, plan)
    assert len(placement.programs.shares) == 2
    found = verify(model, placement, inputs)
    assert found.failures == ()
    assert (
        found.traffic.forward_bytes.sum() == plan.partition.evaluation.volume == found.planned_bytes
    )
    other = replace(found, planned_bytes=found.planned_bytes + 8)
    assert "by the table of their shares of the batch" in other.failures[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", [*MODELS, "forked"])
def test_placements_pass(name, grain):
    model, inputs = model_of(name)
    placement = placed(model, inputs, grain=grain)
    found = verify(model, placement, inputs)
    assert found.passed
    assert found.failures == found.misplaced == ()
    assert (found.k, found.batch_size, found.training) == (3, 2, True)
    assert (found.dtype, found.outputs.tolerance) == (torch.float64, 1e-10)
    expected = placement.programs.expected(2)
    assert found.traffic.forward_bytes.sum() == expected.volume
    # What comes back is what went there, but for the images.
    images = sum(
        transfer.nbytes(2)
        for transfer in placement.programs.transfers
        if not transfer.differentiable
    )
    if any(parameter.requires_grad for parameter in model.parameters()):
        assert found.traffic.backward_bytes.sum() == expected.volume - images


def test_evaluation_mode_float32_and_one_part():
    model, inputs = model_of("forked")
    model, inputs = model.float().eval(), [one.float() for one in inputs]
    found = verify(model, placed(model, inputs), inputs)
    assert found.passed
    assert (found.dtype, found.gradients.tolerance, found.training) == (torch.float32, 1e-4, False)
    assert verify(model, placed(model, inputs, k=1), inputs).passed


class Aside(nn.Module):
    """In training it has a second head."""

    def __init__(self, aside: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.head, self.aside = nn.Linear(6, 4), aside

    def forward(self, image):
        maps = self.norm(self.stem(image)).relu()
        features = maps.mean((2, 3))
        return (self.head(features), self.aside(maps)) if self.training else self.head(features)


@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize(
    ("first", "aside"), [(True, nn.Conv2d(6, 5, 1)), (True, nn.Softmax(1)), (False, nn.Softmax(1))]
)
def test_after_a_change_of_mode(first, aside, grain):
    """The table was made of the plan's blocks, and the other mode has other layers."""
    torch.manual_seed(0)
    model, inputs = Aside(aside).double().train(first), [torch.randn(2, 3, 5, 5).double()]
    placement = placed(model, inputs, grain=grain)
    for mode in (first, not first, first):
        model.train(mode)
        placement.train(mode)
        found = verify(model, placement, inputs)
        assert found.failures == ()
        assert found.training == mode
        assert found.traffic.forward_bytes.sum() == placement.programs.expected(2).volume
        assert disagreements(account(placement, 2), placement) == ()
        sizes = (sum(value.numel() for value in one.parameters()) for one in (model, placement))
        assert len({*sizes}) == 1  # an optimizer has them all, whatever the mode


def test_a_model_that_does_not_learn():
    model, inputs = model_of("plain")
    model.requires_grad_(False)
    found = verify(model, placed(model, inputs), inputs)
    assert found.passed
    assert found.gradients.value == 0
    assert found.traffic.forward_bytes.any()
    assert not found.traffic.backward_bytes.any()


def test_complex_results_are_rounded_too():
    """They were taken for counters, which are equal or wrong, and so differed by inf."""
    expected = torch.tensor([3.0 + 4.0j, 1.0])
    gap = verifying._gap("result", expected, expected + 2e-3j)
    assert (gap.name, gap.value, gap.scale) == ("result", pytest.approx(2e-3), 5.0)


def test_the_same_seed_gives_the_same_figures_and_the_random_state_stays():
    model, inputs = model_of("forked")
    placement = placed(model, inputs)
    state = torch.get_rng_state()
    first, second = (verify(model, placement, inputs, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.outputs == second.outputs
    assert first.passed
    assert second.passed  # the statistics of both moved on alike


# ------------------------------------------------------------------ what is only rounding


class Rounded(nn.Sequential):
    """A norm and what amplifies rounding by 10^9, or computes in float32 in between."""

    def __init__(self, between):
        super().__init__(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
        self.between = between

    def forward(self, image):
        return self[3](self.between(self[2](self[1](self[0](image)))))


def amplified(maps):
    return (maps * 1e9).sin()


def narrowed(maps):
    return maps.float().double()


@pytest.mark.parametrize("scheduling", [None, Scheduling("greedy", 2)])
@pytest.mark.parametrize(
    ("between", "rounding", "error", "rounded"),
    [
        (amplified, 2**-52, 1e-12, ""),
        (narrowed, 1e-8, 1e-5, ", some of them to float32"),
    ],
)
def test_tolerances_follow_the_models_own_rounding(between, rounding, error, rounded, scheduling):
    """skresnext50 and danet passed or failed by what rounding alone makes of their results."""
    torch.manual_seed(0)
    model, inputs = Rounded(between).double(), [torch.randn(4, 3, 5, 5).double()]
    traced, graph = placements.traced_model(model, inputs)
    placement = place(model, placements.of_single_tasks(traced, graph, Modelling(), 2, seed=1))
    gain = held(placement, "1.weight")
    spoiled(placement, *gain, lambda gain: gain.mul_(1 + rounding))
    found = verify(model, placement, inputs, scheduling=scheduling)
    assert found.failures == ()
    assert 1e-10 < found.outputs.value <= found.outputs.tolerance <= 1e-4
    assert found.outputs.because.startswith("10 times the ")
    assert found.outputs.because.endswith(f"numbers are rounded in another way{rounded}")
    assert (found.buffers.tolerance, found.buffers.because) == (1e-10, "for float64")
    spoiled(placement, *gain, lambda gain: gain.mul_(1 + error))
    found = verify(model, placement, inputs, scheduling=scheduling)
    assert found.failures[0].startswith("outputs differ by ")
    assert found.outputs.because in found.failures[0]


def test_the_model_stays_as_the_pass_left_it():
    torch.manual_seed(0)
    model, inputs = Rounded(amplified).double(), [torch.randn(4, 3, 5, 5).double()]
    placement = placed(model, inputs)
    weights = [weight.detach().clone() for weight in model.parameters()]
    spoiled(placement, *held(placement, "1.weight"), lambda gain: gain.mul_(1 + 2**-52))
    assert verify(model, placement, inputs).outputs.tolerance > 1e-10
    assert all(map(torch.equal, weights, model.parameters()))
    assert model[1].num_batches_tracked == 1
    gradients = [weight.grad for weight in model.parameters()]
    model.load_state_dict({**model.state_dict(), **nn.BatchNorm2d(4).state_dict(prefix="1.")})
    assert verify(model, placed(model, inputs), inputs, tolerance=1.0).passed
    assert all(map(torch.equal, gradients, (weight.grad for weight in model.parameters())))


# ------------------------------------------------------------------ what is wrong


def test_a_wrong_weight_fails():
    model, inputs = model_of("residual")
    placement = placed(model, inputs, grain="fine")
    spoiled(placement, *held(placement, "head.weight"), lambda weight: weight.mul_(1 + 1e-6))
    found = verify(model, placement, inputs)
    assert not found.passed
    assert found.outputs.name == "result"
    assert 1e-9 < found.outputs.value < 1e-4
    assert found.failures[0].startswith("outputs differ by ")
    assert found.failures[0].endswith(", accepted is 1e-10 (for float64)")
    assert verify(model, placement, inputs, tolerance=1e-3).outputs.because == "as asked for"
    assert verify(model, placement, inputs, tolerance=1e-3).passed


def test_a_wrong_statistic_fails():
    model, inputs = model_of("forked")
    placement = placed(model, inputs)
    spoiled(placement, *held(placement, "norm.running_mean"), lambda mean: mean.add_(1e-3))
    found = verify(model, placement, inputs)
    assert found.buffers.name == "norm.running_mean"
    assert [failure.split()[0] for failure in found.failures] == ["buffers"]


def test_a_wrong_counter_fails():
    model, inputs = model_of("forked")
    placement = placed(model, inputs)
    spoiled(placement, *held(placement, "norm.num_batches_tracked"), lambda count: count.add_(1))
    found = verify(model, placement, inputs)
    assert (found.buffers.name, found.buffers.value) == ("norm.num_batches_tracked", math.inf)


def test_a_lost_gradient_fails(monkeypatch):
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    send = PartRun.send_gradient

    def zeros(self, transfer, tensors):
        send(self, transfer, [torch.zeros_like(tensor) for tensor in tensors])

    monkeypatch.setattr(PartRun, "send_gradient", zeros)
    found = verify(model, placement, inputs)
    assert found.gradients.value > 0.1
    assert [failure.split()[0] for failure in found.failures] == ["gradients"]


def test_a_frozen_copy_fails():
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    for parameter in placement.parameters():
        parameter.requires_grad_(False)
    found = verify(model, placement, inputs)
    assert found.gradients.value == 1
    assert any(failure.startswith("backward, ") for failure in found.failures)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_an_uncounted_message_fails(monkeypatch, direction):
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    dropped = next(one for one in placement.programs.transfers if one.differentiable)
    count = PartRun._count

    def lose(self, transfer, tensors, backward):
        if transfer.number != dropped.number or backward != (direction == "backward"):
            count(self, transfer, tensors, backward)

    monkeypatch.setattr(PartRun, "_count", lose)
    found = verify(model, placement, inputs)
    assert len(found.failures) == 2
    way = (dropped.sender, dropped.receiver)
    sender, receiver = way if direction == "forward" else way[::-1]
    for failure, unit in zip(found.failures, ("bytes", "messages"), strict=True):
        assert failure.startswith(f"{direction}, part {sender} sent ")
        assert f" {unit} to part {receiver}, by the table " in failure


def test_another_table_fails(monkeypatch):
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    right = Programs.expected

    def wrong(self, batch_size):
        table = right(self, batch_size)
        return replace(table, traffic=table.traffic + 8)

    monkeypatch.setattr(Programs, "expected", wrong)
    *of_parts, of_all = verify(model, placement, inputs).failures
    assert len(of_parts) == 9
    assert of_all.startswith("forward, parts send ")


@pytest.mark.parametrize("times", [0, 2])
def test_an_element_that_not_exactly_one_part_holds_fails(monkeypatch, times):
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    right = verifying.held_by_parts

    def wrong(placement):
        for part, one, tensor in right(placement):
            for _ in range(times if one.name == "0.weight" else 1):
                yield part, one, tensor

    monkeypatch.setattr(verifying, "held_by_parts", wrong)
    found = verify(model, placement, inputs)
    assert found.misplaced == ("0.weight",)
    assert found.failures == ("an element of 0.weight is in no part, or in several",)


def test_numbers_that_are_none_fail():
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    name = held(placement, "6.bias")
    spoiled(placement, *name, lambda bias: bias.fill_(math.nan))
    found = verify(model, placement, inputs)
    assert found.outputs.value == math.inf
    assert (
        "outputs differ in result: in shape or whole numbers, or in elements that are NaN"
        in str(found.failures)
    )


def test_what_is_nan_in_both_is_equal_and_said(capsys):
    """A difference of NaN from NaN is NaN, which was said to be infinite."""
    model, inputs = model_of("plain")
    with torch.no_grad():
        model[6].bias[0] = math.nan
        model[6].bias[1] = math.inf
    placement = placed(model, inputs)
    found = verify(model, placement, inputs)
    assert found.passed
    assert found.outputs.nan_in == "result"
    print_verification({"model": "plain"}, found, Console(width=200), "MB")
    assert "Of the outputs, result has NaN, at the same places in both" in capsys.readouterr().out
    spoiled(placement, *held(placement, "6.bias"), lambda bias: bias.add_(1.0))
    assert 0 < verify(model, placement, inputs).outputs.value < math.inf  # of the other elements


# ------------------------------------------------------------------ what is refused


def test_arguments():
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    with pytest.raises(ArgumentError, match="the model is in evaluation mode, the placement in tr"):
        verify(model.eval(), placement, inputs)
    model.train()
    with pytest.raises(ArgumentError, match="bfloat16: accepted without a tolerance are float64"):
        verify(model.bfloat16(), placement, inputs)


def test_results_of_another_kind_are_refused():
    model, inputs = model_of("branches")
    placement = placed(model, inputs)
    model.forward = lambda left, right: model.left(left)
    with pytest.raises(RunError, match=r"returns result\[0\], result\[1\]; the original result"):
        verify(model, placement, inputs)


def test_bias_in_front_of_a_norm_is_compared_on_the_scale_of_others():
    """Its gradient is nothing but rounding, which no other order of adding up repeats."""
    model, inputs = model_of("forked")
    found = verify(model, placed(model, inputs, "horizontal"), inputs)
    assert model.stem.bias.grad.abs().max() < 1e-12
    assert found.passed
