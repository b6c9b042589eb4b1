"""Options of measured times -> LayerTimes, StepTime of --objective time, simulators of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import hgpart
from hgpart.cli.forms import names
from hgpart.cli.groups import StepOptions
from hgpart.errors import ArgumentError
from hgpart.terminal import say, warn
from hgpart.tracing.input_shape import InputShape

if TYPE_CHECKING:
    from torch import nn

    from hgpart.cli.groups import AnyCounting
    from hgpart.cli.named_model import NamedModel
    from hgpart.cli.stages import Stages
    from hgpart.explanation.steps import Steps
    from hgpart.partition import Partition
    from hgpart.partition.problem.problem import Problem
    from hgpart.partition.problem.search import Search
    from hgpart.prediction.device_times import Times
    from hgpart.schedule_wanted import Scheduling

TIME = "time"


def times_of(text: str, graph: hgpart.ChannelGraph) -> Times:
    """Read --times: ``FILE``, or ``KIND=FILE,KIND=FILE`` with a file for each kind of device.

    Raises
    ------
    ArgumentError
        If a kind has no file, or two.
    FormatError, PlanError
        For the reasons of `load_layer_times`.
    """
    if "=" not in text or Path(text).is_file():
        return hgpart.files.load_layer_times(text, graph)
    files: dict[str, str] = {}
    for word in names(text):
        kind, _, file = word.partition("=")
        if not file or kind in files:
            raise ArgumentError(
                f"--times {text}: accepted is a file, or KIND=FILE for each kind once"
            )
        files[kind] = file
    return {kind: hgpart.files.load_layer_times(file, graph) for kind, file in files.items()}


@dataclass(frozen=True, kw_only=True)
class Simulator(StepOptions):
    """What steps of a plan are simulated with.

    Attributes
    ----------
    micro_batches : M
        Micro-batches per batch. Default: those of the plan, or as many as make a step fastest.
    machine : NAME|FILE
        Devices and links: a named machine such as 10gbe, or a file of 'hgpart calibrate'. Default:
        links of 10 Gb/s that are assumed.
    times : FILE
        Layer times, a file of 'hgpart profile', or KIND=FILE,KIND=FILE for each kind of device.
        Default: in proportion to the plan's work.
    """

    machine: str | None = None
    times: str | None = None

    def steps(
        self, stage: Stages, known: NamedModel, partition: Partition, planned: Scheduling | None
    ) -> Steps:
        """A simulator of steps of a plan's model."""
        from hgpart.explanation.steps import Steps

        scheduling = self.wanted(planned)
        times = None if self.times is None else times_of(self.times, known.graph)
        traced = known.traced
        trainable = frozenset(
            name for name, value in known.module.named_parameters() if value.requires_grad
        )
        with stage("simulate"):
            return Steps.of(traced, partition, trainable, self.machine, times, scheduling)


@dataclass(frozen=True)
class StepTime:
    """The machine and the layer times that steps are simulated with.

    Attributes
    ----------
    machine : Machine
        It has as many devices as there are parts, or more.
    work : Path
        A file of layer times.
    micro_batches : int or None
        None tries several numbers.
    """

    machine: hgpart.Machine
    work: Path
    micro_batches: int | None

    def choose(
        self, module: nn.Module, shape: InputShape, problem: Problem, search: Search, name: str
    ) -> hgpart.Recommendation:
        """Simulate the ways to divide a model."""
        from hgpart.partition.problem.objectives import MICRO_BATCHES
        from hgpart.partition.problem.topology import time_objective
        from hgpart.recommendation.least_time import least_time
        from hgpart.work.figures import whole_work

        times = hgpart.files.load_layer_times(self.work, problem.graph)
        seconds = whole_work(problem.work, problem.graph)
        most = problem.modelling.batch_size
        wanted = (self.micro_batches,) if self.micro_batches else MICRO_BATCHES
        tried = tuple(count for count in wanted if count <= most)
        objective = time_objective(self.machine, problem.k, seconds, tried[0])
        speeds = self.machine.of_fastest(problem.k).speeds
        problem = replace(problem, objective=objective, speeds=speeds)
        return least_time(
            module,
            shape,
            problem,
            self.machine,
            times,
            search,
            micro_batches=tried,
            name=name,
        )

    def tell(self, simulated: hgpart.Recommendation) -> None:
        """Say what was simulated, the best first, and one device to compare with."""
        for caution in simulated.cautions:
            warn(caution)
        for ranked in (*simulated.ranked, simulated.one_device):
            count = ranked.scheduling.micro_batches
            batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
            say(f"{ranked.seconds:.4g} s a step (simulated), {batches}: {ranked.trial.name}")
        for dropped in simulated.dropped:
            say(f"left out: {dropped.what}, as {dropped.why}")
        if simulated.left_out:
            say(f"left out: {simulated.left_out} ways, for lack of time")


def timing_of(
    machine: str | None, micro_batches: int | None, counting: AnyCounting, k: int
) -> StepTime:
    """The machine and the layer times of --objective time, checked before the model is traced.

    Raises
    ------
    ArgumentError
        If an option is missing or out of range.
    FormatError
        If the machine's file is malformed.
    """
    if machine is None:
        raise ArgumentError(
            "--objective time without --machine: accepted is a named one, as 10gbe, or a file of "
            "'hgpart calibrate'"
        )
    source = counting.work_asked()[0]
    if not Path(source).is_file():
        raise ArgumentError(
            f"--objective time with --work {source}: accepted is a file of 'hgpart profile MODEL "
            "-o times.json'"
        )

    loaded = hgpart.files.load_machine(machine, k)
    loaded.fastest(k)  # refuses fewer devices
    most = counting.batch_size
    if micro_batches is not None and not 1 <= micro_batches <= most:
        raise ArgumentError(
            f"--micro-batches {micro_batches} of a batch of {most}: accepted are 1 to {most}"
        )
    return StepTime(loaded, Path(source), micro_batches)
