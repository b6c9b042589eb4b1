"""Asynchronous training is what its staleness makes of plain training, and nothing else."""

from __future__ import annotations

import copy
import gc
import threading
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_models import model_of, placed
from stale_training import ended, stale_training
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from toy_programs import Cut, Dense, Model, local

from hgpart.errors import ArgumentError, PlanError
from hgpart.execution.outlines import outline
from hgpart.run.scheduling import schedule
from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Direction

NAMES = ["residual", "tied", "grouped", "branches", "forked", "norms"]
BATCHES = 7
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


class Norms(nn.Module):
    """Norms, of which one is called twice, dropout, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.drop = nn.Conv2d(6, 6, 3, padding=1), nn.Dropout(0.3)
        self.frozen = nn.Conv2d(6, 6, 1).requires_grad_(False)
        self.head = nn.Linear(6 * 4, 5)

    def forward(self, image):
        maps = torch.relu(self.norm(self.first(image)))
        maps = self.drop(self.norm(self.frozen(self.second(maps))))
        return self.head(nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1))


def learner_of(name):
    if name != "norms":
        return model_of(name)
    torch.manual_seed(1)
    return Norms().double(), (torch.randn(2, 3, 6, 6).double(),)


def batches_of(inputs, count=BATCHES, samples=3):
    torch.manual_seed(5)
    return [
        ([torch.randn(samples, *one.shape[1:], dtype=one.dtype) for one in inputs], number)
        for number in range(count)
    ]


def loss_of(result, target):
    """Of anything; the target says how much the parts of it count."""
    tensors = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    return sum((one - 0.1 * target).square().mean() for one in tensors)


def momentum(parameters):
    return torch.optim.SGD([{"params": parameters}], lr=0.05, momentum=0.9, weight_decay=1e-3)


def learned(placement):
    return {
        part: [(held, one) for held, one in placement.held(part) if is_learned(one)]
        for part in range(placement.k)
    }


def is_learned(tensor):
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def trained(placement, order, batches, optimizer_of=momentum, stash=True):
    """The losses of a stream; the same seed each time."""
    optimizers = [
        optimizer_of([one for _, one in of_part]) for of_part in learned(placement).values()
    ]
    torch.manual_seed(3)
    return placement.stream(
        batches, loss_of, lambda part: optimizers[part].step(), order, stash=stash
    )


def executed(order, placement):
    """The schedule of what was done, in the order in which it ended."""
    made = replace(order, order=ended(placement.runtime.last.events))
    assert problems(made) == []
    return made


def agrees(model, placement, order, batches, optimizer_of=momentum):
    """As `stale_training` has it: losses, weights, statistics."""
    pieces = {part: [held for held, _ in several] for part, several in learned(placement).items()}
    losses = trained(placement, order, batches, optimizer_of)
    if order.is_dynamic:
        order = executed(order, placement)
    torch.manual_seed(3)
    expected, weights = stale_training(model, pieces, order, batches, loss_of, optimizer_of)
    torch.testing.assert_close(losses, expected, **TOLERANCE)
    for part, several in learned(placement).items():
        assert [one.grad for _, one in several] == [None] * len(several)
        now = [one.detach() for _, one in several]
        torch.testing.assert_close(now, weights[part], **TOLERANCE)
    buffers = dict(model.named_buffers())
    for name, value in placement.state_dict().items():
        if name in buffers:
            torch.testing.assert_close(value, buffers[name], **TOLERANCE)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("k", "grain", "kind"),
    [
        (3, "coarse", "random"),
        (2, "fine", "random"),
        pytest.param(3, "fine", "random", marks=pytest.mark.full),
        pytest.param(2, "coarse", "layers", marks=pytest.mark.full),
        pytest.param(3, "coarse", "horizontal", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("in_flight", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_plain_training_of_the_same_staleness(name, in_flight, k, grain, kind):
    model, inputs = learner_of(name)
    placement = placed(model, inputs, kind, k, grain)
    order = schedule(placement, "async", BATCHES, in_flight=in_flight)
    agrees(model, placement, order, batches_of(inputs))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_so_where_parts_take_what_is_ready(name):
    """In the order in which actions ended, another one in each run."""
    model, inputs = learner_of(name)
    placement = placed(model, inputs)
    order = schedule(placement, "dynamic", BATCHES, in_flight=3)
    agrees(model, placement, order, batches_of(inputs))
    assert placement.runtime.last.staleness == executed(order, placement).staleness


@settings(deadline=None)
@given(st.data())
def test_it_is_so_whatever_the_costs(data):
    """Other costs, other orders: more staleness, in other parts."""
    name = data.draw(st.sampled_from(NAMES))
    model, inputs = learner_of(name)
    placement = placed(model, inputs, k=data.draw(st.integers(1, 3)))
    costs = Costs(
        work=data.draw(st.sampled_from([0.0, 1e-9, 1e-6])),
        message=data.draw(st.sampled_from([0.0, 1e-5, 1e-3])),
    )
    in_flight = data.draw(st.integers(1, 4))
    order = schedule(placement, "async", BATCHES, costs, in_flight=in_flight)
    # Adam would make steps of the rounding of gradients that a norm behind them leaves 0.
    adam = name in ("residual", "tied") and data.draw(st.booleans())
    agrees(model, placement, order, batches_of(inputs), Adam if adam else momentum)


def Adam(parameters):  # noqa: N802
    return torch.optim.Adam([{"params": parameters}], lr=0.003)


def test_a_cut_between_layers_is_stale_where_batches_are_in_flight():
    """So that the other tests are of what they say."""
    model, inputs = learner_of("residual")
    order = schedule(placed(model, inputs, "layers", 3), "async", 9, in_flight=4)
    assert max(map(max, order.staleness)) >= 2
    one = schedule(placed(model, inputs, "layers", 3), "async", 9, in_flight=1)
    assert one.staleness == ((0,) * 9,) * 3


@pytest.mark.few(2)
@pytest.mark.parametrize("stash", [True, False])
@pytest.mark.parametrize("name", ["tied", "norms", pytest.param("forked", marks=pytest.mark.full)])
def test_one_in_flight_is_synchronous_training_to_the_bit(name, stash):
    model, inputs = learner_of(name)
    batches = batches_of(inputs)
    stream, plain = (placed(copy.deepcopy(model), inputs) for _ in range(2))
    order = schedule(stream, "async", BATCHES, in_flight=1)
    losses = trained(stream, order, batches, stash=stash)
    optimizer = momentum([one for one in plain.parameters() if one.requires_grad])
    torch.manual_seed(3)
    for loss, (images, target) in zip(losses, batches, strict=True):
        optimizer.zero_grad()
        assert torch.equal(loss, plain.step(images, target, loss_of))
        optimizer.step()
    assert all(map(torch.equal, stream.state_dict().values(), plain.state_dict().values()))


def test_the_same_bits_each_time():
    model, inputs = learner_of("norms")
    batches, found = batches_of(inputs), []
    for _ in range(2):
        placement = placed(copy.deepcopy(model), inputs)
        order = schedule(placement, "async", BATCHES, in_flight=4)
        losses = trained(placement, order, batches)
        found.append([*losses, *placement.state_dict().values()])
    assert all(map(torch.equal, *found))


def cut_in_two():
    """Two layers, then one."""
    torch.manual_seed(2)
    layers = (Dense((-1,), 1, (0,) * 5), Dense((0,), 1, (0,) * 4), Dense((1,), 1, (1,) * 2))
    return Cut(Model(layers), 2, output_part=1)


def by_hand(cut, order, batches, stash, rate):
    """Formulas of three layers with tanh, action by action."""
    weights = [
        {at: (linear.weight.detach().clone(), linear.bias.detach().clone())}
        for at, linear in enumerate(cut.model.linears)
    ]
    weights = {at: pair for one in weights for at, pair in one.items()}
    kept, maps, back, gradients, losses = {}, {}, {}, {}, []
    for part, direction, batch, chunk, _ in order.order:
        layers = (0, 1) if part == 0 else (2,)
        x, target = batches[batch]
        if direction is Direction.FORWARD and chunk == len(order.outlines[part].forward) - 1:
            kept[part, batch] = dict(weights)
            maps[batch, -1] = x
            for at in layers:
                weight, bias = weights[at]
                maps[batch, at] = torch.tanh(maps[batch, at - 1] @ weight.T + bias)
            if part == 1:
                difference = maps[batch, 2] - target
                losses.append(difference.square().mean())
                back[batch, 2] = 2 * difference / difference.numel()
        elif direction is Direction.BACKWARD and chunk == len(order.outlines[part].backward) - 1:
            for at in reversed(layers):
                weight, _ = (kept[part, batch] if stash else weights)[at]
                inner = back[batch, at] * (1 - maps[batch, at].square())
                gradients[batch, at] = inner.T @ maps[batch, at - 1], inner.sum(0)
                back[batch, at - 1] = inner @ weight
        elif direction is Direction.UPDATE:
            for at in layers:
                pairs = zip(weights[at], gradients[batch, at], strict=True)
                weights[at] = tuple(one - rate * gradient for one, gradient in pairs)
    return losses, weights


@pytest.mark.parametrize("stash", [True, False])
def test_without_stash_a_batch_goes_back_through_the_newest_weights(stash):
    cut = cut_in_two()
    programs = cut.placed.programs
    outlines = [outline(programs[part], {}) for part in range(2)]
    order = make_schedule(outlines, "async", 8, Costs(message=1.0), in_flight=3)
    assert max(order.staleness[0]) == 2
    batches = [(torch.randn(4, 3).double(), torch.randn(4, 2).double()) for _ in range(8)]
    losses, weights = by_hand(cut, order, batches, stash, rate=0.5)
    others, _ = by_hand(cut, order, batches, not stash, rate=0.5)
    assert not torch.allclose(torch.stack(losses), torch.stack(others), rtol=1e-6)
    optimizers = [torch.optim.SGD(programs[part].module.parameters(), lr=0.5) for part in range(2)]
    found = []
    local(cut.placed).stream(
        order,
        iter([{"x": x} for x, _ in batches]),
        lambda part: lambda batch, results: (results[0] - batches[batch][1]).square().mean(),
        lambda part: optimizers[part].step(),
        lambda part, loss: found.append(loss) if part == cut.output_part else None,
        stash,
    )
    torch.testing.assert_close(found, losses, **TOLERANCE)
    for part in range(2):
        for share in programs[part].module.children():
            if hasattr(share, "weight"):
                assert any(
                    share.weight.shape == weight.shape
                    and torch.allclose(share.weight, weight, rtol=1e-10)
                    and torch.allclose(share.bias, bias, rtol=1e-10)
                    for weight, bias in weights.values()
                )


@pytest.mark.parametrize("stash", [True, False])
def test_versions_are_freed_when_no_batch_has_them(stash):
    """No more are there than batches in flight and the newest; at the end, the newest alone."""
    model, inputs = learner_of("residual")
    placement = placed(model, inputs, "layers", 3)
    order = schedule(placement, "async", 12, in_flight=4)
    versions: list[list[StorageWeakRef]] = [[] for _ in range(3)]
    most = [0] * 3
    held = {part: [one for _, one in several] for part, several in learned(placement).items()}

    def living(part):
        return len({one.cdata for one in versions[part] if not one.expired()})

    def update(part):
        with torch.no_grad():
            for one in held[part]:
                one.sub_(one.grad, alpha=0.01)
        if held[part]:
            versions[part].append(StorageWeakRef(held[part][0].untyped_storage()))
            most[part] = max(most[part], living(part))

    gc.disable()  # nothing waits for it
    try:
        placement.stream(batches_of(inputs, 12), loss_of, update, order, stash=stash)
        for part in range(3):
            assert living(part) == (1 if held[part] else 0)
            stale = max(order.staleness[part])
            assert most[part] <= (1 + stale if stash else 1)
    finally:
        gc.enable()
    assert max(most) > 1 or not stash


def test_batches_are_asked_for_when_they_begin():
    model, inputs = learner_of("residual")
    placement = placed(model, inputs, "layers", 3)
    order = schedule(placement, "async", 12, in_flight=2)
    asked, ended = [], []

    def batches():
        for batch in batches_of(inputs, 12):
            asked.append(batch)
            # Each part may have two, and there are three parts in a row.
            assert len(asked) - len(ended) <= 7
            yield batch

    losses = placement.stream(
        batches(), loss_of, lambda part: None, order, on_loss=lambda loss: ended.append(loss)
    )
    assert (len(asked), losses) == (12, ended)


def test_a_part_ends_a_batch_while_another_waits_for_one():
    """The same lock was for both: all stood still while a batch was loaded."""
    model, inputs = learner_of("residual")
    placement = placed(model, inputs, "layers", 2)
    order = schedule(placement, "async", 3, in_flight=2)
    ended = threading.Event()

    def batches():
        first, *rest = batches_of(inputs, 3)
        yield first
        assert ended.wait(60)  # or they wait for each other
        yield from rest

    placement.stream(batches(), loss_of, lambda part: None, order, on_loss=lambda loss: ended.set())


@pytest.mark.parametrize("rule", ["async", "dynamic"])
def test_a_part_that_waits_for_nobody_does_not_run_ahead(rule):
    """As its layers are frozen, no gradients come back that it would have to wait for."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6).requires_grad_(False)]
    model = nn.Sequential(*layers, nn.Linear(6, 6), nn.Linear(6, 6)).double()
    inputs = (torch.randn(2, 6).double(),)
    placement = placed(model, inputs, "layers", 4)
    order = schedule(placement, rule, 40, in_flight=2)
    asked, ended, ahead = [], [], []

    def batches():
        for batch in batches_of(inputs, 40):
            asked.append(batch)
            ahead.append(len(asked) - len(ended))
            yield batch

    def end(part):
        if part == placement.programs.output_part:
            time.sleep(0.002)

    placement.stream(batches(), loss_of, end, order, on_loss=ended.append)
    assert max(ahead) <= order.under_way + 1 < 12
    agrees(model, placement, order, batches_of(inputs, 40))


