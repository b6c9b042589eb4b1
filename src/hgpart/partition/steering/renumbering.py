"""Parts -> the same parts on other devices that are like theirs, where that gains something."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from hgpart.arrays import Float64, Int32
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.partition.problem.problem import Problem
from hgpart.partition.steering.checking import devices_of_pins


def renumbered(problem: Problem, model: CnnVertices, parts: Int32, gain: Float64) -> Int32:
    """Exchange equal devices for the largest gain; constraints that are kept stay kept.

    Volume and balance stay what they are. Devices are equal that are as fast and have as much
    memory.

    Parameters
    ----------
    gain : float64 array, shape (k, k)
        What it gains that each part lies on each device.

    Returns
    -------
    int32 array, shape (model.vertices,)
        The parts as they are where no numbering keeps to the pins.
    """
    rates = np.array(problem.rates, dtype=np.float64)
    may = rates[:, None] == rates
    if problem.memory is not None:
        limits = np.array(problem.memory.bytes)
        may &= limits[:, None] == limits
    for held, devices in devices_of_pins(model, parts, problem.constraints):
        may[sorted(held)] &= np.isin(np.arange(problem.k), devices)
    try:
        _, device = linear_sum_assignment(np.where(may, gain, -np.inf), maximize=True)
    except ValueError:  # a part that may lie nowhere
        return parts
    moved: Int32 = device.astype(np.int32)[parts]
    return moved
