"""hgpart train: Model, plan, data -> the losses of its training on k devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpart.cli.options import (
    Devices,
    HtmlFile,
    InFlight,
    JsonFile,
    MicroBatches,
    NoStash,
    OneProcess,
    PlanFile,
    PlannedModel,
    Recompute,
    ScheduleRule,
    StepNorms,
    Timeout,
    Transport,
    Unit,
    Weights,
    checked_unit,
    one_of,
)
from hgpart.cli.outputs import check_outputs, lead_on, plain_console, tables_wanted
from hgpart.cli.placing import Placing, progress
from hgpart.cli.planned import plan_and_model
from hgpart.cli.processes import (
    check_one_clock,
    device_of_each,
    on_several_machines,
    start_ranks,
    started_as_rank,
)
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError, not_one_of
from hgpart.run.processes.transports import check_transport
from hgpart.run.training.data_wanted import check_data
from hgpart.schedule_wanted import Scheduling, scheduling_of
from hgpart.terminal import warn

if TYPE_CHECKING:
    from torch import Tensor

    from hgpart.placement import Placement
    from hgpart.report.training import TrainingReport
    from hgpart.run.distributed import DistributedModel
    from hgpart.run.training.data import Data
    from hgpart.run.training.loop import TrainingOptions
    from hgpart.run.training.resuming import Checkpointing

DTYPES = ("float32", "float64")


def train(
    context: typer.Context,
    plan: PlanFile,
    model: PlannedModel = None,
    steps: Annotated[int, typer.Option(help="In all, with those of a checkpoint.")] = 100,
    data: Annotated[
        str,
        one_of(
            words=("synthetic", "digits"),
            besides="imagefolder:PATH",
            help="Random images, scikit-learn's handwritten digits, or a folder for each class.",
        ),
    ] = "synthetic",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Samples of a step; left out, the plan's where that has a schedule, or else 32."
        ),
    ] = None,
    optimizer: Annotated[
        str, one_of(words=("sgd", "adam"), help="What updates the weights.")
    ] = "sgd",
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate; left out, the checkpoint's, or else 0.001."),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Of sgd; left out, the checkpoint's, or else 0.9.")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Of both; left out, the checkpoint's, or else 0.")
    ] = None,
    decay: Annotated[
        bool,
        typer.Option(
            "--decay",
            help="The learning rate times 0.8 when the test accuracy has not improved for two "
            "epochs, and an end to it after three times without an improvement.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            rich_help_panel="Training",
            help="Of the first weights, the order of the samples and dropout.",
        ),
    ] = 0,
    dtype: Annotated[str, one_of(words=DTYPES, help="Of weights and data.")] = "float32",
    micro_batches: MicroBatches = None,
    schedule: ScheduleRule = None,
    norms: StepNorms = "micro-batch",
    in_flight: InFlight = None,
    no_stash: NoStash = False,
    recompute: Recompute = False,
    devices: Devices = "cpu",
    transport: Transport = "gloo",
    one_process: OneProcess = False,
    weights: Weights = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write checkpoints to it, and keep the last two of them."
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 100,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            rich_help_panel="Training",
            help="Go on from the last checkpoint, if there is one.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The trained model's state_dict, whole, for torch.load or, named "
            "*.safetensors, for safetensors.",
        ),
    ] = None,
    timeout: Timeout = 300.0,
    unit: Unit = "MB",
    json: JsonFile = None,
    html: HtmlFile = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What each part did when in the last 100 steps, or the last stream, for "
            "Perfetto and chrome://tracing.",
        ),
    ] = None,
) -> None:
    """Train a model on the devices of a plan, with the losses that one device would have.

    But for --schedule async, whose weights are older where batches are in flight.
    """
    check_outputs({"--output": output, "--json": json, "--html": html, "--timeline": timeline})
    check_one_clock(timeline, one_process)
    if resume and checkpoint is None:
        raise ArgumentError("--resume needs the folder of --checkpoint FOLDER, and writes again")
    check_transport(transport)
    check_data(data)
    if dtype not in DTYPES:
        raise not_one_of("dtype", dtype, DTYPES)
    with Stages() as stage:
        with stage("import"):
            from hgpart.placement.state.weight_files import check_can_save
            from hgpart.run.processes.connection import check_timeout
            from hgpart.run.training.data import load_data
            from hgpart.run.training.loop import TrainingOptions, check_training
            from hgpart.run.training.resuming import Checkpointing
        checked_unit(unit)
        check_timeout(timeout)
        if output is not None:
            check_can_save(output)
        with stage("read"):
            loaded, model = plan_and_model(plan, model)
        samples = loaded.batch_size_of_steps(batch_size, otherwise=32)
        options = TrainingOptions(
            steps=steps,
            batch_size=samples,
            optimizer=optimizer,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            seed=seed,
            decay=decay,
        )
        scheduling = scheduling_of(
            *(schedule, micro_batches, in_flight),
            stash=not no_stash,
            recompute=recompute,
            planned=loaded.scheduling,
        )
        scheduling.sizes(samples)
        checkpointing = None
        if checkpoint is not None:
            about: dict[str, str | int | float] = {
                "model": model,
                "k": loaded.k,
                "plan": sha256(loaded.parts.tobytes()).hexdigest()[:16],
            }
            checkpointing = Checkpointing(
                checkpoint, every, resume, warn, loaded.fingerprint, about
            )
        of_each = device_of_each(devices, loaded.k)
        placing = Placing(model, loaded, of_each, weights, seed, dtype, norms)
        with stage("data"):  # before any process is started that would miss it
            opened = load_data(data, loaded.input_shape, placing.classes(), seed)
            check_training(opened, options, checkpointing)
    wanted = _Run(
        *(placing, opened, options, scheduling, checkpointing),
        *(unit, json, html, timeline, output),
    )
    if one_process:
        trained = wanted.train(placing.here())
    elif started_as_rank():
        from hgpart.run.distributed import DistributedModel

        with placing.connected(transport, timeout) as connection:
            trained = wanted.train(DistributedModel(placing.part_of(connection), connection))
    else:
        placing.check_here(transport)
        placing.check_step(scheduling, samples, training=True, transport=transport)
        start_ranks(context, loaded.k)
        return
    if trained is not None:  # not before the others are done, who would fail with what fails here
        wanted.show(trained)


@dataclass(frozen=True, eq=False)
class _Trained:
    """What came of it.

    Attributes
    ----------
    report : TrainingReport
    state : mapping of str to Tensor, or None
        The model's state_dict, if it is to be written.
    """

    report: TrainingReport
    state: Mapping[str, Tensor] | None


@dataclass(frozen=True)
class _Run:
    """What was asked for, checked."""

    placing: Placing
    data: Data
    options: TrainingOptions
    scheduling: Scheduling
    checkpointing: Checkpointing | None
    unit: str
    json: str | None
    html: Path | None
    timeline: Path | None
    output: Path | None

    def train(self, model: Placement | DistributedModel) -> _Trained | None:
        """Train; returns what came of it in the first process."""
        from hgpart.report.running import shares_of_work
        from hgpart.report.training import TrainingReport
        from hgpart.run.placed_model import PlacedModel
        from hgpart.run.training.loop import train as run_training

        learner = PlacedModel(model, self.scheduling)
        with progress("training", self.options.steps, learner.first) as (bar, task):

            def on_step(done: int, loss: float) -> None:
                bar.update(task, completed=done, description=f"loss {loss:.4f}")

            learner.train(True)
            peaks = learner.peak_bytes(self.options.batch_size)
            kept = self.timeline is not None or self._draws_when()
            result = run_training(
                learner, self.data, self.options, self.checkpointing, on_step, timeline=kept
            )
        state = None if self.output is None else learner.whole_state()
        if not learner.first:
            return None
        report = TrainingReport(
            model=self.placing.model,
            data=self.data.spec,
            dtype=self.placing.dtype,
            devices=self.placing.devices,
            processes=learner.processes,
            result=result,
            volume_bytes=self._volume(learner.placement),
            scheduling=self.scheduling,
            norms=self.placing.norms,
            peak_bytes=peaks,
            work_shares=shares_of_work(learner.placement),
        )
        return _Trained(report, state)

    def _volume(self, placement: Placement) -> int:
        """Bytes of a step's forward passes by the plan, and of weights where it has slices."""
        sizes = self.scheduling.sizes(self.options.batch_size)
        return int(placement.programs.expected_traffic(sizes, backward=True).forward_bytes.sum())

    def _draws_when(self) -> bool:
        """Whether the page has a timeline: clocks of several machines have nothing in common."""
        return self.html is not None and not on_several_machines()

    def show(self, trained: _Trained) -> None:
        """Write the files, and print."""
        from hgpart.placement.state.weight_files import save_weights
        from hgpart.report.timeline import write_timeline
        from hgpart.report.training import print_training, training_json

        report = trained.report
        if self.output is not None and trained.state is not None:
            save_weights(trained.state, self.output)
        if self.timeline is not None:
            write_timeline(self.timeline, report.result.timeline, report.model, report.devices)
        if self.html is not None:
            from hgpart.report.page.document import write_page
            from hgpart.report.page.training import training_page

            write_page(training_page(report), self.html)
        if tables_wanted(self.json, training_json(report)):
            print_training(report, plain_console(), self.unit)
            if self.output is not None:
                plain_console().print()
                plain_console().print(
                    f"{self.output} has the trained model's state_dict", soft_wrap=True
                )
            lead_on(self._then())

    def _then(self) -> str:
        """More steps, from a checkpoint."""
        if self.checkpointing is None:
            return "the same with --checkpoint FOLDER, which --resume goes on from"
        return f"the same with --resume and --steps {2 * self.options.steps}"
