"""Partition -> Simulated: how its steps are run fastest, and which known way is faster still."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import nn

from hgpart.calibration.here import device_here
from hgpart.errors import ArgumentError, FormatError, HgpartError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.machines.machine import Link, Machine
from hgpart.machines.machine_files import load_machine
from hgpart.machines.named import ASSUMED, ASSUMED_LINKS
from hgpart.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.placement.ordering.usual_schedule import COUNTS, ENOUGH, GAIN, RULE
from hgpart.prediction.device_times import Times
from hgpart.prediction.sketching.estimate import Sketched, estimate
from hgpart.prediction.sketching.layer_facts import LayerFacts
from hgpart.schedule_wanted import Scheduling
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.estimated_times import RATE, estimated_times
from hgpart.work.layer_times import LayerTimes, training_work

KNOWN = ("data-parallel", "one-weird-trick", "layerwise")  # ways that take a moment
HERE = 1e-4, 2e9  # latency and bandwidth between processes of a machine, until they are measured
BETTER = 1.05  # times as fast: less is not worth another command


@dataclass(frozen=True)
class Simulated:
    """A training step of a partition, simulated.

    Attributes
    ----------
    scheduling : Scheduling
        The schedule by which it is fastest.
    seconds, one_device : float
        Seconds of a step, and of one on one device.
    assumed : str
        The devices and links that it is simulated with.
    faster : str or None
        The known way that is fastest, where it is faster than the partition and one device.
    faster_seconds : float or None
        Seconds of its step.
    for_norms : int or None
        Samples that batch norms take their statistics from, where micro-batches make these fewer.
    """

    scheduling: Scheduling
    seconds: float
    one_device: float
    assumed: str
    faster: str | None = None
    faster_seconds: float | None = None
    for_norms: int | None = None

    @property
    def micro_batches(self) -> int:
        """In as many as are best."""
        return self.scheduling.micro_batches

    def record(self) -> dict[str, object]:
        """Its figures, for JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        rule = own.pop("scheduling").rule
        return {"rule": rule, "micro_batches": self.micro_batches, **own}


def simulated_step(
    module: nn.Module,
    traced: TracedModel,
    partition: Partition,
    machine: Machine,
    times: Times,
    assumed: str,
) -> Simulated:
    """Simulate a training step in several numbers of micro-batches, and known ways beside it.

    Parameters
    ----------
    module : nn.Module
        What was traced.
    machine : Machine
        A machine of as many devices, or more.
    assumed : str
        The machine and the times in words.
    """
    trainable = frozenset(
        name for name, parameter in module.named_parameters() if parameter.requires_grad
    )
    facts = LayerFacts.of(traced, partition, trainable)

    def best(divided: Partition, on: Machine = machine) -> tuple[Scheduling, float]:
        return fastest_schedule(Sketched.of(facts, divided), on, times)

    scheduling, seconds = best(partition)
    of_one = replace(partition.problem.free, k=1, speeds=None, memory=None)
    alone = way_named("single").partition(of_one, Search(), bound=0)
    _, one_device = best(alone, machine.of_fastest(1))
    for_norms = _for_norms(partition, scheduling)
    step = Simulated(scheduling, seconds, one_device, assumed, for_norms=for_norms)
    for name in KNOWN if partition.k > 1 else ():
        try:
            known = way_named(name).partition(partition.problem, Search(), bound=0)
            _, spent = best(known)
        except HgpartError:  # a way that the model or the batch can't be divided by
            continue
        fits = partition.problem.memory is None or known.feasible
        if fits and spent * BETTER < min(seconds, one_device, step.faster_seconds or seconds):
            step = replace(step, faster=name, faster_seconds=spent)
    return step


