"""What parts hold in a step: as computed, to the byte; less where chunks are computed again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import MODELS
from placed_models import TRACES, Counts, Twice, batch_of, compiled_once, model_of, placed
from placements import of_random_blocks
from rich.console import Console
from torch import nn

from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.held_memory import memory_counted
from hgpart.execution.offloading import graphs
from hgpart.execution.outlines import chunk_steps
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.placement import place
from hgpart.placement.accounting import peak_bytes
from hgpart.report.running import RunReport, print_run, run_json
from hgpart.run.measuring import mean_square, measure
from hgpart.run.placed_model import PlacedModel
from hgpart.run.scheduling import schedule
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.outline import Stretch
from hgpart.schedules.rules import RULES
from hgpart.tracing.traced_model import trace


class Picks(nn.Module):
    """The shape of what it picks goes by values, which tensors without memory have not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(4, 4, 1)
        self.register_buffer("mask", torch.tensor([True, False, True, True, False, True]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)[:, self.mask])


def loss_of(result, targets):
    return mean_square(result)


def counted(placement, inputs, order):
    """What the parts held in a step with gradients, and what came of it."""
    placement.zero_grad()
    torch.manual_seed(2)
    with memory_counted():
        loss = placement.step(inputs, None, loss_of, order)
    gradients = [one.grad for one in placement.parameters()]
    return placement.runtime.last.peak_bytes, [loss, *gradients, *placement.state_dict().values()]


def alike(first: Iterable[torch.Tensor | None], second: Iterable[torch.Tensor | None]) -> bool:
    return all(
        one is other is None or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(first, second, strict=True)
    )


def check(make, inputs, rule, micro_batches):
    """Computed is counted, with and without; computing again takes no more and changes no bit."""
    outcomes, peaks = [], []
    for recompute in (False, True):
        placement = make()
        order = schedule(placement, rule, micro_batches, recompute=recompute)
        computed = peak_bytes(placement, order, len(inputs[0]))
        found, made = counted(placement, inputs, order)
        assert found == computed
        outcomes.append(made)
        peaks.append(found)
    assert all(less <= more for more, less in zip(*peaks, strict=True))
    assert alike(*outcomes)
    plain = peak_bytes(placement, order.keeping(range(order.k)))
    for less, more, outline in zip(computed, plain, order.outlines, strict=True):
        assert less < more if outline.dropped else less == more


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rule", "name", "norms"),
    [
        ("sequential", "forked", "micro-batch"),
        pytest.param("gpipe", "residual", "micro-batch", marks=pytest.mark.full),
        ("1f1b", "grouped", "batch"),
        pytest.param("zero-bubble", "tied", "micro-batch", marks=pytest.mark.full),
        ("greedy", "depthwise", "batch"),
    ],
)
def test_what_is_computed_is_what_is_held(rule, name, norms):
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 4)  # as the plan has it
    check(lambda: placed(copy.deepcopy(model), inputs, norms=norms), inputs, rule, 3)


@pytest.mark.full
@given(
    st.sampled_from([*MODELS, "forked"]),
    st.sampled_from(["coarse", "fine"]),
    st.sampled_from([*RULES]),
    st.integers(1, 4),
    st.integers(0, 1000),
)
def test_of_any_partition(name, grain, rule, micro_batches, seed):
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 4)
    if any(one.requires_grad for one in model.parameters()):
        key = "memory", name
        if key not in TRACES:
            TRACES[key] = trace(model, inputs)
        traced, modelling = TRACES[key], Modelling(grain=grain, batch_size=4)
        plan = of_random_blocks(traced, channel_graph(traced), modelling, 1 + seed % 4, seed)
        check(lambda: place(copy.deepcopy(model), plan), inputs, rule, micro_batches)


