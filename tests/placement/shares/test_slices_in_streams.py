"""Streams by plans over slices are plain training of the staleness that is said of each part."""

from __future__ import annotations

import copy
import json
from dataclasses import astuple

import placements
import pytest
import sliced_ranks
import torch
from changed_models import taught
from hypothesis import given
from hypothesis import strategies as st
from placed_models import model_of
from stale_training import stale_training, training_in_turns
from torch import nn
from torch.utils import _pytree as pytree

from hgpart import Modelling, Placement, place
from hgpart.errors import ArgumentError, PlacementError, PlanError
from hgpart.execution.held_memory import memory_counted
from hgpart.execution.records.totals import Traffic
from hgpart.placement.accounting import peak_bytes
from hgpart.run.placed_model import expected_traffic
from hgpart.run.processes.launch import launch
from hgpart.run.scheduling import schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.schedule import Schedule

NAMES = ["residual", "tied", "plain", "branches", "dropped"]
MAKES = [placements.of_random_blocks, placements.of_shared_layers, placements.of_data_parallel]
BATCHES, SAMPLES = 5, 4
TRACES = {}


def learner_of(name):
    if name != "dropped":
        return model_of(name)
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Dropout(0.4), nn.Conv2d(6, 4, 3), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(16, 6))
    return model.double(), (torch.randn(2, 3, 6, 6, dtype=torch.float64),)


