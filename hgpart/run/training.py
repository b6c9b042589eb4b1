"""Learner + Data -> TrainingResult: the same loop for a model, a placement and a process's share.

Every part's optimizer works on the slices that the part holds; as they are what the original's
optimizer has, element by element, nothing but maps and their gradients travels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hgpart.errors import ArgumentError, RunError
from hgpart.run.data import Data
from hgpart.run.learner import Effort, Learner
from hgpart.run.resuming import Checkpointing, resume, save

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes
    ----------
    steps : int
        In all, with those that a checkpoint has done.
    batch_size : int
    optimizer : str
        ``sgd`` or ``adam``.
    lr : float
        Learning rate.
    momentum : float
        Of sgd; 0 is none. Adam has its own, torch's defaults.
    weight_decay : float
    seed : int
        Of torch's own generator, which dropout draws from.
    """

    steps: int
    batch_size: int
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        if self.optimizer not in OPTIMIZERS:
            raise ArgumentError(
                f"optimizer {self.optimizer!r}: accepted are {' and '.join(OPTIMIZERS)}"
            )
        for name, low in (("steps", 0), ("batch_size", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise ArgumentError(
                    f"{name.replace('_', ' ')} {getattr(self, name)}: accepted is {low} or more"
                )
        for name, high in (("lr", None), ("momentum", 1), ("weight_decay", None)):
            value = getattr(self, name)
            if not (0 <= value < (high or float("inf"))):
                below = "" if high is None else f" and below {high}"
                raise ArgumentError(
                    f"{name.replace('_', ' ')} {value}: accepted is a number from 0{below}"
                )


@dataclass(frozen=True)
class TrainingResult:
    """What a training came to.

    Attributes
    ----------
    losses : tuple of float
        One for each step, those before a checkpoint included.
    accuracy : float or None
        Share of the test samples that are given their class; None if there is no test set.
    steps : int
        Done now.
    samples_per_second : float or None
        Of these steps, checkpoints included; None if there were none.
    effort : Effort
        Of these steps.
    """

    losses: tuple[float, ...]
    accuracy: float | None
    steps: int
    samples_per_second: float | None
    effort: Effort


def train(
    learner: Learner,
    data: Data,
    options: TrainingOptions,
    checkpointing: Checkpointing | None = None,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> TrainingResult:
    """Train with cross entropy, then test.

    Called in every process, with its own share of the model and the same of everything else. A
    result with more dimensions than (samples, classes), as of a segmentation, is averaged over
    them; of several results the first one counts.

    Parameters
    ----------
    learner : Learner
    data : Data
    options : TrainingOptions
    checkpointing : Checkpointing, optional
    on_step : callable
        Told the number of steps done and the last loss.

    Raises
    ------
    ArgumentError
        If the batch is larger than the data, or the folder for checkpoints has some already.
    CheckpointError
        If none can be resumed, or one can't be written.
    """
    data.check_batch(options.batch_size)
    optimizer = _optimizer(learner, options)
    settings: dict[str, str | int] = {
        "optimizer": options.optimizer,
        "data": data.spec,
        "batch size": options.batch_size,
        "seed": options.seed,
        "data seed": data.seed,
        "dtype": str(learner.dtype).removeprefix("torch."),
    }
    torch.manual_seed(options.seed)
    losses: list[float] = []
    if checkpointing is not None:
        losses += resume(learner, optimizer, settings, checkpointing, options.steps)
    learner.train(True)
    start, before = time.perf_counter(), len(losses)
    while len(losses) < options.steps:
        losses.append(_step(learner, optimizer, data, len(losses), options.batch_size))
        on_step(len(losses), losses[-1])
        if checkpointing is not None and (
            len(losses) % checkpointing.every == 0 or len(losses) == options.steps
        ):
            save(learner, optimizer, settings, checkpointing, losses)
    seconds, steps = time.perf_counter() - start, len(losses) - before
    effort = learner.effort()
    return TrainingResult(
        losses=tuple(losses),
        accuracy=accuracy(learner, data, options.batch_size),
        steps=steps,
        samples_per_second=steps * options.batch_size / seconds if steps else None,
        effort=effort,
    )


def accuracy(learner: Learner, data: Data, batch_size: int) -> float | None:
    """Share of the test samples whose largest class score is that of their class.

    The last batch is filled up with the first samples, which are not counted twice: a model may
    take batches of one size only.
    """
    if data.test is None:
        return None
    learner.train(False)
    count, correct = len(data.test), 0
    with torch.no_grad():
        for first in range(0, count, batch_size):
            indices = [at % count for at in range(first, first + batch_size)]
            images = data.test.images(indices) if learner.reads_inputs else None
            result = learner.forward(images, batch_size)
            if learner.makes_result:
                right = class_scores(result).argmax(1).cpu() == data.test.labels(indices)
                correct += int(right[: count - first].sum())
    learner.train(True)
    return learner.share(correct / count if learner.makes_result else None)


def class_scores(result: Any) -> Tensor:
    """One number for each sample and class.

    >>> class_scores(torch.zeros(8, 10, 4, 4)).shape
    torch.Size([8, 10])
    """
    scores = result[0] if isinstance(result, (tuple, list)) else result
    if not isinstance(scores, Tensor) or scores.dim() < 2:
        raise RunError("the model does not return class scores: accepted is samples x classes")
    return scores.flatten(2).mean(2) if scores.dim() > 2 else scores


def _step(
    learner: Learner, optimizer: torch.optim.Optimizer, data: Data, step: int, batch_size: int
) -> float:
    indices = data.training_indices(step, batch_size)
    optimizer.zero_grad()
    images = data.train.images(indices) if learner.reads_inputs else None
    result = learner.forward(images, batch_size)
    loss = None
    if learner.makes_result:
        labels = data.train.labels(indices).to(learner.device)
        loss = functional.cross_entropy(class_scores(result), labels)
    learner.backward(loss)
    optimizer.step()
    return learner.share(None if loss is None else loss.item())


def _optimizer(learner: Learner, options: TrainingOptions) -> torch.optim.Optimizer:
    tensors = [
        tensor
        for _, _, tensor in learner.held()
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad
    ]
    groups = [{"params": tensors}]  # a part may have none, which a plain list would not allow
    if options.optimizer == "adam":
        return torch.optim.Adam(groups, lr=options.lr, weight_decay=options.weight_decay)
    return torch.optim.SGD(
        groups, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay
    )
