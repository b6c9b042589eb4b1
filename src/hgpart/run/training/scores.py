"""Results and labels of samples -> their loss, and how many are given their class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hgpart.errors import ArgumentError, RunError
from hgpart.run.learner import Learner, LossFunction
from hgpart.run.training.batches import SampleBatches, batches_here
from hgpart.run.training.data import Data

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
    """

    name: str = "cross-entropy"
    function: LossFunction = cross_entropy


CROSS_ENTROPY = Loss()


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


def accuracy(learner: Learner, data: Data, batch_size: int) -> float | None:
    """Fraction of the test samples whose largest class score is that of their class.

    The last batch is filled up with the first samples, which are not counted twice, because a model
    may accept only one batch size.
    """
    if data.validation is None:
        return None
    learner.train(False)
    count, correct = len(data.validation), 0
    firsts, sizes = range(0, count, batch_size), (batch_size,)
    batches = SampleBatches(
        data.validation, lambda first: [at % count for at in range(first, first + batch_size)]
    )
    with torch.no_grad():
        tests = batches_here(learner, batches, firsts, sizes)
        for first, (images, labels) in zip(firsts, tests, strict=True):
            result = learner.forward(images, batch_size)
            if labels is not None:
                right = class_scores(result, len(labels)).argmax(1).cpu() == labels.cpu()
                scored = learner.samples_of_result(sizes)
                counts = torch.tensor([first + at < count for at in scored])
                correct += int((right & counts).sum())
    learner.train(True)
    return learner.add_later(float(correct))() / count


def class_scores(result: Any, samples: int) -> Tensor:
    """A number for each sample and class.

    Raises
    ------
    RunError
        If the result is anything else; the message says what.

    >>> class_scores(torch.zeros(8, 10, 4, 4), samples=8).shape
    torch.Size([8, 10])
    """
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
            f"{samples} x classes, or maps of them, alone or first in a tuple"
        )
    return scores.flatten(2).mean(2) if scores.dim() > 2 else scores


def _described(result: Any) -> str:
    """What a model returns, in a few words.

    >>> _described({"logits": torch.zeros(2, 10)}), _described(torch.zeros(2, 5, 10))
    ("a dict of 'logits'", 'float32 numbers, 2 x 5 x 10')
    """
    if isinstance(result, Mapping):
        return f"a {type(result).__name__} of {', '.join(map(repr, result))}"
    if not isinstance(result, Tensor):
        return f"a {type(result).__name__}"
    kind = str(result.dtype).removeprefix("torch.")
    if not result.dim():
        return f"one {kind} number"
    return f"{kind} numbers, {' x '.join(map(str, result.shape))}"
