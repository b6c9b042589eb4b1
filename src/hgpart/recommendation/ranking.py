"""Ways that were simulated, or measured -> Recommendation: in the order of a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np

from hgpart.errors import not_one_of
from hgpart.machines.machine import Machine
from hgpart.partition.partition import MB, Partition
from hgpart.plan import Plan
from hgpart.prediction.predict import Prediction
from hgpart.recommendation.trials import Trial
from hgpart.schedule_wanted import Scheduling
from hgpart.summary import Summary

GOALS = ("time", "memory", "throughput")


def check_goal(goal: str) -> None:
    """Raise an ArgumentError if there is no such goal."""
    if goal not in GOALS:
        raise not_one_of("goal", goal, GOALS)


@dataclass(frozen=True, eq=False)
class Ranked:
    """A way to train, and what it should take.

    Attributes
    ----------
    division : Trial
    plan : Plan
        The partition, with the schedule.
    prediction : Prediction
    needed_bytes : tuple of int or None
        Of each device; see `memory`.
    link_seconds : float
        Of a batch: what the messages of the device that sends longest would take one after another.
    measured_seconds : float or None
        Of a step, where it was run.
    exchange_bytes : int
        Of many replicas, of which `prediction` is of one: what they send each other.
    """

    division: Trial
    plan: Plan
    prediction: Prediction
    needed_bytes: tuple[int | None, ...]
    link_seconds: float
    measured_seconds: float | None = None
    exchange_bytes: int = 0

    @property
    def partition(self) -> Partition:
        """The partition of the plan."""
        return self.plan.partition

    @property
    def scheduling(self) -> Scheduling:
        """Of its steps."""
        assert self.plan.scheduling is not None
        return self.plan.scheduling

    @property
    def simulated_seconds(self) -> float:
        """Of a batch, with the optimizer's, where one follows another."""
        return self.prediction.batch_seconds

    @property
    def seconds(self) -> float:
        """Of a batch: measured, or else simulated."""
        return self.simulated_seconds if self.measured_seconds is None else self.measured_seconds

    @property
    def computing_seconds(self) -> float:
        """Of a batch, simulated, without the optimizer's: of the device that computes longest."""
        found = self.prediction  # a step alone may handle more messages while it computes
        return min(float(found.busy.max()), found.period) / found.batches

    @property
    def waiting_seconds(self) -> float:
        """Of a batch, simulated: the mean of what devices wait, or have nothing to do."""
        found = self.prediction
        return float(np.maximum(0.0, found.period - found.busy).mean()) / found.batches

    @property
    def sent_bytes(self) -> int:
        """Of a batch, of all devices."""
        each = int(self.prediction.sent_bytes.sum()) // self.prediction.batches
        return self.division.replicas * each + self.exchange_bytes

    @property
    def largest_bytes(self) -> int | None:
        """What the device needs that needs most; None where one is not known."""
        known = [one for one in self.needed_bytes if one is not None]
        return max(known) if len(known) == len(self.needed_bytes) else None

    def value(self, goal: str) -> tuple[bool, float, float]:
        """Less is better; what was measured comes before what was not."""
        memory = inf if self.largest_bytes is None else float(self.largest_bytes)
        first = memory if goal == "memory" else self.seconds
        return self.measured_seconds is None, first, self.seconds


@dataclass(frozen=True)
class Dropped:
    """A way that is none.

    Attributes
    ----------
    what : str
    why : str
    """

    what: str
    why: str


@dataclass(frozen=True, eq=False)
class Recommendation:
    """Which way to train.

    Attributes
    ----------
    model : str
    machine : Machine
    times : str
        Where the times of layers come from.
    devices : int
        That there are.
    batch_size : int
    goal : str
        One of `GOALS`.
    ranked : tuple of Ranked
        The best first; of each division the best schedule alone.
    one_device : Ranked
        The whole model on the first device, be there memory for it or not.
    dropped : tuple of Dropped
    simulated : int
        Ways that were.
    left_out : int
        Ways that there was no time for.
    interrupted : bool
        Whether Ctrl-C ended it before all ways that there was time for.
    measured : mapping of str to float
        Seconds of a step of what was run besides: torch's own ways.
    notes : tuple of str
        What was assumed, and what was measured because it was not given.
    """

    model: str
    machine: Machine
    times: str
    devices: int
    batch_size: int
    goal: str
    ranked: tuple[Ranked, ...]
    one_device: Ranked
    dropped: tuple[Dropped, ...]
    simulated: int
    left_out: int
    interrupted: bool = False
    measured: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Short, without its plans and simulations."""
        return (
            f"Recommendation({self.model!r}, {self.best.division.text}, "
            f"{self.best.scheduling.text}, {self.best.seconds:.3g} s a step)"
        )

    def summary(self) -> Summary:
        """The ways, the best first; seconds of a step are simulated, where none were measured."""
        speed_ups = [self.speed_up(one) for one in self.ranked]
        rows = tuple(
            (
                one.division.text,
                one.scheduling.text,
                f"{1000 * one.seconds:,.4g}",
                "simulated" if one.measured_seconds is None else "measured",
                "-" if speed_up is None else f"{speed_up:.2f}",
                f"{one.sent_bytes / MB:,.4g}",
                "-" if one.largest_bytes is None else f"{one.largest_bytes / MB:,.4g}",
            )
            for one, speed_up in zip(self.ranked, speed_ups, strict=True)
        )
        line = f"{self.model} on {self.machine.name}, steps of {self.batch_size} samples"
        columns = ("way", "schedule", "ms a step", "", "times one device", "sends MB", "needs MB")
        return Summary((line, *self.notes), columns, rows)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def best(self) -> Ranked:
        """What is recommended."""
        return self.ranked[0]

    @property
    def runner_up(self) -> Ranked | None:
        """The best of the others, one device not counted."""
        others = [one for one in self.ranked[1:] if one.division.k > 1]
        return others[0] if others else None

    def speed_up(self, one: Ranked) -> float | None:
        """Over one device; None where one of both is measured and the other is not."""
        alone = self.one_device
        if (one.measured_seconds is None) != (alone.measured_seconds is None):
            return None
        return alone.seconds / one.seconds

    @property
    def is_split(self) -> bool:
        """Whether the best way needs more than one device."""
        return self.best.division.k > 1


def ranked_by(goal: str, found: Mapping[str, Ranked]) -> tuple[Ranked, ...]:
    """Ways in the order of a goal; of those that are as good, the first that was found."""
    return tuple(sorted(found.values(), key=lambda one: one.value(goal)))
