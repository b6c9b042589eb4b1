"""Problem -> why it can't be divided some way, or None."""

from __future__ import annotations

from typing import Any

import numpy as np

from hgpart.partition.baselines.layerwise import uncuttable_runs
from hgpart.partition.problem.problem import Problem


def layers_that_compute(problem: Problem) -> str | None:
    """Need a layer with work for each part, tied layers counted once."""
    busy = len(np.unique(uncuttable_runs(problem.graph)[_has_work(problem)]))
    if problem.k > max(1, busy):
        return f"{problem.k} devices, but only {busy} layers that compute"
    return None


def _has_work(problem: Problem) -> Any:
    tasks = np.array([layer.tasks for layer in problem.graph.layers])
    return (tasks > 0) & (problem.work.per_task > 0)


def least_time_objective(problem: Problem) -> str | None:
    """Need the objective "time", which knows the machine."""
    if problem.objective.name == "time":
        return None
    return (
        f"the objective is {problem.objective.name}: accepted is time, which needs a machine, as "
        "in hgpart partition --objective time and hgpart recommend"
    )
