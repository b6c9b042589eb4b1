"""Which schedule is wanted, as far as it can be checked before there is a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hgpart.errors import ArgumentError
from hgpart.schedules import check_rule
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.rules import DEFAULT, RULES
from hgpart.schedules.schedule_files import ScheduleFile, read_schedule


@dataclass(frozen=True)
class Scheduling:
    """A rule, and how many micro-batches a batch is divided into; or a file that says both.

    Attributes
    ----------
    rule : str
    micro_batches : int
    file : ScheduleFile, optional
    """

    rule: str = DEFAULT
    micro_batches: int = 1
    file: ScheduleFile | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be."""
        if self.file is None:
            check_rule(self.rule)

    @property
    def name(self) -> str:
        """The rule or the file."""
        return self.rule if self.file is None else str(self.file.path)

    @property
    def sums(self) -> str:
        """The rule that sums have their order by.

        One micro-batch leaves any rule that of ``sequential``.

        >>> Scheduling("greedy", 1).sums, Scheduling("greedy", 2).sums
        ('sequential', 'greedy')
        """
        if self.file is not None:
            return f"file {self.file.fingerprint}"
        return "sequential" if self.micro_batches == 1 else self.rule

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Samples of each micro-batch; see `micro_batch_sizes`."""
        return micro_batch_sizes(batch_size, self.micro_batches)


def scheduling_of(schedule: str, micro_batches: int | None) -> Scheduling:
    """What is asked for by a rule or a file, and a number of micro-batches if one is given.

    Raises
    ------
    ArgumentError
        If it is neither, or a file for another number of micro-batches.
    FormatError
        If the file is no schedule.
    """
    if schedule in RULES:
        return Scheduling(schedule, 1 if micro_batches is None else micro_batches)
    if not Path(schedule).is_file():
        raise ArgumentError(
            f"schedule {schedule!r}: accepted are {', '.join(RULES)}, and a file of "
            "'hgpart show --schedule RULE -o FILE'"
        )
    file = read_schedule(schedule)
    if micro_batches not in (None, file.micro_batches):
        raise ArgumentError(
            f"{micro_batches} micro-batches by {schedule}: accepted is {file.micro_batches}, "
            "which it was made for"
        )
    return Scheduling(file.rule, file.micro_batches, file=file)
