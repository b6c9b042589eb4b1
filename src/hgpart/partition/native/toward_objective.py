"""Divisions of little volume -> of little of what is asked for, where that is something else."""

from __future__ import annotations

import math

import numpy as np

from hgpart.errors import ArgumentError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.partition.native.annealing import Found
from hgpart.partition.native.devices import cheapest_devices
from hgpart.partition.native.rounds import HOTTEST_TOWARD_OBJECTIVE, Rounds
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.divisions import Division, blocks_of
from hgpart.partition.symmetry.symmetry import Symmetry

MOST_PAIRS = 2**27  # sets of readers x parts x parts: 1 GiB a thread
KEPT = 4  # divisions that go from one round to the next


def check_pairs(problem: Problem, symmetry: Symmetry) -> None:
    """Refuse what the table of traffic between parts, where it is needed, has no room for."""
    if problem.memory is None and problem.objective.is_volume:
        return
    sets = len(symmetry.set_pointers) - 1
    if sets * problem.k**2 > MOST_PAIRS:
        most = math.isqrt(MOST_PAIRS // sets)
        raise ArgumentError(
            f"k is {problem.k}, expected at most {most} for this model with a memory "
            "limit or an objective other than the volume"
        )


def rounds_toward_objective(problem: Problem) -> int:
    """Number of rounds that `toward_objective` takes: none where bytes are what counts."""
    return 0 if problem.objective.is_volume else len(HOTTEST_TOWARD_OBJECTIVE)


def toward_objective(
    problem: Problem, rounds: Rounds, symmetry: Symmetry, divisions: list[Division], steps: int
) -> list[Found]:
    """Anneal what sends little in all until it also has little of what is asked for.

    With link costs, each division is also tried with its parts on the devices that are cheapest for
    them. The best of the result, which comes first, is never worse than the best of the divisions.
    """
    rounds.toward_objective(symmetry)
    if problem.objective.links is not None:
        divisions = divisions + [
            _on_devices(problem, rounds, symmetry, division) for division in divisions
        ]
    most_rows, coldest = (6, 1e-6) if problem.modelling.grain == "fine" else (4 * problem.k, 1e-5)
    best: list[Found] = []
    for hottest in HOTTEST_TOWARD_OBJECTIVE:
        if best and rounds.clock.left <= 0:
            break
        chains = [
            (division, rounds.schedule(steps, hottest, coldest, 4.0, most_rows))
            for division in divisions
        ]
        best = rounds.anneal(symmetry, chains, best)
        divisions = [annealed.division for annealed in best[:KEPT]]
    return best


def _on_devices(
    problem: Problem, rounds: Rounds, symmetry: Symmetry, division: Division
) -> Division:
    """Give each part the device that its traffic is cheapest from."""
    assert problem.objective.links is not None
    model, parts = blocks_of(problem, symmetry, division)
    limits = [] if problem.memory is None else [np.array(problem.memory.bytes)]
    # Devices differ if constraints allow something on one of them only.
    limits += [*np.unique(symmetry.limits.parts, axis=0).astype(np.int64)]
    device = cheapest_devices(
        evaluate_parts(model, parts, problem.k).traffic,
        problem.objective.links,
        np.stack([problem.capacities, *limits], axis=1),
        rounds.clock.deadline,
    )
    return Division(division.sizes, [device[own] for own in division.parts])
