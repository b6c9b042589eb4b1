"""The wanted schedule, as far as it can be checked before there is a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from hgpart.errors import ArgumentError, not_one_of
from hgpart.schedules import check_in_flight, check_micro_batches, check_recompute, check_rule
from hgpart.schedules.micro_batch_sizes import micro_batch_sizes
from hgpart.schedules.outline import Stretch
from hgpart.schedules.rules import DEFAULT, IN_FLIGHT, RULES, STREAMS
from hgpart.schedules.schedule import DYNAMIC, TURNS
from hgpart.schedules.schedule_files import ScheduleFile, read_schedule

MANY = 64  # batches
Recompute = bool | tuple[tuple[Stretch, ...], ...]  # the stretches of each part


@dataclass(frozen=True)
class Scheduling:
    """A rule and a number of micro-batches, or a file with both.

    Attributes
    ----------
    in_flight : int or None
        For the rules ``async`` and ``dynamic``, the number of batches that each part may have
        begun at a time.
    stash : bool
        Whether each of these batches keeps the weights of its forward pass.
    recompute : bool or tuple
        Whether backward recomputes chunks where this saves memory, or the stretches of steps that
        each part recomputes or offloads.
    """

    rule: str = DEFAULT
    micro_batches: int = 1
    in_flight: int | None = None
    stash: bool = True
    recompute: Recompute = False
    file: ScheduleFile | None = None

    def __post_init__(self) -> None:
        """Raise an ArgumentError if the fields do not fit together."""
        check_micro_batches(self.micro_batches)
        if self.file is None:
            check_rule(self.rule)
        check_in_flight(self.rule, self.in_flight)
        if self.is_stream and self.micro_batches != 1:
            raise ArgumentError(
                f"{self.micro_batches} micro-batches with {self.rule}, whose parts work on other "
                "batches meanwhile: accepted is 1"
            )
        if not self.stash and not self.is_stream:
            raise ArgumentError(
                f"stash=no with {self.rule}, which keeps no other weights: accepted with "
                f"{', '.join(STREAMS)}"
            )

        stretches = () if isinstance(self.recompute, bool) else chain(*self.recompute)
        for stretch in stretches:
            if not isinstance(stretch, Stretch):
                raise ArgumentError(
                    f"{stretch!r} to recompute: accepted is a Stretch (of hgpart.schedules.outline)"
                )
        check_recompute(recompute="recomputed" in self.dropped, stash=self.stash)

    @property
    def is_stream(self) -> bool:
        """Whether batches follow each other without a stop."""
        return self.rule in STREAMS and self.file is None

    @property
    def is_in_turns(self) -> bool:
        """Whether each slice of the batch has whole batches in turns."""
        return self.rule == TURNS and self.file is None

    @property
    def most_in_flight(self) -> int:
        """Number of batches that each part may have begun at a time."""
        return (self.in_flight or IN_FLIGHT) if self.is_stream else 1

    @property
    def sample_batches(self) -> int:
        """Number of batches of a stream that show how it goes on."""
        return 2 * self.most_in_flight + 2 if self.is_stream else 1

    @property
    def simulated_batches(self) -> int:
        """Number of batches whose simulation tells the pace of a stream.

        Parts that take what is ready settle into a regular order only after many batches.
        """
        is_dynamic = self.is_stream and self.rule in (DYNAMIC, TURNS)
        return max(MANY, self.sample_batches) if is_dynamic else self.sample_batches

    @property
    def name(self) -> str:
        """The rule or the file."""
        return self.rule if self.file is None else str(self.file.path)

    @property
    def text(self) -> str:
        """The schedule in words.

        >>> Scheduling("greedy", 4).text, Scheduling("async", in_flight=2).text
        ('greedy, 4 micro-batches', 'async, 2 batches in flight')
        >>> Scheduling("1f1b", recompute=True).text
        '1f1b, maps recomputed'
        """
        divided = f", {self.micro_batches} micro-batches" * (self.micro_batches > 1)
        if self.is_stream:
            divided = f", {self.most_in_flight} batches in flight"
        return ", ".join([f"{self.name}{divided}", *self.dropped_words])

    @property
    def dropped(self) -> tuple[str, ...]:
        """What becomes of maps that are not kept.

        >>> Scheduling(recompute=((Stretch(("conv1",), offloaded=True),), ())).dropped
        ('offloaded',)
        """
        if isinstance(self.recompute, bool):
            return ("recomputed",) * self.recompute
        kinds = {stretch.offloaded for stretch in chain.from_iterable(self.recompute)}
        return ("recomputed",) * (False in kinds) + ("offloaded",) * (True in kinds)

    @property
    def dropped_words(self) -> list[str]:
        """What becomes of maps that are not kept, in words; none where all are kept.

        >>> Scheduling(recompute=True).dropped_words, Scheduling().dropped_words
        (['maps recomputed'], [])
        """
        return [f"maps {' and '.join(self.dropped)}"] * bool(self.dropped)

    @property
    def recompute_field(self) -> bool | list[list[list[str] | dict[str, list[str]]]]:
        """`recompute` as files have it.

        >>> Scheduling(recompute=((Stretch(("a", "b")), Stretch(("c",), True)), ())).recompute_field
        [[['a', 'b'], {'offload': ['c']}], []]
        """
        if isinstance(self.recompute, bool):
            return self.recompute
        return [
            [{"offload": [*steps]} if offloaded else [*steps] for steps, offloaded in stretches]
            for stretches in self.recompute
        ]

    @property
    def sums(self) -> str:
        """The rule that decides the order of sums, and what else a loss depends on.

        With one micro-batch, any rule sums in the order of ``sequential``, apart from rounding
        where backward is in halves; so does one batch in flight.

        >>> Scheduling("greedy", 1).sums, Scheduling("greedy", 2).sums
        ('sequential', 'greedy')
        >>> Scheduling("async", in_flight=1).sums, Scheduling("async", in_flight=4).sums
        ('sequential', 'async, 4 in flight')
        """
        if self.file is not None:
            return f"file {self.file.fingerprint}"
        if self.most_in_flight > 1:
            return f"{self.rule}, {self.most_in_flight} in flight{', no stash' * (not self.stash)}"
        return "sequential" if self.micro_batches == 1 else self.rule

    def check_parts(self, k: int) -> None:
        """Raise an ArgumentError if it says what another number of parts recomputes or offloads."""
        if not isinstance(self.recompute, bool) and len(self.recompute) != k:
            raise ArgumentError(
                f"what {len(self.recompute)} parts recompute or offload, for k={k}: accepted are "
                f"{k} tuples of stretches"
            )

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Samples of each micro-batch; see `micro_batch_sizes`."""
        return micro_batch_sizes(batch_size, self.micro_batches)


