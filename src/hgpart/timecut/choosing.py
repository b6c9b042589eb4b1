"""Candidates -> the one whose step a simulation finds fastest, and in how many micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from hgpart.errors import ArgumentError, HgpartError, InfeasibleError, PlanError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.machines.machine import Machine
from hgpart.partition.partition import Partition, evaluated
from hgpart.partition.problem.objectives import MICRO_BATCHES
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.topology import seconds_a_byte
from hgpart.partitioned_model import PartitionedModel, evaluate_layerwise
from hgpart.placement import Placement, place
from hgpart.prediction.predict import Prediction, predict
from hgpart.run.scheduling import wanted_schedule
from hgpart.schedule_wanted import Scheduling
from hgpart.timecut.portfolio import candidates
from hgpart.tracing.traced_model import TracedModel, example_inputs, trace
from hgpart.work.layer_times import LayerTimes


@dataclass(frozen=True, eq=False)
class Timed:
    """A partition and its simulated step.

    Attributes
    ----------
    name : str
        The way that it was found.
    partition : Partition
    scheduling : Scheduling
    prediction : Prediction
    """

    name: str
    partition: Partition
    scheduling: Scheduling
    prediction: Prediction

    @property
    def seconds(self) -> float:
        """Of a step with its optimizer, simulated, where one follows another."""
        return self.prediction.batch_seconds


@dataclass(frozen=True, eq=False)
class Choice:
    """What was simulated.

    Attributes
    ----------
    timed : tuple of Timed
        The fastest schedule of each way that was simulated, fastest first.
    left_out : tuple of (str, str)
        Ways that are not among them, and why, as that sending their maps alone takes longer than
        the best; but for those that divide alike.
    interrupted : bool
        Whether Ctrl-C ended it: the best by then.
    """

    timed: tuple[Timed, ...]
    left_out: tuple[tuple[str, str], ...]
    interrupted: bool = False

    @property
    def partition(self) -> Partition:
        """The best one, with the objective for the micro-batches that it is best in."""
        found, many = self.timed[0].partition, self.timed[0].scheduling.micro_batches
        objective = found.problem.objective.in_micro_batches(many)
        problem = replace(found.problem, objective=objective)
        return replace(found, problem=problem, interrupted=self.interrupted)


def choose(
    module: nn.Module,
    input_shape: Sequence[int],
    problem: Problem,
    machine: Machine,
    times: LayerTimes,
    search: Search,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    on_way: Callable[[str], object] = lambda name: None,
) -> Choice:
    """Simulate every way to divide a model, in each number of micro-batches.

    The best is never worse, by the simulator, than any known way within eps and memory, or than the
    partition of least volume.

    Parameters
    ----------
    module : nn.Module
        On the meta device.
    input_shape : sequence of int
        Of one sample.
    problem : Problem
        Of the objective "time".
    machine : Machine
    times : LayerTimes
        Of the model's layers.
    search : Search
        Of each search; ways whose turn comes behind the deadline are left out, but for the first
        that can be.
    micro_batches : sequence of int
    on_way : function of a str, optional
        Called with the name of each way when its turn comes.

    Raises
    ------
    ArgumentError
        If there are fewer tasks than parts.
    InfeasibleError
        If no way is within eps and memory.
    PlanError
        If the problem is of another model.
    """
    if problem.k > problem.tasks:
        raise ArgumentError(
            f"k is {problem.k}, expected at most {problem.tasks}, the number of tasks"
        )
    traced, graph = _traced_once(module, input_shape, problem)
    module = module.train()
    layerwise = evaluate_layerwise(graph, problem.work, problem.modelling, problem.k)
    timed: list[Timed] = []
    left_out: list[tuple[str, str]] = []
    seen: set[tuple[int, int, bytes]] = set()
    interrupted = False
    try:
        for candidate in candidates(problem, search, micro_batches):
            if interrupted or (timed and search.left <= 0):
                left_out.append((candidate.name, "out of time"))
                continue
            on_way(candidate.name)
            try:
                divided = candidate.divide()
                interrupted = divided.interrupted
                found = _within(problem, divided, candidate.name)
                key = found.modelling.slices, found.model.vertices, found.parts.tobytes()
                if key in seen:
                    continue
                seen.add(key)
                least = _sending_seconds(found, machine)
                if timed and least >= min(one.seconds for one in timed):
                    left_out.append((candidate.name, f"sending its maps takes {least:.3g} s"))
                    continue
                whole = PartitionedModel(traced, found, layerwise, {})
                placement = place(module, whole, ["meta"] * problem.k)
                timed.append(
                    _fastest(candidate.name, found, placement, machine, times, micro_batches)
                )
            except HgpartError as error:
                left_out.append((candidate.name, str(error)))
    except KeyboardInterrupt:
        if not timed:
            raise
        interrupted = True
    if not timed:
        raise InfeasibleError(
            f"no way to divide the model among {problem.k} devices: the last that was tried, "
            f"{left_out[-1][0]}, failed, as {left_out[-1][1]}"
        )
    timed.sort(key=lambda one: one.seconds)
    return Choice(tuple(timed), tuple(left_out), interrupted)


def _traced_once(
    module: nn.Module, input_shape: Sequence[int], problem: Problem
) -> tuple[TracedModel, ChannelGraph]:
    """For all placements, in the mode that they run in where the problem's layers are the same."""
    for training in (True, False):
        traced = trace(module.train(training), example_inputs(module, input_shape))
        graph = channel_graph(traced)
        if graph.fingerprint == problem.graph.fingerprint:
            return traced, graph
    raise PlanError("the model is another one than the problem's: accepted is the same")


def _within(problem: Problem, found: Partition, name: str) -> Partition:
    """The same by the eps and objective that were asked for, if it is within the limits."""
    own = replace(problem, modelling=found.modelling)
    judged = evaluated(
        own, found.model, found.parts, seed=found.seed, backend=found.backend, start=name
    )
    if not judged.feasible:
        imbalance = judged.evaluation.imbalance
        raise InfeasibleError(
            f"its imbalance is {imbalance:.3g}"
            if imbalance > problem.eps
            else "it needs more memory than there is"
        )
    return judged


def _sending_seconds(found: Partition, machine: Machine) -> float:
    """At least, of the maps of a batch, of the device that sends longest: no step of it takes less.

    A placement of hundreds of parts takes minutes, and more where all send to all. Where elements
    were counted as other bytes than they have, 0: nothing is known of what will travel.
    """
    if found.modelling.bytes_per_element is not None:
        return 0.0
    seconds = seconds_a_byte(machine.first(found.k), lambda link: link.least_seconds_a_byte)
    return float((seconds * found.evaluation.traffic).sum(axis=1).max())


def _fastest(
    name: str,
    found: Partition,
    placement: Placement,
    machine: Machine,
    times: LayerTimes,
    micro_batches: Sequence[int],
) -> Timed:
    """The same in the number of micro-batches that is best for it."""
    size = found.modelling.batch_size
    timed: list[Timed] = []
    refused: list[HgpartError] = []
    for many in micro_batches:
        try:
            scheduling = Scheduling(micro_batches=many)
            placement.for_batch(size).passes.check_samples(scheduling.sizes(size))
            made = wanted_schedule(placement, scheduling, True, batch_size=size)
            prediction = predict(placement, made, machine, times, size)
        except HgpartError as error:
            refused.append(error)
            continue
        timed.append(Timed(name, found, scheduling, prediction))
    if not timed:
        raise refused[0]
    return min(timed, key=lambda one: one.seconds)
