"""WholeModel -> StepTimes: what layers take in steps, and how much longer beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Float64
from hgpart.errors import RunError
from hgpart.terminal import warn
from hgpart.timing.neighbours import neighbours, room_for
from hgpart.timing.whole_model import WholeModel
from hgpart.work.layer_times import Pass

LONGEST = 8.0  # seconds of a step; larger batches are in proportion
SPENT = 1.2  # seconds of equal steps, after which none begins
MOST = 10  # such steps
BESIDE_LONGEST = 2.0  # seconds of a step that is measured beside others, if there is one
ROUNDS = 2  # of that


@dataclass(frozen=True, eq=False)
class StepTimes:
    """What layers take in steps of a whole model.

    Attributes
    ----------
    samples : tuple of int
        Of a batch, ascending.
    seconds : mapping of Pass to float64 array, shape (layers, samples)
    neighbours : int
        Processes that filled the cores besides; 0 if there was no room for any.
    beside : float
        How many times as long a step took then, 1 at least.
    """

    samples: tuple[int, ...]
    seconds: Mapping[Pass, Float64]
    neighbours: int
    beside: float


def time_steps(whole: WholeModel, on_next: Callable[[str], None] = lambda what: None) -> StepTimes:
    """Measure steps of ascending batch sizes; the medians of some, layer by layer.

    Parameters
    ----------
    whole : WholeModel
    on_next : callable
        Told what is measured next.
    """
    columns: dict[int, dict[Pass, Float64]] = {}
    for samples in sorted(whole.batches):
        on_next(f"steps of {samples}")
        first = whole.step(samples)
        # It takes a little longer; but where it takes so long, less so.
        at_once = first if first.sum() > SPENT else _medians(whole, samples)
        apart = _medians(whole, samples, apart=True)
        at_once = _divided(at_once, apart, whole.together)
        columns[samples] = {
            Pass.FORWARD: at_once[:, 0],
            Pass.BACKWARD: at_once[:, 1],
            Pass.MAPS: apart[:, 1],
            Pass.WEIGHTS: apart[:, 2],
            Pass.UPDATE: at_once[:, 2],
        }
        if at_once.sum() * 4 > LONGEST:
            break
    count = room_for(whole.device)
    beside = 1.0
    if count:
        on_next("steps beside others")
        fast = [
            one
            for one, of in columns.items()
            if (of[Pass.FORWARD] + of[Pass.BACKWARD]).sum() <= BESIDE_LONGEST
        ]
        try:
            beside = _beside(whole, max(fast, default=min(columns)), count)
        except RunError as error:
            warn(f"{error}: how much slower computing is beside others is not known")
            count = 0
    seconds = {which: np.stack([of[which] for of in columns.values()], axis=1) for which in Pass}
    return StepTimes(tuple(columns), seconds, count, beside)


def _divided(at_once: Float64, apart: Float64, together: Sequence[list[int]]) -> Float64:
    """What layers take together, in proportion to what they take apart.

    >>> at_once, apart = np.array([[3.0, 6.0, 0.5]] * 2), np.array([[1, 2, 2], [2, 4, 4.0]])
    >>> _divided(at_once, apart, [[0, 1]]).tolist()
    [[2.0, 4.0, 0.5], [4.0, 8.0, 0.5]]
    """
    alone = np.stack([apart[:, 0], apart[:, 1] + apart[:, 2]], axis=1)
    found: Float64 = at_once.copy()
    for layers in filter(None, together):
        of_all = np.maximum(alone[layers].sum(0), 1e-12)
        found[layers, :2] = at_once[layers, :2].sum(0) * alone[layers] / of_all
    return found


def _medians(whole: WholeModel, samples: int, *, apart: bool = False) -> Float64:
    """Of as many steps as fit, one at least."""
    runs, spent = list[Float64](), 0.0
    while spent < SPENT and len(runs) < MOST:
        runs.append(whole.step(samples, apart=apart))
        spent += runs[-1].sum()
    found: Float64 = np.median(runs, axis=0)
    return found


def _beside(whole: WholeModel, samples: int, count: int) -> float:
    """In turns, so that a machine that gets slower meanwhile is as slow for both."""
    ratios = []
    with neighbours(whole, samples, count) as others:
        for _ in range(ROUNDS):
            alone = _medians(whole, samples).sum()
            with others:
                ratios.append(_medians(whole, samples).sum() / alone)
    return max(1.0, float(f"{np.median(ratios):.4g}"))
