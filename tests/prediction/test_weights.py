"""When weights that several parts have travel: each once there, and its gradient once back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sliced_placements import sliced
from toy_times import in_proportion

from hgpart.machines.machine import Device, Link, Machine
from hgpart.prediction.actions import jobs_of
from hgpart.prediction.measured_costs import MeasuredCosts, Overheads
from hgpart.prediction.steps import part_steps
from hgpart.prediction.weights import shared_weights
from hgpart.run.scheduling import schedule
from hgpart.schedules.schedule import Direction


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
    costs = MeasuredCosts(
        part_steps(placement), sizes, [()] * k, times, machine, Overheads(transfer=0.0, byte=0.0)
    )
    found = shared_weights(placement, made, costs)
    planned = jobs_of(made, costs, found)
    sent = [one for jobs in planned.jobs for job in jobs for one in job.sends]
    assert sorted(sent) == [*range(len(planned.journeys))]
    awaited = [one for jobs in planned.jobs for job in jobs for one in job.awaits]
    for number, journey in enumerate(found.journeys):
        assert awaited.count(number) == 1
        assert any(number in job.awaits for job in planned.jobs[journey.receiver])
        assert any(number in job.sends for job in planned.jobs[journey.sender])
    traffic = placement.programs.expected_traffic(sizes, backward=True)
    maps = placement.programs.expected_traffic(sizes, backward=False).forward_bytes
    weights = (traffic.forward_bytes - maps).sum()
    half = len(found.journeys) // 2
    for journeys in (found.journeys[:half], found.journeys[half:]):
        nbytes = sum((journey.seconds - 1e-6) * 1e9 for journey in journeys)
        assert round(nbytes) == weights
    # Pieces of an action take together what it takes.
    for action in made.order:
        pieces = found.divided[action]
        assert abs(sum(job.seconds for job in pieces) - costs.job(action).seconds) < 1e-12
        if action.direction is Direction.FORWARD and len(pieces) > 1:
            assert not any(job.sends for job in pieces)
    # What is packed costs both ends, and so does a gradient that is added to another one its owner;
    # maps are counted by the sample, of which slices may have one more or less.
    handled = replace(costs, overheads=Overheads(transfer=0.0, byte=1e-9))
    dearer = jobs_of(made, handled, shared_weights(placement, made, handled))
    gradients = traffic.backward_bytes - (traffic.forward_bytes - maps).T
    copies = placement.copies
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
    late = jobs_of(made, slow, shared_weights(placement, made, slow))
    of_maps = placement.programs.expected_traffic(sizes, backward=False).forward_messages
    for part in range(k):
        more = sum(job.seconds for job in late.jobs[part])
        more -= sum(job.seconds for job in planned.jobs[part])
        count = sum(part in (one.owner, one.holder) for one in travelling)
        assert more >= count + of_maps[part].sum() + of_maps[:, part].sum() - 1e-6
