"""Events and clocks beside a simulation that looks at everything in each moment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_outlines import EVEN, halves, pipeline
from toy_programs import Cut, cuts

from hgpart.errors import ArgumentError, HypergraphError
from hgpart.execution.outlines import outline
from hgpart.machines.machine import Slowdown
from hgpart.prediction.actions import jobs_of
from hgpart.prediction.jobs import Sharing, TimedJob, TimedMessage
from hgpart.prediction.simulation import simulate
from hgpart.schedules import make_schedule
from hgpart.schedules.costs import Costs
from hgpart.schedules.rules import RULES
from hgpart.schedules.schedule import Schedule
from hgpart.schedules.simulation import times

FEW = 1e-9  # seconds that rounding may leave


def plainly(
    jobs: Sequence[Sequence[TimedJob]], journeys: Sequence[TimedMessage], sharing: Sharing
) -> tuple[list[list[tuple[float, float]]], list[tuple[float, float]]]:
    """The same from moment to moment: in each, all that goes on does so at its present rate."""
    now, done, begun = 0.0, [0] * len(jobs), [math.nan] * len(jobs)
    left = [[job.seconds for job in of_part] for of_part in jobs]
    spans: list[list[tuple[float, float]]] = [[] for _ in jobs]
    posted: list[int] = []  # in the order of departure
    left_of = [journey.seconds for journey in journeys]
    departed, arrived = [math.nan] * len(journeys), [math.nan] * len(journeys)
    gone = [False] * len(journeys)
    landing: dict[int, float] = {}  # of those that are gone, when they will have landed
    taken_in = [0.0] * len(jobs)

    def computing() -> list[int]:
        found = []
        for part, of_part in enumerate(jobs):
            if done[part] < len(of_part):
                awaits = of_part[done[part]].awaits
                if all(not math.isnan(arrived[one]) for one in awaits):
                    found.append(part)
        return found

    def travelling() -> list[int]:
        found, busy = [], set()
        for one in posted:
            sender = journeys[one].sender
            if not gone[one] and not (sharing.queues and sender in busy):
                busy.add(sender)
                found.append(one)
        return found

    while True:
        parts, messages = computing(), travelling()
        if not parts and not messages and not landing:
            return spans, [*zip(departed, arrived, strict=True)]
        for part in parts:
            begun[part] = now if math.isnan(begun[part]) else begun[part]
        for one in messages:
            departed[one] = now if math.isnan(departed[one]) else departed[one]
        rates: dict[tuple[str, int], float] = {}
        for part in parts:
            node = sharing.nodes[part]
            beside = sum(sharing.nodes[other] == node for other in parts)
            bound = jobs[part][done[part]].memory_bound
            factor = 0.0
            for slowdown, of in ((sharing.slowdown, 1 - bound), (sharing.memory_bound, bound)):
                together = [*slowdown.together, *[slowdown.together[-1]] * beside][beside - 1]
                factor += of * together
            rates["job", part] = 1 / factor
        handled = [0.0] * len(jobs)
        for one in messages:
            sender, receiver, seconds, both_ways, handling = journeys[one]
            against = (receiver, sender) in ends(journeys, messages)
            rates["journey", one] = seconds / both_ways if against and seconds else 1.0
            for part in (sender, receiver):
                handled[part] += rates["journey", one] * handling / seconds if seconds else 0.0
        for part in parts:
            rates["job", part] *= max(0.05, 1 - handled[part])
        waits = {
            key: (left[key[1]][done[key[1]]] if key[0] == "job" else left_of[key[1]]) / rate
            for key, rate in rates.items()
        }
        step = min([*waits.values(), *(end - now for end in landing.values())])
        now += step
        for one in [one for one, end in landing.items() if end <= now + FEW / 100]:
            arrived[one] = landing.pop(one)
        for (what, number), rate in rates.items():
            ends_now = waits[what, number] <= step + FEW / 100
            if what == "job":
                left[number][done[number]] -= rate * step
                if ends_now:
                    posted += jobs[number][done[number]].sends
                    spans[number].append((begun[number], now))
                    done[number], begun[number] = done[number] + 1, math.nan
            else:
                left_of[number] -= rate * step
                if ends_now:
                    gone[number], receiver = True, journeys[number].receiver
                    landed = max(now, taken_in[receiver] + now - departed[number])
                    landing[number] = landed if sharing.queues else now
                    taken_in[receiver] = landing[number]


def ends(journeys: Sequence[TimedMessage], some: Sequence[int]) -> set[tuple[int, int]]:
    return {(journeys[one].sender, journeys[one].receiver) for one in some}


def schedule_of(cut: Cut, rule: str, micro_batches: int, costs: Costs) -> Schedule:
    programs = cut.placed.programs
    work = dict.fromkeys(["layer0", "layer2"], 2.0)
    outlines = [outline(programs[part], work) for part in range(cut.k)]
    return make_schedule(outlines, rule, micro_batches, costs)


@pytest.mark.parametrize("rule", RULES)
@given(cuts(), st.integers(1, 5), st.sampled_from([0.0, 0.3, 10.0]))
def test_what_slows_nothing_down_takes_as_long_as_actions_and_messages_alone(
    rule: str, cut: Cut, micro_batches: int, message: float
) -> None:
    costs = Costs(work=0.1, message=message)
    made = schedule_of(cut, rule, micro_batches, costs)
    planned = jobs_of(made, costs)
    spans = simulate(planned.jobs, planned.messages, Sharing(tuple(range(made.k))))
    assert planned.times(spans) == times(made.outlines, made.order, costs)


FACTORS = st.sampled_from([1.0, 1.25, 2.0, 3.0])


@st.composite
def sharings(draw: st.DrawFn, k: int) -> Sharing:
    nodes = draw(st.lists(st.integers(0, 1), min_size=k, max_size=k))
    slowdowns = []
    for _ in range(2):
        together = draw(st.lists(FACTORS, min_size=0, max_size=2))
        slowdowns.append(Slowdown((1.0, *together)))
    return Sharing(tuple(nodes), *slowdowns, draw(st.booleans()))


@given(st.data(), cuts(), st.integers(1, 4), st.sampled_from(sorted(RULES)))
def test_what_is_shared_slows_everything_as_in_a_simulation_from_moment_to_moment(
    data: st.DataObject, cut: Cut, micro_batches: int, rule: str
) -> None:
    costs = Costs(work=1.0, message=0.5)
    planned = jobs_of(schedule_of(cut, rule, micro_batches, costs), costs)
    amounts = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
    bounds = st.sampled_from([0.0, 0.25, 1.0])
    jobs = [
        [job._replace(seconds=data.draw(amounts), memory_bound=data.draw(bounds)) for job in each]
        for each in planned.jobs
    ]
    journeys = [
        one._replace(
            seconds=seconds,
            both_ways=seconds * data.draw(FACTORS),
            handling=seconds * data.draw(st.sampled_from([0.0, 0.25, 0.75])),
        )
        for number, one in enumerate(planned.messages)
        for seconds in [data.draw(amounts) + (number + 1) / 997]  # no two are done at once
    ]
    sharing = data.draw(sharings(len(jobs)))
    found = simulate(jobs, journeys, sharing)
    wanted, travelled = plainly(jobs, journeys, sharing)
    for part, spans in enumerate(found.jobs):
        assert [time for span in spans for time in span] == pytest.approx(
            [time for span in wanted[part] for time in span], abs=FEW
        )
    assert [time for span in found.messages for time in span] == pytest.approx(
        [time for span in travelled for time in span], abs=FEW
    )


@given(cuts(), st.integers(1, 4), st.data())
def test_sharing_makes_nothing_faster_than_alone_nor_slower_than_one_after_the_other(
    cut: Cut, micro_batches: int, data: st.DataObject
) -> None:
    costs = Costs(work=1.0, message=0.5)
    planned = jobs_of(schedule_of(cut, "greedy", micro_batches, costs), costs)
    alone = simulate(planned.jobs, planned.messages, Sharing(tuple(range(cut.k))))
    sharing = data.draw(sharings(cut.k))
    shared = simulate(planned.jobs, planned.messages, sharing)
    computing = sum(job.seconds for of_part in planned.jobs for job in of_part)
    travelling = sum(journey.both_ways for journey in planned.messages)
    both = sharing.slowdown, sharing.memory_bound
    slowest = max(max(one.together) for one in both)
    assert shared.end <= computing * slowest + travelling + FEW
    if not sharing.queues and slowest == 1:
        assert shared.end == alone.end


def test_two_parts_of_a_node_that_share_a_processor_are_as_slow_as_one() -> None:
    made = make_schedule(halves(4), "sequential", 1, EVEN)
    planned = jobs_of(made, EVEN)
    work = sum(job.seconds for job in planned.jobs[0])
    alone = simulate(planned.jobs, planned.messages, Sharing((0, 1), Slowdown((1.0, 2.0))))
    together = simulate(planned.jobs, planned.messages, Sharing((0, 0), Slowdown((1.0, 2.0))))
    assert (alone.end, together.end) == (work, 2 * work)


def test_a_part_that_queues_sends_one_message_after_the_other() -> None:
    jobs = [[TimedJob(1.0, sends=(0, 1))], [TimedJob(0.0, awaits=(1,))]]
    journeys = [TimedMessage(0, 1, 2.0, 2.0), TimedMessage(0, 1, 3.0, 3.0)]
    found = simulate(jobs, journeys, Sharing((0, 1), queues=True))
    assert found.messages == [(1.0, 3.0), (3.0, 6.0)]
    assert found.end == 6.0
    assert simulate(jobs, journeys, Sharing((0, 1))).end == 4.0


def test_a_part_that_queues_takes_in_one_message_after_the_other() -> None:
    jobs = [
        [TimedJob(0.0, sends=(0,))],
        [TimedJob(1.0, sends=(1,))],
        [TimedJob(0.0, awaits=(0, 1))],
    ]
    journeys = [TimedMessage(0, 2, 2.0, 2.0), TimedMessage(1, 2, 3.0, 3.0)]
    assert simulate(jobs, journeys, Sharing((0, 1, 2), queues=True)).end == 5.0
    assert simulate(jobs, journeys, Sharing((0, 1, 2))).end == 4.0


def test_a_part_that_queues_sends_to_all_others_as_long_as_to_one() -> None:
    jobs = [
        [TimedJob(0.0, sends=(0, 1))],
        [TimedJob(0.0, awaits=(0,))],
        [TimedJob(0.0, awaits=(1,))],
    ]
    journeys = [TimedMessage(0, 1, 2.0, 2.0), TimedMessage(0, 2, 2.0, 2.0)]
    assert simulate(jobs, journeys, Sharing((0, 1, 2), queues=True)).end == 4.0


def test_messages_against_each_other_are_slower_as_long_as_both_travel() -> None:
    jobs = [[TimedJob(0.0, sends=(0,))], [TimedJob(1.0, sends=(1,))]]
    journeys = [TimedMessage(0, 1, 2.0, 4.0), TimedMessage(1, 0, 2.0, 4.0)]
    found = simulate(jobs, journeys, Sharing((0, 1)))
    assert found.messages == [(0.0, 3.0), (1.0, 4.0)]  # half as fast from second 1 to 3


def test_messages_on_their_way_slow_computing_down_at_both_ends() -> None:
    jobs = [[TimedJob(0.0, sends=(0,)), TimedJob(3.0)], [TimedJob(1.5)], [TimedJob(3.0)]]
    journeys = [TimedMessage(0, 1, 2.0, 2.0, handling=1.0)]
    found = simulate(jobs, journeys, Sharing((0, 1, 2)))
    assert found.messages == [(0.0, 2.0)]
    assert [of_part[-1].end for of_part in found.jobs] == [4.0, 2.5, 3.0]
    idle = simulate([[TimedJob(0.0, sends=(0,))], []], journeys, Sharing((0, 1)))
    assert idle.end == 2.0


def test_parts_that_wait_for_ever_are_an_error_of_one_line() -> None:
    for jobs, journeys in (
        ([[TimedJob(1.0, awaits=(0,))], []], [TimedMessage(1, 0, 1.0, 1.0)]),  # never sent
        (
            [[TimedJob(1.0, (1,), (0,))], [TimedJob(1.0, (0,), (1,))]],
            [TimedMessage(0, 1, 1, 1), TimedMessage(1, 0, 1, 1)],
        ),
    ):
        with pytest.raises(ArgumentError, match="part 0 waits for ever"):
            simulate(jobs, journeys, Sharing((0, 1)))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([[], [TimedJob(1.0, awaits=(3,))]], "awaits[0] is 3, expected 0 or more and less than 1"),
        (
            [[TimedJob(1.0, awaits=(0,))], []],
            "awaits[0] is 0, expected a message of part 0, not of part 1",
        ),
        (
            [[], [TimedJob(1.0), TimedJob(1.0, sends=(0,))]],
            "sends[0] is 0, expected a message of part 1, not of part 0",
        ),
    ],
)
def test_a_message_of_another_part_is_refused(jobs, message) -> None:
    """A part that has no jobs would be told to begin one."""
    with pytest.raises(HypergraphError) as raised:
        simulate(jobs, [TimedMessage(0, 1, 1.0, 1.0)], Sharing((0, 1)))
    assert str(raised.value) == message


def test_nothing_takes_no_time() -> None:
    made = make_schedule(pipeline(2), "gpipe", 2, EVEN)
    planned = jobs_of(made, EVEN)
    assert simulate(planned.jobs, planned.messages, Sharing((0, 1))).end == 9.0
    assert simulate([[], []], [], Sharing((0, 1))).end == 0.0
