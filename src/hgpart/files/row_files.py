"""Rows of a long work <-> the JSON file that they are kept in and resumed from.

A record of such rows is a dataclass with the fields `rows`, those that were asked for, and
`besides`, those of a resumed file that were not asked for now.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from hgpart.errors import PlanError
from hgpart.files.fields import json_text
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import write_text

Row = TypeVar("Row")
Record = TypeVar("Record", bound=Any)


def rows_json(
    format: str, record: Any, as_row: Callable[[Any], Mapping[str, object]], **more: object
) -> str:
    """The fields of a record as JSON, further fields, and a line for each row."""
    every = (*record.rows, *record.besides)
    settings = [field.name for field in fields(record) if field.name not in ("rows", "besides")]
    return json_text(
        {
            "format": format,
            **{name: getattr(record, name) for name in settings},
            **more,
            "row_count": len(every),
            "asked_count": len(record.rows),  # the first rows; the others are besides
            "rows": [*map(as_row, every)],
        }
    )


def rows_of(head: JsonObject, as_row: Callable[[JsonObject], Row]) -> list[Row]:
    """All rows of a file: those that were asked for, then those besides."""
    return [*map(as_row, head.objects("rows", head.whole("row_count", 0, 10**6)))]


def resumed_rows(
    path: Path | str | None,
    what: str,
    format: str,
    wanted: object,
    settings: Sequence[str],
    as_row: Callable[[JsonObject], Row],
) -> list[Row]:
    """The rows of a file to resume, if there is one; none where there is no such file.

    Parameters
    ----------
    what : str
        Name of the kind of file, for errors.
    wanted : object
        A record with the settings that the file must have.
    settings : sequence of str
        Names of these settings.
    as_row : callable
        Makes a row of an object of the file.

    Raises
    ------
    FormatError
        If the file is malformed.
    PlanError
        If it has other settings.
    """
    if path is None or not Path(path).exists():
        return []
    head = read_json(path, what, format)
    for name in settings:
        own = getattr(wanted, name)
        own = [*own] if isinstance(own, tuple) else own
        if head.fields.get(name) != own:
            hint = " (pass measured work back, see --work profile,save=FILE)" * (
                name == "work_digest"
            )
            raise PlanError(
                f"{path} can't be resumed: its {name} is {head.fields.get(name)}, this one's {own}"
                f"{hint}"
            )
    return rows_of(head, as_row)


def with_rows(rows: Mapping[Any, Any], order: Sequence[Any], empty: Record) -> Record:
    """A record with the rows that were asked for, in that order, and those besides."""
    asked = tuple(rows[key] for key in order if key in rows)
    besides = tuple(row for key, row in rows.items() if key not in order)
    changed: Record = replace(empty, rows=asked, besides=besides)
    return changed


class KeptRows(Generic[Row, Record]):
    """Rows that are there, in a file that is written again with each further row.

    Whatever ends the process, what was computed in hours is kept. Any thread may add rows.

    Parameters
    ----------
    empty : dataclass
        The record without rows.
    before : mapping
        Rows of a resumed file, by key.
    order : sequence
        Keys of the rows that were asked for.
    key_of : callable
        Row -> key.
    as_json : callable
        Record -> text of the file.
    path : Path or str, optional
        The file; ``-`` and a pipe, which would get each of the versions, are not written to.
    """

    def __init__(
        self,
        empty: Record,
        before: Mapping[Any, Row],
        order: Sequence[Hashable],
        key_of: Callable[[Row], Hashable],
        as_json: Callable[[Record], str],
        path: Path | str | None,
    ) -> None:
        self._empty, self._rows, self._order = empty, dict(before), order
        self._key_of, self.as_json = key_of, as_json
        is_file = path not in (None, "-") and (Path(path).is_file() or not Path(path).exists())
        self._path = Path(path) if path is not None and is_file else None
        self._lock, self._closed = Lock(), False
        self.added: dict[Any, Row] = {}

    def add(self, row: Row) -> None:
        """Keep a row in the place of the one with its key."""
        key = self._key_of(row)
        with self._lock:
            if self._closed or self._rows.get(key) is row:
                return
            self._rows[key] = self.added[key] = row
            if self._path is not None:
                write_text(self._path, self.as_json(self.record))

    def close(self) -> Record:
        """The record of all rows; none is added from now on."""
        with self._lock:
            self._closed = True
            return self.record

    @property
    def record(self) -> Record:
        """All rows: those asked for in their order, and those besides."""
        return with_rows(self._rows, self._order, self._empty)
