"""Steps for which no schedule is given: as the plan says, or as is simulated to be fastest."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hgpart
from hgpart.placement.ordering.ordered import costs_of, outlines_here
from hgpart.placement.ordering.usual_schedule import fastest
from hgpart.plan import Plan
from hgpart.schedule_wanted import Scheduling
from hgpart.schedules import make_schedule

IMAGES = torch.randn(16, 3, 8, 8)
CLASSES = torch.arange(16) % 4


def network(norm: bool = False) -> nn.Sequential:
    """Enough work to be worth several micro-batches."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()]
    layers += [nn.BatchNorm2d(96)] * norm
    return nn.Sequential(*layers, nn.MaxPool2d(8), nn.Flatten(), nn.Linear(96, 4))


def cut(
    model: nn.Module, scheduling: Scheduling | None = None, batch_size: int = 16
) -> hgpart.Placement:
    """Between layers, so that parts take turns in a batch."""
    modelling = hgpart.Modelling(batch_size=batch_size)
    found = hgpart.partition_model(
        model, hgpart.example_inputs(model, (3, 8, 8)), k=2, eps=0.5, modelling=modelling
    )
    plan = Plan(found.partition, "network", (3, 8, 8), scheduling)
    return hgpart.place(model, found if scheduling is None else plan)


def micro_batches(placed: hgpart.Placement, loss_fn: object = cross_entropy) -> int:
    """What a step was run in: each computes forward in the first part."""
    placed.step(IMAGES, CLASSES, loss_fn)  # type: ignore[arg-type]
    return len({event.action.micro_batch for event in placed.runtime.last.events})


def test_it_is_the_fastest_of_all_by_its_own_costs() -> None:
    placed = cut(network())
    found = fastest(placed, 16)
    seconds = {}
    for count in (1, 2, 4, 8):
        costs = costs_of(placed, count, 16)
        made = make_schedule([*outlines_here(placed)], "greedy", count, costs)
        free, seconds[count] = [0.0, 0.0], 0.0
        arrived: dict[object, float] = {}
        for action in made.order:  # by hand: each action when its part and its maps are there
            chunk = made.chunk(action)
            begin = max(
                [free[action.part], *(arrived[action.part, p] for p in made.awaits(action))]
            )
            free[action.part] = begin + costs.action(action, chunk)
            for receiver, pieces in made.sends(action).items():
                there = free[action.part] + costs.travel(action, chunk, receiver)
                arrived.update({(receiver, piece): there for piece in pieces})
            most = max(placed.programs.partition.shares.parameter_bytes.tolist())
            seconds[count] = max(free) + 2 * (count - 1) * most / 5e9
    assert found.at_once == pytest.approx(seconds[1])
    assert found.seconds == pytest.approx(seconds[found.scheduling.micro_batches])
    assert 0.9 * found.seconds <= min(seconds.values())
    assert found.scheduling.micro_batches > 1


def test_a_step_is_run_in_them_where_that_gives_the_loss_of_the_batch() -> None:
    model = network()
    placed = cut(model)
    assert micro_batches(placed) == fastest(placed, 16).scheduling.micro_batches > 1
    loss = cross_entropy(model(IMAGES), CLASSES)
    placed.zero_grad()
    assert torch.allclose(placed.step(IMAGES, CLASSES, cross_entropy), loss, rtol=1e-4)


@pytest.mark.full
@pytest.mark.long
def test_a_batch_is_not_divided_where_results_would_differ() -> None:
    """Losses that compare samples, and norms that take their statistics."""
    assert micro_batches(cut(network()), lambda result, labels: result.std()) == 1
    assert micro_batches(cut(network(norm=True))) == 1
    assert fastest(cut(network(norm=True)), 16).scheduling.micro_batches == 2  # 8 samples each
    with torch.no_grad():
        assert micro_batches(cut(network())) == 1


@pytest.mark.full
@pytest.mark.long
def test_a_plan_may_say_how_where_results_are_those_of_the_batch() -> None:
    """Plans of `hgpart partition` have micro-batches that nobody asked for."""
    assert micro_batches(cut(network(), Scheduling("1f1b", 2))) == 2
    assert micro_batches(cut(network(), Scheduling("sequential", 1))) == 1
    assert micro_batches(cut(network(), Scheduling("greedy", 32), batch_size=32)) == 1  # of 16
    assert micro_batches(cut(network(norm=True), Scheduling("greedy", 4))) == 1
    model = network()
    placed = cut(model, Scheduling("greedy", 4))

    def spread(result: torch.Tensor, labels: object) -> torch.Tensor:
        return (result - result.mean(0)).square().sum()

    whole = spread(model(IMAGES), None)
    whole.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(placed.step(IMAGES, None, spread), whole)
    of_model, of_parts = (
        sum(
            float(parameter.grad.square().sum())
            for parameter in weights
            if parameter.grad is not None
        )
        for weights in (model.parameters(), placed.parameters())
    )
    assert of_parts == pytest.approx(of_model, rel=1e-3)


@pytest.mark.full
def test_why_a_batch_is_not_divided_is_said() -> None:
    said = fastest(cut(network(norm=True)), 8)
    assert said.scheduling.micro_batches == 1
    assert said.text == (
        "Schedule: the whole batch at once: norms take their statistics of 8 samples or more; the "
        "plan names none"
    )
