"""WholeModel -> StepTimes: seconds of layers in steps, and the slow-down beside other processes."""

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
from hgpart.work.watching import Watch, spread_of

LONGEST = 8.0  # seconds of a step; times of larger batches are in proportion
SPENT = 1.2  # seconds of equal steps, after which no further one begins
MOST = 10  # equal steps
BRIEF = 3  # times as short, where it must be brief
BESIDE_LONGEST = 2.0  # seconds of a step that is measured beside other processes, if one is so fast
ROUNDS = 2  # of measuring beside other processes


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Seconds of layers in steps of a whole model.

    Attributes
    ----------
    samples : tuple of int
        Numbers of samples in a batch, ascending.
    seconds : mapping of Pass to float64 array, shape (layers, samples)
        Seconds of each layer in a step.
    neighbours : int
        Number of processes that filled the other cores; 0 if there was no room for any.
    beside : float
        Factor by which a step slowed down beside them, at least 1.
    """

    samples: tuple[int, ...]
    seconds: Mapping[Pass, Float64]
    neighbours: int
    beside: float


def time_steps(
    whole: WholeModel,
    on_next: Callable[[str], None] = lambda what: None,
    watch: Watch | None = None,
    *,
    briefly: bool = False,
) -> StepTimes:
    """Measure steps of ascending batch sizes: medians over several steps, layer by layer.

    Parameters
    ----------
    on_next : callable
        Called with what is measured next.
    watch : Watch, optional
        Measures again what other programs disturb.
    briefly : bool
        Whether steps are few, and none of them beside other processes.
    """
    enough = SPENT / BRIEF if briefly else SPENT
    watch = Watch() if watch is None else watch
    columns: dict[int, dict[Pass, Float64]] = {}
    for samples in sorted(whole.batches):
        on_next(f"steps of {samples}")
        # The first step takes longer, by up to a quarter: of long steps it only tells how layers
        # and passes divide the seconds of another.
        apart = whole.step(samples, apart=True)
        is_long = apart.sum() > enough
        if not is_long:
            apart = _medians(whole, samples, watch, enough, apart=True)
        joined = _medians(whole, samples, watch, enough)
        if is_long:
            apart *= joined[:, :2].sum() / apart.sum()
        joined = _divided(joined, apart, whole.together)
        columns[samples] = {
            Pass.FORWARD: joined[:, 0],
            Pass.BACKWARD: joined[:, 1],
            Pass.MAPS: apart[:, 1],
            Pass.WEIGHTS: apart[:, 2],
            Pass.UPDATE: joined[:, 2],
        }
        if joined.sum() * 4 > LONGEST:
            break
    count = 0 if briefly else room_for(whole.device)
    beside = 1.0
    if count:
        on_next("steps beside others")
        fast = [
            samples
            for samples, passes in columns.items()
            if (passes[Pass.FORWARD] + passes[Pass.BACKWARD]).sum() <= BESIDE_LONGEST
        ]
        try:
            beside = _beside(whole, max(fast, default=min(columns)), count, watch)
        except RunError as error:
            warn(f"{error}: the slow-down beside other processes is not known")
            count = 0
    seconds = {
        which: np.stack([passes[which] for passes in columns.values()], axis=1) for which in Pass
    }
    return StepTimes(tuple(columns), seconds, count, beside)


def _divided(joined: Float64, apart: Float64, together: Sequence[list[int]]) -> Float64:
    """Divide what layers take together in proportion to what they take apart.

    >>> joined, apart = np.array([[3.0, 6.0, 0.5]] * 2), np.array([[1, 2, 2], [2, 4, 4.0]])
    >>> _divided(joined, apart, [[0, 1]]).tolist()
    [[2.0, 4.0, 0.5], [4.0, 8.0, 0.5]]
    """
    alone = np.stack([apart[:, 0], apart[:, 1] + apart[:, 2]], axis=1)
    divided: Float64 = joined.copy()
    for layers in filter(None, together):
        of_all = np.maximum(alone[layers].sum(0), 1e-12)
        divided[layers, :2] = joined[layers, :2].sum(0) * alone[layers] / of_all
    return divided


def _medians(
    whole: WholeModel, samples: int, watch: Watch, enough: float = SPENT, *, apart: bool = False
) -> Float64:
    """The medians of as many steps as fit into the time, at least one."""

    def steps() -> list[Float64]:
        runs, spent = list[Float64](), 0.0
        while spent < enough and len(runs) < MOST:
            runs.append(whole.step(samples, apart=apart))
            spent += runs[-1].sum()
        return runs

    def spread(runs: Sequence[Float64]) -> float:
        return spread_of([float(seconds.sum()) for seconds in runs])

    on_cpu = whole.device.type == "cpu"
    medians: Float64 = np.median(watch.measure(steps, computes=on_cpu, spread=spread), axis=0)
    return medians


def _beside(whole: WholeModel, samples: int, count: int, watch: Watch) -> float:
    """The slow-down; measured in turns, so that a machine that slows down does so for both."""
    ratios = []
    with neighbours(whole, samples, count) as other_processes:
        for _ in range(ROUNDS):
            alone = _medians(whole, samples, watch).sum()
            with other_processes:
                ratios.append(_medians(whole, samples, watch).sum() / alone)
    return max(1.0, float(f"{np.median(ratios):.4g}"))
