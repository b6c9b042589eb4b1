"""Results and labels of samples -> their loss, and how many are given their class."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hgpart.errors import ArgumentError, RunError
from hgpart.placement.batches.loss_counts import class_loss, is_sum
from hgpart.run.learner import Learner, LossFunction
from hgpart.run.training.batches import SampleBatches, batches_here
from hgpart.run.training.data import Data
from hgpart.run.training.sources.samples import Samples
from hgpart.run.training.sources.user_data import targets_of
from hgpart.specs.user_code import UserCode

SCORES = (2, 4, 5)  # dimensions of class scores: of images, their pixels, or pixels of volumes


def cross_entropy(result: Any, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The loss of a batch's class scores, a mean over samples and pixels; see `class_scores`.

    A share `smoothing` of each label is divided among all classes.
    """
    scores = class_scores(result, len(labels))
    return functional.cross_entropy(scores, labels, label_smoothing=smoothing)


@dataclass(frozen=True)
class Loss:
    """What a training makes small.

    Attributes
    ----------
    name : str
        Name in checkpoints, which go on with the same loss only.
    function : callable
        Function (results, targets) -> mean over the samples, or (sum, count).
    of_classes : bool
        Whether samples have classes, so that there is an accuracy; else validation is by the loss.
    """

    name: str = "cross-entropy"
    function: LossFunction = cross_entropy
    of_classes: bool = True

    @property
    def score(self) -> str:
        """Name of the score of a validation."""
        return "val_accuracy" if self.of_classes else "val_loss"

    def goodness(self, score: float) -> float:
        """A figure that is larger for better scores; that of a model that diverged is smallest."""
        if math.isnan(score):
            return -math.inf
        return score if self.of_classes else -score


CROSS_ENTROPY = Loss()


class CountedLoss:
    """A loss of class scores that also counts the samples that are given their class."""

    def __init__(self, function: LossFunction) -> None:
        self._function = function
        self._right: list[Tensor] = []  # threads append to it

    def __call__(self, result: Any, labels: Tensor) -> Tensor:
        """The loss."""
        with torch.no_grad():
            self._right.append(_given_their_class(result, labels).sum())
        return self._function(result, labels)

    def taken(self) -> int:
        """Number of samples since the last call that were given their class here."""
        right = sum(int(count) for count in self._right)
        self._right.clear()
        return right


def smoothed(smoothing: float) -> Loss:
    """Cross entropy with smoothed labels.

    Raises
    ------
    ArgumentError
        If it is not a share of the label.
    """
    if not 0 <= smoothing < 1:
        raise ArgumentError(f"smoothing {smoothing}: accepted is a number from 0 and below 1")
    if not smoothing:
        return CROSS_ENTROPY
    return Loss(
        f"cross-entropy, smoothing {smoothing:g}", partial(cross_entropy, smoothing=smoothing)
    )


def user_loss(spec: str) -> Loss:
    """The loss function ``FILE.py:FUNCTION``, called with results and targets.

    Targets that are no tensors or numbers are a list, with one for each sample.

    Raises
    ------
    ArgumentError
        If there is no such function.
    """
    code = UserCode(spec, "loss", ArgumentError)
    function = code.load()

    def loss(result: Any, labels: Any) -> Tensor:
        with code.running():
            value: Tensor = function(result, targets_of(labels))
        return value

    # Torch's own are told apart by what their means divide by.
    is_torchs = class_loss(function) is not None or is_sum(function)
    return Loss(spec, function if is_torchs else loss, of_classes=False)


def validated(learner: Learner, data: Data, batch_size: int, loss: Loss) -> float | None:
    """The accuracy, or a user's loss, on the validation samples, if there are some.

    The loss is a mean over whole batches: those that fill up the last one count as well.
    """
    if data.validation is None:
        return None
    if loss.of_classes:
        return accuracy(learner, data, batch_size)

    def sum_and_count(result: Any, labels: Any, is_counted: Tensor) -> tuple[float, float]:
        value: Any = loss.function(result, labels)
        total, count = value if isinstance(value, tuple) else (value * len(labels), len(labels))
        return float(total), float(count)

    return _mean(learner, data.validation, batch_size, sum_and_count)


def accuracy(learner: Learner, data: Data, batch_size: int) -> float | None:
    """Fraction of the validation samples whose largest class score is that of their class."""

    def right_of_all(result: Any, labels: Tensor, is_counted: Tensor) -> tuple[float, float]:
        right = _given_their_class(result, labels).cpu()
        return int((right & is_counted).sum()), int(is_counted.sum())

    if data.validation is None:
        return None
    return _mean(learner, data.validation, batch_size, right_of_all)


def _mean(
    learner: Learner,
    samples: Samples,
    batch_size: int,
    sum_and_count: Callable[[Any, Any, Tensor], tuple[float, float]],
) -> float:
    """A mean over samples, in evaluation.

    The last batch is filled up with the first samples, which are not counted twice, because a model
    may accept only one batch size.
    """
    learner.train(False)
    total, weight, count = 0.0, 0.0, len(samples)
    firsts, sizes = range(0, count, batch_size), (batch_size,)
    batches = SampleBatches(
        samples, lambda first: [at % count for at in range(first, first + batch_size)]
    )
    scored = learner.samples_of_result(sizes)
    with torch.no_grad():
        tests = batches_here(learner, batches, firsts, sizes)
        for first, (images, labels) in zip(firsts, tests, strict=True):
            result = learner.forward(images, batch_size)
            if labels is not None:
                is_counted = torch.tensor([first + at < count for at in scored])
                own_total, own_weight = sum_and_count(result, labels, is_counted)
                total, weight = total + own_total, weight + own_weight
    learner.train(True)
    return learner.add_later(total)() / learner.add_later(weight)()


def _given_their_class(result: Any, labels: Tensor) -> Tensor:
    return class_scores(result, len(labels)).argmax(1) == labels


def class_scores(result: Any, samples: int) -> Tensor:
    """A number for each sample and class.

    Raises
    ------
    RunError
        If the result is anything else; the message says what.

    >>> class_scores({"logits": torch.zeros(8, 10, 4, 4)}, samples=8).shape
    torch.Size([8, 10])
    """
    if isinstance(result, Mapping) and "logits" in result:  # as of Hugging Face
        result = result["logits"]
    several = isinstance(result, (tuple, list)) and len(result) > 0
    scores = result[0] if several else result
    if (
        not isinstance(scores, Tensor)
        or not scores.is_floating_point()
        or scores.dim() not in SCORES
        or scores.shape[0] != samples
        or scores.shape[1] < 2
    ):
        received = f"a {type(result).__name__} that begins with " * several + _described(scores)
        raise RunError(
            f"for {samples} samples the model returns {received}: accepted are class scores, "
            f"{samples} x classes, or maps of them, alone, first in a tuple, or a dict's logits"
        )
    return scores.flatten(2).mean(2) if scores.dim() > 2 else scores


def _described(result: Any) -> str:
    """What a model returns, in a few words.

    >>> _described({"maps": torch.zeros(2, 10)}), _described(torch.zeros(2, 5, 10))
    ("a dict of 'maps'", 'float32 numbers, 2 x 5 x 10')
    """
    if isinstance(result, Mapping):
        return f"a {type(result).__name__} of {', '.join(map(repr, result))}"
    if not isinstance(result, Tensor):
        return f"a {type(result).__name__}"
    kind = str(result.dtype).removeprefix("torch.")
    if not result.dim():
        return f"one {kind} number"
    return f"{kind} numbers, {' x '.join(map(str, result.shape))}"
