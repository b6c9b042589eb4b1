"""Samples + an order -> SampleBatches: for each batch, the images and labels needed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from hgpart.run.learner import Learner
from hgpart.run.training.data import Data
from hgpart.run.training.sources.samples import Samples


class SampleBatches:
    """Batches of samples; only what is asked for is read.

    Parameters
    ----------
    indices : callable
        Returns the numbers of a batch's samples, given the number of the batch.
    epoch : callable, optional
        Returns the epoch that a batch is of. Default: all are of one.

    >>> from hgpart.run.training.data import load_data
    >>> samples = load_data("synthetic", (1, 8, 8), classes=10, seed=0).train
    >>> SampleBatches(samples, lambda number: [7, 9]).labels(0, [1]) == samples.labels([9])
    tensor([True])
    """

    def __init__(
        self,
        samples: Samples,
        indices: Callable[[int], Sequence[int]],
        epoch: Callable[[int], int] = lambda number: 0,
    ) -> None:
        self._samples, self._indices, self._epoch = samples, indices, epoch

    def images(self, number: int, places: Sequence[int]) -> Tensor:
        """Images of the samples at some places of a batch."""
        return self._samples.images(self._some(number, places), self._epoch(number))

    def labels(self, number: int, places: Sequence[int]) -> Any:
        """Labels of the samples at some places of a batch."""
        return self._samples.labels(self._some(number, places), self._epoch(number))

    def _some(self, number: int, places: Sequence[int]) -> list[int]:
        indices = self._indices(number)
        return [indices[at] for at in places]


def training_batches(data: Data, batch_size: int) -> SampleBatches:
    """The batches that a training learns from, by their steps."""
    steps = data.steps_per_epoch(batch_size)
    indices = partial(data.training_indices, batch_size=batch_size)
    return SampleBatches(data.train, indices, lambda step: step // steps)


def batches_here(
    learner: Learner, batches: SampleBatches, numbers: Iterable[int], sizes: Sequence[int]
) -> Iterator[tuple[Tensor | None, Any]]:
    """For each batch, the images that are read here, and the labels of results that are here."""

    def move(label: Tensor) -> Tensor:
        return label.to(learner.device)

    read, scored = learner.samples_read(sizes), learner.samples_of_result(sizes)
    for number in numbers:
        yield (
            batches.images(number, read) if read else None,
            pytree.tree_map_only(Tensor, move, batches.labels(number, scored)) if scored else None,
        )
