"""Which schedule is wanted, as far as it can be checked before there is a model."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.schedules import check_rule
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
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

    @property
    def sums(self) -> str:
        """The rule that sums have their order by.

        One micro-batch leaves any rule that of ``sequential``.

        >>> Scheduling("greedy", 1).sums, Scheduling("greedy", 2).sums
        ('sequential', 'greedy')
        """
        return "sequential" if self.micro_batches == 1 else self.rule

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Samples of each micro-batch; see `micro_batch_sizes`."""
        return micro_batch_sizes(batch_size, self.micro_batches)
