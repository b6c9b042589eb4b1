"""The checker finds what is wrong with an order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_outlines import EVEN, halves, pipeline, replicas

from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Direction, Schedule

U = Direction.UPDATE
F, B, M, W = Direction.FORWARD, Direction.BACKWARD, Direction.MAPS, Direction.WEIGHTS


def moved(made: Schedule, action: Action, before: Action) -> Schedule:
    order = [one for one in made.order if one != action]
    order.insert(order.index(before), action)
    return replace(made, order=tuple(order))


def test_an_action_too_few_or_too_many() -> None:
    made = make_schedule(pipeline(2), "greedy", 2, EVEN)
    (gone,) = problems(replace(made, order=made.order[:-1]))
    assert gone == f"part {made.order[-1].part} does not do {made.order[-1]}"
    twice = replace(made, order=(*made.order, Action(1, F, 0, 0)))
    assert problems(twice) == ["part 1 does F0.0 2 times"]
    other = replace(made, order=(*made.order, Action(1, F, 5, 0)))
    assert problems(other) == ["part 1 does F5.0, which it does not have"]
    nobody = replace(made, order=(*made.order, Action(7, F, 0, 0)))
    assert problems(nobody) == ["part 7 does F0.0, but there are 2 parts"]


@pytest.mark.parametrize(
    ("action", "before", "said"),
    [
        (Action(0, F, 1, 0), Action(0, F, 0, 0), "part 0 does F1.0 in front of F0.0"),
        (Action(1, B, 0, 0), Action(1, F, 0, 0), "part 1 does B0.0 in front of F0.2"),
        (Action(0, B, 0, 2), Action(0, B, 0, 1), "part 0 does B0.2 in front of B0.1"),
        (Action(0, B, 1, 0), Action(0, B, 0, 0), "part 0 does B1.0 in front of B0.0"),
    ],
)
def test_a_part_out_of_order(action: Action, before: Action, said: str) -> None:
    made = make_schedule(halves(2), "gpipe", 2, EVEN)
    assert said in problems(moved(made, action, before))


def test_weights_before_maps() -> None:
    made = make_schedule(pipeline(2), "zero-bubble", 2, EVEN)
    found = problems(moved(made, Action(0, W, 0, 0), Action(0, M, 0, 0)))
    assert found == ["part 0 does W0.0 in front of M0.0"]


def test_parts_that_wait_for_each_other() -> None:
    """Part 0 would see micro-batch 0 back before it begins 1, part 1 begins 1 first."""
    made = make_schedule(pipeline(2), "sequential", 2, EVEN)
    found = problems(moved(made, Action(1, F, 1, 0), Action(1, B, 0, 0)))
    assert found == [
        f"part {part} waits for ever to do {what}" for part, what in ((0, "B0.0"), (1, "F1.0"))
    ]


def test_state_that_is_passed_on() -> None:
    made = make_schedule(halves(2), "greedy", 2, replace(EVEN, message=1.0))
    kept = tuple(Outline(one.forward, one.backward, serial=True) for one in made.outlines)
    assert "part 0 does F1.0 in front of F0.2" in problems(replace(made, outlines=kept))


def test_updates_are_behind_their_gradients_in_order_and_of_few_batches() -> None:
    made = make_schedule(pipeline(2), "async", 4, EVEN, in_flight=2)
    assert problems(made) == []
    early = moved(made, Action(0, U, 1, 0), Action(0, B, 1, 0))
    assert problems(early) == ["part 0 does U1.0 in front of B1.0"]
    swapped = moved(made, Action(0, U, 2, 0), Action(0, U, 1, 0))
    assert "part 0 does U2.0 in front of U1.0" in problems(swapped)
    late = moved(made, Action(0, F, 3, 0), Action(0, U, 1, 0))
    assert problems(late) == ["part 0 has 3 batches in flight, accepted are 2"]
    shared = make_schedule(replicas(), "async", 4, EVEN, in_flight=2)
    assert problems(shared) == []
    early = moved(shared, Action(0, U, 1, 0), Action(1, B, 1, 0))
    assert "part 0 does U1.0 in front of B1.0 of part 1" in problems(early)
    early = moved(shared, Action(1, F, 3, 0), Action(0, U, 1, 0))
    assert "part 1 does F3.0 in front of U1.0 of part 0" in problems(early)
    without = replace(made, order=tuple(one for one in made.order if one != Action(1, U, 3, 0)))
    assert problems(without) == ["part 1 does not do U3.0"]
    step = make_schedule(pipeline(2), "greedy", 2, EVEN)
    extra = replace(step, order=(*step.order, Action(0, U, 0, 0)))
    assert problems(extra) == ["part 0 does U0.0, which it does not have"]
    halved = make_schedule(pipeline(2), "zero-bubble", 2, EVEN)
    assert "part 0 does M0.0, which it does not have" in problems(replace(halved, in_flight=2))
