"""Modules of a model -> whether their attributes, modes and hooks are still those noted."""

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
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    FunctionType,
    BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class Settings:
    """The attributes, modes and hooks of a model's modules, which users may set at any time.

    Settings that were seen have numbers; the first ones have 0. A pass asks only whether anything
    was set since, and whether values that were handed out, and can change from within, still have
    the content that they had: listed modules report both.

    Parameters
    ----------
    model : nn.Module
        The model without its weights; `in_mode` gives its modules their modes.
    training : bool
        The mode in which it was traced, which it is put into.
    modes : tuple of bool
        Modes of its modules in that mode.
    hooks : sequence of str
        Hooks of the original model that run in its backward pass.

    Attributes
    ----------
    hooked : tuple of str
        All hooks that run in its backward pass, with the name of their module or parameter.
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
        """Settings of the copied model; changes that are not noted are not noted in the copy."""
        copied = copy.copy(self)
        copied.model = copy.deepcopy(self.model, memo)
        copied._numbers = copy.deepcopy(self._numbers, memo)
        copied._lent = {}
        copied._keep()
        copied._were_set = self.have_changed
        return copied

    @contextmanager
    def in_mode(self, training: bool) -> Iterator[None]:
        """Give the modules the modes that they had in training or evaluation, or else this mode.

        If the body fails, they get back the modes from before.
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
        """Number of the present settings; a new one if they were not seen before."""
        return self._numbers.setdefault(outline_of(self.model), len(self._numbers))

    def differ_from(self, number: int) -> bool:
        """Whether the present settings differ from those with this number; if not, note them."""
        if not self.have_changed:
            return False
        if self._numbers.get(outline_of(self.model)) != number:
            return True
        self.note()
        return False

    def note(self) -> None:
        """Note the present settings as those to compare with."""
        self.hooked = (*self._first_hooks, *hooked(self.model))
        self._keep()

    def _keep(self) -> None:
        self._were_set = False
        self._content = content_in(self.model) if self._lent else None
        self._known = {at: self._content_of(value) for at, value in self._lent.items()}

    def were_set(self) -> None:
        """Tell that something was set."""
        self._were_set = True

    def lend(self, value: Any) -> Any:
        """Note a value of an attribute as handed out: it may change from now on; return it."""
        if id(value) not in self._lent and _can_change(value):
            self._lent[id(value)] = value
            self._known[id(value)] = self._content_of(value)
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, nn.Module):
                    self.lend_modules(leaf)
        return value

    def lend_modules(self, model: nn.Module) -> None:
        """Note modules of the model as handed out: anything may be set on them from now on."""
        for module in model.modules():
            self.lend(vars(module))

    def _content_of(self, value: Any) -> Any:
        self._content = self._content or content_in(self.model)
        return self._content(value)

    @property
    def have_changed(self) -> bool:
        """Whether anything was set since `note`, even to an equal value."""
        return self._were_set or any(
            self._content_of(value) != self._known[at] for at, value in self._lent.items()
        )


def _can_change(value: Any) -> bool:
    """Whether a value can be changed from within."""
    if isinstance(value, tuple | frozenset):
        return any(map(_can_change, value))
    return not isinstance(value, _FIXED)


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Whether each module is in training mode, in the order of a `ModelOutline`."""
    return tuple(module.training for _, module in model.named_modules(remove_duplicate=False))


def set_modes(model: nn.Module, modes: tuple[bool, ...]) -> None:
    """Give each module its mode."""
    modules: list[nn.Module] = [module for _, module in model.named_modules(remove_duplicate=False)]
    for module, mode in zip(modules, modes, strict=True):
        module.training = mode
