"""NotRun: a way that could not be run, in the files of rows that bench keeps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hgpart.files.json_files import JsonObject
from hgpart.files.row_files import resumed_rows

# What two runs must agree in for one to resume the other.
SETTINGS = (
    "fingerprint",
    "input_shape",
    "batch_size",
    "processes",
    "threads",
    "eps",
    "effort",
    "lr",
    "seed",
    "data",
    "work_digest",
    "machine",
)

Ran = TypeVar("Ran", bound=Any)


@dataclass(frozen=True)
class NotRun:
    """A way that could not be run, and why.

    Attributes
    ----------
    failed : bool
        Whether something went wrong, so that another attempt may succeed.
    """

    way: str
    why: str
    failed: bool

    @property
    def what(self) -> str:
        """What became of the way, in a word or two."""
        return "failed" if self.failed else "can't be used"


def rows_by_way(
    path: Path | str | None,
    what: str,
    format: str,
    wanted: object,
    further: Sequence[str],
    ran: Callable[[JsonObject], Ran],
) -> dict[str, Ran | NotRun]:
    """The rows of a file to resume, by way, as `resumed_rows` reads them.

    Parameters
    ----------
    further : sequence of str
        Names of settings that must agree besides `SETTINGS`.
    ran : callable
        Makes a row of an object that is no `NotRun`.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of another model, or of other settings.
    """

    def row_of(record: JsonObject) -> Ran | NotRun:
        if "why" in record.fields:
            return NotRun(record.string("way"), record.string("why"), record.flag("failed"))
        return ran(record)

    rows = resumed_rows(path, what, format, wanted, (*SETTINGS, *further), row_of)
    return {row.way: row for row in rows}


def figure(value: object) -> float | None:
    """A number of a file, NaN where that has null; None for anything else.

    >>> figure(2), figure(None), figure("2"), figure(10**400)
    (2.0, nan, None, None)
    """
    if value is None:
        return math.nan
    if type(value) is int:
        return float(value) if abs(value) <= sys.float_info.max else None
    return value if isinstance(value, float) else None