def test_two_layers_by_hand():
    """A convolution each; the first keeps the image and what its ReLU made, the second that."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    inputs = [torch.randn(4, 3, 6, 6)]
    placement = placed(model, inputs, "layers", k=2)
    image, maps, result = 4 * 3 * 36, 4 * 8 * 16, 4 * 4 * 16  # bytes of a sample
    for rule, alive in (("sequential", 1), ("gpipe", 4)):
        order = schedule(placement, rule, 4)
        expected = alive * (image + maps), alive * (maps + result)  # with the result's gradient
        assert peak_bytes(placement, order) == counted(placement, inputs, order)[0] == expected
    # What the first keeps of all but one is the image; the second reads no less than it keeps.
    order = schedule(placement, "gpipe", 4, recompute=True)
    assert [outline.dropped for outline in order.outlines] == [(Stretch(("layer_0",)),), ()]
    expected = 4 * image + maps, 4 * (maps + result)
    assert peak_bytes(placement, order) == counted(placement, inputs, order)[0] == expected
    with torch.no_grad():
        assert peak_bytes(placement, order.forward_only) == (0, 0)
    with pytest.raises(ArgumentError, match="4 micro-batches of a batch of 3: accepted are 1 to 3"):
        peak_bytes(placement, order, 3)


def test_what_is_computed_again_goes_by_the_batch_of_the_step():
    """Not by the plan's, which has four samples."""
    model, inputs = model_of("plain")
    placement = placed(model, inputs, "layers", k=2)
    of_one, unknown, many = (
        schedule(placement, "gpipe", 8, recompute=True, batch_size=size) for size in (8, None, 40)
    )
    assert of_one.order == unknown.order
    assert any(outline.dropped for outline in unknown.outlines)
    assert peak_bytes(placement, unknown) == peak_bytes(placement, of_one, 8)
    for order, size in ((of_one, 8), (many, 40)):
        less = peak_bytes(placement, order, size)
        assert less == counted(placement, batch_of(inputs, size), order)[0]
        plain = peak_bytes(placement, order.keeping(range(order.k)), size)
        assert all(one <= other for one, other in zip(less, plain, strict=True))
    with pytest.raises(ArgumentError, match="8 micro-batches of a batch of 7: accepted are 1 to 7"):
        schedule(placement, "gpipe", 8, recompute=True, batch_size=7)
    scheduling = Scheduling("gpipe", 8, recompute=True)
    assert verify(model, placement, batch_of(inputs, 8), scheduling=scheduling).failures == ()
    learner = PlacedModel(placement, scheduling)
    assert learner.peak_bytes(8) == peak_bytes(placement, of_one, 8)


def test_what_cannot_be_computed_without_memory_is_said_and_ends_no_run(capsys):
    inputs = [torch.randn(4, 3, 6, 6)]
    placement = placed(Picks(), inputs, "layers", k=2)
    found = measure(placement, inputs[0], 1, backward=True, scheduling=Scheduling("gpipe", 2))
    assert all(found.peak_bytes)
    part = found.planned_peak_bytes.index(None)
    assert found.planned_peak_bytes[1 - part] == found.peak_bytes[1 - part]
    planned = placement.programs.expected_traffic((2, 2), backward=True)  # of the only step
    report = RunReport("picks", ("cpu",) * 2, "threads", found, planned, Scheduling("gpipe", 2))
    assert json.loads(run_json(report))["parts"][part]["planned_peak_bytes"] is None
    print_run(report, Console(width=200), "MB")
    table = capsys.readouterr().out.splitlines()
    assert [row.split()[-1] == "-" for row in table if " (cpu)" in row] == [part == 0, part == 1]
    order = schedule(placement, "gpipe", 2)
    for wanted in (
        lambda: peak_bytes(placement, order),
        placement.report,
        lambda: schedule(placement, "gpipe", 2, recompute=True),
    ):
        with pytest.raises(PlacementError, match=rf"part {part} .* can't be run without memory: "):
            wanted()


@pytest.mark.few(1)
@pytest.mark.parametrize("training", [True, False])
def test_forward_passes_hold_what_later_chunks_read(training):
    model, inputs = model_of("residual")
    inputs = batch_of(inputs, 5)
    placement = placed(model.train(training), inputs)
    order = schedule(placement, "greedy", 2, backward=False)
    with torch.no_grad(), memory_counted():
        placement.step(inputs, None, loss_of, order)
    found = placement.runtime.last.peak_bytes
    assert found == peak_bytes(placement, order, 5)
    assert any(found)


@pytest.mark.few(1)
@pytest.mark.parametrize("recompute", [False, True])
def test_norms_in_evaluation_keep_no_statistics_of_the_batch_for_backward(recompute):
    """Without memory they gave autograd two empty vectors of all channels, which were counted."""
    model, inputs = model_of("forked")
    inputs = batch_of(inputs, 5)
    placement = placed(model.eval(), inputs)
    order = schedule(placement, "greedy", 2, recompute=recompute)
    assert counted(placement, inputs, order)[0] == peak_bytes(placement, order, 5)


def test_steps_that_do_not_ask_are_not_counted():
    model, inputs = model_of("plain")
    placement = placed(model, inputs)
    placement.step(inputs, None, loss_of)
    assert placement.runtime.last.peak_bytes == ()


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "micro_batches"), [(Twice, 3), (Counts, 1)])
def test_state_that_a_pass_changes_is_as_it_was_when_chunks_are_computed_again(kind, micro_batches):
    torch.manual_seed(0)
    model, inputs = kind().double(), [torch.randn(6, 3, 8, 8).double()]
    placement = placed(model, inputs, k=2)
    scheduling = Scheduling("gpipe", micro_batches, recompute=True)
    order = schedule(placement, "gpipe", micro_batches, recompute=True)
    assert any(outline.dropped for outline in order.outlines)
    assert verify(model, placement, inputs, scheduling=scheduling).failures == ()


