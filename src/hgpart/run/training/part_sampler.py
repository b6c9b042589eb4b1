"""Numbers of a batch's samples + DistributedModel -> the samples that this process needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.utils.data import BatchSampler, Sampler

from hgpart.errors import ArgumentError
from hgpart.run.distributed import DistributedModel
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.schedule import Schedule


class PartSampler(Sampler[list[int]]):
    """For each batch, the samples whose inputs this rank's part needs, or whose results it has.

    It serves as ``batch_sampler`` of a `torch.utils.data.DataLoader`, which then loads what
    `DistributedModel.step` accepts if it is told the batch size. A part that needs no samples gets
    the first of each batch, because no loader makes an empty batch, and does not read it.

    Parameters
    ----------
    batches : BatchSampler or sequence of sequences of int
        Numbers of the samples of each batch, the same on all ranks: a sampler with
        ``drop_last=True`` and a generator that is seeded alike.
    schedule : Schedule
        Schedule of the steps, which divides a batch into micro-batches.

    Raises
    ------
    ArgumentError
        When iterated over, if a batch has another size than the first.
    """

    def __init__(
        self,
        batches: BatchSampler | Sequence[Sequence[int]],
        model: DistributedModel,
        schedule: Schedule,
    ) -> None:
        self.batches, self.model, self.schedule = batches, model, schedule

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        """The samples of each batch, in the batch's order."""
        placement, rank = self.model.placement, self.model.connection.rank
        size = None
        for batch in self.batches:
            if len(batch) != (size := size or len(batch)):
                raise ArgumentError(
                    f"a batch of {len(batch)} samples after one of {size}: accepted are batches "
                    "of one size, as with drop_last=True"
                )
            sizes = micro_batch_sizes(size, self.schedule.micro_batches)
            needed = placement.programs.samples_needed(rank, sizes)
            yield [batch[at] for at in needed] or [batch[0]]
