"""The least seconds of recomputing within a limit, beside all choices that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.execution.offloading.graphs import LEAST
from hgpart.machines.machine import SlowerMemory
from hgpart.placement.ordering.stretches import least_seconds, worth_recomputing
from hgpart.placement.rehearsal import StepMemory
from hgpart.schedules.outline import Stretch

MAPS, INSIDE = 0, 1000  # addresses of maps between steps, and of what steps keep inside


def chain_of(sizes: Sequence[tuple[int, int, int, int]]) -> list[StepMemory]:
    """Each step reads the map of the one before, and keeps that and something inside."""
    maps = [first for first, *_ in sizes] + [1]
    return [
        StepMemory(
            name=f"step_{at}",
            reads={at: {MAPS + at: maps[at]}},
            makes=frozenset({at + 1}),
            kept={MAPS + at: maps[at], INSIDE + at: inside},
            live={MAPS + at + 1: maps[at + 1]},
            forward_bytes=forward,
            backward_bytes=backward,
        )
        for at, (_, inside, forward, backward) in enumerate(sizes)
    ]


def choices(count: int, at: int = 0) -> Iterator[tuple[range, ...]]:
    """All choices of stretches, by their steps' places."""
    if at == count:
        yield ()
        return
    for rest in choices(count, at + 1):
        yield rest
    for end in range(at + 1, count + 1):
        for rest in choices(count, end):
            yield (range(at, end), *rest)


def most_bytes(steps: Sequence[StepMemory], stretches: Sequence[range]) -> int:
    """The most bytes at a time in a forward and a backward pass, step by step."""
    first_of = {at: stretch[0] for stretch in stretches for at in stretch}

    def held_before(place: int) -> dict[int, int]:
        held = dict[int, int]()
        for at in range(place):
            read = steps[at].reads[at] if first_of.get(at) == at else {}
            held |= read if at in first_of else steps[at].kept
        return held

    most = 0
    for at, step in enumerate(steps):
        begin = first_of.get(at, at)
        before = held_before(begin) | steps[begin].reads[begin]
        inside = before | {
            key: size for of in steps[begin : at + 1] for key, size in of.kept.items()
        }
        once = held_before(begin) | steps[begin].reads[begin] | step.kept | step.live
        most = max(
            most,
            sum(once.values()) + step.forward_bytes,
            sum((inside | step.live).values()) + step.forward_bytes,
            sum(inside.values()) + step.backward_bytes,
        )
    return most


SIZES = st.tuples(*(st.integers(0, 9) for _ in range(4)))


@given(st.lists(SIZES, min_size=1, max_size=6), st.integers(0, 60), st.data())
def test_no_choice_of_a_chain_takes_fewer_seconds(sizes, limit, data):
    steps = chain_of(sizes)
    seconds = {step.name: float(data.draw(st.integers(1, 9))) for step in steps}

    def spent(stretches: Sequence[range]) -> float:
        return sum(seconds[f"step_{at}"] for stretch in stretches for at in stretch)

    fitting = [each for each in choices(len(steps)) if most_bytes(steps, each) <= limit]
    found = least_seconds(steps, seconds, limit)
    if found is None:
        assert not fitting
        return
    places = [[int(name.removeprefix("step_")) for name in own.steps] for own in found.stretches]
    stretches = [range(own[0], own[-1] + 1) for own in places]
    assert [[*stretch] for stretch in stretches] == places
    assert most_bytes(steps, stretches) <= limit
    assert spent(stretches) == found.seconds == min(map(spent, fitting))


@given(st.lists(SIZES, min_size=1, max_size=6), st.integers(0, 60), st.data())
def test_no_choice_of_what_a_chain_keeps_and_offloads_takes_fewer_seconds(sizes, limit, data):
    """Recomputing takes too long for any of it to be worth it; maps are of LEAST bytes and more."""
    steps = chain_of([tuple(LEAST * size for size in own) for own in sizes])
    seconds = {step.name: 1e9 for step in steps}
    room = data.draw(st.none() | st.integers(1, 30))
    slower = SlowerMemory(2.0 * LEAST, None if room is None else LEAST * room)

    def moved(elsewhere: Sequence[bool]) -> int:
        own = (step.kept for step, is_away in zip(steps, elsewhere, strict=True) if is_away)
        return sum({key: size for kept in own for key, size in kept.items()}.values()) // LEAST

    def most(elsewhere: Sequence[bool]) -> int:
        """What is at work is here, and what all before it keep here."""
        taken, held = 0, dict[int, int]()
        for step, is_away in zip(steps, elsewhere, strict=True):
            here = held | step.kept
            forward = sum((here | step.live).values()) + step.forward_bytes
            taken = max(taken, forward, sum(here.values()) + step.backward_bytes)
            held = held if is_away else here
        return taken

    found = least_seconds(steps, seconds, LEAST * limit, slower=slower)
    fitting = [
        moved(elsewhere)
        for elsewhere in product((False, True), repeat=len(steps))
        if most(elsewhere) <= LEAST * limit and (room is None or moved(elsewhere) <= room)
    ]
    if found is None or found.seconds >= 1e9:
        assert not fitting
        return
    names = {name for stretch in found.stretches for name in stretch.steps}
    assert all(stretch.offloaded for stretch in found.stretches)
    assert moved([step.name in names for step in steps]) == found.seconds == min(fitting)


def test_other_micro_batches_keep_what_they_have_meanwhile():
    """Two steps keep 40 bytes, or 30 where one is recomputed; the last map has another byte."""
    steps = chain_of([(10, 10, 0, 0), (10, 10, 0, 0)])
    seconds = {"step_0": 2.0, "step_1": 1.0}
    assert least_seconds(steps, seconds, 81, alive=2) == ((), 0.0)
    assert least_seconds(steps, seconds, 71, alive=2) == ((Stretch(("step_1",)),), 1.0)
    assert least_seconds(steps, seconds, 20, alive=2) is None


@pytest.mark.parametrize(
    ("sizes", "worth"),
    [([(1, 5, 0, 0), (1, 5, 0, 0)], True), ([(1, 0, 0, 0), (1, 0, 0, 0)], False)],
)
def test_a_stretch_that_keeps_what_it_reads_is_not_worth_it(sizes, worth):
    steps = chain_of(sizes)
    chunks = (("step_0",), ("step_1",))
    assert worth_recomputing(steps, chunks) == (tuple(map(Stretch, chunks)) if worth else ())
