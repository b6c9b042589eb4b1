"""A function of a user -> samples of the data sets that it returns."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from hgpart.errors import ArgumentError
from hgpart.run.training.sources.samples import seed_of
from hgpart.specs.user_code import UserCode

ACCEPTED = "a dataset with __len__ and __getitem__, or (train, validation)"
NUMBERS = (Tensor, np.ndarray, np.generic, int, float)
TARGET = "target"


def user_data(
    spec: str, input_shape: Sequence[int], classes: int | None, seed: int
) -> tuple[UserSamples, UserSamples | None]:
    """Samples for training, and for validation if there are some.

    Raises
    ------
    ArgumentError
        If there is no such function, or it returns something else.
    """
    code = UserCode(spec, "data", ArgumentError)
    function = code.load()
    with code.running(), redirect_stdout(sys.stderr):
        made = function(seed)
    train, validation = made if isinstance(made, tuple) and len(made) == 2 else (made, None)

    def samples(dataset: Any) -> UserSamples:
        return UserSamples(dataset, code, tuple(input_shape), classes, seed)

    return samples(train), None if validation is None else samples(validation)


class UserSamples:
    """Samples of a user's dataset, (input, target) each.

    While one is read, torch, numpy and Python draw random numbers from a seed of its own, so that
    random transforms are the same in any process, and disturb no one else.

    Parameters
    ----------
    classes : int or None
        Number of classes that targets are; None if they are anything.

    Raises
    ------
    ArgumentError
        If it is no dataset, or its first sample is not as it should be.
    """

    def __init__(
        self,
        dataset: Any,
        code: UserCode,
        input_shape: tuple[int, ...],
        classes: int | None,
        seed: int,
    ) -> None:
        self._dataset, self._code, self._seed = dataset, code, seed
        self._shape, self._classes = input_shape, classes
        self._targets: dict[tuple[int, int], Any] = {}  # of the samples that were read last
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or not len(self):
            is_empty = "an empty " * hasattr(dataset, "__len__")
            name = type(dataset).__name__
            raise ArgumentError(f"{code.spec} returns {is_empty}{name}: accepted is {ACCEPTED}")
        self.images([0])
        self.labels([0])

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._dataset)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The inputs of some samples."""
        samples = [self._sample(index, epoch) for index in indices]
        self._targets = {
            (epoch, index): target for index, (_, target) in zip(indices, samples, strict=True)
        }
        return torch.stack([value for value, _ in samples])

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Any:
        """Targets: a tensor of those that are tensors or numbers, or else a dict for each."""
        targets = [
            self._targets[epoch, index]
            if (epoch, index) in self._targets
            else self._sample(index, epoch)[1]
            for index in indices
        ]
        if not isinstance(targets[0], NUMBERS):
            self._check_classes(None)
            return [{TARGET: target} for target in targets]
        try:
            stacked: Tensor = default_collate(targets)
        except RuntimeError as error:
            shapes = ", ".join(sorted({str(tuple(np.shape(target))) for target in targets}))
            raise ArgumentError(
                f"{self._code.spec} has targets of the shapes {shapes}: accepted are tensors of "
                "one shape, or anything in a dict or tuple"
            ) from error
        self._check_classes(stacked)
        return stacked

    def _sample(self, index: int, epoch: int) -> tuple[Tensor, Any]:
        with self._code.running(), _seeded(seed_of(self._seed, "sample", epoch, index)):
            sample = self._dataset[index]
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            received = type(sample).__name__
        elif not isinstance(sample[0], Tensor):
            received = f"an input of type {type(sample[0]).__name__}"
        elif sample[0].shape != self._shape:
            received = f"an input of shape {tuple(sample[0].shape)}"
        else:
            return sample[0], sample[1]
        raise ArgumentError(
            f"{self._code.spec}: sample {index} is {received}: accepted is (input, target), with "
            f"an input of shape {self._shape}"
        )

    def _check_classes(self, labels: Tensor | None) -> None:
        if self._classes is None:
            return
        if labels is None or labels.dim() != 1 or labels.is_floating_point():
            raise ArgumentError(
                f"{self._code.spec} has targets that are no numbers of classes: accepted with them "
                "is --loss FILE.py:FUNCTION"
            )
        if not 0 <= int(labels.min()) <= int(labels.max()) < self._classes:
            raise ArgumentError(
                f"{self._code.spec} has the classes {int(labels.min())} to {int(labels.max())}: "
                f"accepted are 0 to {self._classes - 1}, of which the model has values"
            )


def targets_of(labels: Any) -> Any:
    """Targets as a user's loss takes them: a tensor, or a list with one for each sample."""
    return [label[TARGET] for label in labels] if isinstance(labels, list) else labels


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a seed in the block, and after it as if nothing had been drawn.

    GPUs' generators stay as they are: nothing is read on one.
    """
    torchs = torch.default_generator
    states = torchs.get_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torchs.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torchs.set_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
