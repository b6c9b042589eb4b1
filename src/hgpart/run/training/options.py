"""What a training is asked for -> its optimizers, and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import cos, pi
from typing import Any

from hgpart.errors import ArgumentError, check_number, not_one_of

# Defaults of each optimizer. The loss of resnet50 rises by sgd with 0.01 and, on random labels,
# with 0.003.
RATES = {
    "sgd": {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0},
    "adam": {"lr": 0.001, "weight_decay": 0.0},
}
GOALS = ("accuracy", "val_accuracy")
LR_SCHEDULES = ("constant", "cosine")
LARGEST_RATE = 1e30  # what torch computes from it by division is still a float32


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training.

    Attributes
    ----------
    steps : int
        Number of steps in total, including those of a checkpoint.
    optimizer : str
        ``sgd`` or ``adam``.
    lr : float or None
        Learning rate. None, here and for the next two: the rate of the checkpoint that is resumed,
        or else that of `RATES`.
    momentum : float or None
        Momentum of sgd; 0 for none. Adam has its own, torch's defaults.
    seed : int
        Seed of torch's own generator, which dropout draws from.
    decay : bool
        Whether the learning rate decays, and training may end before `steps`, by the accuracy on
        the validation samples after each epoch: see `Plateau`.
    until : mapping of str to float
        Ends the training after an epoch that has reached the value: ``accuracy`` of the epoch's own
        steps, ``val_accuracy`` on the validation samples.
    warmup : int
        Number of steps in which the learning rate rises to `lr`.
    lr_schedule : str
        ``constant``, or ``cosine``: after the warmup the learning rate falls to 0 as half a wave.
    """

    steps: int
    batch_size: int
    optimizer: str = "sgd"
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    seed: int = 0
    decay: bool = False
    until: Mapping[str, float] = field(default_factory=dict)
    warmup: int = 0
    lr_schedule: str = LR_SCHEDULES[0]

    def __post_init__(self) -> None:
        """Raise an ArgumentError if an option is not accepted."""
        if self.optimizer not in RATES:
            raise not_one_of("optimizer", self.optimizer, RATES)
        for name, value in self.until.items():
            if name not in GOALS:
                raise not_one_of("until", name, GOALS)
            check_number(f"until {name}", value, most=1)
        if self.lr_schedule not in LR_SCHEDULES:
            raise not_one_of("schedule of the learning rate", self.lr_schedule, LR_SCHEDULES)
        for name, low in (("steps", 0), ("batch_size", 1), ("seed", 0), ("warmup", 0)):
            if getattr(self, name) < low:
                raise ArgumentError(
                    f"{name.replace('_', ' ')} {getattr(self, name)}: accepted is {low} or more"
                )
        if self.momentum is not None and "momentum" not in RATES[self.optimizer]:
            raise ArgumentError(
                f"momentum {self.momentum}: {self.optimizer} has its own, sgd takes one"
            )
        for name, value in self.rates.items():
            accepted = f"from 0 to {LARGEST_RATE:g}" if name != "momentum" else "from 0 and below 1"
            if not 0 <= value <= LARGEST_RATE or (name == "momentum" and value >= 1):
                raise ArgumentError(
                    f"{name.replace('_', ' ')} {value}: accepted is a number {accepted}"
                )

    @property
    def rates(self) -> Mapping[str, float]:
        """The rates among lr, momentum and weight_decay that are not None."""
        asked = {name: getattr(self, name) for name in RATES[self.optimizer]}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def course(self) -> str:
        """What the learning rate does, in words.

        >>> TrainingOptions(90, 1, warmup=5, lr_schedule="cosine").course
        '5 steps of warmup, cosine'
        """
        return f"{self.warmup} steps of warmup, " * (self.warmup > 0) + self.lr_schedule

    def factor(self, step: int) -> float:
        """Share of the learning rate in a step, counted from 0.

        It is that of torch's LinearLR and CosineAnnealingLR, one after the other, but needs no
        state: parts that update at different times, and a resumed training, ask for any step.

        >>> options = TrainingOptions(6, 1, warmup=2, lr_schedule="cosine")
        >>> [round(options.factor(step), 2) for step in range(6)]
        [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
        """
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.lr_schedule == "constant":
            return 1.0
        return (1 + cos(pi * (step - self.warmup) / (self.steps - self.warmup))) / 2

    def completed(self, written: Mapping[str, float]) -> TrainingOptions:
        """These options with all rates: as `written` in a checkpoint, or as the optimizer's.

        >>> TrainingOptions(1, 1, lr=0.5).completed({"lr": 0.1, "momentum": 0.8}).rates
        {'lr': 0.5, 'momentum': 0.8, 'weight_decay': 0.0}
        """
        rates: Mapping[str, Any] = {**RATES[self.optimizer], **written, **self.rates}
        return replace(self, **rates)