def test_one_part_is_plain_training():
    model, inputs = learner_of("forked")
    placement = placed(model, inputs, k=1)
    order = schedule(placement, "async", BATCHES, in_flight=3)
    assert order.staleness == ((0,) * BATCHES,)
    agrees(model, placement, order, batches_of(inputs))
    assert placement.runtime.last.staleness == order.staleness


def test_what_is_no_stream_is_refused():
    model, inputs = learner_of("residual")
    placement = placed(model, inputs, "layers", 2)
    order, batches = schedule(placement, "async", 3), batches_of(inputs, 3)

    def refused(message, order=order, batches=batches, loss_fn=loss_of, error=ArgumentError):
        with pytest.raises(error, match=message):
            placement.stream(batches, loss_fn, lambda part: None, order)

    refused("a stream by a greedy schedule: accepted are the rules async and", schedule(placement))
    refused("2 batches: accepted are 3, as the schedule has", batches=batches[:2])
    refused("a loss of shape", loss_fn=lambda result, _: result)
    refused("without gradients", loss_fn=lambda result, _: result.sum().detach())
    other = schedule(placed(*learner_of("tied"), k=2), "async", 3)
    refused("is for other chunks", other, error=PlanError)
    with torch.no_grad():
        refused("a stream without grad mode")
    with pytest.raises(ArgumentError, match="a step by the rule async"):
        placement.step(batches[0][0], 0, loss_of, order)
    with pytest.raises(ArgumentError, match="'async' without backward passes"):
        schedule(placement, "async", backward=False)
    with pytest.raises(ArgumentError, match="3 batches in flight by greedy: accepted with async"):
        schedule(placement, "greedy", in_flight=3)
    with pytest.raises(ArgumentError, match="0 batches in flight: accepted is 1 to 1000"):
        schedule(placement, "async", in_flight=0)
    trained(placement, order, batches)  # it can go on
    hook = next(placement.parameters()).register_post_accumulate_grad_hook(lambda one: None)
    refused("a stream with a hook on .*weight")
    hook.remove()
    trained(placement, order, batches)
    placement.compile(backend="eager")
    refused("a stream of steps that torch.compile has compiled")
