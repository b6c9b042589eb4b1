"""An epoch has ended -> its score; the best weights; whether, and how fast, training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from hgpart.run.learner import Learner, LossFunction
from hgpart.run.training.data import Data
from hgpart.run.training.options import TrainingOptions
from hgpart.run.training.plateau import Plateau
from hgpart.run.training.scores import CountedLoss, Loss, validated


class Epoch(NamedTuple):
    """What is known of an epoch.

    Attributes
    ----------
    number : int
        Number of the epoch, counted from 1.
    rate : float
        Learning rate of its last step.
    validation : float or None
        Accuracy on the validation samples after it, or their loss if that is a user's function.
    training : float or None
        Share of its training samples that were given their class in its steps, if these were
        counted.
    """

    number: int
    rate: float
    validation: float | None
    training: float | None = None


class BestWeights:
    """Copies of a model's weights, on the CPU, as they were after the best epoch so far.

    Attributes
    ----------
    tensors : sequence of Tensor
        Copies of what `Learner.held` has here, in its order; empty before the first epoch.
    is_kept : bool
        Whether weights were kept in all processes, some of which may hold nothing.
    """

    def __init__(self, learner: Learner, tensors: Sequence[Tensor] | None = None) -> None:
        self._learner, self.is_kept = learner, tensors is not None
        self.tensors = () if tensors is None else tensors

    def keep(self) -> None:
        """Copy the present weights."""
        held = [tensor.detach() for _, _, tensor in self._learner.held()]
        self.tensors, self.is_kept = [tensor.to("cpu", copy=True) for tensor in held], True

    def put_back(self) -> None:
        """Give the model these weights."""
        with torch.no_grad():
            for (_, _, tensor), best in zip(self._learner.held(), self.tensors, strict=True):
                tensor.copy_(best)


@dataclass
class Progress:
    """How far a training is.

    Attributes
    ----------
    losses : list of float
        The loss of each step.
    right : int or None
        Number of samples since the last epoch that were given their class in training; None if they
        were not counted from the beginning of the epoch.
    """

    best: BestWeights
    losses: list[float] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    right: int | None = 0


class Epochs:
    """What is done after each epoch: validate, keep the best weights, let the rate decay, or end.

    Attributes
    ----------
    loss_function : callable
        Loss function of the steps.
    are_over : bool
        Whether training ends.
    """

    def __init__(
        self,
        learner: Learner,
        data: Data,
        options: TrainingOptions,
        loss: Loss,
        progress: Progress,
        keeps_best: bool,
    ) -> None:
        self._learner, self._data, self._options, self._loss = learner, data, options, loss
        self._progress, self._keeps_best = progress, keeps_best
        self._counted = CountedLoss(loss.function) if "accuracy" in options.until else None
        self.loss_function: LossFunction = self._counted or loss.function
        self._steps = data.steps_per_epoch(options.batch_size)
        self._plateau, self.are_over = Plateau(options.rates["lr"]), False
        if self._counted is None:
            progress.right = None
        elif len(progress.losses) % self._steps == 0:  # else it is as it was before a stop
            progress.right = 0
        for epoch in progress.epochs:
            self._conclude(epoch)

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        return self._plateau.rate * self._options.factor(step)

    def count(self) -> None:
        """Count how many samples the last steps gave their class; all processes call it."""
        if self._counted is not None:
            right = int(self._learner.add_later(self._counted.taken())())
            if self._progress.right is not None:
                self._progress.right += right

    def end(self) -> float | None:
        """End an epoch; returns its score."""
        progress, step = self._progress, len(self._progress.losses)
        score = validated(self._learner, self._data, self._options.batch_size, self._loss)
        trained = None
        if progress.right is not None:
            trained = progress.right / (self._steps * self._options.batch_size)
        progress.right = None if self._counted is None else 0
        if self._keeps_best and self._is_best(score):
            progress.best.keep()
        progress.epochs.append(Epoch(step // self._steps, self.rate(step - 1), score, trained))
        self._conclude(progress.epochs[-1])
        return score

    def last_score(self) -> float | None:
        """The score of the present weights."""
        epochs = self._progress.epochs
        if epochs and epochs[-1].number * self._steps == len(self._progress.losses):
            return epochs[-1].validation
        return validated(self._learner, self._data, self._options.batch_size, self._loss)

    def take_best(self, last_score: float | None) -> Epoch | None:
        """Give the model its best weights; returns their epoch, None if they are after the last."""
        if not self._progress.best.is_kept or self._is_best(last_score):
            return None
        self._progress.best.put_back()
        return best_of(self._progress.epochs, self._loss)

    def _is_best(self, score: float | None) -> bool:
        """Whether no epoch so far was as good."""
        best = best_of(self._progress.epochs, self._loss)
        if score is None or best is None or best.validation is None:
            return score is not None
        return self._loss.goodness(score) > self._loss.goodness(best.validation)

    def _conclude(self, epoch: Epoch) -> None:
        """Find whether training ends after an epoch; if not, the learning rate may decay."""
        reached = {"accuracy": epoch.training, "val_accuracy": epoch.validation}
        self.are_over = any(
            (reached[name] or 0.0) >= goal for name, goal in self._options.until.items()
        )
        if self._options.decay and epoch.validation is not None:
            self.are_over |= not self._plateau.goes_on(self._loss.goodness(epoch.validation))


def best_of(epochs: Sequence[Epoch], loss: Loss) -> Epoch | None:
    """The first of the epochs with the best score.

    >>> from hgpart.run.training.scores import CROSS_ENTROPY
    >>> best_of([Epoch(1, 0.1, 0.5), Epoch(2, 0.1, 0.75), Epoch(3, 0.1, 0.75)], CROSS_ENTROPY)
    Epoch(number=2, rate=0.1, validation=0.75, training=None)
    """
    scored = [
        (loss.goodness(epoch.validation), -epoch.number, epoch)
        for epoch in epochs
        if epoch.validation is not None
    ]
    return max(scored)[-1] if scored else None


def steps_between_epochs(data: Data, options: TrainingOptions) -> list[int]:
    """Number of steps in an epoch, if there is anything to do after it; else nothing."""
    if data.validation is None and "accuracy" not in options.until:
        return []
    return [data.steps_per_epoch(options.batch_size)]
