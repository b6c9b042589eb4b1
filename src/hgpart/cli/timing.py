"""Options of --objective time -> Timing: checked before the model is traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgpart.errors import ArgumentError
from hgpart.terminal import say

if TYPE_CHECKING:
    from torch import nn

    from hgpart.machines.machine import Machine
    from hgpart.partition.problem.problem import Problem
    from hgpart.partition.problem.search import Search
    from hgpart.recommendation.ranking import Recommendation

TIME = "time"


@dataclass(frozen=True)
class Timing:
    """What a step is simulated with.

    Attributes
    ----------
    machine : Machine
        Of as many devices as there are parts, or more.
    work : Path
        Of times of layers.
    micro_batches : int or None
        Several are tried where it is None.
    """

    machine: Machine
    work: Path
    micro_batches: int | None

    def check(
        self,
        slices: int | str,
        backend: str,
        inference: bool,
        batch_size: int,
        topology: Path | None,
        speeds: Sequence[float] | None,
    ) -> None:
        """Refuse what the objective has no use for."""
        refused: dict[str, Any] = {
            f"--slices {slices}": slices != 1,
            f"--backend {backend}": backend != "native",
            "--inference": inference,
            "--topology": topology is not None,
            "--speeds": speeds is not None,
        }
        for option, is_given in refused.items():
            if is_given:
                raise ArgumentError(
                    f"{option} with --objective time: accepted is without, as it tries slices of "
                    "the batch itself, by native, for training on --machine"
                )
        if self.micro_batches is not None and not 1 <= self.micro_batches <= batch_size:
            raise ArgumentError(
                f"--micro-batches {self.micro_batches} of a batch of {batch_size}: accepted are 1 "
                f"to {batch_size}"
            )

    def choose(
        self, module: nn.Module, shape: tuple[int, ...], problem: Problem, search: Search, name: str
    ) -> Recommendation:
        """Simulate the ways to divide a model."""
        from hgpart.partition.problem.objectives import MICRO_BATCHES
        from hgpart.partition.problem.topology import time_objective
        from hgpart.recommendation.least_time import least_time
        from hgpart.work.figures import whole_work
        from hgpart.work.layer_times import load_layer_times

        times = load_layer_times(self.work, problem.graph)
        seconds = whole_work(problem.work, problem.graph)
        most = problem.modelling.batch_size
        wanted = (self.micro_batches,) if self.micro_batches else MICRO_BATCHES
        tried = tuple(many for many in wanted if many <= most)
        objective = time_objective(self.machine, problem.k, seconds, tried[0])
        return least_time(
            module,
            shape,
            replace(problem, objective=objective),
            self.machine,
            times,
            search,
            micro_batches=tried,
            name=name,
        )

    def tell(self, simulated: Recommendation) -> None:
        """Say what was simulated, the best first, and one device to compare with."""
        for ranked in (*simulated.ranked, simulated.one_device):
            count = ranked.scheduling.micro_batches
            batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
            say(f"{ranked.seconds:.4g} s a step (simulated), {batches}: {ranked.division.name}")
        for dropped in simulated.dropped:
            say(f"left out: {dropped.what}, as {dropped.why}")
        if simulated.left_out:
            say(f"left out: {simulated.left_out} ways, for lack of time")


def checked_timing(
    objective: str, machine: str | None, micro_batches: int | None, work: str, k: int
) -> Timing | None:
    """Return what --objective time needs; None for another objective, which takes none of it.

    Raises
    ------
    ArgumentError
        If an option is missing, or is not for this objective.
    FormatError
        If the machine is none.
    """
    if objective != TIME:
        for option, value in (("--machine", machine), ("--micro-batches", micro_batches)):
            if value is not None:
                raise ArgumentError(f"{option} {value}: accepted with --objective time alone")
        return None
    if machine is None:
        raise ArgumentError(
            "--objective time without --machine: accepted is a named one, as 10gbe, or a file of "
            "'hgpart calibrate'"
        )
    if not Path(work).is_file():
        raise ArgumentError(
            f"--objective time with --work {work}: accepted is a file of 'hgpart profile MODEL -o "
            "times.json'"
        )
    from hgpart.machines.machine_files import load_machine

    found = load_machine(machine, k)
    if found.k < k:
        raise ArgumentError(f"--machine {machine} of {found.k} devices: accepted are {k} or more")
    return Timing(found, Path(work), micro_batches)
