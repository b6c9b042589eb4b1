"""Texts such as ``labels=:int64:10`` <-> InputShape: what a model takes for each sample.

Imports no torch: the command line reads these texts before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, Signature
from typing import Any

from hgpart.errors import ArgumentError

FLOAT = "float"
# Names of types, and how many values random tensors of each have by default, beginning at 0.
TYPES: dict[str, int | None] = {FLOAT: None, "int64": 2, "int32": 2, "uint8": 256, "bool": 2}
MOST_VALUES = {FLOAT: 2**24, "int64": 2**63 - 1, "int32": 2**31, "uint8": 256, "bool": 2}
WRITTEN = re.compile(r"(?:([^\W\d]\w*)=)?(\d+(?:,\d+)*)?(?::(\w+)(?::(\d{1,19}))?)?")
ACCEPTED = "[NAME=]SIZES[:TYPE[:VALUES]], as in 3,224,224 or labels=:int64:1000"


@dataclass(frozen=True)
class InputTensor:
    """A tensor that a model takes, without its first dimension, which is the batch.

    Attributes
    ----------
    name : str
        Parameter of the model's forward. Empty: the next one by position.
    sizes : tuple of int
        Sizes; none for a number a sample.
    type : str
        One of `TYPES`. ``float`` is the type of the model's own weights.
    values : int or None
        Random tensors hold whole numbers from 0 to values - 1. None: as `TYPES` says, and normally
        distributed numbers for ``float``.

    Raises
    ------
    ArgumentError
        If a size is 0, there is no such type, or it has not so many values.

    >>> str(InputTensor("labels", (), "int64", 10))
    'labels=:int64:10'
    """

    name: str = ""
    sizes: tuple[int, ...] = ()
    type: str = FLOAT
    values: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no tensor has."""
        if self.type not in TYPES:
            raise ArgumentError(
                f"input {self}: accepted types are {', '.join(TYPES)}; {FLOAT}, the default, is "
                "the type of the model's weights"
            )
        if any(size < 1 for size in self.sizes):
            raise ArgumentError(f"input {self}: every size must be at least 1, as in 3,224,224")
        if self.values is not None and not 1 <= self.values <= MOST_VALUES[self.type]:
            raise ArgumentError(
                f"input {self}: accepted are 1 to {MOST_VALUES[self.type]} values of {self.type}"
            )

    def __str__(self) -> str:
        """The text that `input_tensor` reads."""
        text = ",".join(map(str, self.sizes))
        if self.type != FLOAT or self.values is not None or not self.sizes:
            text += f":{self.type}"
        if self.values is not None:
            text += f":{self.values}"
        return f"{self.name}={text}" if self.name else text

    @property
    def is_image(self) -> bool:
        """Whether it has the type of weights, sizes, and any values."""
        return bool(self.sizes) and self.type == FLOAT and self.values is None


def input_tensor(text: str) -> InputTensor:
    """Read one of the texts that ``--input-shape`` takes.

    Raises
    ------
    ArgumentError
        If it is not ``[NAME=]SIZES[:TYPE[:VALUES]]``.

    >>> input_tensor("mask=1,64,64:bool")
    InputTensor(name='mask', sizes=(1, 64, 64), type='bool', values=None)
    """
    match = WRITTEN.fullmatch(text.strip())
    if match is None or not (match[2] or match[3]):
        raise ArgumentError(f"input {text!r}: accepted is {ACCEPTED}")
    name, sizes, type_, values = match.groups()
    return InputTensor(
        name or "",
        tuple(map(int, sizes.split(","))) if sizes else (),
        type_ or FLOAT,
        None if values is None else int(values),
    )


class InputShape(tuple[Any, ...]):
    """What a model takes for each sample, as it is written in files.

    The sizes of the one image that most models take; or a text for each tensor, as `input_tensor`
    reads it: ``("pixel_values=3,224,224", "labels=:int64:1000")``. A tuple of sizes, a text, or
    several make one.

    >>> InputShape([3, 224, 224]), InputShape("3,224,224")
    ((3, 224, 224), (3, 224, 224))
    >>> InputShape(["image=3,8,8", "labels=:int64:10"]).tensors[1].values
    10

    Raises
    ------
    ArgumentError
        If it is neither sizes nor such texts, or two have one name.
    """

    def __new__(cls, written: Iterable[int] | Iterable[str]) -> InputShape:
        """Check and normalise it."""
        items = (written,) if isinstance(written, str) else tuple(written)
        if items and all(type(size) is int for size in items):
            InputTensor(sizes=items)  # type: ignore[arg-type]
            return super().__new__(cls, items)
        if not items or not all(isinstance(text, str) for text in items):
            raise ArgumentError(
                f"input shape {items!r}: accepted are sizes, as in (3, 224, 224), and texts "
                f"{ACCEPTED}"
            )
        tensors = [input_tensor(str(text)) for text in items]
        names = [tensor.name for tensor in tensors if tensor.name]
        if len(set(names)) < len(names):
            raise ArgumentError(f"inputs {', '.join(names)}: accepted is each name once")
        if len(tensors) == 1 and tensors[0].is_image and not names:
            return super().__new__(cls, tensors[0].sizes)
        return super().__new__(cls, map(str, tensors))

    @cached_property
    def tensors(self) -> tuple[InputTensor, ...]:
        """The tensors, in the order in which they are written."""
        if isinstance(self[0], str):
            return tuple(map(input_tensor, self))
        return (InputTensor(sizes=tuple(self)),)

    def image(self, wanted_by: str) -> tuple[int, ...]:
        """Sizes of the one image that a model takes.

        Raises
        ------
        ArgumentError
            If it takes something else than `wanted_by` can give it.
        """
        if len(self.tensors) > 1 or not self.tensors[0].is_image:
            raise ArgumentError(
                f"{wanted_by} of a model with inputs {shape_text(self)}: accepted are models with "
                "one input, of images"
            )
        return self.tensors[0].sizes

    def inputs(self, forward: Signature, make: Callable[[InputTensor], Any]) -> Any:
        """Inputs by position or, if there are names, by the names of forward's parameters.

        Raises
        ------
        ArgumentError
            If forward takes fewer by position than have no name.
        """
        if not any(tensor.name for tensor in self.tensors):
            return tuple(map(make, self.tensors))
        names = _by_position(forward)
        inputs = {}
        for tensor in self.tensors:
            name = tensor.name or next(names, None)
            if name is None:
                raise ArgumentError(
                    f"input {tensor} has no name: accepted are inputs for forward{forward}"
                )
            if name in inputs:
                raise ArgumentError(f"{name} is an input by name and by position: give it once")
            inputs[name] = make(tensor)
        return inputs


def _by_position(forward: Signature) -> Iterator[str]:
    for name, parameter in forward.parameters.items():
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            yield name


def shape_text(written: Sequence[object]) -> str:
    """The shape of a sample, for people.

    >>> shape_text((3, 224, 224)), shape_text(("image=3,8,8", "labels=:int64"))
    ('3 x 224 x 224', 'image=3,8,8 labels=:int64')
    """
    return (" " if any(isinstance(item, str) for item in written) else " x ").join(
        map(str, written)
    )
