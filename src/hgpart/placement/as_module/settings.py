"""The modules of a model -> whether they still have the attributes, modes and hooks they had."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from hgpart.placement.state.original_state import hooked
from hgpart.tracing.model_outline import content_in, outline_of

_FIXED = (
    *(bool, int, float, complex, str, bytes, type(None), type, FunctionType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class Settings:
    """The attributes, modes and hooks of a model's modules, which users may set at any time.

    Settings that were seen have numbers, those that the model begins with 0. All that a pass asks
    is whether anything was set, and whether what was handed out, and can be changed within, still
    has the content that it had: listed modules tell of both.

    Parameters
    ----------
    model : nn.Module
        Without its weights, in the modes that `in_mode` gives its modules again.
    training : bool
        The mode that it was traced in, which it is given.
    modes : tuple of bool
        The modes of its modules in that.
    hooks : sequence of str
        Hooks of the model, when it had weights, that run in its backward pass.

    Attributes
    ----------
    model : nn.Module
    hooked : tuple of str
        All its hooks that run in its backward pass, by the name of what has them.
    """

    def __init__(
        self, model: nn.Module, training: bool, modes: tuple[bool, ...], hooks: Sequence[str]
    ) -> None:
        self.model = model
        self._modes = {model.training: modes_of(model), training: modes}
        set_modes(model, modes)
        self._numbers = {outline_of(model): 0}
        self.hooked = self._first_hooks = tuple(hooks)
        self._lent: dict[int, Any] = {}
        self._keep()

    def __deepcopy__(self, memo: dict[int, Any]) -> Settings:
        """Those of the copied model: what was set and not noted still is in the copy."""
        made = copy.copy(self)
        made.model = copy.deepcopy(self.model, memo)
        made._numbers = copy.deepcopy(self._numbers, memo)
        made._lent = {}
        made._keep()
        made._were_set = self.are_others
        return made

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Give the modules the modes that they had, or have all, in training or evaluation.

        If what is done within fails, they have those of before again.
        """
        before = modes_of(self.model)
        try:
            self.model.train(training)
            if training in self._modes:
                set_modes(self.model, self._modes[training])
            yield
        except BaseException:
            set_modes(self.model, before)
            raise

    def number(self) -> int:
        """The number of the present settings: a new one if they were not seen before."""
        return self._numbers.setdefault(outline_of(self.model), len(self._numbers))

    def are_others_than(self, number: int) -> bool:
        """Whether the present settings are others than those of a number; if not, it is noted."""
        if not self.are_others:
            return False
        if self._numbers.get(outline_of(self.model)) != number:
            return True
        self.note()
        return False

    def note(self) -> None:
        """They are as they are now."""
        self.hooked = (*self._first_hooks, *hooked(self.model))
        self._keep()

    def _keep(self) -> None:
        self._were_set = False
        self._content = content_in(self.model) if self._lent else None
        self._known = {at: self._content_of(value) for at, value in self._lent.items()}

    def were_set(self) -> None:
        """Some were set."""
        self._were_set = True

    def lend(self, value: Any) -> Any:
        """What is handed out, as the value of an attribute, and may be changed from now on."""
        if id(value) not in self._lent and _can_change(value):
            self._lent[id(value)] = value
            self._known[id(value)] = self._content_of(value)
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, nn.Module):
                    self.lend_modules(leaf)
        return value

    def lend_modules(self, model: nn.Module) -> None:
        """Modules of the model's own, on which anything may be set from now on."""
        for module in model.modules():
            self.lend(vars(module))

    def _content_of(self, value: Any) -> Any:
        self._content = self._content or content_in(self.model)
        return self._content(value)

    @property
    def are_others(self) -> bool:
        """Whether any was set since, be it to an equal value."""
        return self._were_set or any(
            self._content_of(value) != self._known[at] for at, value in self._lent.items()
        )


def _can_change(value: Any) -> bool:
    """Whether a value may be changed from within."""
    if isinstance(value, tuple | frozenset):
        return any(map(_can_change, value))
    return not isinstance(value, _FIXED)


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Whether each module is in training, in the order of a `ModelOutline`."""
    return tuple(one.training for _, one in model.named_modules(remove_duplicate=False))


def set_modes(model: nn.Module, modes: tuple[bool, ...]) -> None:
    """Give each module its mode."""
    every: list[nn.Module] = [one for _, one in model.named_modules(remove_duplicate=False)]
    for one, mode in zip(every, modes, strict=True):
        one.training = mode
