"""Rows of ways, one for each <-> the file that they are kept in and gone on from."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hgpart.errors import PlanError
from hgpart.files.json_files import JsonObject, read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Ran = TypeVar("Ran")


@dataclass(frozen=True)
class NotRun:
    """A way that could not be measured, and why.

    Attributes
    ----------
    way : str
    why : str
    failed : bool
        Whether something went wrong, so that another attempt may succeed.
    """

    way: str
    why: str
    failed: bool

    @property
    def what(self) -> str:
        """What became of it, in a word or two."""
        return "failed" if self.failed else "can't be used"


def by_way(rows: Mapping[str, Any], order: Sequence[str], empty: Record) -> Record:
    """The rows that were asked for, in that order, and those that a resumed file had besides."""
    asked = tuple(rows[name] for name in order if name in rows)
    besides = tuple(row for name, row in rows.items() if name not in order)
    return replace(empty, rows=asked, besides=besides)


def rows_json(format: str, record: Any, as_row: Callable[[Any], Mapping[str, object]]) -> str:
    """All fields of a record with `rows` and `besides`, and of these one line each."""
    every = (*record.rows, *record.besides)
    head = {
        "format": format,
        **{
            item.name: getattr(record, item.name)
            for item in fields(record)
            if item.name not in ("rows", "besides")
        },
        "row_count": len(every),
        "asked_count": len(record.rows),  # the first of them; the others are besides
    }
    lines = [f'  "{name}": {_json(value)}' for name, value in head.items()]
    rows = [f"    {_json(as_row(row))}" for row in every]
    return "{\n" + ",\n".join(lines) + ',\n  "rows": [\n' + ",\n".join(rows) + "\n  ]\n}\n"


def _json(value: object) -> str:
    """As JSON, which has null for what is no number: the loss of a training that diverged, say."""

    def written(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {name: written(each) for name, each in one.items()}
        if isinstance(one, tuple | list):
            return [written(each) for each in one]
        return None if isinstance(one, float) and not math.isfinite(one) else one

    return json.dumps(written(value), allow_nan=False)


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


def rows_of_file(
    path: Path | str,
    what: str,
    format: str,
    wanted: object,
    settings: Sequence[str],
    ran: Callable[[JsonObject], Ran],
) -> dict[str, Ran | NotRun]:
    """The rows of a file by way; none where there is no file.

    Parameters
    ----------
    path : path
    what : str
        The file is, as errors call it.
    format : str
    wanted : object
        Has the settings that the file's have to be.
    settings : sequence of str
        Their names.
    ran : callable
        Makes a row of a record, of a way that was run.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it is of other settings.
    """
    if not Path(path).exists():
        return {}
    head = read_json(path, what, format)
    for name in settings:
        own = getattr(wanted, name)
        own = [*own] if isinstance(own, tuple) else own
        if head.fields.get(name) != own:
            raise PlanError(
                f"{path} can't be resumed: its {name} is {head.fields.get(name)}, this one's {own}"
            )
    rows: dict[str, Ran | NotRun] = {}
    for record in head.objects("rows", head.whole("row_count", 0, 10**6)):
        way = record.string("way")
        if "why" in record.fields:
            rows[way] = NotRun(way, record.string("why"), record.flag("failed"))
        else:
            rows[way] = ran(record)
    return rows
