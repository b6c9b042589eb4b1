"""What all ways have in common: the model, its batches, its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hgpart.run.training.batches import SampleBatches, training_batches
from hgpart.run.training.data import Data, load_data
from hgpart.run.training.sources.samples import Samples
from hgpart.tracing.input_shape import InputShape
from hgpart.zoo import load_model


@dataclass(frozen=True)
class Job:
    """A training, or passes forward, from which each process makes its model and its batches.

    Attributes
    ----------
    model : str
        A model spec, as for `load_model`.
    input_shape : InputShape
        The inputs that the model takes for each sample.
    classes : int
        Width of the model's output.
    batch_size : int
        Samples of a step, of all processes together.
    workers : int
        Number of processes that share a step, if a way has several.
    threads : int
        Threads per process.
    seed : int
        Seed of weights and data.
    lr : float
        Learning rate of plain stochastic gradient descent.
    timeout : float
        Seconds that a process waits for another that is alive.
    data : str
        A data spec, as for `load_data`; synthetic data have the same batch in each step.
    inference : bool
        Whether a step is a pass forward, in evaluation.
    """

    model: str
    input_shape: InputShape
    classes: int
    batch_size: int
    workers: int
    threads: int = 1
    seed: int = 0
    lr: float = 0.01
    timeout: float = 300.0
    data: str = "synthetic"
    inference: bool = False

    def new_model(self) -> nn.Module:
        """The model in training mode or in evaluation, with the same weights each time."""
        model = load_model(self.model, seed=self.seed)[0]
        return model.eval() if self.inference else model

    def new_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the parameters of a module that learn, which may be none."""
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.SGD([{"params": learned}], lr=self.lr)

    def opened_data(self) -> Data:
        """The data to train and test on; raises an ArgumentError if they do not fill a batch."""
        data = load_data(
            self.data, InputShape(self.input_shape).image("data"), self.classes, self.seed
        )
        data.check_batch(self.batch_size)
        return data

    def batches(self) -> SampleBatches:
        """The batches to train on, step by step."""
        data = self.opened_data()
        if data.validation is not None:
            return training_batches(data, self.batch_size)
        first = data.training_indices(0, self.batch_size)
        return SampleBatches(_Kept(data.train), lambda step: first)

    def share(self, worker: int) -> range:
        """The samples of a worker in a batch, if all have equally many."""
        per_worker = self.batch_size // self.workers
        return range(worker * per_worker, (worker + 1) * per_worker)


class _Kept:
    """Samples that are read once for each choice of indices."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._known: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        return self._get("images", indices)

    def labels(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        return self._get("labels", indices)

    def _get(self, what: str, indices: Sequence[int]) -> Tensor:
        key = what, tuple(indices)
        if key not in self._known:
            self._known[key] = getattr(self._samples, what)(indices)
        return self._known[key]