@pytest.mark.full
@pytest.mark.long
def test_compiled_steps_are_computed_again():
    model, inputs = model_of("grouped")
    inputs = batch_of(inputs, 5)
    placement = placed(model, inputs)
    compiled_once(placement)
    for rule in ("greedy", "zero-bubble"):
        scheduling = Scheduling(rule, 2, recompute=True)
        assert verify(model, placement, inputs, scheduling=scheduling).failures == ()


def streamed(placement, order, batches, **options):
    """What the parts held in a stream, and what came of it."""
    optimizers = [
        torch.optim.SGD([*placement.programs.submodule(part).parameters()], lr=0.05, momentum=0.9)
        for part in range(placement.k)
    ]
    torch.manual_seed(2)
    with memory_counted():
        losses = placement.stream(
            [(inputs, None) for inputs in batches],
            loss_of,
            lambda part: optimizers[part].step(),
            order,
            **options,
        )
    return placement.runtime.last.peak_bytes, [*losses, *placement.state_dict().values()]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "in_flight"),
    [
        *(("forked", 1), ("tied", 2), ("depthwise", 4)),
        *(pytest.param(*one, marks=pytest.mark.full) for one in (("residual", 2), ("grouped", 3))),
    ],
)
def test_streams_hold_what_is_computed_and_compute_again_with_their_batchs_weights(name, in_flight):
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 4)  # as the plan has it
    torch.manual_seed(5)
    batches = [[torch.randn_like(one) for one in inputs] for _ in range(2 * in_flight + 2)]
    outcomes, orders = [], []
    for recompute in (False, True):
        placement = placed(copy.deepcopy(model), inputs)
        options = {"in_flight": in_flight, "recompute": recompute}
        order = schedule(placement, "async", len(batches), **options)
        held, made = streamed(placement, order, batches)
        assert held == peak_bytes(placement, order)
        longer = schedule(placement, "async", 2 * len(batches), **options)
        assert held == peak_bytes(placement, longer)  # so many batches show how it goes on
        outcomes.append((held, made))
        orders.append(order)
    assert orders[0].order == orders[1].order
    (plain, expected), (less, made) = outcomes
    assert alike(expected, made)
    for outline, one, other in zip(orders[1].outlines, less, plain, strict=True):
        assert one < other if outline.dropped else one == other


@pytest.mark.parametrize("stash", [True, False])
@pytest.mark.parametrize("name", ["residual", "tied"])
def test_streams_offload_and_learn_the_same_with_stash_and_without(name, stash, monkeypatch):
    """All steps are offloaded, of three batches at a time; weights that updates change stay."""
    monkeypatch.setattr(graphs, "LEAST", 1)
    model, inputs = model_of(name)
    inputs = batch_of(inputs, 4)
    torch.manual_seed(5)
    batches = [[torch.randn_like(one) for one in inputs] for _ in range(6)]
    placement = placed(copy.deepcopy(model), inputs)
    chunks = [chunk_steps(placement.programs.parts[part]) for part in range(placement.k)]
    everything = tuple((Stretch(tuple(chain(*own)), offloaded=True),) for own in chunks)
    outcomes = []
    for recompute in (False, everything):
        placement = placed(copy.deepcopy(model), inputs)
        order = schedule(placement, "async", 6, in_flight=3, recompute=recompute)
        outcomes.append(streamed(placement, order, batches, stash=stash))
        assert not stash or outcomes[-1][0] == peak_bytes(placement, order)
    (plain, expected), (less, made) = outcomes
    assert alike(expected, made)
    assert all(one <= other for one, other in zip(less, plain, strict=True))
    assert sum(less) < sum(plain)


def test_state_that_a_pass_changes_is_as_it_was_in_streams_too():
    for kind in (Twice, Counts):
        outcomes = []
        for recompute in (False, True):
            torch.manual_seed(0)
            model, inputs = kind().double(), [torch.randn(6, 3, 8, 8).double()]
            placement = placed(model, inputs, k=2)
            order = schedule(placement, "async", 5, in_flight=2, recompute=recompute)
            assert recompute == any(outline.dropped for outline in order.outlines)
            outcomes.append(streamed(placement, order, [inputs] * 5)[1])
        assert alike(*outcomes)


def test_without_stash_nothing_is_computed_again():
    model, inputs = model_of("residual")
    placement = placed(model, inputs)
    said = "recompute without stash, with newer weights than the forward pass had: accepted is"
    with pytest.raises(ArgumentError, match=said):
        Scheduling("async", stash=False, recompute=True)
    order = schedule(placement, "async", 2, recompute=True)
    assert any(outline.dropped for outline in order.outlines)
    with pytest.raises(ArgumentError, match=said):
        placement.stream([(inputs, None)] * 2, loss_of, id, order, stash=False)
    learner = PlacedModel(placement, Scheduling("async"))
    assert learner.peak_bytes(4) == peak_bytes(placement, learner.schedule(6), 4)
