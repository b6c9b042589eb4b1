"""Column: a figure of records, declared once for tables, pages, JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

UNITS: Mapping[str, int] = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}

# Units of columns that stand for the unit of bytes that the reader asked for, and the next larger.
BYTES, MANY_BYTES = "bytes", "many bytes"

_LARGER = {"MB": "GB", "GB": "TB", "MiB": "GiB", "GiB": "TiB"}
_SIZES = {**UNITS, "TB": 10**12, "TiB": 2**40, "M": 10**6}
_FACTORS = {"%": 100, "ms": 1000, "us": 10**6}

Record = TypeVar("Record")
Figure = str | int | float | None


@dataclass(frozen=True)
class Column(Generic[Record]):
    """A figure that each record has.

    Attributes
    ----------
    key : str
        Name in JSON and CSV; empty where only tables have the column.
    heading : str
        Name in tables; empty where only files have the column.
    meaning : str
        Explanation of the heading, for pages.
    unit : str
        Unit of the figure in tables: `BYTES`, `MANY_BYTES`, ``%`` of 1, ``ms`` of s, or any text.
    value : callable, optional
        Record -> text, number, or None where there is no figure. Default: the attribute `key`.
    size : float
        How many of the figure's own units make one of a unit that is any text.
    decimals : int, optional
        Decimals in tables. Default: four digits.
    detail : bool
        Whether a table without room leaves this column out before those that are no detail.
    """

    key: str
    heading: str = ""
    meaning: str = ""
    unit: str = ""
    value: Callable[[Record], Any] | None = None
    size: float = 1
    decimals: int | None = None
    detail: bool = False

    def figure(self, record: Record) -> Figure:
        """The figure in its own unit, as JSON and CSV have it."""
        figure: Figure = getattr(record, self.key) if self.value is None else self.value(record)
        return figure

    def unit_in(self, asked: str) -> str:
        """The unit that tables show, where bytes are asked for in one of `UNITS`."""
        return {BYTES: asked, MANY_BYTES: _LARGER[asked]}.get(self.unit, self.unit)

    def title(self, asked: str) -> str:
        """The heading with its unit."""
        return f"{self.heading} {self.unit_in(asked)}".strip()

    def shown(self, record: Record, asked: str) -> Figure:
        """The figure in the unit of the heading; None where there is no finite one."""
        figure = self.figure(record)
        if figure is None or isinstance(figure, str):
            return figure
        if not math.isfinite(figure):
            return None
        unit = self.unit_in(asked)
        figure *= _FACTORS.get(unit, 1)
        size = _SIZES.get(unit, 1) * self.size
        return figure if size == 1 else figure / size


def fields_of(columns: Iterable[Column[Record]], record: Record) -> dict[str, Figure]:
    """The figures of a record by their keys, for JSON and CSV."""
    return {column.key: column.figure(record) for column in columns if column.key}
