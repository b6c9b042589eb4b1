"""Which schedule is wanted, as far as it can be checked before there is a model."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.errors import ArgumentError
from hgpart.schedules import check_rule
from hgpart.schedules.rules import DEFAULT


@dataclass(frozen=True)
class Scheduling:
    """A rule, and how many micro-batches a batch is divided into.

    Attributes
    ----------
    rule : str
    micro_batches : int
    """

    rule: str = DEFAULT
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        check_rule(self.rule)

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Samples of each micro-batch; see `micro_batch_sizes`."""
        return micro_batch_sizes(batch_size, self.micro_batches)


def micro_batch_sizes(batch_size: int, micro_batches: int) -> tuple[int, ...]:
    """Divide a batch as evenly as can be, the larger ones first.

    Raises
    ------
    ArgumentError
        If there are more micro-batches than samples, or none.

    >>> micro_batch_sizes(10, 4)
    (3, 3, 2, 2)
    """
    if not 1 <= micro_batches <= batch_size:
        raise ArgumentError(
            f"{micro_batches} micro-batches of a batch of {batch_size}: accepted are 1 to "
            f"{batch_size}"
        )
    each, more = divmod(batch_size, micro_batches)
    return tuple(each + (at < more) for at in range(micro_batches))