def batches_of(inputs, count=BATCHES):
    torch.manual_seed(5)
    return [
        (
            [torch.randn(SAMPLES, *one.shape[1:], dtype=one.dtype) for one in inputs],
            torch.randn(SAMPLES, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def loss_of(result, target):
    """Of anything, a mean over samples."""
    tensors = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
    return sum((one - target.view(-1, *[1] * (one.dim() - 1))).square().mean() for one in tensors)


def momentum(parameters):
    return torch.optim.SGD([{"params": parameters}], lr=0.05, momentum=0.9, weight_decay=1e-3)


def in_slices(
    name, model, inputs, slices=3, k=2, grain="coarse", seed=0, make=MAKES[0], norms="slice"
) -> Placement:
    if name not in TRACES:
        TRACES[name] = placements.traced_model(model, inputs)
    modelling = Modelling(grain=grain, batch_size=SAMPLES, slices=slices, norms=norms)
    return place(copy.deepcopy(model), make(*TRACES[name], modelling, k, seed=seed))


def learned(placement):
    """What each part has of the parameters that learn."""
    return {
        part: [(held, one) for held, one in placement.held(part) if one.requires_grad]
        for part in range(placement.k)
    }


def trained(placement, order, batches):
    optimizers = [momentum([one for _, one in several]) for several in learned(placement).values()]
    torch.manual_seed(3)
    return placement.stream(batches, loss_of, lambda part: optimizers[part].step(), order)


def agrees(model, placement: Placement, order: Schedule, batches) -> None:
    """Losses, weights, bytes; and what comes behind is of the new weights."""
    losses = trained(placement, order, batches)
    table = placement.programs.expected_traffic((SAMPLES,), backward=True)
    sent = placement.runtime.last.traffic
    for way in ("forward", "backward"):
        for what in ("bytes", "messages"):
            name = f"{way}_{what}"
            assert (getattr(sent, name) == len(batches) * getattr(table, name)).all()
    pieces = {part: [held for held, _ in several] for part, several in learned(placement).items()}
    holders = {
        part: {one.holder for one in placement.copies.present.weights if one.owner == part} - {part}
        for part in range(placement.k)
    }
    torch.manual_seed(3)
    expected, weights = stale_training(model, pieces, order, batches, loss_of, momentum, holders)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(losses, expected, **close)
    for part, several in learned(placement).items():
        assert all(one.grad is None for _, one in several)
        torch.testing.assert_close([one.detach() for _, one in several], weights[part], **close)
    state = placement.state_dict()
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(state[name], buffer, **close)
    trained_model = copy.deepcopy(model)
    trained_model.load_state_dict(placement.state_dict())
    found = []
    for one in (placement.step, lambda images, target, loss: loss(trained_model(*images), target)):
        torch.manual_seed(4)
        found.append(one(*batches[0], loss_of))
    torch.testing.assert_close(*found, **close)


@pytest.mark.full
@pytest.mark.long
@given(
    name=st.sampled_from(NAMES),
    slices=st.integers(2, 3),
    k=st.sampled_from([2, 3]),
    grain=st.sampled_from(["coarse", "fine"]),
    make=st.sampled_from(MAKES),
    in_flight=st.integers(1, 4),
    message=st.sampled_from([0.0, 1e-5, 1e-3]),
    seed=st.integers(0, 99),
)
def test_it_is_plain_training_of_the_same_staleness(
    name, slices, k, grain, make, in_flight, message, seed
):
    model, inputs = learner_of(name)
    placement = in_slices(name, model, inputs, max(slices, k), k, grain, seed, make)
    costs = Costs(work=1e-9, message=message)
    order = schedule(placement, "async", BATCHES, costs, in_flight=in_flight)
    assert problems(order) == []
    if len(placement.programs.shares) > 1:
        agrees(model, placement, order, batches_of(inputs))


@given(
    name=st.sampled_from(["residual", "plain", "branches", "dropped"]),
    slices=st.integers(2, 3),
    k=st.sampled_from([2, 3]),
    make=st.sampled_from(MAKES),
    in_flight=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_in_turns_it_is_plain_training_by_the_weights_that_were_there(
    name, slices, k, make, in_flight, seed
):
    """A whole batch by the parts of one slice; and the bytes are those of its messages."""
    model, inputs = learner_of(name)
    placement = in_slices(name, model, inputs, max(slices, k), k, "coarse", seed, make)
    batches = batches_of(inputs)
    order = schedule(placement, "turns", BATCHES, in_flight=in_flight)
    assert problems(order) == []
    losses = trained(placement, order, batches)
    torch.manual_seed(3)
    expected, weights = training_in_turns(model, placement, batches, loss_of, momentum)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(losses, expected, **close)
    for part, several in learned(placement).items():
        assert all(one.grad is None for _, one in several)
        torch.testing.assert_close([one.detach() for _, one in several], weights[part], **close)
    assert all(stale < in_flight for own in placement.runtime.last.staleness for stale in own)
    traffic = placement.runtime.last.traffic
    for sent, counted in zip(astuple(traffic), astuple(traffic_in_turns(placement)), strict=True):
        assert (sent == counted).all()
    by_plan = expected_traffic(placement, Scheduling("turns"), BATCHES, SAMPLES)
    for name in ("forward_bytes", "forward_messages", "backward_bytes", "backward_messages"):
        assert (getattr(traffic, name) == getattr(by_plan, name)).all()
    if in_flight == 1:
        plain = copy.deepcopy(model)
        optimizer = momentum([one for one in plain.parameters() if one.requires_grad])
        torch.manual_seed(3)
        for loss, (images, target) in zip(losses, batches, strict=True):
            optimizer.zero_grad()
            found = loss_of(plain(*images), target)
            found.backward()
            optimizer.step()
            torch.testing.assert_close(found.detach(), loss, **close)


def test_a_placement_whose_batches_had_turns_may_be_copied_and_cast():
    """A copy sent the weights of the first one; and programs of turns could not be cast."""
    model, inputs = learner_of("dropped")
    placement = in_slices("dropped", model, inputs, 2, make=MAKES[2])
    order = schedule(placement, "turns", 2, in_flight=1)
    trained(placement, order, batches_of(inputs, 2))
    batches = [([images.float()], target.float()) for (images,), target in batches_of(inputs, 2)]
    losses = [
        trained(each.float(), order, batches) for each in (copy.deepcopy(placement), placement)
    ]
    assert torch.equal(*map(torch.stack, losses))


def traffic_in_turns(placement):
    """Maps of each batch's turn, new weights for the copies of all turns, gradients of its own."""
    found = Traffic.none(placement.k)
    turns, copies = placement.forms.turns, placement.copies.in_turns(lambda here: [here])
    for batch in range(BATCHES):
        for one in turns[batch % len(turns)].transfers:
            ends = one.sender, one.receiver
            found.count(ends, one.nbytes(SAMPLES), backward=False, counted=one.counted)
            if one.differentiable:
                found.count(ends[::-1], one.nbytes(SAMPLES), backward=True, counted=one.counted)
        for one in copies.weights:
            if one.owner != one.holder:
                ends = one.owner, one.holder
                found.count(ends, copies.nbytes(one), backward=False, counted=True)
        for one in copies.of_turns[batch % len(turns)]:
            if one.owner != one.holder:
                ends = one.holder, one.owner
                found.count(ends, copies.nbytes(one), backward=True, counted=True)
    return found


def test_a_gradient_of_zero_is_a_gradient():
    """It arrived as none where all of it came from other parts: weights did not decay."""
    model, inputs = learner_of("plain")
    placement = in_slices("plain", model, inputs, 2, make=MAKES[2])
    gradients = []

    def update(part):
        gradients.extend(tensor.grad for _, tensor in learned(placement)[part])

    order = schedule(placement, "turns", 2, in_flight=1)
    placement.stream(batches_of(inputs, 2), lambda *found: 0 * loss_of(*found), update, order)
    assert gradients and None not in gradients


@pytest.mark.parametrize("make", [MAKES[0], MAKES[2]])
def test_batches_in_flight_are_stale(make):
    """So that the test above is of what it says."""
    model, inputs = learner_of("dropped")
    placement = in_slices("dropped", model, inputs, 2, make=make)
    order = schedule(placement, "async", 6, Costs(message=1e-3), in_flight=2)
    assert max(map(max, order.staleness)) == 1
    agrees(model, placement, order, batches_of(inputs, 6))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("dropped", "async"),
        ("dropped", "dynamic"),
        pytest.param("forked", "async", marks=pytest.mark.full),
        pytest.param("grouped", "dynamic", marks=pytest.mark.full),
    ],
)
def test_one_in_flight_is_synchronous_training_to_the_bit(name, rule):
    """With norms, too, whose statistics are of each slice."""
    model, inputs = learner_of(name)
    if name == "forked":
        model = nn.Sequential(model.stem, model.norm, nn.ReLU(), model.drop, model.heads[0])
    batches = batches_of(inputs)
    stream, plain = (in_slices(f"{name} 1", model, inputs, 2) for _ in range(2))
    losses = trained(stream, schedule(stream, rule, BATCHES, in_flight=1), batches)
    optimizer = momentum([one for one in plain.parameters() if one.requires_grad])
    torch.manual_seed(3)
    for loss, (images, target) in zip(losses, batches, strict=True):
        optimizer.zero_grad()
        assert torch.equal(loss, plain.step(images, target, loss_of))
        optimizer.step()
    assert all(map(torch.equal, stream.state_dict().values(), plain.state_dict().values()))


@pytest.mark.full
def test_parts_hold_what_is_computed_and_compute_again_with_their_batchs_weights():
    model, inputs = learner_of("residual")
    batches, found = batches_of(inputs, 6), []
    for recompute in (False, True):
        placement = in_slices("residual", model, inputs)
        order = schedule(placement, "async", 6, in_flight=2, recompute=recompute)
        with memory_counted():
            losses = trained(placement, order, batches)
        assert placement.runtime.last.peak_bytes == peak_bytes(placement, order, SAMPLES)
        found.append([*losses, *placement.state_dict().values()])
    assert all(map(torch.equal, *found))


def test_what_is_refused():
    model, inputs, _ = taught()
    placement = in_slices("taught", model, inputs)
    batches = batches_of(inputs, 3)
    with pytest.raises(ArgumentError, match="turns with maps recomputed or offloaded: accepted"):
        schedule(placement, "turns", 3, recompute=True)
    order = schedule(placement, "async", 3)
    with pytest.raises(ArgumentError, match="without stash by a plan over slices"):
        placement.stream(batches, loss_of, lambda part: None, order, stash=False)
    bare = schedule(placement, "async", 3)
    for outline in bare.outlines:
        vars(outline)["owners"] = ()
    with pytest.raises(PlanError, match="share other weights than part 0 does"):
        placement.stream(batches, loss_of, lambda part: None, bare)

    def change(part):
        for held, one in placement.held(part):
            if held.name == "scale":
                one.data.mul_(2)

    with pytest.raises(PlacementError, match="what does not learn was changed in a stream"):
        placement.stream(batches, loss_of, change, order)


@pytest.mark.parametrize(
    ("slices", "bands", "norms", "make"),
    [
        (1, 4, "slice", placements.of_whole_tiles),
        (3, 1, "batch", placements.of_random_blocks),
        pytest.param(2, 3, "batch", placements.of_whole_tiles, marks=pytest.mark.full),
    ],
)
def test_norms_over_rows_and_slices_are_those_of_each_batch(slices, bands, norms, make):
    """Streams were refused. Running statistics change in the order of the batches."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
    second = nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1)
    model, inputs = nn.Sequential(*first, *second).double(), [torch.randn(4, 3, 12, 6).double()]
    modelling = Modelling(batch_size=SAMPLES, slices=slices, bands=bands, norms=norms)
    plan = make(*placements.traced_model(model, inputs), modelling, 3, seed=1)
    placement = place(copy.deepcopy(model), plan)
    order = schedule(placement, "async", BATCHES, Costs(work=1e-9, message=1e-5), in_flight=3)
    agrees(model, placement, order, batches_of(inputs))
    assert max(map(max, order.staleness)) > 0


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(("k", "known_by"), [(2, ""), (3, ""), (3, sliced_ranks.BY_ORDER)])
def test_processes_do_what_threads_do(k, known_by, tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, [f"streams{known_by}", str(file)], k)
    assert json.loads(file.read_text()) == {"streams": []}
