"""A plan that a command makes for itself, where none is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

import typer

import hgpart
from hgpart.cli.grouping import Options
from hgpart.cli.groups import CountedRanks
from hgpart.cli.options import InputShape
from hgpart.cli.stages import Stages, traced_model
from hgpart.errors import ArgumentError
from hgpart.terminal import say

if TYPE_CHECKING:
    from hgpart.schedule_wanted import Scheduling

EPS = 0.1
COPIES = {"sgd": 2, "sgd with momentum": 3, "adam": 4}  # of a parameter, its gradient among them


@dataclass(frozen=True, kw_only=True)
class Planning(Options):
    """A plan that is made here, without --plan, for --devices N.

    Attributes
    ----------
    input_shape : C,H,W
        Shape of one sample. Default: the model's own, if it is known.
    memory : M,M,...
        Memory of each device for a step, or one size for all, as in 2GiB or 512MB: weights,
        gradients, the optimizer's state and maps. What libraries take besides, some 0.4 GB a
        process, is not counted. Default: the plan of least traffic, whatever it needs.
    """

    panel: ClassVar[str] = "A plan made here"
    input_shape: InputShape = None
    memory: str | None = None

    def check(self, plan: Path | None, model: str | None, ranks: CountedRanks) -> None:
        """Refuse what asks for no plan, or for two."""
        if plan is None:
            if model is None:
                raise ArgumentError("no --plan given: accepted is one, or MODEL and --devices N")
            if ranks.count is None:
                raise ArgumentError(
                    "no --plan given: accepted is one, or a number of devices to plan for, as in "
                    "--devices 4"
                )
            return
        named = {
            "--input-shape": self.input_shape,
            "--memory": self.memory,
            f"--devices {ranks.number}": ranks.number,
        }
        for option, value in named.items():
            if value is not None:
                raise ArgumentError(f"{option} with --plan, which says that: accepted is without")

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
    ) -> Path:
        """Make a plan whose parts fit, and a file of it that lasts as long as the command.

        Processes that the command starts get the file in place of these options.
        """
        with stage("import"):
            import torch

            from hgpart.partition.problem.memory import memory_limits
            from hgpart.partition.problem.problem import Problem
            from hgpart.partition.problem.search import Search
            from hgpart.recommendation.fitting import Asked, fitting_plan
        k = ranks.count or 1
        limits = None
        if self.memory is not None:
            in_flight = 1 if scheduling is None else scheduling.most_in_flight
            sizes = self.memory.split(",")
            limits = memory_limits(sizes, k, COPIES[optimizer], in_flight)
        module, shape, _, graph = traced_model(stage, model, self.input_shape)
        modelling = hgpart.Modelling(batch_size=batch_size)
        problem = Problem(graph, hgpart.flops(graph), modelling, k, EPS, memory=limits)
        module = module.to(getattr(torch, dtype)).train(True)
        asked = Asked(module, model, shape, scheduling, optimizer, norms)
        with stage("plan"):
            fitted = fitting_plan(asked, problem, Search(on_progress=stage.search))
        say(fitted.text)
        folder = TemporaryDirectory(prefix="hgpart-")
        context.call_on_close(folder.cleanup)
        file = Path(folder.name, "plan.json")
        hgpart.files.save_plan(fitted.plan, file)
        context.params.update(plan=file, devices=ranks.names, input_shape=None, memory=None)
        return file
