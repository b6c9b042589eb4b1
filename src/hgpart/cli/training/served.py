"""The --way of 'hgpart train' -> its workers and servers, in a process each."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import hgpart
from hgpart.cli.forms import keyed, one_value
from hgpart.cli.groups import CountedRanks, Ranks
from hgpart.cli.processes import check_devices, start_ranks, started_as_rank
from hgpart.cli.stages import Stages, classes_of
from hgpart.cli.training.training import Training
from hgpart.errors import ArgumentError, PlacementError, RunError, not_both
from hgpart.run.processes.transports import TRANSPORTS
from hgpart.run.servers.serving import SETTINGS, Serving
from hgpart.tracing.input_shape import InputShape

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH_SIZE = 32  # where nothing else is said, as in 'hgpart bench'
# Options of plans.
WITHOUT = ("plan", "memory", "schedule", "micro_batches", "timeline")


def serving_of(context: typer.Context, way: str, model: str | None, ranks: CountedRanks) -> Serving:
    """Read --way, and refuse what it has no use for."""
    name, settings = keyed("--way", way, **SETTINGS)
    serving = Serving(one_value("--way", way, name) or "", **settings)
    if model is None or not ranks.count:
        given = "no MODEL" if model is None else f"--devices {','.join(ranks.devices)}"
        raise ArgumentError(
            f"{given} with --way {serving.name}: accepted is MODEL and a number of workers, as in "
            "--devices 4, or their devices"
        )
    for option in WITHOUT:
        value = context.params[option]
        if value not in (None, False):
            shown = f"--{option.replace('_', '-')}{'' if value is True else f' {value}'}"
            raise not_both(shown, f"--way {serving.name}")
    backend = context.params["backend"]
    if backend != TRANSPORTS[0]:
        raise ArgumentError(
            f"--backend {backend} with --way {serving.name}: accepted is {TRANSPORTS[0]}"
        )
    return serving


@dataclass(frozen=True)
class Served:
    """A model, and the processes that train it.

    Attributes
    ----------
    shape : InputShape
        The inputs that the model takes for each sample.
    devices : tuple of str
        The device of each worker; servers are on the CPU.
    seed : int
        Seed of random weights.
    """

    model: str
    shape: InputShape
    serving: Serving
    devices: tuple[str, ...]
    weights: Path | None
    seed: int
    dtype: str
    autocast: torch.dtype | None

    @property
    def processes(self) -> tuple[str, ...]:
        """The device of each process, or what else it is."""
        servers = self.serving.processes(len(self.devices)) - len(self.devices)
        return (*self.devices, *("server",) * servers)

    def classes(self) -> int:
        """Width of the model's output; raises a RunError if it returns no class scores."""
        return classes_of(self._module("meta"), self.shape)

    def check(self, batch_size: int) -> None:
        """Refuse, before any process is started, a batch in which a worker would have no sample."""
        if batch_size < len(self.devices):
            raise ArgumentError(
                f"--batch-size {batch_size} with {len(self.devices)} workers, which have a share "
                "of the samples each: accepted are as many samples, or more"
            )

    def run(self, context: typer.Context, ranks: Ranks, training: Training) -> None:
        """Run the command again in a process for each worker and server, or be one of them."""
        workers, k = len(self.devices), len(self.processes)
        if not started_as_rank():
            check_devices(self.devices, ranks.backend)
            self._loaded("meta")
            start_ranks(context, k)
            return
        from hgpart.report.training import TrainingReport
        from hgpart.run.servers.served_model import ServedModel

        rank, started = int(os.environ["RANK"]), os.environ.get("WORLD_SIZE")
        if started != str(k):
            raise RunError(
                f"{started} processes of {workers} workers with {self.serving.words}: accepted "
                f"are {k}"
            )
        device = self.devices[rank] if rank < workers else "cpu"
        with hgpart.connect(k, device=device, timeout=ranks.timeout) as connection:
            with Stages() as stage, stage("load"):
                module = self._loaded("cpu").to(connection.device)
            of_model = module, self.serving, workers, connection, self.autocast
            model = ServedModel(*of_model)
            result, state = training.run(model)
        if rank == 0:
            report = TrainingReport(
                model=self.model,
                data=training.data.spec,
                dtype=self.dtype,
                autocast=None if self.autocast is None else str(self.autocast).split(".")[-1],
                devices=self.processes,
                processes=k,
                result=result,
                volume_bytes=model.volume_bytes(),
                way=f"{self.serving.name} of {workers} workers, {self.serving.words}",
            )
            training.conclude(context, report, state)

    def _loaded(self, device: str) -> nn.Module:
        """The model with its initial weights; on the meta device these are only checked."""
        module = self._module(device)
        if self.weights is not None:
            from hgpart.placement.state.original_state import compared_names, original_state
            from hgpart.placement.state.weight_files import opened_weights

            names = original_state(module, ())
            with opened_weights(self.weights, names) as state:
                compared_names(state, names)
                values = {name: state[name] for name in names}
            for name, original in names.items():
                if (shape := tuple(values[name].shape)) != original.shape:
                    raise PlacementError(
                        f"{self.weights}: {name} has shape {shape}, the model's {original.shape}"
                    )
            if device != "meta":
                module.load_state_dict(values, strict=False)
        return module

    def _module(self, device: str) -> nn.Module:
        import torch

        with redirect_stdout(sys.stderr):
            module, _ = hgpart.load_model(self.model, seed=self.seed, device=device)
        return module.to(getattr(torch, self.dtype))
