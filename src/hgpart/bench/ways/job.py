"""What all ways of training have in common: the model, its batches, its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from hgpart.run.training.batches import Batches
from hgpart.run.training.data import Data, load_data
from hgpart.run.training.samples import Samples
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

    def opened_data(self) -> Data:
        """What is trained and tested on; raises an ArgumentError if it fills no batch."""
        data = load_data(self.data, self.input_shape, self.classes, self.seed)
        data.check_batch(self.batch_size)
        return data

    def batches(self) -> Batches:
        """What is trained on, step by step."""
        data = self.opened_data()
        indices = partial(data.training_indices, batch_size=self.batch_size)
        if data.test is not None:
            return Batches(data.train, indices)
        first = indices(0)
        return Batches(_Kept(data.train), lambda step: first)

    def share(self, worker: int) -> range:
        """Which samples of a batch a worker has, where all have as many."""
        each = self.batch_size // self.workers
        return range(worker * each, (worker + 1) * each)


class _Kept:
    """Samples of which each choice that is asked for is read once."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._known: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def images(self, indices: Sequence[int]) -> Tensor:
        return self._get("images", indices)

    def labels(self, indices: Sequence[int]) -> Tensor:
        return self._get("labels", indices)

    def _get(self, what: str, indices: Sequence[int]) -> Tensor:
        key = what, tuple(indices)
        if key not in self._known:
            self._known[key] = getattr(self._samples, what)(indices)
        return self._known[key]
