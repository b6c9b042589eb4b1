"""What a user demands of where layers lie -> Constraints, from Python, from options or from a file.

Examples
--------
>>> demands = constraints(pin=["features.0=0", "classifier.*[0:512]=2-3"], no_split=["features.3"])
>>> print(demands)
pin features.0=0; pin classifier.*[0:512]=2,3; no-split features.3
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject, read_json

FORMAT = "hgpart constraints 1"
KINDS = ("pin", "together", "apart", "no_split")
WHAT = f'a file of constraints: JSON with "format": "{FORMAT}" and {", ".join(KINDS)}'
LARGEST_DEVICE = 2**14

_PIN = re.compile(r"(?P<layers>[^=]+?)(?:\[(?P<first>\d*):(?P<end>\d*)\])?\s*=(?P<devices>[^=]*)")
_DEVICES = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")


@dataclass(frozen=True)
class Pin:
    """Layers, or some filters of each, that lie on given devices only.

    Attributes
    ----------
    layers : str
        A layer as `hgpart trace` lists it, a module that has layers in it, or a pattern such as
        ``features.*``.
    devices : tuple of int
        Devices that may compute any of it; several may share it.
    first, end : int
        The filters from `first` to the one before `end`; `end` is None for all that follow.

    Raises
    ------
    ArgumentError
        If no device or no filter is left.
    """

    layers: str
    devices: tuple[int, ...]
    first: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and sort the devices."""
        devices = tuple(sorted(set(self.devices)))
        numbers = [*devices, self.first, *([] if self.end is None else [self.end])]
        if not self.layers or not devices or not all(type(n) is int and n >= 0 for n in numbers):
            raise ArgumentError(
                f"pin of {self.layers!r} on devices {list(self.devices)}: accepted are a layer, "
                "and one device or more, numbered from 0"
            )
        if devices[-1] > LARGEST_DEVICE:
            raise ArgumentError(f"{self._text(devices)}: accepted are devices to {LARGEST_DEVICE}")
        if self.end is not None and self.end <= self.first:
            raise ArgumentError(f"{self._text(devices)}: accepted are filters as in [0:32]")
        object.__setattr__(self, "devices", devices)

    @property
    def filters(self) -> str:
        """The filters as they are written; empty for all of them."""
        if self.first == 0 and self.end is None:
            return ""
        return f"[{self.first}:{'' if self.end is None else self.end}]"

    def __str__(self) -> str:
        """The pin as messages name it."""
        return self._text(self.devices)

    def _text(self, devices: tuple[int, ...]) -> str:
        return f"pin {self.layers}{self.filters}={','.join(map(str, devices))}"


