"""hgpart train: Model, plan, data -> the losses of its training on k devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hgpart.cli.options import JsonFile, Model, Unit, checked_unit, names
from hgpart.cli.outputs import check_outputs, plain_console
from hgpart.cli.processes import device_of_each, start_ranks, started_as_rank
from hgpart.cli.stages import Stages
from hgpart.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from hgpart.placement import Placement
    from hgpart.plan import Plan
    from hgpart.run.learner import Learner
    from hgpart.run.resuming import Checkpointing
    from hgpart.run.training import TrainingOptions

BACKENDS = ("gloo", "nccl")
DTYPES = ("float32", "float64")
LEARNING_RATES = {"sgd": 0.01, "adam": 0.001}


def train(
    model: Model,
    plan: Annotated[
        Path, typer.Option(metavar="PLAN", help="A file of 'hgpart partition -o' for the model.")
    ],
    steps: Annotated[int, typer.Option(help="In all, with those of a checkpoint.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="synthetic|digits|imagefolder:PATH",
            help="Random images, scikit-learn's handwritten digits, or a folder for each class.",
        ),
    ] = "synthetic",
    batch_size: Annotated[int, typer.Option(help="Samples of a step.")] = 32,
    optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = "sgd",
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; 0.01 of sgd, 0.001 of adam if left out.")
    ] = None,
    momentum: Annotated[float, typer.Option(help="Of sgd.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Of both.")] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Of the first weights, the order of the samples and dropout.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    devices: Annotated[
        Any,
        typer.Option(
            parser=names, metavar="D,D,...", help="Of each part, or one for all: cpu, cuda, cuda:0"
        ),
    ] = "cpu",
    backend: Annotated[
        str, typer.Option(help="gloo, by way of the hosts, or nccl, from GPU to GPU.")
    ] = "gloo",
    one_process: Annotated[
        bool, typer.Option("--one-process", help="A thread for each part, not a process.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A state_dict to begin with, safetensors or torch's, instead of random weights.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write checkpoints to it, and keep the last two of them."
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between two checkpoints.")] = 100,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a process that is alive.")
    ] = 300.0,
    unit: Unit = "MB",
    json: JsonFile = None,
) -> None:
    """Train a model on the devices of a plan, with the losses that one device would have."""
    check_outputs({"--json": json if json != "-" else None})
    if resume and checkpoint is None:
        raise ArgumentError("--resume needs the folder of --checkpoint FOLDER, and writes again")
    if backend not in BACKENDS:
        raise ArgumentError(f"backend {backend!r}: accepted are {' and '.join(BACKENDS)}")
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype {dtype!r}: accepted are {' and '.join(DTYPES)}")
    with Stages() as stage:
        with stage("import"):
            from hgpart.plan import load_plan
            from hgpart.run.resuming import Checkpointing
            from hgpart.run.training import TrainingOptions
        checked_unit(unit)
        options = TrainingOptions(
            steps=steps,
            batch_size=batch_size,
            optimizer=optimizer,
            lr=LEARNING_RATES.get(optimizer, 0.0) if lr is None else lr,
            momentum=momentum,
            weight_decay=weight_decay,
            seed=seed,
        )
        with stage("read"):
            loaded = load_plan(plan)
        checkpointing = None
        if checkpoint is not None:
            about = {
                "model": model,
                "model fingerprint": loaded.fingerprint,
                "k": loaded.k,
                "plan": sha256(loaded.parts.tobytes()).hexdigest()[:16],
                **{name: getattr(options, name) for name in ("lr", "momentum", "weight_decay")},
            }
            checkpointing = Checkpointing(checkpoint, every, resume, _warn, about)
    wanted = _Run(
        model,
        loaded,
        data,
        dtype,
        device_of_each(devices, loaded.k),
        weights,
        options,
        checkpointing,
        unit,
        json,
    )
    if one_process:
        wanted.in_one_process()
    elif started_as_rank():
        wanted.in_this_rank(backend, timeout)
    else:
        given = {
            "--plan": plan,
            "--steps": steps,
            "--data": data,
            "--batch-size": batch_size,
            "--optimizer": optimizer,
            "--lr": options.lr,
            "--momentum": momentum,
            "--weight-decay": weight_decay,
            "--seed": seed,
            "--dtype": dtype,
            "--devices": wanted.devices,
            "--backend": backend,
            "--weights": weights,
            "--checkpoint": checkpoint,
            "--every": every,
            "--resume": resume,
            "--timeout": timeout,
            "--unit": unit,
            "--json": json,
        }
        start_ranks("train", [model], given, loaded.k)


@dataclass(frozen=True)
class _Run:
    """What was asked for, checked."""

    model: str
    plan: Plan
    data: str
    dtype: str
    devices: tuple[str, ...]
    weights: Path | None
    options: TrainingOptions
    checkpointing: Checkpointing | None
    unit: str
    json: str | None

    def in_one_process(self) -> None:
        """Train with a thread for each part."""
        from hgpart.run.learner import PlacedModel

        with Stages() as stage:
            placement = self._placed(stage, self.devices, None)
        self._train(PlacedModel(placement), placement)

    def in_this_rank(self, backend: str, timeout: float) -> None:
        """Train this process's part; the first process prints."""
        from hgpart.run.connection import connect
        from hgpart.run.distributed import DistributedModel
        from hgpart.run.learner import RankModel

        k = self.plan.k
        device = self.devices[int(os.environ["RANK"]) % k]
        with connect(k, device=device, backend=backend, timeout=timeout) as connection:
            with Stages() as stage:
                devices = (str(connection.device),) * k
                placement = self._placed(stage, devices, connection.rank)
            learner = RankModel(DistributedModel(placement, connection), self._dtype())
            self._train(learner, placement)

    def _dtype(self) -> torch.dtype:
        import torch

        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def _placed(self, stage: Stages, devices: tuple[str, ...], part: int | None) -> Placement:
        with stage("import"):
            from hgpart.placement import place
            from hgpart.zoo import load_model
        # What the model's own code prints must not get between the figures of --json -.
        with stage("load"), redirect_stdout(sys.stderr):
            # With a file of weights no process needs room for more than its slices.
            device = "cpu" if self.weights is None else "meta"
            module, _ = load_model(self.model, seed=self.options.seed, device=device)
            module = module.to(self._dtype())
        with stage("place"), redirect_stdout(sys.stderr):
            placement = place(module, self.plan, devices, parts=None if part is None else [part])
            if self.weights is not None:
                placement.load_checkpoint(self.weights)
        return placement

    def _train(self, learner: Learner, placement: Placement) -> None:
        from hgpart.report.training import TrainingReport, print_training, training_json
        from hgpart.run.data import load_data
        from hgpart.run.training import train as run_training
        from hgpart.writing import replacing

        shape = self.plan.input_shape
        data = load_data(self.data, shape, self._classes(), self.options.seed)
        with _progress(self.options.steps, learner.first) as on_step:
            result = run_training(learner, data, self.options, self.checkpointing, on_step)
        if not learner.first:
            return
        report = TrainingReport(
            model=self.model,
            data=self.data,
            dtype=self.dtype,
            devices=self.devices,
            processes=learner.processes,
            options=self.options,
            result=result,
            volume_bytes=placement.expected(self.options.batch_size).volume,
        )
        if self.json is not None and self.json != "-":
            with replacing(self.json) as file:
                file.write(training_json(report))
        if self.json == "-":
            print(training_json(report), end="")
        else:
            print_training(report, plain_console(), self.unit)

    def _classes(self) -> int:
        """Width of the model's output."""
        from hgpart.run.training import class_scores
        from hgpart.tracing import example_inputs
        from hgpart.zoo import load_model

        with redirect_stdout(sys.stderr):
            module, _ = load_model(self.model, device="meta")
            result = module(*example_inputs(module, self.plan.input_shape))
        return class_scores(result).shape[1]


def _warn(message: str) -> None:
    print(f"hgpart: warning: {message}", file=sys.stderr)


@contextmanager
def _progress(steps: int, first: bool) -> Iterator[Callable[[int, float], None]]:
    """A bar on a terminal, in the process that prints."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not (first and sys.stderr.isatty()),
        transient=True,
    ) as bar:
        task = bar.add_task("training", total=steps)

        def on_step(done: int, loss: float) -> None:
            bar.update(task, completed=done, description=f"loss {loss:.4f}")

        yield on_step
