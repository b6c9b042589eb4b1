"""One contract for all rules: valid on any partition, and what each of them is for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placed_models import model_of, placed
from toy_outlines import EVEN, halves, pipeline, replicas
from toy_programs import Cut, cuts

from hgpart.errors import ArgumentError
from hgpart.execution.outlines import outline
from hgpart.placement.ordering.ordered import costs_of, outlines_here
from hgpart.run.scheduling import schedule
from hgpart.schedules import make_schedule
from hgpart.schedules.checking import problems
from hgpart.schedules.costs import Costs
from hgpart.schedules.drawing import draw_times
from hgpart.schedules.outline import Chunk, Outline, Sent
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Action, Direction, Schedule
from hgpart.schedules.simulation import times


def outlines_of(cut: Cut) -> list[Outline]:
    programs = cut.placed.programs
    return [outline(programs[part], dict.fromkeys(["layer0"], 2.0)) for part in range(cut.k)]


def seconds(made: Schedule, costs: Costs = EVEN) -> float:
    return max(end for _, end in times(made.outlines, made.order, costs))


@pytest.mark.parametrize("rule", RULES)
@given(cuts(), st.integers(1, 5), st.booleans(), st.sampled_from([0.0, 0.5, 10.0]), st.booleans())
def test_schedules_of_any_cut_are_valid(
    rule: str, cut: Cut, micro_batches: int, backward: bool, message: float, serial: bool
) -> None:
    outlines = [Outline(one.forward, one.backward, serial) for one in outlines_of(cut)]
    costs = Costs(work=1.0, message=message)
    made = make_schedule(outlines, rule, micro_batches, costs, backward=backward)
    assert problems(made) == []
    assert made.backward == backward
    again = make_schedule(outlines, rule, micro_batches, costs, backward=backward)
    assert made.order == again.order


@given(
    *(cuts(), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.0, 0.5, 10.0])),
    *(st.sampled_from([0.0, 1.0]), st.booleans()),
)
def test_streams_of_any_cut_are_valid(
    cut: Cut, batches: int, in_flight: int, message: float, work: float, serial: bool
) -> None:
    outlines = [Outline(one.forward, one.backward, serial) for one in outlines_of(cut)]
    costs = Costs(work=work, message=message)
    made = make_schedule(outlines, "async", batches, costs, in_flight=in_flight)
    assert problems(made) == []
    longer = make_schedule(outlines, "async", batches + 3, costs, in_flight=in_flight)
    begin = tuple(action for action in longer.order if action.micro_batch < batches)
    assert made.order == begin  # however many there are
    for part, sequence in enumerate(made.sequences):
        before = [action.micro_batch for action in sequence]
        if in_flight == 1:  # forward, backward, update
            assert before == sorted(before)
        for batch, stale in enumerate(made.staleness[part]):
            first = sequence.index(Action(part, Direction.FORWARD, batch, 0))
            updates = [one for one in sequence[:first] if one.direction is Direction.UPDATE]
            assert stale == batch - len(updates) < in_flight
        for at, action in enumerate(sequence):
            if action.direction is Direction.UPDATE:  # as soon as its gradients are complete
                last = len(outlines[part].backward) - 1
                wanted = Action(part, Direction.BACKWARD, action.micro_batch, last)
                assert sequence[at - 1] == wanted


@given(
    *(cuts(), st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.0, 0.5, 10.0])),
    *(st.sampled_from([0.0, 1.0]), st.booleans(), st.randoms(use_true_random=False)),
)
def test_streams_of_parts_that_share_weights_are_valid(
    cut: Cut, batches: int, in_flight: int, message: float, work: float, serial: bool, deal: Random
) -> None:
    parts = range(cut.k)
    outlines = []
    for part, one in enumerate(outlines_of(cut)):
        others = [other for other in parts if other != part and deal.random() < 0.5]
        owners = tuple((other, deal.randrange(1, 9)) for other in others)
        outlines.append(Outline(one.forward, one.backward, serial, owners=owners))
    costs = Costs(work=work, message=message)
    made = make_schedule(outlines, "async", batches, costs, in_flight=in_flight)
    assert problems(made) == []
    longer = make_schedule(outlines, "async", batches + 3, costs, in_flight=in_flight)
    assert made.order == tuple(one for one in longer.order if one.micro_batch < batches)
    for stale in made.staleness:
        begun = [batch - one for batch, one in enumerate(stale)]
        assert begun == sorted(begun)
        assert max(stale) < in_flight


def test_weights_that_two_parts_share_are_stale_where_batches_are_in_flight() -> None:
    """Data parallelism: an update waits for the other's gradients in the next batch's midst."""
    costs = Costs(work=1.0, byte=0.0, message=0.5)
    made = make_schedule(replicas(), "async", 5, costs, in_flight=2)
    assert made.staleness == ((0, 1, 1, 1, 1),) * 2
    assert [*map(str, made.sequences[0])][:6] == ["F0.0", "B0.0", "F1.0", "U0.0", "B1.0", "F2.0"]
    alone = make_schedule(replicas(), "async", 5, costs, in_flight=1)
    assert alone.staleness == ((0,) * 5,) * 2


def test_streams_keep_parts_busy() -> None:
    """Stages that are alike have no gaps but at the begin and the end, with a batch for each."""
    for stages in (1, 2, 4):
        made = make_schedule(pipeline(stages), "async", 20, EVEN, in_flight=stages)
        assert seconds(made) == 3 * 20 + 3 * (stages - 1)
        assert [max(of_part) for of_part in made.staleness] == [*reversed(range(stages))]
    fewer = make_schedule(pipeline(4), "async", 20, EVEN, in_flight=2)
    assert seconds(fewer) == pytest.approx(12 * 20 / 2, rel=0.1)  # two in each round trip
    divided = make_schedule(halves(6), "async", 20, EVEN, in_flight=4)
    assert max(map(max, divided.staleness)) == 0  # nobody waits: nothing is stale for nothing


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["residual", "grouped", "branches", "forked"])
def test_schedules_of_placements_are_valid(name: str, grain: str) -> None:
    model, inputs = model_of(name)
    placement = placed(model, inputs, grain=grain)
    for rule in RULES:
        assert problems(schedule(placement, rule, 3)) == []
    for in_flight in (1, 2, 3, 4):
        assert problems(schedule(placement, "async", 6, in_flight=in_flight)) == []
    numbers = [
        sent.transfer for one in outlines_here(placement) for c in one.forward for sent in c.sends
    ]
    assert sorted(numbers) == [transfer.number for transfer in placement.programs.transfers]
    total = sum(chunk.work for one in outlines_here(placement) for chunk in one.forward)
    assert total == pytest.approx(placement.programs.partition.model.weights.sum())
    assert costs_of(placement, 4).samples == 1
    assert costs_of(placement, 4, 10).samples == 2.5
    assert costs_of(placement, 8).samples == 1  # more than the plan's batch has
    assert costs_of(placement, 4, 10).samples == 2.5
    assert costs_of(placement, 8).samples == 1  # more than the plan's batch has


@pytest.mark.parametrize("rule", RULES)
def test_one_micro_batch_is_the_same_by_every_rule(rule: str) -> None:
    made = make_schedule(halves(3), rule, 1, EVEN)
    plain = make_schedule(halves(3), "sequential", 1, EVEN)

    def whole(schedule: Schedule) -> list[list[tuple[str, int]]]:
        return [
            [
                (one.direction.value.replace("M", "B"), one.chunk)
                for one in sequence
                if one.direction != "W"
            ]
            for sequence in schedule.sequences
        ]

    assert whole(made) == whole(plain)


def test_what_pipelines_take_and_keep() -> None:
    """Of p stages and m micro-batches, forward 1 and backward 2: 3 (m + p - 1), kept m or p."""
    p, m = 4, 8
    made = {rule: make_schedule(pipeline(p), rule, m, EVEN) for rule in RULES}
    assert seconds(made["sequential"]) == 3 * m * p
    assert made["sequential"].alive == (1,) * p
    assert seconds(made["gpipe"]) == 3 * (m + p - 1)
    assert made["gpipe"].alive == (m,) * p
    assert seconds(made["1f1b"]) == 3 * (m + p - 1)
    assert made["1f1b"].alive == (4, 3, 2, 1)
    assert seconds(made["greedy"]) <= 3 * (m + p - 1)
    assert max(made["greedy"].alive) <= p + 1
    assert seconds(made["zero-bubble"]) < 3 * (m + p - 1) - (p - 1)
    assert max(made["zero-bubble"].alive) <= p + 1


def test_a_part_goes_on_with_another_micro_batch_where_it_would_wait() -> None:
    """On a partition inside layers only rules that switch at awaits gain."""
    costs = Costs(work=1.0, byte=0.0, message=1.0)
    taken = {rule: seconds(make_schedule(halves(6), rule, 4, costs), costs) for rule in RULES}
    assert taken["gpipe"] > 0.95 * taken["sequential"]
    assert taken["1f1b"] == taken["sequential"]
    assert taken["greedy"] < 0.75 * taken["sequential"]
    busy = 4 * 6 * 3
    assert taken["greedy"] < 1.1 * busy


def test_a_part_that_keeps_state_takes_micro_batches_in_turn() -> None:
    outlines = [Outline(one.forward, one.backward, serial=True) for one in halves(4)]
    made = make_schedule(outlines, "greedy", 3, Costs(work=1.0, message=1.0))
    assert problems(made) == []
    for sequence in made.sequences:
        forward = [one.micro_batch for one in sequence if one.direction is Direction.FORWARD]
        assert forward == sorted(forward)


def test_messages_are_all_that_a_chunk_sends_to_a_part() -> None:
    sent = (Sent(4, 2, 8), Sent(5, 1, 8), Sent(6, 2, 8))
    quiet = Outline((Chunk((4, 5, 6), ()),), (Chunk((), ()),))
    speaks = Outline((Chunk((), sent),), (Chunk((), ()),))
    made = make_schedule([speaks, quiet], "sequential", 2, EVEN, backward=False)
    found = [(one.number, one.micro_batch, one.sender, one.receiver) for one in made.messages]
    assert found == [(0, 0, 0, 2), (1, 0, 0, 1), (2, 1, 0, 2), (3, 1, 0, 1)]
    assert [piece.number for piece in made.messages[0].pieces] == [4, 6]
    assert str(Action(0, Direction.MAPS, 3, 1)) == "M3.1"


def test_arguments() -> None:
    with pytest.raises(
        ArgumentError, match="schedule 'zigzag': accepted are sequential, gpipe, 1f"
    ):
        make_schedule(pipeline(2), "zigzag", 2, EVEN)
    with pytest.raises(ArgumentError, match="0 micro-batches: accepted is 1 or more"):
        make_schedule(pipeline(2), "greedy", 0, EVEN)


def test_an_update_that_takes_time_is_drawn_in_no_row() -> None:
    made = make_schedule(pipeline(2), "async", 2, EVEN)
    drawn = draw_times(made, [(float(at), at + 1.0) for at in range(len(made.order))], "by hand")
    assert "U1.0" in drawn
    assert "\n0 |000000" in drawn
