"""A batch size and a number -> the samples of each micro-batch."""

from __future__ import annotations

from hgpart.errors import ArgumentError, check_whole


def micro_batch_sizes(batch_size: int, micro_batches: int) -> tuple[int, ...]:
    """Divide a batch as evenly as possible, the larger micro-batches first.

    Raises
    ------
    ArgumentError
        If there are more micro-batches than samples, or fewer than one.

    >>> micro_batch_sizes(10, 4)
    (3, 3, 2, 2)
    """
    check_whole("batch size", batch_size, 1)
    if not 1 <= micro_batches <= batch_size:
        raise ArgumentError(
            f"{micro_batches} micro-batches of a batch of {batch_size}: accepted are 1 to "
            f"{batch_size}"
        )
    samples, larger = divmod(batch_size, micro_batches)
    return tuple(samples + (at < larger) for at in range(micro_batches))
