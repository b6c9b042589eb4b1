"""Schedule <-> file: the order of all actions, for any placement with the same chunks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hgpart.errors import PlanError
from hgpart.files.fields import json_text
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import write_text
from hgpart.schedules.checking import problems
from hgpart.schedules.outline import Outline
from hgpart.schedules.schedule import Action, Direction, Schedule, outlines_fingerprint

FORMAT = "hgpart schedule 1"
ACTION = re.compile(r"(\d{1,5}):([FBMWU])(\d{1,9})\.(\d{1,9})")
LARGEST = 2**20  # micro-batches


def save_schedule(path: Path | str, schedule: Schedule) -> None:
    """Write a file; like all results, it is written whole or not at all."""
    fields = {
        "format": FORMAT,
        "rule": schedule.rule,
        "micro_batches": schedule.micro_batches,
        **({} if schedule.in_flight is None else {"in_flight": schedule.in_flight}),
        "k": schedule.k,
        "chunks": outlines_fingerprint(schedule.outlines),
        "order": [f"{action.part}:{action}" for action in schedule.order],
    }
    write_text(path, json_text(fields))


@dataclass(frozen=True, eq=False)
class ScheduleFile:
    """A file of `save_schedule`, read without a placement.

    Attributes
    ----------
    rule : str
        Name of the rule that made the schedule.
    """

    path: Path | str
    rule: str
    micro_batches: int
    in_flight: int | None
    k: int
    order: tuple[Action, ...]
    fields: JsonObject

    @property
    def fingerprint(self) -> str:
        """Differs between schedules with a different order."""
        order = [f"{action.part}:{action}" for action in self.order]
        return sha256(repr(order).encode()).hexdigest()[:16]

    def of(self, outlines: Sequence[Outline]) -> Schedule:
        """The schedule, if its placement has these chunks.

        Raises
        ------
        FormatError
            If the order is not valid.
        PlanError
            If it was made for another placement.
        """
        if self.fields.string("chunks") != outlines_fingerprint(outlines):
            raise PlanError(
                f"{self.path} is a schedule of another plan (k={self.k}): accepted is one "
                "that was made for this placement, in the same mode"
            )
        parts = tuple(outlines)
        schedule = Schedule(self.rule, self.micro_batches, parts, self.order, self.in_flight)
        wrong = problems(schedule)
        if wrong:
            raise self.fields.wrong("order", f"a valid order ({wrong[0]})")
        return schedule


def read_schedule(path: Path | str) -> ScheduleFile:
    """Read a file without a placement.

    Raises
    ------
    FormatError
        If it is not a schedule.
    """
    fields = read_json(path, "a file of save_schedule", FORMAT)
    return ScheduleFile(
        path,
        fields.string("rule"),
        fields.whole("micro_batches", 1, LARGEST),
        fields.whole("in_flight", 1, LARGEST) if "in_flight" in fields.fields else None,
        fields.whole("k", 1),
        tuple(_action(fields, text) for text in fields.items("order")),
        fields,
    )


def _action(fields: JsonObject, text: object) -> Action:
    matched = ACTION.fullmatch(text) if isinstance(text, str) else None
    if matched is None:
        raise fields.wrong("order", "actions as in 0:F2.5")
    part, direction, micro_batch, chunk = matched.groups()
    return Action(int(part), Direction(direction), int(micro_batch), int(chunk))
