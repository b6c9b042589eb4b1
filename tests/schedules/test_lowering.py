"""Weights in a schedule: there before they are read, back when no gradient is added any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from toy_programs import Cut, cuts, of_parts, shared

from hgpart.execution.instructions import prepare
from hgpart.execution.outlines import outline
from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.lowering import lower
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import OF_WEIGHTS, Action, Direction, Schedule, Travel

ADDING = (Direction.BACKWARD, Direction.WEIGHTS)


@given(cuts(), st.sampled_from([*RULES]), st.integers(1, 3), st.data())
def test_a_step(cut: Cut, rule: str, micro_batches: int, data: st.DataObject) -> None:
    travels, of_steps = data.draw(shared(cut))
    outlines = [outline(cut.placed.programs[part], {}) for part in range(cut.k)]
    made = make_schedule(outlines, rule, micro_batches, Costs(message=1.0))
    read = of_parts(cut, of_steps)
    back = data.draw(st.permutations(range(len(travels))))
    lowered = lower(made, travels, back, read)
    assert problems(made) == problems(lowered) == []
    assert_whole(cut, made, lowered)
    halves = (one for one in made.order if one.direction is Direction.WEIGHTS)
    halved = {(one.part, one.micro_batch) for one in halves}
    for number, (owner, holder) in enumerate(travels):
        reading, adding = list[int](), list[int]()
        for at, action in enumerate(lowered.order):
            if action.part != holder or action.is_of_weights:
                continue
            own, whole = read[holder], (holder, action.micro_batch) not in halved
            lines = own.backward if whole else own.in_halves
            if action.direction is Direction.FORWARD:
                lines = own.forward
            begin, end = action.piece or (0, 10**6)
            if any(
                number in line.weights for line in lines[action.chunk] if begin <= line.place < end
            ):
                if action.direction is Direction.FORWARD:
                    reading.append(at)
                elif action.direction in ADDING:
                    adding.append(at)
        gathered = lowered.order.index(Action(holder, Direction.GATHER, 0, number))
        assert all(gathered < at for at in reading)
        if reading and owner != holder:  # and it waits for them no sooner than it has to
            between = lowered.order[gathered : reading[0]]
            assert all(one.is_of_weights for one in between if one.part == holder)
        collected = lowered.order.index(Action(owner, Direction.COLLECT, 0, number))
        assert all(at < collected for at in adding)
        if owner != holder:
            reduced = lowered.order.index(Action(holder, Direction.REDUCE, 0, number))
            assert all(at < reduced for at in adding)
            if adding:
                between = lowered.order[adding[-1] + 1 : reduced]
                assert all(one.is_of_weights for one in between if one.part == holder)
    for part in range(cut.k):
        sequence = lowered.sequences[part]
        added = [one.chunk for one in sequence if one.direction is Direction.COLLECT]
        assert added == [number for number in back if travels[number].owner == part]


def assert_whole(cut: Cut, made: Schedule, lowered: Schedule) -> None:
    """What is computed is the rule's, in its order; pieces of a chunk are all of it."""
    pieces: dict[Action, list[tuple[int, int]]] = {}
    for action in lowered.order:
        if not action.is_of_weights:
            several = pieces.setdefault(action._replace(piece=None), [])
            if action.piece is not None:
                several.append(action.piece)
    assert [*pieces] == [*made.order]
    for action, several in pieces.items():
        if several:
            prepared = prepare(cut.placed.programs[action.part])
            forward = action.direction is Direction.FORWARD
            chunks = prepared.forward if forward else prepared.backward
            assert (several[0][0], several[-1][1]) == (0, len(chunks[action.chunk]))
            assert all(one[1] == other[0] < other[1] for one, other in pairwise(several))
    sent = Counter(piece for one in made.messages for piece in one.pieces)
    found = (one for one in lowered.messages if one.direction not in OF_WEIGHTS)
    assert Counter(piece for one in found for piece in one.pieces) == sent


@given(cuts(), st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_stream(cut: Cut, in_flight: int, batches: int, data: st.DataObject) -> None:
    """A batch begins with the weights that the one order says, and ends before their update."""
    travels, of_steps = data.draw(shared(cut))
    outlines = []
    for part in range(cut.k):  # the rule knows whose weights a part has copies of
        owners = {owner: 1 for owner, holder in travels if holder == part != owner}
        own = outline(cut.placed.programs[part], {})
        outlines.append(replace(own, owners=tuple(owners.items())))
    made = make_schedule(outlines, "async", batches, Costs(message=1.0), in_flight=in_flight)
    back = range(len(travels))
    lowered = lower(made, travels, back, of_parts(cut, of_steps))
    assert problems(lowered) == []
    order = [one for one in lowered.order if not one.is_of_weights]
    assert order == [*made.order]
    for number, (owner, holder) in enumerate(travels):
        there, updates = 0, 0
        for action in lowered.order:
            if action[:2] == (holder, Direction.GATHER) and action.chunk == number:
                assert action.micro_batch == there + 1
                there += 1
            elif action[:2] == (owner, Direction.UPDATE):
                updates += 1
            elif action[:2] == (holder, Direction.FORWARD) and action.chunk == 0:
                batch = action.micro_batch
                assert there == batch - made.staleness[owner][batch] <= updates
        assert there == batches - 1


def test_nothing_travels_without_backward_passes() -> None:
    made = make_schedule([], "gpipe", 1, Costs(), backward=False)
    assert lower(made, [Travel(0, 0)], [0], []) is made
    assert lower(made, [], [], []) is made
