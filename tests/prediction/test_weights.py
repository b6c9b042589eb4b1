"""When weights that several parts have travel: each once there, and its gradient once back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sliced_placements import sliced
from toy_times import in_proportion

from hgpart.machines.machine import Device, Link, Machine
from hgpart.prediction.actions import jobs_of
from hgpart.prediction.measured_costs import MeasuredCosts, Overheads
from hgpart.prediction.predict import with_weights
from hgpart.prediction.steps import part_steps
from hgpart.run.scheduling import schedule
from hgpart.schedules.schedule import OF_WEIGHTS, Action, Direction


@pytest.mark.full
@given(
    *(st.integers(2, 3), st.integers(2, 3), st.integers(0, 99), st.integers(1, 2)),
    st.sampled_from(["gpipe", "zero-bubble", "greedy"]),
)
def test_weights_and_their_gradients_travel_once(
    slices: int, k: int, seed: int, micro_batches: int, rule: str
) -> None:
    placement = sliced("residual", slices, k, seed)
    made = schedule(placement, rule, micro_batches, batch_size=12)
    link = Link.of(1e-6, 1e9)
    machine = Machine("toy", (Device("cpu"),) * k, (k,), link)
    times = in_proportion(placement.programs.blueprint.graph)
    sizes = (12 // micro_batches,) * micro_batches
    lowered, weights = with_weights(placement, made)
    costs = MeasuredCosts(
        *([part_steps(placement)], sizes, [()] * k, times, machine),
        Overheads(transfer=0.0, byte=0.0),
        weights=weights,
    )
    planned = jobs_of(lowered, costs, costs.job)
    sent = [one for jobs in planned.jobs for job in jobs for one in job.sends]
    assert sorted(sent) == [*range(len(planned.messages))]
    awaited = [one for jobs in planned.jobs for job in jobs for one in job.awaits]
    there, back = list[int](), list[int]()
    for number, message in enumerate(lowered.messages):
        journey = planned.messages[number]
        assert awaited.count(number) >= 1
        assert any(number in job.awaits for job in planned.jobs[journey.receiver])
        assert any(number in job.sends for job in planned.jobs[journey.sender])
        if message.direction in OF_WEIGHTS:
            (there if message.direction is Direction.SPREAD else back).append(number)
    traffic = placement.programs.expected_traffic(sizes, backward=True)
    maps = placement.programs.expected_traffic(sizes, backward=False).forward_bytes
    wanted = (traffic.forward_bytes - maps).sum()
    for numbers in (there, back):
        nbytes = sum((planned.messages[number].seconds - 1e-6) * 1e9 for number in numbers)
        assert round(nbytes) == wanted
    # Pieces of an action take together what it takes.
    pieces = Counter[Action]()
    for action in lowered.order:
        if not action.is_of_weights:
            pieces[action._replace(piece=None)] += costs.job(action).seconds
    assert pieces.keys() == {*made.order}
    for action, seconds in pieces.items():
        assert abs(seconds - costs.job(action).seconds) < 1e-12
    # What is packed costs both ends, and so does a gradient that is added to another one its owner;
    # maps are counted by the sample, of which slices may have one more or less.
    handled = replace(costs, overheads=Overheads(transfer=0.0, byte=1e-9))
    dearer = jobs_of(lowered, handled, handled.job)
    gradients = traffic.backward_bytes - (traffic.forward_bytes - maps).T
    copies = placement.copies.present
    travelling = [one for one in copies.weights if one.owner != one.holder]
    for part in range(k):
        more = sum(job.seconds for job in dearer.jobs[part])
        more -= sum(job.seconds for job in planned.jobs[part])
        nbytes = sum(matrix[part].sum() + matrix[:, part].sum() for matrix in (maps, gradients))
        for one in travelling:
            packed = 1 if len(one.elements) > 1 else 0
            nbytes += copies.nbytes(one) * (packed + 1) * (one.owner == part)
            nbytes += copies.nbytes(one) * 2 * packed * (one.holder == part)
        assert math.isclose(more, 1e-9 * nbytes, rel_tol=0.01)
    # Each message of gradients costs both ends, be it short.
    slow = replace(costs, overheads=Overheads(transfer=1.0, byte=0.0))
    late = jobs_of(lowered, slow, slow.job)
    of_maps = placement.programs.expected_traffic(sizes, backward=False).forward_messages
    for part in range(k):
        more = sum(job.seconds for job in late.jobs[part])
        more -= sum(job.seconds for job in planned.jobs[part])
        count = sum(part in (one.owner, one.holder) for one in travelling)
        assert more >= count + of_maps[part].sum() + of_maps[:, part].sum() - 1e-6
