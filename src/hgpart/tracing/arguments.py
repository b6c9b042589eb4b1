"""A call of a model <-> its tensors and other values, by the names of its forward's arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError
from hgpart.tracing.input_shape import FLOAT, TYPES, InputShape, InputTensor

REGISTERED = (
    "accepted are tensors in tuples, lists and dicts, and dataclasses that "
    "torch.export.register_dataclass knows"
)
Inputs = torch.Tensor | Sequence[Any] | Mapping[str, Any]
"""A tensor, values by position, or values by name."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """What a model was given in one call, and how other calls compare with it.

    Attributes
    ----------
    model : str
        Name of the model's class.
    signature : inspect.Signature
        Signature of the model's forward, without types.
    given : mapping
        Name of an argument -> its value; arguments that were left out have forward's defaults.
        What `*rest` takes is one argument; what `**rest` takes is an argument for each name, in
        the order of the call, because a forward may depend on it.
    batches : tuple of bool
        Whether each tensor has samples. A tensor has them if its first dimension is as large as
        that of the first tensor with dimensions, unless it is in a list with a dict for each
        sample. In calls with other tensors the same ones have samples, whatever their sizes.
    """

    model: str
    signature: inspect.Signature
    given: Mapping[str, Any]
    batches: tuple[bool, ...]

    # -------------------------------------------------------------- the call itself

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call by position and by name."""
        bound = inspect.BoundArguments(self.signature, {})
        known = self.signature.parameters
        bound.arguments.update({name: self.given[name] for name in known if name in self.given})
        rest = {name: value for name, value in self.given.items() if name not in known}
        return bound.args, {**bound.kwargs, **rest}

    @cached_property
    def leaves(self) -> tuple[Any, ...]:
        """All values in the call, in order: tensors, and what else lists and dicts hold."""
        return tuple(pytree.tree_leaves(list(self.given.values())))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in the call."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Tensor))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors in messages, such as ``mask`` or ``images[0]``."""
        return tuple(
            name + pytree.keystr(path)
            for name, value in self.given.items()
            for path, leaf in pytree.tree_leaves_with_path(value)
            if isinstance(leaf, Tensor)
        )

    def check_leaves(self) -> None:
        """Raise an ArgumentError that names a value that may hold tensors but isn't searched."""
        for name, value in self.given.items():
            for path, leaf in pytree.tree_leaves_with_path(value):
                if isinstance(leaf, np.ndarray) or dataclasses.is_dataclass(leaf):
                    is_array = isinstance(leaf, np.ndarray)
                    accepted = "accepted is a tensor, such as torch.from_numpy makes"
                    raise ArgumentError(
                        f"{name}{pytree.keystr(path)} is a {_name_of(type(leaf))}: "
                        f"{accepted if is_array else REGISTERED}"
                    )

    def with_tensors(self, tensors: Sequence[Tensor]) -> Arguments:
        """The same call with other tensors."""
        remaining = iter(tensors)
        given = pytree.tree_map_only(Tensor, lambda _: next(remaining), dict(self.given))
        return replace(self, given=given)

    def batch_size(self, tensors: Sequence[Tensor | None]) -> int | None:
        """Samples in the tensors of a call; None where there is no batch among them."""
        pairs = zip(tensors, self.batches, strict=True)
        batches = (tensor for tensor, is_batch in pairs if is_batch and tensor is not None)
        return next((len(batch) for batch in batches if batch.dim()), None)

    def sample_shape(self) -> InputShape:
        """What the call has for each sample; an image that can be given by position has no name.

        Raises
        ------
        ArgumentError
            If the call has anything else, such as a list, or tensors without samples: a plan file
            does not hold it.
        """
        tensors = []
        batches = dict(zip(map(id, self.tensors), self.batches, strict=True))
        for name, value in self.given.items():
            parameter = self.signature.parameters.get(name)
            if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
                tensors += [self._of_sample("", item, batches) for item in value]
            elif parameter is None or not _is_same(value, parameter.default):
                tensors.append(self._of_sample(name, value, batches))
        if 0 < sum(1 for tensor in tensors if not tensor.name) < len(tensors):
            raise self._unwritten()
        if len(tensors) == 1 and tensors[0].is_image:
            with suppress(ArgumentError):
                self.tensors_of(self.tensors, {})
                return InputShape(tensors[0].sizes)
        return InputShape([*map(str, tensors)])

    def _of_sample(self, name: str, value: Any, batches: Mapping[int, bool]) -> InputTensor:
        """An argument that is a tensor with samples."""
        if isinstance(value, Tensor) and batches[id(value)]:
            kind = FLOAT if value.is_floating_point() else str(value.dtype).removeprefix("torch.")
            if kind in TYPES:
                return InputTensor(name, tuple(value.shape[1:]), kind)
        raise self._unwritten()

    def _unwritten(self) -> ArgumentError:
        return ArgumentError(
            f"{self.model} is called with {', '.join(self.given)}: accepted for a plan file are "
            f"tensors with samples, of types {', '.join(TYPES)}"
        )

    # -------------------------------------------------------------- other calls

    def tensors_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of another call, in the same order.

        Raises
        ------
        ArgumentError
            If forward does not take the call, it has other values in place of tensors, it differs
            from this call in any other value, or what `**rest` takes has another order.
        """
        given = _bound(self.model, self.signature, args, kwargs)
        return [tensor for tensor in self._matched(given, may_lack=False) if tensor is not None]

    def tensors_here(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor | None]:
        """Like `tensors_of`, but None may stand in place of tensors, and a call may be empty."""
        if not args and not kwargs:
            return [None] * len(self.tensors)
        return self._matched(_bound(self.model, self.signature, args, kwargs), may_lack=True)

    def _matched(self, given: Mapping[str, Any], *, may_lack: bool) -> list[Tensor | None]:
        tensors: list[Tensor | None] = []
        for name in {**self.given, **given}:
            expected, structure = pytree.tree_flatten(self._value(self.given, name))
            values, received = pytree.tree_flatten(self._value(given, name))
            if may_lack and values == [None] and _holds_tensors(expected):
                values, received = [None] * len(expected), structure
            matches = received == structure and all(
                isinstance(value, Tensor) or (may_lack and value is None)
                if isinstance(example, Tensor) and name in self.given
                else _is_same(value, example)
                for value, example in zip(values, expected, strict=True)
            )
            if not matches:
                raise self._refused(name, given)
            if name in self.given:
                pairs = zip(values, expected, strict=True)
                tensors += [value for value, example in pairs if isinstance(example, Tensor)]
        received_names, names = map(self._names_of_rest, (given, self.given))
        if received_names != names:
            raise ArgumentError(
                f"{', '.join(received_names)} by name, in this order: accepted is "
                f"{', '.join(names)}, as {self.model} was traced with"
            )
        return tensors

    def _names_of_rest(self, given: Mapping[str, Any]) -> list[str]:
        """Names that `**rest` takes in a call, in order."""
        return [name for name in given if name not in self.signature.parameters]

    def _value(self, given: Mapping[str, Any], name: str) -> Any:
        """Value of an argument in a call, which may have left it out."""
        if name in given:
            return given[name]
        parameter = self.signature.parameters.get(name)
        if parameter is None:
            return _LEFT_OUT
        return () if parameter.kind is parameter.VAR_POSITIONAL else parameter.default

    def _refused(self, name: str, given: Mapping[str, Any]) -> ArgumentError:
        received, traced = (_in_words(self._value(values, name)) for values in (given, self.given))
        if received == traced and name not in self.given:  # both tensors, and one is forward's own
            traced = "to leave it out"
        return ArgumentError(
            f"{name} is {received}: accepted is {traced}, as {self.model} was traced with"
        )


class _LeftOut:
    """Stands for an argument of `**rest` that a call does not have."""

    def __repr__(self) -> str:
        return "left out"


_LEFT_OUT = _LeftOut()


def arguments_of(model: nn.Module, inputs: Inputs) -> Arguments:
    """The call of a model that an example of its inputs stands for.

    >>> class Masked(nn.Module):
    ...     def forward(self, image, *, mask=None, scale=1.0): ...
    >>> inputs = {"mask": torch.ones(2, 1), "image": torch.ones(2, 3)}
    >>> arguments = arguments_of(Masked(), inputs)
    >>> arguments.names, arguments.call[1].keys()
    (('image', 'mask'), dict_keys(['mask']))

    Raises
    ------
    ArgumentError
        If forward does not take the example.
    """
    if isinstance(inputs, tuple) and inputs and all(isinstance(size, int) for size in inputs):
        raise ArgumentError(
            f"the example holds no batch, it is {inputs}: accepted are tensors, such as images "
            "torch.zeros(2, 3, 32, 32)"
        )
    signature = inspect.signature(model.forward)
    bare = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    signature = signature.replace(parameters=bare, return_annotation=signature.empty)
    name = type(model).__name__
    given = _bound(name, signature, *as_called(inputs))
    tensors = [
        leaf for leaf in pytree.tree_leaves(list(given.values())) if isinstance(leaf, Tensor)
    ]
    size = next((len(leaf) for leaf in tensors if leaf.dim()), None)
    of_samples = [
        leaf
        for value in given.values()
        for entries in pytree.tree_leaves(value, is_leaf=has_dicts)
        if has_dicts(entries) and len(entries) == size
        for leaf in pytree.tree_leaves(entries)
    ]
    own = {id(tensor) for tensor in of_samples}
    batches = tuple(
        tensor.dim() > 0 and len(tensor) == size and id(tensor) not in own for tensor in tensors
    )
    return Arguments(name, signature, given, batches)


def has_dicts(value: Any) -> bool:
    """Whether a value is a list or tuple of dicts; detectors take one dict for each sample."""
    entries = value if isinstance(value, (list, tuple)) else ()
    dicts = [isinstance(entry, Mapping) for entry in entries if entry is not None]
    return bool(dicts) and all(dicts)


def as_called(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs in any of their forms, by position and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {}


def _bound(
    model: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of a call by the names of forward's arguments, in the call's order."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{error}: accepted are inputs for {model}.forward{signature}"
        ) from None
    given = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(name, {}))
    return given


def _holds_tensors(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in leaves)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values that are no inputs are the same to a model."""
    if value is other:
        return True
    if type(value) is not type(other) or isinstance(value, Tensor):
        return False
    return isinstance(value, Hashable) and bool(value == other)


class _Tensor:
    """Stands for a tensor in a message."""

    def __repr__(self) -> str:
        return "a tensor"


class _Object:
    """Stands for a value that no message can quote, by its type."""

    def __init__(self, value: Any) -> None:
        self._type = type(value)

    def __repr__(self) -> str:
        return f"a {_name_of(self._type)}"


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _in_words(value: Any) -> str:
    """A value in one line; tensors, arrays and other objects by their kinds."""

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return _Tensor()
        return leaf if isinstance(leaf, (*_QUOTED, _LeftOut)) else _Object(leaf)

    return repr(pytree.tree_map(stand_in, value))


_QUOTED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
