"""Jobs, messages, Sharing -> Spans: when each of them begins and ends, by simulated events.

Between events each job and each message goes on at a constant rate, which is 1 where nothing slows
it down. So each has a clock that shows how much of it is done, and an event for its end. A change
of rate sets the clock to the new rate and replaces the event. This is compiled:
`native/simulation.cpp`.

Where parts queue, messages leave one after another, and arrive one after another: messages from
several parts at once take as long as if they came from one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hgpart import _native
from hgpart.arrays import Float64
from hgpart.errors import ArgumentError
from hgpart.machines.machine import Slowdown
from hgpart.prediction.jobs import Sharing, Spans, TimedJob, TimedMessage, TimedStep


def simulate(
    jobs: Sequence[Sequence[TimedJob]], messages: Sequence[TimedMessage], sharing: Sharing
) -> Spans:
    """Find when parts do their jobs, each as soon as it can, and when messages are sent.

    Parameters
    ----------
    jobs : sequence of sequence of TimedJob
        Jobs of each part, in the order in which it does them.
    messages : sequence of TimedMessage
        Messages by the numbers in jobs; each is sent by one job of its sender.

    Raises
    ------
    ArgumentError
        If a part waits for ever.

    >>> from hgpart.machines.machine import Slowdown
    >>> there = TimedMessage(0, 1, seconds=1.0, both_ways=1.0)
    >>> jobs = [[TimedJob(2.0, sends=(0,)), TimedJob(2.0)], [TimedJob(2.0, awaits=(0,))]]
    >>> simulate(jobs, [there], Sharing((0, 0), Slowdown((1.0, 2.0)))).jobs[1]
    [Span(begin=3.0, end=6.0)]
    """
    return simulated(TimedStep.of(jobs, messages), sharing)


def simulated(step: TimedStep, sharing: Sharing, steps: int = 1) -> Spans:
    """The same for jobs and messages in arrays, for several such steps one after another.

    Each part begins the next step as soon as it has done its jobs of the one before.

    Raises
    ------
    ArgumentError
        If a part waits for ever.
    """
    *times, sent, arrived = _native.simulate(
        step,
        np.array(sharing.nodes, dtype=np.int32),
        _factors(sharing.slowdown),
        _factors(sharing.memory_bound),
        sharing.queues,
        steps,
    )
    job_times = np.stack(times, axis=-1).reshape(steps, len(step.seconds), 2)
    left = np.flatnonzero(job_times[0, :, 1] < 0)
    if len(left):
        job = int(left[0])
        part = int(np.searchsorted(step.part_pointers, job, "right")) - 1
        awaited = step.awaits[step.await_pointers[job] : step.await_pointers[job + 1]]
        missing = sorted({number for number in awaited.tolist() if arrived[number] < 0})
        raise ArgumentError(
            f"part {part} waits for ever for messages {missing}: accepted are messages that "
            "some job sends before"
        )
    message_times = np.stack([sent, arrived], axis=-1).reshape(steps, len(step.senders), 2)
    return Spans(step.part_pointers, job_times, message_times)


def _factors(slowdown: Slowdown) -> Float64:
    """Factors by the number of devices that compute, from 0 on."""
    return np.array([1.0, *slowdown.together])