@dataclass(frozen=True)
class Constraints:
    """Where layers must lie. All of them hold; what layers are is said as in `Pin`.

    Attributes
    ----------
    pins : tuple of Pin
        Layers, or some of their filters, on given devices. What several pins name lies on the
        devices that all of these allow.
    together : tuple of tuples of str
        Layers that lie whole on one and the same device, all their filters in all slices of the
        batch and bands of rows.
    apart : tuple of tuples of str
        Layers of which no device computes any of two: a name that means several layers is one side,
        which may share devices among themselves.
    no_split : tuple of str
        Layers that lie whole on one device, each on its own choice of one.
    """

    pins: tuple[Pin, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    no_split: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse groups of fewer than two."""
        for word, groups in (("together", self.together), ("apart", self.apart)):
            for names in groups:
                is_enough = len(names) > 1 or (word == "together" and len(names) == 1)
                if not is_enough or not all(names):
                    raise ArgumentError(
                        f"{word} {','.join(names)!r}: accepted are two layers or more, with commas "
                        "between"
                    )

    def __bool__(self) -> bool:
        """Whether anything is demanded."""
        return any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        """All of them, as messages name them."""
        return "; ".join(name for name, _ in self.each())

    def each(self) -> list[tuple[str, Constraints]]:
        """Every single constraint by its name."""
        return [
            *((str(pin), Constraints(pins=(pin,))) for pin in self.pins),
            *((f"together {','.join(own)}", Constraints(together=(own,))) for own in self.together),
            *((f"apart {','.join(own)}", Constraints(apart=(own,))) for own in self.apart),
            *((f"no-split {own}", Constraints(no_split=(own,))) for own in self.no_split),
        ]

    def also(self, other: Constraints) -> Constraints:
        """These and others; what both say is kept once."""
        values = {
            field.name: tuple(dict.fromkeys(getattr(self, field.name) + getattr(other, field.name)))
            for field in fields(self)
        }
        return Constraints(**values)

    def on_devices(self, left: Sequence[int]) -> Constraints:
        """The same where only these devices remain, numbered anew in this order.

        Raises
        ------
        ArgumentError
            If no device of a pin remains.

        >>> print(constraints(pin=["conv1=2", "fc=0,1"]).on_devices([0, 2]))
        pin conv1=1; pin fc=0
        """
        pins = []
        for pin in self.pins:
            devices = tuple(new for new, device in enumerate(left) if device in pin.devices)
            if not devices:
                raise ArgumentError(
                    f"{pin}: no such device is left; constraints of the command line replace those "
                    "of the plan"
                )
            pins.append(replace(pin, devices=devices))
        return replace(self, pins=tuple(pins))

    def record(self) -> dict[str, object]:
        """Its fields as a file of constraints has them, for JSON."""
        pins: dict[str, list[object]] = {}
        for pin in self.pins:
            pins.setdefault(f"{pin.layers}{pin.filters}", []).append(list(pin.devices))
        said: dict[str, object] = {
            "pin": {name: own[0] if len(own) == 1 else own for name, own in pins.items()},
            "together": [list(own) for own in self.together],
            "apart": [list(own) for own in self.apart],
            "no_split": list(self.no_split),
        }
        return {name: value for name, value in said.items() if value}


NONE = Constraints()


def constraints(
    pin: Sequence[str] = (),
    together: Sequence[str] = (),
    apart: Sequence[str] = (),
    no_split: Sequence[str] = (),
) -> Constraints:
    """Read constraints as they are written on a command line.

    Parameters
    ----------
    pin : sequence of str
        ``LAYER=DEVICES`` each, as in ``features.0=0``, ``classifier.*=2-3`` or
        ``features.0[0:32]=0,1``.
    together, apart : sequence of str
        ``LAYER,LAYER,...`` each.
    no_split : sequence of str
        A layer each.

    Raises
    ------
    ArgumentError
        If a text is none of these.
    """

    def groups(texts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(name.strip() for name in text.split(",")) for text in texts)

    alone = tuple(name for own in groups(no_split) for name in own)
    if not all(alone):
        raise ArgumentError(f"no-split {list(no_split)}: accepted is a layer")
    return Constraints(tuple(map(_pin, pin)), groups(together), groups(apart), alone)


def _pin(text: str) -> Pin:
    match = _PIN.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(
            f"pin {text!r}: accepted is LAYER=DEVICES, as in features.0=0, features.*=0-3 or "
            "features.0[0:32]=0,1"
        )
    first, end = match["first"], match["end"]
    devices = _devices(f"pin {text!r}", match["devices"])
    return Pin(match["layers"].strip(), devices, int(first or 0), int(end) if end else None)


def _devices(what: str, text: str) -> tuple[int, ...]:
    words = text.replace(" ", "")
    if not _DEVICES.fullmatch(words):
        raise ArgumentError(f"{what}: accepted are devices as in 0, 0,2 or 0-3")
    devices: list[int] = []
    for word in words.split(","):
        low, _, high = word.partition("-")
        if int(high or low) < int(low) or int(high or low) > LARGEST_DEVICE:
            raise ArgumentError(f"{what}: accepted are devices as in 0, 0,2 or 0-3")
        devices += range(int(low), int(high or low) + 1)
    return tuple(devices)


def load_constraints(path: Path | str) -> Constraints:
    """Read a file of constraints.

    It is JSON with any of four fields: ``pin``, an object of layers (with filters as in
    ``"features.0[0:32]"``) and their devices, a number, a list or a text such as ``"2-3"``;
    ``together`` and ``apart``, lists of lists of layers; and ``no_split``, a list of layers.

    Raises
    ------
    FormatError
        If the file can't be read or says anything else; names the line.
    """
    head = read_json(path, WHAT, FORMAT)
    other = [name for name in head.fields if name not in ("format", *KINDS)]
    if other:
        raise head.wrong(other[0], f"one of {', '.join(KINDS)}")
    return read_constraints(head)


def read_constraints(head: JsonObject) -> Constraints:
    """Read the fields of `Constraints.record` from an object of a file."""
    pins: list[Pin] = []
    for name in head.object("pin").fields if "pin" in head.fields else ():
        pins += _pins_of(head, name, head.fields["pin"][name])

    def groups(name: str) -> tuple[tuple[str, ...], ...]:
        if name not in head.fields:
            return ()
        for at, own in enumerate(head.items(name)):
            if not isinstance(own, list) or not all(isinstance(word, str) for word in own):
                raise head.wrong(name, 'lists of layers, as in [["conv1", "conv2"]]', at)
        return tuple(map(tuple, head.fields[name]))

    try:
        together, apart = groups("together"), groups("apart")
        alone = head.items("no_split") if "no_split" in head.fields else []
        if not all(isinstance(name, str) and name for name in alone):
            raise head.wrong("no_split", "a list of layers")
        return Constraints(tuple(pins), together, apart, tuple(alone))
    except ArgumentError as error:
        raise head.wrong(str(error).partition(" ")[0], str(error)) from None


def _pins_of(head: JsonObject, name: str, value: Any) -> list[Pin]:
    several = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    pins = []
    for devices in several:
        listed = devices if isinstance(devices, list) else [devices]
        text = ",".join(map(str, listed)) if all(type(d) is int for d in listed) else devices
        try:
            pins.append(_pin(f"{name}={text}"))
        except ArgumentError as error:
            raise head.object("pin").wrong(name, str(error)) from None
    return pins


def constraints_of(given: Constraints | Mapping[str, Any] | None) -> Constraints:
    """Constraints that a caller gives as such, or by the arguments of `constraints`."""
    if given is None:
        return NONE
    if isinstance(given, Constraints):
        return given
    try:
        return constraints(**given)
    except TypeError:
        raise ArgumentError(
            f"constraints of {sorted(given)}: accepted are {', '.join(KINDS)}"
        ) from None
