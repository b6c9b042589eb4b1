"""hgpart train: Model, plan, data -> the losses of its training on k devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import typer

import hgpart
from hgpart.cli.forms import Length, keyed, length, one_value, read, yes_or_no
from hgpart.cli.grouping import Options
from hgpart.cli.groups import CountedRanks, StepWithNorms
from hgpart.cli.options import InputTexts, PlannedModel
from hgpart.cli.outputs import Timeline
from hgpart.cli.placing import Placing
from hgpart.cli.processes import check_devices, check_one_clock, started_as_rank
from hgpart.cli.stages import Stages, plan_and_model, shape_of
from hgpart.cli.training.served import BATCH_SIZE, Served, serving_of
from hgpart.cli.training.training import Training
from hgpart.errors import ArgumentError, not_both, not_one_of
from hgpart.run.training.data_wanted import check_data
from hgpart.run.training.log import TABLE, Log
from hgpart.schedule_wanted import Scheduling
from hgpart.terminal import say, warn

if TYPE_CHECKING:
    from torch import Tensor

    from hgpart.placement import Placement
    from hgpart.plan import PlanFile
    from hgpart.run.processes.connection import Connection
    from hgpart.run.training.data import Data
    from hgpart.run.training.options import TrainingOptions
    from hgpart.run.training.resuming import Checkpointing
    from hgpart.run.training.scores import Loss

DTYPES = ("float32", "float64", "bfloat16")
AUTOCAST = ("bfloat16",)
EVERY = 100  # steps between two checkpoints
EPS = 0.1  # of a plan that is made here


@dataclass(frozen=True, kw_only=True)
class Learning(Options):
    """The data, and how to learn from it.

    Attributes
    ----------
    data : synthetic|digits|shapes|KIND:PATH|FILE.py:FUNCTION
        Training data: synthetic (random images), digits (scikit-learn's handwritten digits), shapes
        (drawn polygons and stars, 10 classes), imagefolder:PATH (a folder per class, or such
        folders in PATH/train and PATH/val), mnist:PATH, cifar10:PATH or tiny-imagenet:PATH (a
        folder with the published files), or a function of yours, which returns a dataset, or
        (train, validation), for a seed. Append ,fold=I/N to validate on fold I of N of the training
        samples, from 0, and to test on those held out; and ,augment=yes to imagefolder and
        tiny-imagenet for random crops, mirrored half of the time, and pixels normalised as
        ImageNet's.
    optimizer : sgd|adam
        Update rule of the weights. Append ,momentum=M (sgd; default 0.9), ,weight-decay=W (default
        0) and ,decay=yes to multiply the learning rate by 0.8 when the test accuracy has not
        improved for two epochs, and to stop when three such steps have not helped. With --resume
        the defaults are those of the checkpoint.
    lr : RATE
        Learning rate. Default: that of the checkpoint, or else 0.001. Append ,warmup=N to rise to
        it in N steps (or epochs, as in 5ep), and ,schedule=cosine to fall from it to 0 by --steps.
    loss : cross-entropy|FILE.py:FUNCTION
        Loss of a batch: cross-entropy, to which ,smoothing=S may be appended (a share S of each
        label is divided among all classes), or a function of yours of results and targets, which
        returns a mean over the samples, or (sum, count).
    seed : N
        Seed of the initial weights, the order of the samples and dropout.
    until : KEY=ACCURACY,...
        End after the epoch that reaches accuracy=A, from 0 to 1, in its own steps, or
        val-accuracy=A on the validation samples; else after --steps.
    checkpoint : FOLDER
        Write a checkpoint every 100 steps, or every N with ,every=N; the last two are kept.
    resume
        Go on from the last checkpoint, if there is one.
    """

    panel: ClassVar[str] = "Training"
    data: str = "synthetic"
    optimizer: str = "sgd"
    lr: str | None = None
    loss: str = "cross-entropy"
    until: str | None = None
    seed: int = 0
    checkpoint: str | None = None
    resume: bool = False

    def options(self, steps: str, batch_size: int, steps_per_epoch: int) -> TrainingOptions:
        """How to train, checked."""
        from hgpart.run.training.options import TrainingOptions

        def counted(asked: Length) -> int:
            return asked.steps(steps_per_epoch)

        name, settings = self.rule()
        values, until = keyed("--until", self.until, accuracy=float, val_accuracy=float)
        if values:
            raise ArgumentError(f"--until {values[0]}: accepted is KEY=VALUE, as in accuracy=0.9")
        rates, course = keyed("--lr", self.lr, warmup=length, schedule=str)
        rate = one_value("--lr", self.lr or "", rates)
        return TrainingOptions(
            counted(read(f"--steps {steps}", steps, length)),
            batch_size,
            name,
            None if rate is None else read(f"--lr {self.lr}", rate, float),
            seed=self.seed,
            warmup=counted(course.get("warmup", Length(0, in_epochs=False))),
            lr_schedule=course.get("schedule", "constant"),
            until=until,
            **settings,
        )

    def rule(self) -> tuple[str, dict[str, Any]]:
        """The name of the optimizer, and its settings."""
        values, settings = keyed(
            "--optimizer", self.optimizer, momentum=float, weight_decay=float, decay=yes_or_no
        )
        return one_value("--optimizer", self.optimizer, values) or "sgd", settings

    @property
    def kept(self) -> str:
        """The optimizer by what it keeps; see `PartFigures.optimizer_bytes`."""
        name, settings = self.rule()
        has_momentum = name == "sgd" and settings.get("momentum") != 0
        return f"{name} with momentum" if has_momentum else name

    def opened(
        self, image: Sequence[int], classes: Callable[[], int], loss: Loss, steps: str, size: int
    ) -> tuple[Data, TrainingOptions]:
        """The data for a model, and how to train on batches of a size, checked."""
        from hgpart.run.training.data import load_data
        from hgpart.run.training.loop import check_training

        needs_classes = loss.of_classes or self.data == "synthetic"
        data = load_data(self.data, image, classes() if needs_classes else None, self.seed)
        options = self.options(steps, size, data.steps_per_epoch(size))
        check_training(data, options, loss)
        return data, options

    def loss_function(self) -> Loss:
        """What the training makes small, checked."""
        from hgpart.run.training.scores import smoothed, user_loss

        if ":" in self.loss:
            return user_loss(self.loss)
        values, settings = keyed("--loss", self.loss, smoothing=float)
        name = one_value("--loss", self.loss, values) or "cross-entropy"
        if name != "cross-entropy":
            raise not_one_of("loss", name, ("cross-entropy", "FILE.py:FUNCTION"))
        return smoothed(settings.get("smoothing", 0.0))

    def checkpointing(self, model: str, plan: PlanFile | None) -> Checkpointing | None:
        """Where checkpoints go, and what they say that they are of; servers have no plan."""
        from hgpart.run.training.resuming import Checkpointing

        if self.checkpoint is None:
            return None
        values, settings = keyed("--checkpoint", self.checkpoint, every=int)
        folder = ",".join(values)  # which may have commas
        if not folder:
            raise ArgumentError(f"--checkpoint {self.checkpoint}: accepted is a folder")
        about: dict[str, str | int | float] = {"model": model}
        if plan is not None:
            about |= {"k": plan.k, "plan": sha256(plan.parts.tobytes()).hexdigest()[:16]}
        every, fingerprint = (
            settings.get("every", EVERY),
            None if plan is None else plan.fingerprint,
        )
        return Checkpointing(Path(folder), every, self.resume, warn, fingerprint, about)


@dataclass(frozen=True, kw_only=True)
class Planning(Options):
    """A plan that is made here, without --plan, for --devices N.

    Attributes
    ----------
    memory : M,M,...
        Memory of each device for a step, or one size for all, as in 2GiB or 512MB: weights,
        gradients, the optimizer's state and maps. What libraries take besides, some 0.4 GB a
        process, is not counted. Default: the plan of least traffic, whatever it needs.
    """

    panel: ClassVar[str] = "A plan made here"
    input_shape: InputTexts = None
    memory: str | None = None

    def check(self, plan: Path | None, model: str | None, ranks: CountedRanks) -> None:
        """Refuse what asks for no plan, or for two."""
        if plan is None:
            if model is None:
                raise ArgumentError("no --plan given: accepted is one, or MODEL and --devices N")
            if not ranks.count:
                raise ArgumentError(
                    f"no --plan given, but --devices {','.join(ranks.devices)}: accepted is a "
                    "plan, or a number of devices to plan for, 1 or more, as in --devices 4"
                )
            return
        named = {
            "--input-shape": self.input_shape,
            "--memory": self.memory,
            f"--devices {ranks.number}": ranks.number,
        }
        for option, value in named.items():
            if value is not None:
                raise not_both(option, "--plan, which says that")

    def plan(
        self,
        context: typer.Context,
        stage: Stages,
        model: str,
        ranks: CountedRanks,
        batch_size: int,
        scheduling: Scheduling | None,
        optimizer: str,
        dtype: str,
        norms: str,
        amp: str | None,
    ) -> Path:
        """Make a plan whose parts fit, and a file of it that lasts as long as the command.

        Processes that the command starts get the file in place of these options.
        """
        if scheduling is not None and scheduling.is_in_turns:
            raise ArgumentError(
                f"--schedule {scheduling.name} without --plan: accepted is a plan over slices, as "
                "of 'hgpart partition --slices auto'"
            )
        with stage("import"):
            import torch

            from hgpart.cli.named_model import NamedModel
            from hgpart.partition.problem.memory import memory_limits
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.placement.accounting import OPTIMIZER_STATES
            from hgpart.recommendation.memory import TrainingWanted, plan_in_memory
        k = ranks.count
        assert k is not None
        devices = ranks.of_each(k)
        if not started_as_rank():
            check_devices(devices, ranks.backend)
        limits = None
        if self.memory is not None:
            in_flight = 1 if scheduling is None else scheduling.most_in_flight
            sizes = self.memory.split(",")
            copies = 2 + OPTIMIZER_STATES[optimizer]  # a parameter and its gradient
            limits = memory_limits(sizes, k, copies, in_flight)
        named = NamedModel(
            stage, model, self.input_shape, lambda shape: shape.image("hgpart train")
        )
        shape, graph = named.shape, named.graph
        modelling = hgpart.Modelling(batch_size=batch_size)
        problem = Problem(graph, hgpart.flops(graph), modelling, k, EPS, memory=limits)
        module = named.module.to(getattr(torch, dtype)).train(True)
        how = scheduling, optimizer, norms, devices, None if amp is None else torch.bfloat16
        wanted = TrainingWanted(module, model, shape, *how)
        with stage("plan"):
            planned = plan_in_memory(wanted, problem, Search(on_progress=stage.search))
        say(planned.text)
        folder = TemporaryDirectory(prefix="hgpart-")
        context.call_on_close(folder.cleanup)
        file = Path(folder.name, "plan.json")
        hgpart.files.save_plan(planned.plan, file)
        context.params.update(plan=file, devices=ranks.names, input_shape=None, memory=None)
        return file


@dataclass(frozen=True, kw_only=True)
class TrainStep(StepWithNorms):
    """A step of a training.

    Attributes
    ----------
    dtype : float32|float64|bfloat16
        Type of weights and data.
    amp : bfloat16
        Mixed precision: torch's autocast computes in this type where that is safe, and maps travel
        in it. Weights keep the type of --dtype.
    weights : FILE
        Initial weights, a state_dict saved by torch or safetensors; each process reads its slices
        only. Default: random.
    """

    dtype: str = DTYPES[0]
    amp: str | None = None
    weights: Path | None = None


@dataclass(frozen=True, kw_only=True)
class TrainResults(Timeline):
    """Where the results go.

    Attributes
    ----------
    output : FILE
        Write the trained model's whole state_dict, for torch.load; as safetensors if FILE ends in
        .safetensors. It has the weights of the epoch with the best validation accuracy (or
        loss, by a function of yours), or the last ones where nothing is validated.
    log : FILE.csv|FOLDER
        Write loss, learning rate and samples a second of each step, and the validation score of
        each epoch: a table, or a folder for TensorBoard. With --resume it is continued.
    """

    not_written: ClassVar[tuple[str, ...]] = ("log",)
    output: Path | None = None
    log: Path | None = None

    def check(self, **files: Path | None) -> None:
        """Refuse files that can't be written; a log may be a folder."""
        is_table = self.log is not None and self.log.suffix == TABLE
        super().check(log=self.log if is_table else None, **files)


def train(
    context: typer.Context,
    planning: Planning,
    learning: Learning,
    step: TrainStep,
    ranks: CountedRanks,
    results: TrainResults,
    model: PlannedModel = None,
    plan: Path | None = None,
    way: str | None = None,
    steps: str = "100",
    batch_size: int | None = None,
) -> None:
    """Train a model on the devices of a plan, to the losses that one device would have.

    By --schedule async, dynamic or turns losses differ, as weights are older.
    With --way, whole models train by parameter servers.

    Parameters
    ----------
    plan : PLAN
        Plan file, written by 'hgpart partition -o'. Default: a plan is made here, which needs MODEL
        and --devices N. It divides filters, slices of the batch and bands of rows.
    way : ps-sync|ps-async
        Without a plan: --devices N workers, each with the whole model and a share of each batch,
        push gradients to parameter servers and fetch weights. Servers wait for all workers
        (ps-sync), or for none (ps-async). Append ,servers=N for N processes beside the workers
        (default 1) or ,servers=distributed for the workers themselves, and ,shards=round-robin to
        deal out parameters in turn, not by size; to ps-async also ,fetch=N and ,push=N to do so
        every N steps (Downpour SGD), and ,staleness=S for the most steps that a worker may be
        ahead of the slowest.
    steps : N
        Steps in all, those before a checkpoint included; or epochs, as in 30ep.
    batch_size : N
        Samples per step, of all workers together. Default: the plan's batch size; 1 for a plan that
        is made here, 32 with --way.

    Examples
    --------
    $ hgpart train --plan plan.json --steps 100
    """
    results.check()
    dtype, output = step.dtype, results.output
    check_one_clock(results.timeline, ranks.in_threads)
    if learning.resume and learning.checkpoint is None:
        raise ArgumentError("--resume needs --checkpoint FOLDER, the folder to go on from")
    ranks.check_transport()
    serving = None if way is None else serving_of(context, way, model, ranks)
    if serving is None:
        planning.check(plan, model, ranks)
    check_data(learning.data)
    if dtype not in DTYPES:
        raise not_one_of("dtype", dtype, DTYPES)
    if step.amp is not None and step.amp not in AUTOCAST:
        raise ArgumentError(
            f"--amp {step.amp}: accepted is bfloat16; float16 needs a scaled loss, as of "
            "hgpart.GradScaler in a loop of your own"
        )
    with Stages() as stage:
        with stage("import"):
            import torch

            from hgpart.placement.state.batch_statistics import check_norms
            from hgpart.placement.state.weight_files import check_can_save
            from hgpart.report.running import shares_of_work
            from hgpart.report.training import TrainingReport
            from hgpart.run.distributed import DistributedModel
            from hgpart.run.placed_model import PlacedModel
        ranks.check_timeout()
        if output is not None:
            check_can_save(output)
        loss = learning.loss_function()
        log = None if results.log is None else Log(results.log, loss.score)
        autocast = None if step.amp is None else torch.bfloat16
        size = (1 if serving is None else BATCH_SIZE) if batch_size is None else batch_size
        check_norms(step.norms)
        learning.options(steps, size, 1)  # refuses, before a search, what no data would make right
    if serving is not None and model is not None:
        with Stages() as stage:
            with stage("load"):
                own_shape = hgpart.load_model(model, device="meta")[1]
            input_shape = shape_of(model, planning.input_shape or own_shape)
            of_each = ranks.of_each(ranks.count or 1)
            of_step = of_each, step.weights, learning.seed, dtype, autocast
            served = Served(model, input_shape, serving, *of_step)
            served.check(size)
            with stage("data"):
                image = input_shape.image("hgpart train")
                opened = learning.opened(image, served.classes, loss, steps, size)
        checkpointing = learning.checkpointing(model, None)
        training = Training(*opened, loss, checkpointing, log, results, output)
        served.run(context, ranks, training)
        return
    with Stages() as stage:
        if plan is None and model is not None:
            wanted, kept = step.wanted(None), learning.kept
            told = ranks, size, wanted, kept, dtype, step.norms, step.amp
            plan = planning.plan(context, stage, model, *told)
        assert plan is not None
        with stage("read"):
            loaded, named = plan_and_model(plan, model)
        shape = loaded.input_shape
        of_batch = loaded.modelling.slices > 1 and loaded.modelling.norms == "batch"
        if step.amp is not None and of_batch:
            raise ArgumentError(
                "--amp by a plan in slices with norms of the batch, whose statistics would have "
                "16 bits: accepted is a plan with norms of slices, or --dtype float32 alone"
            )
        samples = loaded.modelling.batch_size if batch_size is None else batch_size
        wanted = step.wanted(loaded.schedule_for(samples))
        scheduling = wanted or Scheduling()
        scheduling.sizes(samples)
        checkpointing = learning.checkpointing(named, loaded)
        devices = ranks.of_each(loaded.k)
        placing = Placing(named, loaded, devices, step.weights, learning.seed, dtype, step.norms)
        with stage("data"):  # before any process is started that would miss it
            image = shape.image("hgpart train")
            data, options = learning.opened(image, placing.classes, loss, steps, samples)

    asked = data, options, loss, checkpointing, log, results, output
    training = Training(*asked, timeline=results.draws_timeline)

    def trained(
        placement: Placement, connection: Connection | None
    ) -> tuple[TrainingReport, Mapping[str, Tensor] | None] | None:
        used = placing.scheduled(wanted, placement, connection, samples, training=True)
        whole = placement if connection is None else DistributedModel(placement, connection)
        learner = PlacedModel(whole, used, autocast)
        learner.train(True)
        peaks = learner.peak_bytes(samples)
        volume = learner.forward_bytes(samples)
        result, state = training.run(learner)
        if not learner.first:
            return None
        report = TrainingReport(
            model=named,
            data=data.spec,
            dtype=dtype,
            autocast=step.amp,
            devices=devices,
            processes=learner.processes,
            result=result,
            volume_bytes=volume,
            scheduling=used,
            norms=step.norms,
            peak_bytes=peaks,
            work_shares=shares_of_work(learner.placement),
        )
        return report, state

    done = placing.run(
        context, ranks, lambda: placing.check_step(scheduling, samples, training=True), trained
    )
    if done is not None:
        training.conclude(context, *done)
