"""A model -> the lists, dicts and variables that its code can reach, to compare and to restore.

A hook appends a map to a list in its closure, a forward pass puts one into an attribute or a
global: a traced graph holds none of this. The walk begins at the model's modules: their
attributes, hooks and classes; it goes on to the closures, defaults and globals of functions, and
the attributes of objects. Whatever belongs to Python, NumPy and torch is left out.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

# Attributes that torch keeps in every module, and those of recurrent ones.
NO_STATE = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"}) - {"training"}
_OTHERS = sys.stdlib_module_names | {"torch", "numpy", "hgpart", "_pytest", "pytest", "hypothesis"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Tensor)


@dataclass(frozen=True, eq=False)
class Place:
    """A holder of values (a list, dict, object or function), as it was when it was met.

    Attributes
    ----------
    origin : str
        The module or the hook whose code reaches it.
    values : mapping
        Key, position or name -> value.
    named : callable
        Gives the name of a value in messages, by its key.
    is_module : bool
        Whether the values are the attributes of one of the model's modules.
    now : callable
        Returns the present values.
    put : callable
        Replaces the present values.
    """

    origin: str
    values: Mapping[Any, Any]
    named: Callable[[Any], str]
    is_module: bool
    now: Callable[[], Mapping[Any, Any]]
    put: Callable[[Mapping[Any, Any]], None]

    def restore(self) -> None:
        """Give the holder its values back, if it has others."""
        if identities(self.now()) != identities(self.values):
            self.put(self.values)


def places_of(model: nn.Module) -> list[Place]:
    """All places that the code of a model can reach.

    >>> model = nn.Linear(2, 3)
    >>> model.kept = {"first": 1}
    >>> places = [place for place in places_of(model) if "first" in place.values]
    >>> [(place.origin, place.named("last")) for place in places]
    [('the model', "the attribute kept['last']")]
    """
    walk = _CodeWalk()
    modules = dict(model.named_modules())
    walk.seen.update({id(module): module for module in modules.values()})
    for path, module in modules.items():
        walk.module(path, module)
        walk.go_on()
    for registry in (
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_forward_pre_hooks,
    ):
        for hook in list(registry.values()):
            walk.visit(hook, "", "a hook of all modules")
    walk.go_on()
    return walk.places


class _CodeWalk:
    def __init__(self) -> None:
        self.places: list[Place] = []
        self.seen: dict[int, Any] = {}  # with the objects, so that no others get their ids
        self.waiting: deque[tuple[Any, str, str]] = deque()  # values to enter, name and origin

    def module(self, path: str, module: nn.Module) -> None:
        origin = f"the module {path}" if path else "the model"
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        for hook in hooks:
            self.visit(hook, "", f"a hook of {path or 'the model'}")
        prefix = f"the attribute {path}." if path else "the attribute "
        self.attributes(vars(module), prefix, origin, is_module=True)
        self.visit(type(module), type(module).__name__, origin)

    # -------------------------------------------------------------- places

    def attributes(
        self, held: dict[str, Any], prefix: str, origin: str, *, is_module: bool = False
    ) -> None:
        def now() -> dict[str, Any]:
            return {name: value for name, value in held.items() if name not in NO_STATE}

        def put(values: Mapping[Any, Any]) -> None:
            for name in now().keys() - values.keys():
                del held[name]
            held.update(values)

        self.place(origin, lambda name: f"{prefix}{name}", now, put, is_module=is_module)

    def place(
        self,
        origin: str,
        named: Callable[[Any], str],
        now: Callable[[], Mapping[Any, Any]],
        put: Callable[[Mapping[Any, Any]], None],
        *,
        is_module: bool = False,
    ) -> None:
        values = now()
        self.places.append(Place(origin, values, named, is_module, now, put))
        for key, value in values.items():
            if not isinstance(value, _PLAIN):
                self.visit(value, named(key), origin)

    def variables(self, held: dict[str, Any], names: Iterable[str], prefix: str, at: str) -> None:
        """The variables of a Python module that code names."""
        known = [name for name in names if name in held]

        def now() -> dict[str, Any]:
            return {name: held[name] for name in known if name in held}

        self.place(at, lambda name: f"{prefix}{name}", now, held.update)

    # -------------------------------------------------------------- values

    def visit(self, value: Any, name: str, origin: str) -> None:
        """Note a value to enter later: chains of objects may be longer than Python's stack."""
        if not isinstance(value, _PLAIN) and id(value) not in self.seen:
            self.seen[id(value)] = value
            self.waiting.append((value, name, origin))

    def go_on(self) -> None:
        """Enter what was visited, and what that leads to."""
        while self.waiting:
            self.enter(*self.waiting.popleft())

    def enter(self, value: Any, name: str, origin: str) -> None:
        """Note the places of a value, and visit what it holds."""
        match value:
            case list() | deque():
                self.sequence(value, name, origin)
            case dict():
                self.mapping(value, name, origin)
            case set():
                self.mapping(value, name, origin)
            case tuple() | frozenset():
                for item in value:
                    self.visit(item, name, origin)
            case FunctionType():
                self.function(value, origin)
            case MethodType():
                self.visit(value.__func__, name, origin)
                self.visit(value.__self__, name, origin)
            case BuiltinMethodType():
                self.visit(value.__self__, "a list or dict of its own", origin)
            case partial():
                for item in (value.func, *value.args, *value.keywords.values()):
                    self.visit(item, name, origin)
            case property():
                self.visit(value.fget, name, origin)
            case staticmethod() | classmethod():
                self.visit(value.__func__, name, origin)
            case type():
                self.type(value, origin)
            case ModuleType():
                pass  # what code names of it is walked with the code
            case nn.Module():
                self.attributes(vars(value), f"{name}." if name else "", origin)
                self.visit(type(value), type(value).__name__, origin)
                for child_name, child in value.named_children():
                    self.visit(child, f"{name}.{child_name}", origin)
            case _ if not _is_of_others(type(value)) and isinstance(
                held := getattr(value, "__dict__", None), dict
            ):
                self.attributes(held, f"{name}." if name else "", origin)
                self.visit(type(value), type(value).__name__, origin)

    def sequence(self, held: Any, name: str, origin: str) -> None:
        def put(values: Mapping[Any, Any]) -> None:
            held.clear()
            held.extend(values.values())

        self.place(origin, lambda _: name, lambda: dict(enumerate(held)), put)

    def mapping(self, held: Any, name: str, origin: str) -> None:
        """A dict, or a set."""

        def now() -> dict[Any, Any]:
            return dict(held) if isinstance(held, dict) else dict.fromkeys(held)

        def put(values: Mapping[Any, Any]) -> None:
            held.clear()
            held.update(values)

        self.place(origin, lambda key: f"{name}[{key!r}]", now, put)

    def function(self, function: FunctionType, origin: str) -> None:
        if _is_of_others(function):
            return
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.cell(name, cell, origin)
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for held in (*defaults, *vars(function).values()):
            self.visit(held, function.__name__, origin)
        names = set(_names_in(function.__code__))
        variables = function.__globals__
        self.variables(variables, names, "", origin)
        for name in names:
            module = variables.get(name)
            if isinstance(module, ModuleType) and not _is_of_others(module):
                self.variables(vars(module), names, f"{name}.", origin)

    def cell(self, name: str, cell: CellType, origin: str) -> None:
        if id(cell) in self.seen:
            return
        self.seen[id(cell)] = cell

        def now() -> dict[str, Any]:
            try:
                return {name: cell.cell_contents}
            except ValueError:  # never assigned to
                return {}

        def put(values: Mapping[Any, Any]) -> None:
            if values:
                cell.cell_contents = values[name]
            else:
                del cell.cell_contents

        self.place(origin, str, now, put)

    def type(self, cls: type, origin: str) -> None:
        """The attributes of a class and of those that it inherits from."""
        for base in cls.__mro__:
            if _is_of_others(base):
                continue
            self.seen[id(base)] = base

            def now(base: type = base) -> dict[str, Any]:
                return {name: value for name, value in vars(base).items() if name[:2] != "__"}

            def put(values: Mapping[Any, Any], base: type = base, now: Any = now) -> None:
                present = now()
                for name in present.keys() - values.keys():
                    delattr(base, name)
                for name, value in values.items():
                    if present.get(name) is not value:
                        setattr(base, name, value)

            self.place(origin, partial("{}.{}".format, base.__name__), now, put)
            self.visit(vars(base).get("__call__"), "", origin)


def _names_in(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function's code, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_of_others(value: Any) -> bool:
    """Whether a class, a function or a Python module is not the model's own code."""
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return not isinstance(name, str) or name.partition(".")[0] in _OTHERS


def identities(values: Mapping[Any, Any]) -> list[tuple[Any, int]]:
    """Keys with the ids of their values: equal for the same objects in the same order."""
    return [(key, id(value)) for key, value in values.items()]