def scheduling_of(
    schedule: str | None,
    micro_batches: int | None,
    in_flight: int | None = None,
    *,
    stash: bool = True,
    recompute: bool = False,
    planned: Scheduling | None = None,
) -> Scheduling:
    """The schedule that is asked for by a rule or a file, and perhaps a number of micro-batches.

    Without a rule or a file it is the plan's, if that has one, changed by the other arguments.

    >>> scheduling_of(None, 8, planned=Scheduling("1f1b", 4, recompute=True))
    Scheduling(rule='1f1b', micro_batches=8, in_flight=None, stash=True, recompute=True, file=None)

    Raises
    ------
    ArgumentError
        If `schedule` is neither a rule nor a file, or a file for another number of micro-batches or
        for a stream; see also `Scheduling`.
    FormatError
        If the file is no schedule.
    """
    if schedule is None and planned is not None:
        return replace(
            planned,
            micro_batches=planned.micro_batches if micro_batches is None else micro_batches,
            in_flight=planned.in_flight if in_flight is None else in_flight,
            stash=planned.stash and stash,
            recompute=planned.recompute or recompute,
        )
    schedule = DEFAULT if schedule is None else schedule
    rules = (*RULES, *STREAMS)
    if schedule in rules:
        count = 1 if micro_batches is None else micro_batches
        return Scheduling(schedule, count, in_flight, stash, recompute)
    if not Path(schedule).is_file():
        files = "and a file of 'hgpart show --schedule RULE -o FILE'"
        raise not_one_of("schedule", schedule, rules, files)
    file = read_schedule(schedule)
    if micro_batches not in (None, file.micro_batches):
        raise ArgumentError(
            f"{micro_batches} micro-batches with {schedule}: accepted is {file.micro_batches}, "
            "for which it was made"
        )
    if file.in_flight is not None:
        raise ArgumentError(
            f"{schedule} is for a stream of {file.micro_batches} batches: accepted are files for a "
            "step, and --schedule async for any number of batches"
        )
    return Scheduling(file.rule, file.micro_batches, in_flight, stash, recompute, file)
