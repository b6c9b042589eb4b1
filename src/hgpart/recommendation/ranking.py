"""Ways that were simulated, or measured -> Recommendation: in the order of a goal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import numpy as np

from hgpart.errors import not_one_of
from hgpart.machines.machine import Machine
from hgpart.partition.partition import MB, Partition
from hgpart.plan import Plan
from hgpart.prediction.predict import Prediction
from hgpart.recommendation.replicas import exchange_seconds
from hgpart.recommendation.trials import Trial
from hgpart.schedule_wanted import Scheduling
from hgpart.summary import Summary

INFERENCE = ("latency", "inference-throughput")
NOISE = 0.03  # of seconds of steps: what differs by less is as fast
GOALS = ("time", "memory", "throughput", *INFERENCE)


def trains(goal: str) -> bool:
    """Whether a goal is one of training, with backward passes and updates."""
    return goal not in INFERENCE


def check_goal(goal: str) -> None:
    """Raise an ArgumentError if there is no such goal."""
    if goal not in GOALS:
        raise not_one_of("goal", goal, GOALS)


@dataclass(frozen=True, eq=False)
class Ranked:
    """A way to train, or to infer, and what it should take.

    Attributes
    ----------
    plan : Plan
        The partition, with the schedule.
    needed_bytes : tuple of int or None
        Bytes that each device needs; see `memory`.
    link_seconds : float
        Seconds a batch that the messages of the device which sends longest would take, one after
        another.
    measured_seconds : float or None
        Measured seconds of a step, where it was run.
    exchange_bytes : int
        Bytes that replicas send each other, where `prediction` is that of one replica.
    """

    trial: Trial
    plan: Plan
    prediction: Prediction
    needed_bytes: tuple[int | None, ...]
    link_seconds: float
    measured_seconds: float | None = None
    exchange_bytes: int = 0

    @property
    def text(self) -> str:
        """The way with its devices."""
        return self.trial.text

    @property
    def name(self) -> str:
        """The way without them."""
        return self.trial.name

    @property
    def k(self) -> int:
        """Number of devices."""
        return self.trial.k

    @property
    def order(self) -> str:
        """The schedule in words."""
        return self.scheduling.text

    @property
    def partition(self) -> Partition:
        """The partition of the plan."""
        return self.plan.partition

    @property
    def scheduling(self) -> Scheduling:
        """The schedule of its steps."""
        assert self.plan.scheduling is not None
        return self.plan.scheduling

    @property
    def update_seconds(self) -> float:
        """Simulated seconds of the update."""
        return self.prediction.update_seconds

    @property
    def simulated_seconds(self) -> float:
        """Seconds of a batch and its update, simulated, where batches follow each other."""
        return self.prediction.batch_seconds

    @property
    def seconds(self) -> float:
        """Seconds of a batch: measured, or else simulated."""
        return self.simulated_seconds if self.measured_seconds is None else self.measured_seconds

    @property
    def computing_seconds(self) -> float:
        """Simulated seconds a batch in which the busiest device computes, without the update."""
        prediction = self.prediction  # a step alone may handle more messages while it computes
        return min(float(prediction.busy.max()), prediction.period) / prediction.batches

    @property
    def waiting_seconds(self) -> float:
        """Simulated seconds a batch in which a device waits or is idle: the mean of all devices."""
        prediction = self.prediction
        return (
            float(np.maximum(0.0, prediction.period - prediction.busy).mean()) / prediction.batches
        )

    @property
    def sent_bytes(self) -> int:
        """Bytes that all devices send for a batch."""
        own = int(self.prediction.sent_bytes.sum()) // self.prediction.batches
        return self.trial.replicas * own + self.exchange_bytes

    @property
    def largest_bytes(self) -> int | None:
        """What the device needs that needs most; None where one is not known."""
        known = [size for size in self.needed_bytes if size is not None]
        return max(known) if len(known) == len(self.needed_bytes) else None

    def value(self, goal: str) -> tuple[bool, float, float]:
        """Less is better; what was measured comes before what was not."""
        memory = inf if self.largest_bytes is None else float(self.largest_bytes)
        first = memory if goal == "memory" else self.seconds
        return self.measured_seconds is None, first, self.seconds


@dataclass(frozen=True)
class ServedWay:
    """Replicas that parameter servers update: a way to train that no plan describes.

    Nothing is hidden behind computing: workers compute, push, and fetch what is updated.

    Attributes
    ----------
    name : str
        The way, as `hgpart train --way` takes it.
    k : int
        Number of devices, that of a server beside the workers included.
    computing_seconds, update_seconds : float
        Simulated seconds in which a worker computes, and a server updates.
    link_seconds : float
        Seconds in which the messages of the server that sends and is sent most land.
    sent_bytes : int
        Bytes that all send in a step.
    """

    name: str
    k: int
    workers: int
    computing_seconds: float
    update_seconds: float
    link_seconds: float
    sent_bytes: int
    order: ClassVar[str] = "no plan"
    measured_seconds: ClassVar[float | None] = None
    largest_bytes: ClassVar[int | None] = None
    waiting_seconds: ClassVar[float | None] = None

    @property
    def text(self) -> str:
        """The way with its devices."""
        return f"{self.name} on {self.k} devices"

    @property
    def simulated_seconds(self) -> float:
        """Seconds of a step."""
        return self.computing_seconds + self.link_seconds + self.update_seconds

    seconds = simulated_seconds

    def value(self, goal: str) -> tuple[bool, float, float]:
        """Less is better, as of `Ranked`."""
        return True, inf if goal == "memory" else self.seconds, self.seconds


def served_ways(
    replicas: Ranked, alone: Ranked, nbytes: int, machine: Machine
) -> tuple[ServedWay, ...]:
    """The seconds of a step by synchronous servers, on as many devices as replicas have.

    Either the workers serve equal shares of the weights, or one device serves all of them; then
    the others have more samples each, and as much more to compute. A server sends to one worker
    after another, and is sent to so.

    Parameters
    ----------
    replicas : Ranked
        Data parallelism, whose devices compute what workers do.
    alone : Ranked
        The model on one device, which updates all weights.
    nbytes : int
        Bytes of the weights.
    machine : Machine
        A machine of as many devices, of one speed.
    """
    k = replicas.k
    own, workers = replicas.computing_seconds, k - 1
    shared = exchange_seconds((nbytes,), k, machine)
    of_all = "ps-sync,servers=distributed", k, k, own, replicas.update_seconds
    ways = [ServedWay(*of_all, shared, 2 * workers * nbytes)]
    if workers > 1:
        links = (machine.link(worker, workers).seconds_of(nbytes) for worker in range(workers))
        of_one = "ps-sync", k, workers, own * k / workers, alone.update_seconds
        ways.append(ServedWay(*of_one, 2 * sum(links), 2 * workers * nbytes))
    return tuple(ways)


@dataclass(frozen=True)
class Dropped:
    """A way that can't be used, and why."""

    what: str
    why: str


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The ways to train, or to infer, ranked.

    Attributes
    ----------
    times : str
        Where the times of layers come from.
    devices : int
        Number of devices that may be used.
    goal : str
        One of `GOALS`.
    ranked : tuple of Ranked
        The best first; each trial by its best schedule.
    one_device : Ranked
        The whole model on the fastest device, be there memory for it or not.
    simulated : int
        Number of ways that were simulated.
    left_out : int
        Number of ways that there was no time for.
    interrupted : bool
        Whether Ctrl-C ended it before all ways that there was time for.
    served : tuple of ServedWay
        Ways to train that no plan describes, simulated for comparison.
    measured : mapping of str to float
        Seconds of a step of what was run besides: torch's own ways.
    least_seconds : float
        Seconds of a step that no way can be simulated below; see `hgpart.recommendation.bound`.
    notes : tuple of str
        What was assumed, and what was measured because it was not given.
    cautions : tuple of str
        Why its figures can't be trusted, if anything is known against them.
    epoch_steps : int or None
        Steps of an epoch of the data that it is trained on, if there are data.
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
    least_seconds: float = 0.0
    interrupted: bool = False
    served: tuple[ServedWay, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    epoch_steps: int | None = None

    def __repr__(self) -> str:
        """Short, without its plans and simulations."""
        return (
            f"Recommendation({self.model!r}, {self.best.trial.text}, "
            f"{self.best.scheduling.text}, {self.best.seconds:.3g} s a {self.step})"
        )

    def summary(self) -> Summary:
        """The ways, the best first; seconds of a step are simulated, where none were measured."""
        speed_ups = [self.speed_up(ranked) for ranked in self.ranked]
        rows = tuple(
            (
                ranked.trial.text,
                ranked.scheduling.text,
                f"{1000 * ranked.seconds:,.4g}",
                "simulated" if ranked.measured_seconds is None else "measured",
                "-" if speed_up is None else f"{speed_up:.2f}",
                f"{ranked.sent_bytes / MB:,.4g}",
                "-" if ranked.largest_bytes is None else f"{ranked.largest_bytes / MB:,.4g}",
            )
            for ranked, speed_up in zip(self.ranked, speed_ups, strict=True)
        )
        line = f"{self.model} on {self.machine.name}, {self.steps}"
        columns = ("way", "schedule", f"ms a {self.step}", "", "speed-up", "sends MB", "needs MB")
        return Summary((line, *self.cautions, *self.notes), columns, rows)

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @property
    def step(self) -> str:
        """What takes the seconds: a step of training, or a batch that passes forward."""
        return "step" if trains(self.goal) else "batch"

    @property
    def steps(self) -> str:
        """What is ranked, in words."""
        samples = f"{self.batch_size} sample{'s' * (self.batch_size > 1)}"
        return f"{'steps' if trains(self.goal) else 'batches'} of {samples}"

    @property
    def best(self) -> Ranked:
        """What is recommended."""
        return self.ranked[0]

    @property
    def runner_up(self) -> Ranked | None:
        """The best of the others, one device not counted."""
        return next((ranked for ranked in self.ranked[1:] if ranked.trial.k > 1), None)

    @property
    def rows(self) -> tuple[Ranked | ServedWay, ...]:
        """All ways in the order of the goal, with those that no plan describes."""
        return tuple(sorted((*self.ranked, *self.served), key=lambda way: way.value(self.goal)))

    def speed_up(self, ranked: Ranked | ServedWay) -> float | None:
        """Over one device; None where one of both is measured and the other is not."""
        alone = self.one_device
        if (ranked.measured_seconds is None) != (alone.measured_seconds is None):
            return None
        return alone.seconds / ranked.seconds

    def epoch_seconds(self, ranked: Ranked | ServedWay) -> float | None:
        """Seconds of an epoch, measured or simulated as its steps; None without data."""
        return None if self.epoch_steps is None else self.epoch_steps * ranked.seconds

    @property
    def most_speed_up(self) -> float | None:
        """The speed-up over one device, simulated, that no way can exceed; None if not known."""
        alone = self.one_device.simulated_seconds
        return alone / self.least_seconds if self.least_seconds else None

    @property
    def faster_elsewhere(self) -> tuple[str, float] | None:
        """What was run besides and took clearly less than the best way, with its seconds."""
        if self.goal == "memory" or not self.measured:
            return None
        name = min(self.measured, key=self.measured.__getitem__)
        taken = self.measured[name]
        return (name, taken) if taken < (1 - NOISE) * self.best.seconds else None

    @property
    def is_split(self) -> bool:
        """Whether the best way needs more than one device."""
        return self.best.trial.k > 1


def ranked_by(goal: str, found: Mapping[str, Ranked]) -> tuple[Ranked, ...]:
    """Ways in the order of a goal; of those that are as good, the first that was found."""
    return tuple(sorted(found.values(), key=lambda ranked: ranked.value(goal)))
