"""Many alike replicas -> its step: one replica simulated, and what all exchange.

A placement of a thousand parts takes minutes, and all replicas do the same. What they exchange of
weights and gradients is reckoned by the links alone, with nothing hidden behind computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Machine
from hgpart.partition import Partition
from hgpart.partition.baselines.by_slices import replica
from hgpart.partition.partition import evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve
from hgpart.prediction.predict import Prediction

MANY = 32  # devices: of more, one replica is simulated for all


def partition_of_one(problem: Problem, replicas: int, search: Search) -> Partition:
    """Divide one replica, with its devices and its samples, as all of them are divided.

    Parameters
    ----------
    problem : Problem
        With all devices and all samples.

    Raises
    ------
    ArgumentError
        If they can't all have as many samples.
    """
    samples, k = problem.modelling.batch_size, problem.k // replicas
    if samples % replicas:
        raise ArgumentError(
            f"{samples} samples for {replicas} replicas: accepted are as many for each"
        )
    modelling = replace(problem.modelling, batch_size=samples // replicas)
    own = replace(problem, k=k, modelling=modelling)
    solved = uninterrupted(
        solve(replica(problem.in_slices(replicas), replicas), search, best_effort=True)
    )
    return evaluated(
        own, solved.model, solved.parts, seed=search.seed, backend="native", start="native"
    )


def exchange_seconds(nbytes: Sequence[int], replicas: int, machine: Machine) -> float:
    """Seconds in which replicas send each other weights, and then their gradients.

    Of each part's weights every replica has its share, which it sends to all others; these send
    their gradients of it. Messages of a device leave one after another, and land so.

    Parameters
    ----------
    nbytes : sequence of int
        Bytes of the weights of each part of a replica.
    machine : Machine
        Replica r's part p is on device ``r * len(nbytes) + p``.

    >>> from hgpart.machines.machine import Device, Link
    >>> machine = Machine("m", (Device("GPU"),) * 4, (4,), Link.of(latency=0.0, bandwidth=1e6))
    >>> exchange_seconds([1_000_000], 4, machine)
    1.5
    """
    parts, longest = len(nbytes), 0.0
    for part, whole in enumerate(nbytes):
        seconds = sum(
            machine.link(part, other * parts + part).seconds_of(whole / replicas, both_ways=True)
            for other in range(1, replicas)
        )
        longest = max(longest, 2 * seconds)
    return longest


def with_exchange(prediction: Prediction, seconds: float) -> Prediction:
    """The step of a replica, with the seconds in which it exchanges weights and gradients."""
    return replace(
        prediction, seconds=prediction.seconds + seconds, period=prediction.period + seconds
    )
