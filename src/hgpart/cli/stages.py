"""The stages of a command, timed and shown on a terminal; what commands know of a model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import hgpart
from hgpart.errors import ArgumentError, RunError
from hgpart.specs.models import is_user_code
from hgpart.terminal import Lines
from hgpart.tracing.input_shape import InputShape

if TYPE_CHECKING:
    from torch import nn

    from hgpart.plan import PlanFile

STARTED = time.perf_counter()
AS_ARGUMENT = "MODEL, which names the code to call"


class Stages:
    """A timer of the stages of a command, which shows, or says now and then, which one runs.

    What is printed inside it goes to standard error: what the model's own code prints must not get
    between the figures of --json -.
    """

    def __init__(self) -> None:
        self._ending = ExitStack()
        self.seconds: dict[str, float] = {}
        self.status = Console(stderr=True).status("") if sys.stderr.isatty() else None
        self._now = ""
        self._inside = 0.0  # seconds of the stages inside the present one
        first = os.environ.get("RANK", "0") == "0"  # of several processes one is enough
        self._lines = Lines(lambda: self._now) if self.status is None and first else None

    def __enter__(self) -> Stages:
        """Begin; nothing is shown before the first stage."""
        self._ending.enter_context(redirect_stdout(sys.stderr))
        if self.status is not None:
            self._ending.callback(self.status.stop)
        if self._lines is not None:
            self._lines.start()
            self._ending.callback(self._lines.stop)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop showing."""
        self._ending.close()

    @contextmanager
    def __call__(self, name: str, spinner: bool = True) -> Iterator[None]:
        """Time a stage, without those inside it, and show it unless it shows its own progress."""
        outer, self._now = self._now, name if spinner else ""
        inside_outer, self._inside = self._inside, 0.0
        if self.status is not None and spinner:
            self.status.update(name)
            self.status.start()
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds - self._inside
        self._now, self._inside = outer, inside_outer + seconds
        if self.status is not None:
            self.status.update(outer)
            if not outer:
                self.status.stop()

    def search(self, done: float, volume: int | None) -> None:
        """Show how far a search is, and the bytes of its best partition so far."""
        best = "" if volume is None else f", {volume / 10**6:,.2f} MB so far"
        self._now = f"partition: {done:.0%}{best}"
        if self.status is not None:
            self.status.update(self._now)

    def all_seconds(self) -> dict[str, float]:
        """Seconds of each stage, and in total since the command began."""
        return {**self.seconds, "total": time.perf_counter() - STARTED}


def plan_and_model(path: Path, model: str | None) -> tuple[PlanFile, str]:
    """Read a plan; the model is the given one, or else the plan's."""
    plan = hgpart.files.load_plan(path)
    return plan, model or trusted_model(plan, path, AS_ARGUMENT)


def trusted_model(plan: PlanFile, path: Path, accepted: str) -> str:
    """The model that a plan names, unless that is code which nobody has asked to be called."""
    from hgpart.files.json_files import quoted

    if is_user_code(plan.model):
        raise ArgumentError(
            f"{path} is a plan of {quoted(plan.model)}, code that is called only where you name "
            f"it: accepted with {accepted}"
        )
    return plan.model


def shape_of(model: str, shape: Sequence[Any] | None) -> InputShape:
    """What a model takes for each sample, if it is known.

    Raises
    ------
    ArgumentError
        If it is not.
    """
    if shape is None:
        raise ArgumentError(
            f"{model} does not say the shape of its input: give it, as in --input-shape 3,224,224"
        )
    return InputShape(shape)


def classes_of(module: nn.Module, shape: InputShape) -> int:
    """Width of a classifier's output.

    Raises
    ------
    RunError
        If it takes something else than images, or returns no class scores.
    """
    from hgpart.run.training.scores import class_scores
    from hgpart.tracing.traced_model import EXAMPLE_BATCH, result_of

    check_images(shape)
    example = hgpart.example_inputs(module, shape)
    with redirect_stdout(sys.stderr):
        result = result_of(module, example)
    return class_scores(result, EXAMPLE_BATCH).shape[1]


def check_images(shape: InputShape) -> None:
    """Raise a RunError for a model that can't be given the images of a data set."""
    try:
        shape.image("data")
    except ArgumentError as error:
        raise RunError(str(error)) from None


def trains(module: nn.Module, shape: InputShape) -> bool:
    """Whether a model returns what `hgpart train` needs."""
    try:
        return classes_of(module, shape) > 0
    except RunError:
        return False


def then_of_plan(module: nn.Module, shape: InputShape, of_plan: str) -> str:
    """Command that trains by a plan or, where the model is no classifier, runs its steps."""
    if trains(module, shape):
        return f"hgpart train {of_plan}"
    return f"hgpart run {of_plan} --backward"
