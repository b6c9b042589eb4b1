"""Samples + an order -> SampleBatches: for each batch, the images and labels needed here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor

from hgpart.run.learner import Learner
from hgpart.run.training.samples import Samples


class SampleBatches:
    """Batches of samples; only what is asked for is read.

    Parameters
    ----------
    indices : callable
        Returns the numbers of a batch's samples, given the number of the batch.

    >>> from hgpart.run.training.data import load_data
    >>> samples = load_data("synthetic", (1, 8, 8), classes=10, seed=0).train
    >>> SampleBatches(samples, lambda number: [7, 9]).labels(0, [1]) == samples.labels([9])
    tensor([True])
    """

    def __init__(self, samples: Samples, indices: Callable[[int], Sequence[int]]) -> None:
        self._samples, self._indices = samples, indices

    def images(self, number: int, places: Sequence[int]) -> Tensor:
        """Images of the samples at some places of a batch."""
        return self._samples.images(self._some(number, places))

    def labels(self, number: int, places: Sequence[int]) -> Tensor:
        """Labels of the samples at some places of a batch."""
        return self._samples.labels(self._some(number, places))

    def _some(self, number: int, places: Sequence[int]) -> list[int]:
        indices = self._indices(number)
        return [indices[at] for at in places]


def batches_here(
    learner: Learner, batches: SampleBatches, numbers: Iterable[int], sizes: Sequence[int]
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """For each batch, the images that are read here, and the labels of results that are here."""
    read, scored = learner.samples_read(sizes), learner.samples_of_result(sizes)
    for number in numbers:
        yield (
            batches.images(number, read) if read else None,
            batches.labels(number, scored).to(learner.device) if scored else None,
        )
