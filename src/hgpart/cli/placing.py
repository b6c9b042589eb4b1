"""A plan and the options of its run -> its parts, in this process or in one for each part."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.progress import MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

import hgpart
from hgpart.cli.groups import Ranks
from hgpart.cli.processes import check_devices, start_ranks, started_as_rank
from hgpart.cli.stages import Stages, classes_of, trains
from hgpart.errors import OutputError, PlanError, TraceError
from hgpart.freed_memory import keep_no_freed_memory
from hgpart.terminal import progress_bar, say, warn

if TYPE_CHECKING:
    from torch import nn

    from hgpart.plan import PlanFile
    from hgpart.run.measuring import Measurement
    from hgpart.run.processes.connection import Connection
    from hgpart.schedule_wanted import Scheduling

Result = TypeVar("Result")


@dataclass(frozen=True)
class Placing:
    """A model, its plan, and where its parts go.

    Attributes
    ----------
    devices : tuple of str
        The device of each part.
    seed : int
        Seed of random weights.
    norms : str
        See `hgpart.place`.
    """

    model: str
    plan: PlanFile
    devices: tuple[str, ...]
    weights: Path | None
    seed: int
    dtype: str = "float32"
    norms: str = "micro-batch"

    def __post_init__(self) -> None:
        """Check before any process is started."""
        from hgpart.placement.state.batch_statistics import check_norms

        check_norms(self.norms)

    def run(
        self,
        context: typer.Context,
        ranks: Ranks,
        check: Callable[[], None],
        work: Callable[[hgpart.Placement, Connection | None], Result | None],
    ) -> Result | None:
        """Run the parts as threads, or the command again in a process for each part.

        Returns what came of it in the process that prints, when the others are done: what fails
        after that fails in this one alone. Where the plan limits memory, or was made to fit by what
        it recomputes or offloads, what is freed is given back, as kept memory has holes.
        """
        planned = self.plan.scheduling
        fitted = planned is not None and not isinstance(planned.recompute, bool)
        if self.plan.memory is not None or fitted:
            keep_no_freed_memory()
        if ranks.in_threads:
            self.check_weights()
            placement = self.placed()
            with self.naming_plan():
                return work(placement, None)
        if started_as_rank():
            with self.connected(ranks.backend, ranks.timeout) as connection:
                placement = self.part_of(connection)
                with self.naming_plan():
                    return work(placement, connection)
        check_devices(self.devices, ranks.backend)
        self.check_weights()
        check()
        start_ranks(context, self.plan.k)
        return None

    @contextmanager
    def naming_plan(self) -> Iterator[None]:
        """Name the plan where what it recomputes or offloads does not fit the model's steps."""
        try:
            yield
        except PlanError as error:
            raise PlanError(f"{self.plan.words}: {error}") from error

    def part_of(self, connection: Connection) -> hgpart.Placement:
        """The part of this rank."""
        devices = (str(connection.device),) * self.plan.k
        return self._placed(devices, connection.rank)

    def check_weights(self) -> None:
        """Refuse, before the model is placed, a file that has not its weights by name."""
        from hgpart.placement.state.original_state import compared_names, original_state
        from hgpart.placement.state.weight_files import opened_weights

        if self.weights is not None:
            with redirect_stdout(sys.stderr):
                names = original_state(self._module("meta"), ())
            with opened_weights(self.weights, names) as state:
                compared_names(state, names)

    def classes(self) -> int:
        """Width of the model's output.

        Raises
        ------
        RunError
            If it returns no class scores.
        PlanError
            If it is not the model of the plan.
        """
        from hgpart.plan import another_model

        module = self._module("meta")
        try:
            return classes_of(module, self.plan.input_shape)
        except TraceError as error:  # the model takes no such images
            raise another_model(self.plan, error) from error

    def trains(self) -> bool:
        """Whether the model returns what `hgpart train` needs."""
        return trains(self._module("meta"), self.plan.input_shape)

    def check_step(self, scheduling: Scheduling, batch_size: int, training: bool) -> None:
        """Refuse, before any process is started, a step that its part would be refused in.

        The parts' programs are made for that only where something may be wrong: for a schedule's
        file, and in training for norms of a single sample or of the batch; slices may have few.
        """
        if scheduling.is_stream:
            from hgpart.placement.batches.streams import (
                check_norms_of_stream,
                check_slices_of_stream,
                check_turns,
            )

            if scheduling.is_in_turns:
                check_turns(self.plan.modelling, recompute=bool(scheduling.recompute))
            check_norms_of_stream(self.norms)
            if self.plan.modelling.slices > 1:
                check_slices_of_stream(stash=scheduling.stash)
        sizes = scheduling.sizes(batch_size)
        fewest = min(sizes) // (1 if scheduling.is_in_turns else self.plan.modelling.slices)
        norms = training and (fewest < 2 or self.norms == "batch")
        if scheduling.file is None and not norms:
            return
        from hgpart.run.scheduling import wanted_schedule

        with Stages() as stage, stage("check"):
            placement = self.without_memory(training)
            placement.for_batch(batch_size).passes.check_samples(sizes)
            wanted_schedule(placement, scheduling, training, batch_size=batch_size)

    def scheduled(
        self,
        wanted: Scheduling | None,
        placement: hgpart.Placement,
        connection: Connection | None,
        batch_size: int,
        *,
        training: bool,
    ) -> Scheduling:
        """The wanted schedule, or the one that is simulated fastest.

        The choice is said and, in training with the plan's batch size, kept in the plan. All ranks
        call this.
        """
        if wanted is not None:
            return wanted
        from hgpart.placement.ordering.ordered import from_one
        from hgpart.placement.ordering.usual_schedule import fastest
        from hgpart.plan import keep_schedule

        placement.train(training)
        placement.for_batch(batch_size).passes.check_samples([batch_size])
        gather = from_one if connection is None else connection.gather
        chosen = fastest(placement, batch_size, backward=training, gather=gather)
        if placement.k > 1 and (connection is None or connection.rank == 0):
            say(chosen.text)
            is_planned = training and batch_size == self.plan.modelling.batch_size
            if is_planned and self.plan.file is not None:
                try:
                    keep_schedule(self.plan.file, chosen.scheduling)
                except OutputError as error:
                    warn(f"the schedule can't be kept in {self.plan.file}: {error}")
        return chosen.scheduling

    def steps(
        self,
        placement: hgpart.Placement,
        connection: Connection | None,
        steps: int,
        batch_size: int,
        scheduling: Scheduling,
        *,
        backward: bool,
        timeline: bool,
    ) -> Measurement | None:
        """Run steps of random samples; returns what they took in the first process."""
        import torch

        from hgpart.run.measuring import measure
        from hgpart.run.random_batch import random_batch

        torch.manual_seed(self.seed)
        signature = placement.programs.arguments.signature
        batch = random_batch(self.plan.input_shape, signature, batch_size)
        first = connection is None or connection.rank == 0
        with progress("steps", steps, first) as (bar, task):
            measurement = measure(
                placement,
                batch,
                steps,
                backward=backward,
                connection=connection,
                scheduling=scheduling,
                timeline=timeline,
                on_step=lambda done: bar.update(task, completed=done),
            )
        return measurement if first else None

    def without_memory(self, training: bool) -> hgpart.Placement:
        """All parts in this process, of which only the programs are wanted."""
        module = self._module("meta").train(training)
        return hgpart.place(module, self.plan, ["meta"] * self.plan.k, norms=self.norms)

    @contextmanager
    def connected(self, transport: str, timeout: float) -> Iterator[Connection]:
        """Be one of the ranks that torchrun, or `start_ranks`, has started."""
        k = self.plan.k
        device = self.devices[int(os.environ["RANK"]) % k]
        with hgpart.connect(k, device=device, transport=transport, timeout=timeout) as connection:
            yield connection

    def placed(self) -> hgpart.Placement:
        """All parts, in this process."""
        return self._placed(self.devices, None)

    def _placed(self, devices: Sequence[str], part: int | None) -> hgpart.Placement:
        with Stages() as stage:
            with stage("import"):
                from hgpart.placement import place
            with stage("load"):
                # With a file of weights no process needs room for more than its slices.
                module = self._module("cpu" if self.weights is None else "meta")
            with stage("place"):
                parts = None if part is None else [part]
                placement = place(module, self.plan, devices, parts=parts, norms=self.norms)
                if self.weights is not None:
                    placement.load_checkpoint(self.weights)
            return placement

    def _module(self, device: str) -> nn.Module:
        import torch

        with redirect_stdout(sys.stderr):
            module, _ = hgpart.load_model(self.model, seed=self.seed, device=device)
        return module.to(getattr(torch, self.dtype))


@contextmanager
def progress(what: str, steps: int, first: bool) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on a terminal, in the process that prints; and its task."""
    with progress_bar(MofNCompleteColumn(), TimeRemainingColumn(), shown=first) as bar:
        yield bar, bar.add_task(what, total=steps)
