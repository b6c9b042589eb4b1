"""Problem -> a volume that no partition is below, by what a single part can hold.

A volume is what the nets that touch each part cost, summed over the parts, less what all nets cost
once. What a part holds is within its capacity, and all parts together hold everything. With a price
on each layer's work,

    volume >= sum over parts of min(cost of nets touched - prices of what is held)
              + all prices - all nets once

whatever the prices are. `native/contents.cpp` finds good ones, and `native/cheapest_contents.cpp`
the least for them.
"""

from __future__ import annotations

import math

from hgpart import _native
from hgpart.partition.bounds.part_model import part_model
from hgpart.partition.problem.problem import Problem

# Of the search for good prices, some seconds at most. It ends before where little is to be gained.
OPERATIONS_PER_ITEM, MOST_OPERATIONS = 7e7, 6e9
SLACK = 1e-9  # of the bound, for rounding


def part_bound(
    problem: Problem, seconds: float = math.inf, effort: float = 1.0
) -> tuple[int, bool]:
    """Bytes that every partition within the problem's capacities sends at least, or 0.

    It is of coarse-grain partitions without bands of rows. With slices of the batch, their number
    does not matter: a part may have any share of the samples. `effort` is the most operations of
    the search, as a share of its default.

    Returns
    -------
    int and bool
        The bound, and whether Ctrl-C ended the search for it.
    """
    modelling = problem.modelling
    if modelling.grain != "coarse" or modelling.bands > 1 or problem.k == 1:
        return 0, False
    if not problem.total or not problem.capacities.any():
        return 0, False
    model = part_model(problem)
    if model is None:
        return 0, False
    operations = min(MOST_OPERATIONS, OPERATIONS_PER_ITEM * len(model.work))
    bound, interrupted = _native.contents_bound(model, effort * operations, seconds)
    if bound <= 0:
        return 0, interrupted
    return max(0, math.ceil(bound * model.once * (1 - SLACK) - 1)), interrupted
