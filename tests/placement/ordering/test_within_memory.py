"""Parts that recompute as much as they have to: they fit, and compute what they did."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain

import pytest
import torch
from placed_models import batch_of, model_of, placed
from torch import nn

from hgpart.errors import PlanError
from hgpart.execution.held_memory import memory_counted
from hgpart.execution.offloading import graphs
from hgpart.execution.outlines import chunk_steps
from hgpart.machines.machine import SlowerMemory
from hgpart.placement.accounting import known_step_bytes, peak_bytes
from hgpart.placement.ordering.ordered import step_work
from hgpart.placement.ordering.within_memory import dropped_within
from hgpart.run.measuring import mean_square
from hgpart.run.scheduling import schedule
from hgpart.schedules.outline import Stretch

SAMPLES = 4


def step_of(placement, order, inputs):
    """What the parts hold in a step, and the loss, gradients and state."""
    placement.zero_grad()
    torch.manual_seed(2)
    with memory_counted():
        loss = placement.step(inputs, None, lambda result, targets: mean_square(result), order)
    gradients = [parameter.grad for parameter in placement.parameters()]
    state = [*placement.state_dict().values()]
    return placement.runtime.last.peak_bytes, [loss, *gradients, *state]


def deep():
    """Convolutions with norms and dropout, and a batch for them."""
    torch.manual_seed(1)
    layers = []
    for channels in (3, 8, 8, 8, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.Conv2d(8, 4, 1)).double()
    return model, [torch.randn(SAMPLES, 3, 12, 12, dtype=torch.float64)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "rule", "micro_batches"),
    [("layers", "gpipe", 2), ("layers", "zero-bubble", 2), ("layers", "1f1b", 1)],
)
def test_parts_fit_and_compute_the_same(kind, rule, micro_batches):
    """To rounding: where a stretch begins, gradients of a map may be added up in another order."""
    model, inputs = deep()
    placement, other = (placed(copy.deepcopy(model), inputs, kind, k=2) for _ in range(2))
    plain = schedule(placement, rule, micro_batches, batch_size=SAMPLES)
    before = [known.taken for known in known_step_bytes(placement, plain, SAMPLES)]
    seconds = [*step_work(placement.programs).values()]
    expected = step_of(placement, plain, inputs)[1]
    recomputed = 0
    for share in (0.97, 0.9, 0.8):
        limits = [round(share * taken) for taken in before]
        chosen = dropped_within(placement, plain, limits, seconds, SAMPLES)
        if chosen is None:
            continue
        order = schedule(other, rule, micro_batches, batch_size=SAMPLES, recompute=chosen)
        same = replace(plain, outlines=order.outlines)
        taken = [known.taken for known in known_step_bytes(other, same, SAMPLES)]
        assert all(took <= limit for took, limit in zip(taken, limits, strict=True))
        recomputed += sum(map(len, chosen))
        other.load_state_dict(model.state_dict())
        held, found = step_of(other, order, inputs)
        assert held == peak_bytes(other, order, SAMPLES)
        for tensor, expected_tensor in zip(found, expected, strict=True):
            torch.testing.assert_close(tensor, expected_tensor, rtol=1e-12, atol=1e-13)
    assert recomputed


@pytest.mark.few(1)
def test_with_slower_memory_that_is_fast_parts_offload_and_with_a_slow_one_they_recompute():
    model, inputs = deep()
    placement = placed(copy.deepcopy(model), inputs, "layers", k=2)
    plain = schedule(placement, "gpipe", batch_size=SAMPLES)
    before = [known.taken for known in known_step_bytes(placement, plain, SAMPLES)]
    work = step_work(placement.programs).values()
    seconds = [{name: 1e-9 * units for name, units in own.items()} for own in work]
    limits = [round(0.93 * taken) for taken in before]
    for bandwidth, offloads in ((1e18, True), (1.0, False)):
        slower = [SlowerMemory(bandwidth)] * 2
        chosen = dropped_within(placement, plain, limits, seconds, SAMPLES, slower=slower)
        assert chosen is not None
        assert {stretch.offloaded for stretch in chain.from_iterable(chosen)} == {offloads}
        order = schedule(placement, "gpipe", batch_size=SAMPLES, recompute=chosen)
        for known, limit in zip(known_step_bytes(placement, order, SAMPLES), limits, strict=True):
            assert known.taken <= limit
            assert bool(known.offloaded) == offloads
    limits = [round(0.9 * taken) for taken in before]
    assert dropped_within(placement, plain, limits, seconds, SAMPLES) is None
    slowest = [SlowerMemory(1.0)] * 2
    assert dropped_within(placement, plain, limits, seconds, SAMPLES, slower=slowest) is not None


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["gpipe", "zero-bubble"])
@pytest.mark.parametrize(("name", "micro_batches"), [("forked", 2), ("residual", 2), ("tied", 1)])
@pytest.mark.parametrize("offloaded", [False, True])
def test_any_stretches_compute_the_same(name, micro_batches, rule, offloaded, monkeypatch):
    """With dropout, and with norms, whose statistics are updated once."""
    monkeypatch.setattr(graphs, "LEAST", 1)
    model, inputs = model_of(name)
    inputs = batch_of(inputs, SAMPLES)
    expected = None
    for length in (0, 1, 2, 100):
        placement = placed(copy.deepcopy(model), inputs, k=2)
        steps = [[*chain(*chunk_steps(placement.programs.parts[part]))] for part in range(2)]
        stretches = tuple(tuple(in_runs(own, length, offloaded)) for own in steps)
        made = schedule(placement, rule, micro_batches, batch_size=SAMPLES, recompute=stretches)
        held, found = step_of(placement, made, inputs)
        assert held == peak_bytes(placement, made, SAMPLES)
        expected = expected or found
        for tensor, expected_tensor in zip(found, expected, strict=True):
            torch.testing.assert_close(tensor, expected_tensor, rtol=1e-12, atol=1e-13)


def in_runs(steps, length, offloaded):
    """All steps but the first, so many at a time; none if that is 0."""
    begins = range(1, len(steps), length) if length else ()
    return [Stretch(tuple(steps[at : at + length]), offloaded) for at in begins]


def test_what_fits_recomputes_nothing_and_what_can_not_fit_is_none():
    model, inputs = model_of("residual")
    inputs = batch_of(inputs, SAMPLES)
    placement = placed(model, inputs, "layers", k=2)
    plain = schedule(placement, "gpipe", batch_size=SAMPLES)
    before = [known.taken for known in known_step_bytes(placement, plain, SAMPLES)]
    seconds = [*step_work(placement.programs).values()]
    assert dropped_within(placement, plain, before, seconds, SAMPLES) == ((), ())
    assert dropped_within(placement, plain, [None, None], seconds, SAMPLES) == ((), ())
    assert dropped_within(placement, plain, [None, 10], seconds, SAMPLES) is None


def test_the_nearest_step_is_offered():
    model, inputs = model_of("plain")
    placement = placed(model, inputs, "layers", k=2)
    with pytest.raises(PlanError, match=r"no step layer_O: .* with .*; did you mean layer_0\?$"):
        schedule(placement, "gpipe", recompute=((Stretch(("layer_0", "layer_O")),), ()))


@pytest.mark.parametrize(
    "stretches",
    [(("no_such_step",),), (("layer_1", "layer_0"),), (("layer_0",), ("layer_0",)), ((),)],
)
def test_stretches_that_the_program_has_not_are_refused(stretches):
    model, inputs = model_of("plain")
    placement = placed(model, inputs, "layers", k=2)
    with pytest.raises(PlanError, match=r"part 0 is to recompute .*: accepted are"):
        schedule(placement, "gpipe", recompute=(tuple(map(Stretch, stretches)), ()))
