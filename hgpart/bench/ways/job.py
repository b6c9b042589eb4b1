"""What all ways of training have in common: the model, its batches, its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hgpart.run.training.data import Data, load_data
from hgpart.run.training.loop import class_scores
from hgpart.zoo import load_model


@dataclass(frozen=True)
class Job:
    """What is trained; each process makes its model and its batches of it.

    Attributes
    ----------
    model : str
        As `load_model` takes it.
    input_shape : tuple of int
        Of one sample.
    classes : int
        Width of the model's output.
    batch_size : int
        Samples of a step, of all processes together.
    workers : int
        Processes that share a step, where a way has several.
    threads : int
        Of each process.
    seed : int
        Of weights and data.
    lr : float
        Of plain stochastic gradient descent.
    timeout : float
        Seconds that a process waits for another one that is alive.
    data : str
        As `load_data` takes it; of synthetic data each step has the same batch.
    """

    model: str
    input_shape: tuple[int, ...]
    classes: int
    batch_size: int
    workers: int
    threads: int = 1
    seed: int = 0
    lr: float = 0.01
    timeout: float = 300.0
    data: str = "synthetic"

    def new_model(self) -> nn.Module:
        """The model in training mode, with the same weights each time."""
        return load_model(self.model, seed=self.seed)[0]

    def new_optimizer(self, module: nn.Module) -> torch.optim.Optimizer | None:
        """What changes the parameters that are in a module; None where it has none to learn."""
        learned = [one for one in module.parameters() if one.requires_grad]
        return torch.optim.SGD(learned, lr=self.lr) if learned else None

    def batches(self) -> Batches:
        """What is trained on."""
        data = load_data(self.data, self.input_shape, self.classes, self.seed)
        return Batches(data, self.batch_size)

    def share(self, worker: int) -> range:
        """Which samples of a batch a worker has, where all have as many."""
        each = self.batch_size // self.workers
        return range(worker * each, (worker + 1) * each)


class Batches:
    """Images and labels of some samples of each step's batch; what is asked for is read."""

    def __init__(self, data: Data, batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        data.check_batch(batch_size)
        self._kept: dict[tuple[str, Sequence[int]], Tensor] = {}

    def images(self, step: int, samples: Sequence[int]) -> Tensor:
        """Images of some samples of a step's batch."""
        return self._some("images", step, samples)

    def labels(self, step: int, samples: Sequence[int]) -> Tensor:
        """Their classes."""
        return self._some("labels", step, samples)

    def _some(self, what: str, step: int, samples: Sequence[int]) -> Tensor:
        if self.data.test is not None:
            return self._read(what, step, samples)
        key = what, samples if isinstance(samples, range) else tuple(samples)
        if key not in self._kept:
            self._kept[key] = self._read(what, 0, samples)
        return self._kept[key]

    def _read(self, what: str, step: int, samples: Sequence[int]) -> Tensor:
        indices = self.data.training_indices(step, self.batch_size)
        found: Tensor = getattr(self.data.train, what)([indices[at] for at in samples])
        return found


def loss_of(result: Any, labels: Tensor) -> Tensor:
    """Cross entropy, as `hgpart train` has it."""
    return functional.cross_entropy(class_scores(result, len(labels)), labels)