def first_answer(
    module: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    times: LayerTimes,
    k: int,
    batch_size: int,
) -> str | None:
    """The known way that is fastest by measured layers, in words, before links are measured.

    None where no known way is faster than one device, or none is possible.
    """
    device = device_here(torch.device("cpu"), 1, k)
    on = Machine(device.kind, (device,) * k, (k,), Link.of(*HERE))
    problem = Problem(
        graph, training_work(times, graph, batch_size), Modelling(batch_size=batch_size), k
    )
    for name in KNOWN:
        try:
            known = way_named(name).partition(problem, Search(), bound=0)
            step = simulated_step(module, traced, known, on, times, "")
        except HgpartError:
            continue
        best = step.faster or name
        speed_up = step.one_device / (step.faster_seconds or step.seconds)
        if speed_up < 1:
            return None
        return (
            f"{best}, about {speed_up:.2f} times as fast as one device (simulated, links assumed)"
        )
    return None


def assumed_step(
    module: nn.Module, traced: TracedModel, partition: Partition, machine: str | None = None
) -> Simulated | None:
    """Simulate a training step by what work says, on a machine or on devices that are assumed.

    None for one device, for inference, and for what is not simulated before it is placed, such as
    fine-grain parts.

    Parameters
    ----------
    machine : str, optional
        A named machine, or a file.
    """
    if partition.k == 1 or not (partition.modelling.training and traced.training):
        return None
    try:
        assumed = assumed_devices(partition, machine)
    except FormatError:  # a topology, which says nothing of seconds
        assumed = assumed_devices(partition)
    except ArgumentError:  # fewer devices than parts
        return None
    try:
        return simulated_step(module, traced, partition, *assumed)
    except HgpartError:
        return None


class AssumedDevices(NamedTuple):
    """Devices that a step is simulated on, and how they are called.

    Attributes
    ----------
    times : LayerTimes
        Seconds of layers by their work, as nothing was measured.
    words : str
        The machine and the rate of its devices.
    """

    machine: Machine
    times: LayerTimes
    words: str


def assumed_devices(partition: Partition, machine: str | None = None) -> AssumedDevices:
    """A machine, or devices that are assumed, with a partition's speeds, and times by its work.

    Raises
    ------
    ArgumentError
        If the machine has fewer devices.
    FormatError
        If its file is malformed or says nothing of seconds.
    """
    problem = partition.problem
    on = load_machine(machine or ASSUMED, partition.k).of_fastest(partition.k)
    if problem.speeds is not None:
        devices = zip(on.devices, problem.speeds, strict=True)
        on = replace(on, devices=tuple(replace(device, speed=speed) for device, speed in devices))
    rate = f" and {RATE / 1e9:g} GMAC/s a device" if problem.work.unit == "MAC" else ""
    times = estimated_times(problem.work, problem.graph, partition.modelling.batch_size)
    return AssumedDevices(on, times, f"{machine or ASSUMED_LINKS}{rate}")


def fastest_schedule(
    sketched: Sketched, machine: Machine, times: Times
) -> tuple[Scheduling, float]:
    """Simulate a step in several numbers of micro-batches; the best of them, and its seconds."""
    partition = sketched.partition
    chosen, least = Scheduling(RULE, 1), float("inf")
    for count in COUNTS if partition.k > 1 else (1,):
        if count > 1 and _has_norms(partition) and _samples_of_norms(partition, count) < ENOUGH:
            break
        try:
            step = estimate(sketched, Scheduling(RULE, count), machine, times)
        except HgpartError:
            if count == 1:
                raise
            break  # the batch can't be divided, or not into so many
        if step.batch_seconds < GAIN * least:
            chosen, least = Scheduling(RULE, count), step.batch_seconds
    return chosen, least


def _for_norms(partition: Partition, scheduling: Scheduling) -> int | None:
    count = scheduling.micro_batches
    return _samples_of_norms(partition, count) if count > 1 and _has_norms(partition) else None


def _has_norms(partition: Partition) -> bool:
    return any(layer.batch_statistics for layer in partition.problem.graph.layers)


def _samples_of_norms(partition: Partition, count: int) -> int:
    """Samples that a norm takes its statistics from, at least."""
    modelling = partition.modelling
    shares = modelling.slices if modelling.norms == "slice" else 1
    return modelling.batch_size // (count * shares)
