"""Rows that take long, one after the other -> a record, in a file as soon as there is one more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any


class KeptRows:
    """Rows of a record, kept in a file: whatever ends the process, nothing that is done is lost.

    Parameters
    ----------
    empty : dataclass with `rows` and `besides`
    before : mapping
        Rows of a file that is resumed, by key.
    order : sequence
        Keys of the rows that are asked for.
    key_of : callable
        Row -> its key.
    as_json : callable
        Record -> the text of the file.
    path : str or None
        The file; None or ``-`` keeps none.

    Attributes
    ----------
    added : dict
        The rows that were added, by key.
    """

    def __init__(
        self,
        empty: Any,
        before: Mapping[Any, Any],
        order: Sequence[Any],
        key_of: Callable[[Any], Any],
        as_json: Callable[[Any], str],
        path: str | None,
    ) -> None:
        self.as_json = as_json
        self.added: dict[Any, Any] = {}
        self._empty, self._rows, self._order, self._key_of = empty, dict(before), order, key_of
        self._file = None if path in (None, "-") else Path(str(path))
        if self._file is not None and self._file.exists() and not self._file.is_file():
            self._file = None  # a pipe would get each of the versions
        self._lock, self._closed = Lock(), False

    def add(self, row: Any) -> None:
        """Keep a row, in place of the earlier one of its key; threads may call this."""
        from hgpart.files.writing import replacing

        key = self._key_of(row)
        with self._lock:
            if self._closed or self._rows.get(key) is row:
                return
            self._rows[key] = self.added[key] = row
            if self._file is not None:
                with replacing(self._file) as file:
                    file.write(self.as_json(self._record()))

    def close(self) -> Any:
        """The record; no row is added from now on."""
        with self._lock:
            self._closed = True
            return self._record()

    def _record(self) -> Any:
        from hgpart.bench.row_files import by_way

        return by_way(self._rows, self._order, self._empty)
