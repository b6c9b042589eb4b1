"""Partitions of one model -> simulated seconds of a step, on one machine and by one schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hgpart.arrays import Float64
from hgpart.errors import ArgumentError, HgpartError
from hgpart.machines.machine import Machine
from hgpart.machines.machine_files import load_machine
from hgpart.machines.named import ASSUMED_LINKS
from hgpart.partition import Partition
from hgpart.partition.problem.objectives import Objective
from hgpart.partition.problem.topology import time_objective
from hgpart.partitioned_model import PartitionedModel
from hgpart.prediction.device_times import Times, at_speeds, sources
from hgpart.prediction.sketching.estimate import Sketched, estimate
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.recommendation.of_partition import assumed_devices, fastest_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.estimated_times import RATE, estimated_times
from hgpart.work.layer_times import step_seconds

FINE = "a fine-grain plan is only simulated once it is placed, which hgpart predict does"


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """A step of a partition, simulated.

    Attributes
    ----------
    seconds : float
        Seconds of a step as one follows another, its update included.
    busy : float64 array, shape (k,)
        Seconds in which each part computes.
    """

    seconds: float
    busy: Float64
    scheduling: Scheduling
    assumed: str

    @property
    def busiest(self) -> int:
        """The part that computes longest."""
        return int(self.busy.argmax())


@dataclass(frozen=True, eq=False)
class Steps:
    """A simulator of steps of a model's partitions.

    Attributes
    ----------
    scheduling : Scheduling or None
        The schedule of all steps; None for the one by which a partition is fastest.
    assumed : str
        The machine and the times in words.
    """

    facts: LayerFacts
    machine: Machine
    times: Times
    assumed: str
    scheduling: Scheduling | None = None

    @classmethod
    def of(
        cls,
        traced: TracedModel,
        partition: Partition,
        trainable: frozenset[str],
        machine: str | None = None,
        times: Times | None = None,
        scheduling: Scheduling | None = None,
    ) -> Steps:
        """Make a simulator of a model.

        Parameters
        ----------
        machine : str, optional
            A named machine, or a file, whose fastest devices are taken, as `predict` does. Default:
            devices that are assumed, with the speeds of the partition.
        times : Times, optional
            Measured times of layers. Default: by the partition's work.

        Raises
        ------
        ArgumentError
            If the machine has fewer devices than parts, or a kind of device has no times.
        FormatError
            If the file of the machine is malformed.
        """
        if machine is None:
            on, name = assumed_devices(partition).machine, ASSUMED_LINKS
        else:
            on, name = load_machine(machine, partition.k).of_fastest(partition.k), machine
        if times is None:
            problem, size = partition.problem, partition.modelling.batch_size
            times = estimated_times(problem.work, problem.graph, size)
            rate = f"{RATE / 1e9:g} GMAC/s a device"
            words = f"{name} and {rate if problem.work.unit == 'MAC' else problem.work.source}"
        else:
            words = f"{name} and {sources(on, times)}"
        trains = partition.modelling.training and traced.training
        facts = LayerFacts.of(traced, partition, trainable, trains)
        return cls(facts, on, times, words, scheduling)

    @classmethod
    def of_model(
        cls,
        divided: PartitionedModel,
        machine: str | None,
        times: Times | None,
        scheduling: Scheduling | None,
    ) -> Steps:
        """Make a simulator of a model that came with its trace; see `of`."""
        traced = divided.traced
        trainable = frozenset(traced.parameters.values())
        return cls.of(traced, divided.partition, trainable, machine, times, scheduling)

    def of_partition(self, partition: Partition) -> SimulatedStep:
        """Simulate a step.

        Raises
        ------
        HgpartError
            If it can't be simulated without placing it, as a fine-grain plan can't.
        """
        if partition.modelling.grain == "fine":
            raise ArgumentError(FINE)
        sketched = Sketched.of(self.facts, partition)
        scheduling = self.scheduling or fastest_schedule(sketched, self.machine, self.times)[0]
        step = estimate(sketched, scheduling, self.machine, self.times)
        return SimulatedStep(step.batch_seconds, step.busy, scheduling, self.assumed)

    def objective(self, partition: Partition) -> Objective:
        """The objective "time", which estimates such a step without simulating it."""
        size, k = partition.modelling.batch_size, partition.k
        machine, times = at_speeds(self.machine, self.times, size)
        count = 1 if self.scheduling is None else self.scheduling.micro_batches
        seconds = step_seconds(times, size)
        return time_objective(machine, k, seconds, count, trains=self.facts.trains)

    def fixed(self, scheduling: Scheduling) -> Steps:
        """The same by one schedule."""
        return replace(self, scheduling=scheduling)

    def seconds(self, partition: Partition) -> float | None:
        """Seconds of a step; None where a partition can't be simulated."""
        try:
            return self.of_partition(partition).seconds
        except HgpartError:
            return None
