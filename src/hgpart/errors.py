"""Every error that hgpart raises on purpose; each has its own exit status for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from math import inf
from numbers import Integral, Real


class HgpartError(Exception):
    """Base of all hgpart errors; `exit_status` is what the command line returns for it."""

    exit_status = 1


class ArgumentError(HgpartError, ValueError):
    """An argument is outside what is accepted (k, eps, speeds, shapes, options)."""

    exit_status = 3


class ModelError(HgpartError):
    """A model is unknown, can't be loaded or can't be built."""

    exit_status = 4


class TraceError(HgpartError):
    """A model can't be traced; the message says where and why."""

    exit_status = 5


class FormatError(HgpartError):
    """A file is malformed or truncated; the message names the line."""

    exit_status = 6


class HypergraphError(HgpartError, ValueError):
    """Weights, costs, pins or parts are not a valid hypergraph or partition of one."""

    exit_status = 7


class InfeasibleError(HgpartError):
    """No partition meets the balance bound; the message names the heaviest task and least eps."""

    exit_status = 8


class BackendError(HgpartError):
    """A partitioner failed, ran out of time, or returned something that is no partition."""

    exit_status = 9


class MissingPackageError(HgpartError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""

    exit_status = 10


class OutputError(HgpartError, OSError):
    """A result can't be written where it was asked for."""

    exit_status = 11


class PlanError(HgpartError):
    """A plan does not belong to the model it was checked against."""

    exit_status = 12


class PlacementError(HgpartError):
    """A partition can't be placed as asked: devices, parts and the model do not fit together."""

    exit_status = 13


class RunError(HgpartError):
    """A run on devices or processes failed; the message says which part and why."""

    exit_status = 14


class CheckpointError(HgpartError):
    """A checkpoint is truncated, foreign or missing."""

    exit_status = 15


def not_one_of(
    what: str, value: object, accepted: Iterable[str], besides: str = ""
) -> ArgumentError:
    """The error for a word that is not accepted; offers the nearest accepted word, if one is near.

    Other things that are accepted (`besides`) follow the words.

    >>> print(not_one_of("grain", "corse", ["coarse", "fine"]))
    grain 'corse': accepted are coarse and fine; did you mean coarse?
    >>> print(not_one_of("unit", "x", ["MB", "GB", "MiB"]))
    unit 'x': accepted are MB, GB, MiB
    """
    words = list(accepted)
    listed = " and ".join(words) if len(words) == 2 and not besides else ", ".join(words)
    listed += f", {besides}" if besides else ""
    return ArgumentError(f"{what} {value!r}: accepted are {listed}{did_you_mean(value, words)}")


def not_both(option: str, other: str) -> ArgumentError:
    """The error for two options that have no use for each other.

    >>> print(not_both("--steps 3", "--until 0.9"))
    --steps 3 with --until 0.9: accepted is one of them
    """
    return ArgumentError(f"{option} with {other}: accepted is one of them")


def check_whole(
    what: str, value: int, least: int = 1, most: int | None = None, unit: str = ""
) -> None:
    """Raise an ArgumentError unless `value` is a whole number in a range.

    >>> check_whole("batch size", 2.5)
    Traceback (most recent call last):
    hgpart.errors.ArgumentError: batch size 2.5: accepted is a whole number, 1 or more
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= value or not (most is None or value <= most):
        raise _out_of_range(what, value, least, most, unit, "" if whole else "a whole number, ")


def check_number(
    what: str, value: float, least: float = 0, most: float = inf, unit: str = ""
) -> None:
    """Raise an ArgumentError unless `value` is a finite number in a range.

    >>> check_number("latency", -1, most=100, unit=" s")
    Traceback (most recent call last):
    hgpart.errors.ArgumentError: latency -1: accepted is 0 to 100 s
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not least <= value <= most or value == inf:
        raise _out_of_range(what, value, least, most, unit, "" if number else "a number, ")


def _out_of_range(
    what: str, value: object, least: float, most: float | None, unit: str, kind: str
) -> ArgumentError:
    low, high = (f"{bound:g}" if isinstance(bound, float) else bound for bound in (least, most))
    until = f"{unit} or more" if most in (None, inf) else f" to {high}{unit}"
    return ArgumentError(f"{what} {value!r}: accepted is {kind}{low}{until}")


def did_you_mean(value: object, words: Sequence[str]) -> str:
    """End of an error message about a word: the nearest of `words`, if one is near.

    >>> did_you_mean("nvlnk-8", ["10gbe", "nvlink-8"]), did_you_mean("x", ["10gbe"])
    ('; did you mean nvlink-8?', '')
    """
    folded = {word.lower(): word for word in reversed(words)}
    near = get_close_matches(str(value).lower(), folded, n=1)
    return f"; did you mean {folded[near[0]]}?" if near else ""


def not_installed(what: str, package: str, extra: str) -> MissingPackageError:
    """The error for a package that is not installed; an extra of hgpart brings it.

    >>> print(not_installed("--data digits", "scikit-learn", "train"))
    --data digits needs scikit-learn, not installed here: pip install -c constraints.txt '.[train]'
    """
    return MissingPackageError(
        f"{what} needs {package}, not installed here: pip install -c constraints.txt '.[{extra}]'"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's message, which may be empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, from Python or from torch, says that memory has run out."""
    message = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in message)
    )
