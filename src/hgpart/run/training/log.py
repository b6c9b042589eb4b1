"""Steps of a training -> a CSV table or TensorBoard's folder; a resumed training goes on there."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hgpart.errors import ArgumentError, not_installed
from hgpart.files.writing import replacing

TABLE = ".csv"


class LogRow(NamedTuple):
    """What is logged of a step.

    Attributes
    ----------
    validation : float or None
        Score on the validation samples, if the step is the last of an epoch.
    """

    step: int
    loss: float
    lr: float
    samples_per_second: float
    validation: float | None = None


class Log:
    """A row for each step.

    Parameters
    ----------
    path : Path
        A table if its name ends in .csv, or else TensorBoard's folder.
    score : str
        Name of the validation score.

    Raises
    ------
    ArgumentError
        If it is neither.
    MissingPackageError
        If it is a folder, and tensorboard is not installed.
    """

    def __init__(self, path: Path, score: str) -> None:
        if path.suffix != TABLE and path.is_file():
            raise ArgumentError(f"--log {path}: accepted are FILE{TABLE} and a folder")
        if path.suffix != TABLE and find_spec("tensorboard") is None:
            raise not_installed("--log FOLDER", "tensorboard", extra="tensorboard")
        self._path, self._columns = path, (*LogRow._fields[:-1], score)
        self._held: LogRow | None = None
        self._clock, self.close = 0.0, lambda: None

    def begin(self, step: int) -> None:
        """Begin behind a step; rows of later ones, done since its checkpoint, are dropped.

        Raises
        ------
        ArgumentError
            If a table of a resumed training has other columns.
        """
        opened = _table if self._path.suffix == TABLE else _board
        self._write, self.close = opened(self._path, self._columns, step)
        self._clock = time.perf_counter()

    def add(self, step: int, loss: float, lr: float, samples: int) -> None:
        """Log a step; its row is written when the next one is added, or at a pause."""
        now = time.perf_counter()
        self._write_held()
        self._held = LogRow(step, loss, lr, samples / (now - self._clock))
        self._clock = now

    def pause(self, score: float | None) -> None:
        """Write the last row, with a score; the time until here is no step's."""
        if self._held is not None:
            self._held = self._held._replace(validation=score)
        self._write_held()
        self._clock = time.perf_counter()

    def _write_held(self) -> None:
        if self._held is not None:
            self._write(self._held)
        self._held = None


Opened = tuple[Callable[[LogRow], None], Callable[[], None]]  # what writes a row, what closes it


def _table(path: Path, columns: tuple[str, ...], step: int) -> Opened:
    header, kept = f"{','.join(columns)}\n", list[str]()
    if step and path.is_file():
        first, *kept = path.read_text(encoding="utf-8").splitlines(keepends=True) or [header]
        if first != header:
            raise ArgumentError(
                f"--log {path} has the columns {first.strip()!r}: accepted are {header.strip()}"
            )
    with replacing(path) as whole:
        whole.writelines([header, *(row for row in kept if _is_up_to(row, step))])
    file = path.open("a", encoding="utf-8", buffering=1)

    def write(row: LogRow) -> None:
        figures = f"{row.step},{row.loss!r},{row.lr!r},{row.samples_per_second:.1f}"
        file.write(f"{figures},{'' if row.validation is None else repr(row.validation)}\n")

    return write, file.close


def _is_up_to(row: str, step: int) -> bool:
    r"""Whether a row is whole, and of a step up to another.

    >>> [_is_up_to(row, 4) for row in ("4,0.5,0.1,9.0,\n", "5,0.5,0.1,9.0,\n", "4,0.")]
    [True, False, False]
    """
    number = row.partition(",")[0]
    return row.endswith("\n") and number.isdecimal() and int(number) <= step


def _board(path: Path, columns: tuple[str, ...], step: int) -> Opened:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path), purge_step=step + 1)

    def write(row: LogRow) -> None:
        for name, figure in zip(columns[1:], row[1:], strict=True):
            if figure is not None:
                writer.add_scalar(name, figure, row.step)

    return write, writer.close
