"""The text of an option -> its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import typer

from hgpart.errors import ArgumentError
from hgpart.tracing.input_shape import input_tensor


def integers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write whole numbers with commas between") from None


def input_text(text: str) -> str:
    """What a model takes as one of its inputs, as `InputShape` takes it."""
    try:
        return str(input_tensor(text))
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r}: write numbers as in 1,1,2") from None


def whole(text: str) -> int:
    """A whole number, at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r}: write a whole number, at least 1")
    return int(text)


def whole_or_auto(text: str) -> int | Literal["auto"]:
    """A whole number, at least 1, or "auto"."""
    try:
        return "auto" if text == "auto" else whole(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error}, or auto") from None


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def several(text: str) -> tuple[int, ...]:
    """Whole numbers with + between them; raises a ValueError for anything else.

    >>> several("3+5")
    (3, 5)
    """
    return tuple(int(number) for number in text.split("+"))


def yes_or_no(text: str) -> bool:
    """Whether a text is yes; raises a ValueError unless it is yes or no."""
    return ("no", "yes").index(text) == 1


@dataclass(frozen=True)
class Length:
    """A number of steps, or of epochs."""

    count: int
    in_epochs: bool

    def steps(self, per_epoch: int) -> int:
        """The number of steps."""
        return self.count * (per_epoch if self.in_epochs else 1)


def length(text: str) -> Length:
    """A number of steps, or of epochs, as in 30ep; raises a ValueError for anything else.

    >>> length("30ep").steps(per_epoch=100)
    3000
    """
    number = text.removesuffix("ep")
    if not number.isdecimal():
        raise ValueError
    return Length(int(number), in_epochs=number != text)


ACCEPTED: Mapping[Callable[[str], Any], str] = {
    **{int: "a whole number", float: "a number", yes_or_no: "yes or no", str: "a name"},
    several: "whole numbers as in 3 or 3+5",
    length: "a number of steps, or of epochs as in 30ep",
}


def read(option: str, text: str, kind: Callable[[str], Any]) -> Any:
    """A value of a kind.

    Raises
    ------
    ArgumentError
        If it is of another kind.
    """
    try:
        return kind(text)
    except ValueError:
        raise ArgumentError(f"{option}: accepted is {ACCEPTED[kind]}") from None


def keyed(
    option: str, text: str | None, **kinds: Callable[[str], Any]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Read ``VALUE,...,KEY=VALUE,...``, the form of all options that take several settings.

    >>> keyed("--memory", "2GiB,512MB,in-flight=2", copies=float, in_flight=int)
    (('2GiB', '512MB'), {'in_flight': 2})

    Raises
    ------
    ArgumentError
        If a key is none of `kinds`, or its value is not of that kind; says which are accepted.
    """
    values: list[str] = []
    settings: dict[str, Any] = {}
    for word in names(text) if text else ():
        key, equals, value = word.partition("=")
        name = key.replace("-", "_")
        if not equals:
            values.append(word)
        elif name not in kinds:
            keys = ", ".join(f"{kind.replace('_', '-')}=" for kind in kinds)
            raise ArgumentError(f"{option} {word}: accepted are {keys}")
        elif name in settings:
            raise ArgumentError(f"{option} {text}: accepted is {key}= once")
        else:
            settings[name] = read(f"{option} {word}", value, kinds[name])
    return tuple(values), settings


def one_value(option: str, text: str, values: tuple[str, ...]) -> str | None:
    """The value in front of the settings, if there is one.

    Raises
    ------
    ArgumentError
        If there are several.
    """
    if len(values) > 1:
        raise ArgumentError(f"{option} {text}: accepted is one value, and KEY=VALUE behind it")
    return values[0] if values else None
