"""Learner -> what its training came to, written and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hgpart.cli.outputs import Timeline, lead_on, plain_console, unit_of
from hgpart.cli.placing import progress

if TYPE_CHECKING:
    from torch import Tensor

    from hgpart.report.training import TrainingReport
    from hgpart.run.learner import Learner
    from hgpart.run.training.data import Data
    from hgpart.run.training.log import Log
    from hgpart.run.training.loop import TrainingResult
    from hgpart.run.training.options import TrainingOptions
    from hgpart.run.training.resuming import Checkpointing
    from hgpart.run.training.scores import Loss


@dataclass(frozen=True)
class Training:
    """A training that was asked for, checked.

    Attributes
    ----------
    output : Path or None
        The file of the trained weights.
    timeline : bool
        Whether to keep when each part does what.
    """

    data: Data
    options: TrainingOptions
    loss: Loss
    checkpointing: Checkpointing | None
    log: Log | None
    results: Timeline
    output: Path | None
    timeline: bool = False

    def run(self, learner: Learner) -> tuple[TrainingResult, Mapping[str, Tensor] | None]:
        """Train, with a bar; returns the whole state in the first process, if it is wanted."""
        from hgpart.run.training.loop import train

        options = self.options
        with progress("training", options.steps, learner.first) as (bar, task):

            def on_step(done: int, value: float) -> None:
                speed = bar.tasks[task].speed
                rate = "" if speed is None else f", {speed * options.batch_size:,.0f} samples/s"
                bar.update(task, completed=done, description=f"loss {value:.4f}{rate}")

            run = learner, self.data, options, self.checkpointing, on_step
            result = train(
                *run,
                loss=self.loss,
                timeline=self.timeline,
                best=self.output is not None,
                log=self.log,
            )
        return result, None if self.output is None else learner.whole_state()

    def conclude(
        self, context: typer.Context, report: TrainingReport, state: Mapping[str, Tensor] | None
    ) -> None:
        """Write the files, and print."""
        from hgpart.placement.state.weight_files import save_weights
        from hgpart.report.timeline import write_timeline
        from hgpart.report.training import print_training, training_json

        results, output, console = self.results, self.output, plain_console()
        if output is not None and state is not None:
            save_weights(state, output)
        if results.timeline is not None:
            write_timeline(results.timeline, report.result.timeline, report.model, report.devices)
        if results.html is not None:
            from hgpart.report.page.training import training_page

            results.draw(training_page, report)
        if not results.want_tables(training_json(report)):
            return
        print_training(report, console, unit_of(context))
        if output is not None:
            best = report.result.best
            of_best = "" if best is None else f", after epoch {best.number}, which was the best"
            console.print()
            console.print(f"{output} has the trained model's state_dict{of_best}", soft_wrap=True)
        if self.checkpointing is not None:
            lead_on(f"the same with --resume and --steps {2 * self.options.steps}")
        else:
            lead_on("the same with --checkpoint FOLDER, which --resume goes on from")
