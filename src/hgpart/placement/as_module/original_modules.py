"""The model that a placement was made of -> its modules, as the placement lists them.

Each is of the model's own kind and has its attributes, modes and hooks: what is set there, the
placement follows by tracing the model once more. Its parameters and buffers are the slices that
parts hold, each by its name in the model. No tensor is there as a whole: to read one, or to put
another in its place, is refused by name, and so is what would do nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, NoReturn, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from hgpart.errors import PlacementError
from hgpart.operators.calls import has_gradients
from hgpart.placement.as_module.settings import Settings

REGISTRIES = ("_parameters", "_buffers", "_modules")

M = TypeVar("M", bound=nn.Module)


class SliceName(str):
    """The name of a divided tensor, of one of its slices: equal to the name, to no other slice's.

    >>> one, other = SliceName("bias", 0), SliceName("bias", 1)
    >>> one == "bias" == other, one == other, len({one: 0, other: 1})
    (True, False, 2)
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, name: str, number: int) -> SliceName:
        """The name of the slice of a number."""
        made = super().__new__(cls, name)
        made.number = number
        return made

    def __eq__(self, other: object) -> bool:
        """Whether it is the same name, and not of another slice."""
        if isinstance(other, SliceName) and other.number != self.number:
            return False
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """As `str` has an own one."""
        return not self == other

    __hash__ = str.__hash__

    def __radd__(self, prefix: str) -> SliceName:
        """The name behind the path of a module."""
        return SliceName(f"{prefix}{self}", self.number)


class Listed(WeakValueDictionary[int, nn.Module]):
    """Modules that a placement has listed, while anyone has them; a copy begins with none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Listed:
        """Those of the copy, of which there are none yet."""
        return Listed()


class Holder(Protocol):
    """The state of a placement, as the modules that it lists need it."""

    def slices_of(self, name: str) -> list[Tensor]:
        """What parts hold of a tensor of the model's state, by its name there."""


class Lister(Protocol):
    """A placement, as the modules that it lists need it."""

    listed: Listed
    model_settings: Settings

    @property
    def held_state(self) -> Holder:
        """What parts hold of the model's state."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load some of the model's state."""


def listed(placement: Lister, module: nn.Module, path: str) -> nn.Module:
    """A module of the model as its placement lists it: the same one wherever it is met."""
    made = placement.listed.get(id(module))
    if made is None:
        of_model: Any = type(module)
        kind = _listed_kind(of_model)
        made = kind.__new__(kind)
        object.__setattr__(made, "__dict__", vars(module))
        object.__setattr__(made, "_placement", placement)
        object.__setattr__(made, "_module", module)
        object.__setattr__(made, "_path", path)
        placement.listed[id(module)] = made
    return made


def listed_children(placement: Lister, module: nn.Module, path: str) -> dict[str, nn.Module | None]:
    """The modules in one, by their names."""
    children = {
        name: None if child is None else listed(placement, child, _joined(path, name))
        for name, child in vars(module)["_modules"].items()
    }
    return Registry(path, children)


def slices_of(
    placement: Lister, registry: Mapping[str, Tensor | None], path: str
) -> dict[str, Tensor | None]:
    """What parts hold of a module's tensors, each slice by the name of what it is of."""
    found: dict[str, Tensor | None] = {}
    for name, whole in registry.items():
        several = [] if whole is None else placement.held_state.slices_of(_joined(path, name))
        if len(several) == 1:
            found[name] = several[0]
        for number, one in enumerate(several if len(several) > 1 else ()):
            found[SliceName(name, number)] = one
        if whole is None:
            found[name] = None
    return Registry(path, found)


def refuse(what: str) -> NoReturn:
    """Raise the PlacementError for what can't be done where parts hold slices of tensors."""
    raise PlacementError(
        f"{what}, where parts hold slices: accepted are the model itself, before it is placed, "
        "state_dict and load_state_dict of the placement, slices by parameters() of a module, and "
        "requires_grad_(False) of a module, which freezes them"
    )


class Registry(dict[str, Any]):
    """The modules or tensors of a module, as they are listed: none can be put in or taken out."""

    def __init__(self, path: str, registered: Mapping[str, Any]) -> None:
        super().__init__(registered)
        self._path = path

    def __deepcopy__(self, memo: dict[int, Any]) -> Registry:
        """That of the copied module."""
        return Registry(self._path, copy.deepcopy(dict(self), memo))

    def __setitem__(self, name: str, value: Any) -> None:
        """Refuse it, by name."""
        _refuse_assigned(self._path, name, value)

    def __delitem__(self, name: str) -> None:
        """Refuse it, by name."""
        _refuse_assigned(self._path, name, None)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]  # unlike `|`, it makes no other
        """Refuse it, by name."""
        self._refuse_change()

    def _refuse_change(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse_assigned(self._path, next(iter(self), "all"), None)

    pop = popitem = clear = update = setdefault = _refuse_change


class _Listed:
    """What is other in a listed module than in the model's own."""

    __slots__ = ("_module", "_path", "_placement")
    _module: nn.Module
    _path: str
    _placement: Lister

    @property
    def _modules(self) -> dict[str, nn.Module | None]:
        """The modules in it, as they are listed."""
        return listed_children(self._placement, self._module, self._path)

    @property
    def _parameters(self) -> dict[str, Tensor | None]:
        """What parts hold of its parameters."""
        return slices_of(self._placement, vars(self._module)["_parameters"], self._path)

    @property
    def _buffers(self) -> dict[str, Tensor | None]:
        """What parts hold of its buffers."""
        return slices_of(self._placement, vars(self._module)["_buffers"], self._path)

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name == "__dict__" or (
            name in object.__getattribute__(self, "__dict__") and name not in REGISTRIES
        ):
            self._placement.model_settings.lend(value)  # hooks, too, are put where torch reads them
        return value

    def __getattr__(self, name: str) -> Any:
        if name in vars(self._module)["_modules"]:
            return self._modules[name]
        for registry in REGISTRIES[:2]:
            if name in vars(self._module)[registry]:
                if vars(self._module)[registry][name] is None:
                    return None
                refuse(f"{_joined(self._path, name)} as a whole")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self._module)

    def __setattr__(self, name: str, value: Any) -> None:
        check_assigned(vars(self._module), self._path, name, value)
        object.__setattr__(self, name, value)
        self._placement.model_settings.were_set()

    def __delattr__(self, name: str) -> None:
        check_assigned(vars(self._module), self._path, name, None)
        object.__delattr__(self, name)
        self._placement.model_settings.were_set()

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if name not in vars(self._module)["_modules"] or self._modules[name] is not module:
            check_assigned(vars(self._module), self._path, name, module or nn.Identity())

    register_module = add_module

    def register_parameter(self, name: str, param: Any) -> None:
        check_assigned(vars(self._module), self._path, name, nn.Parameter())

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        check_assigned(vars(self._module), self._path, name, torch.empty(0))

    def register_forward_hook(self, hook: Any, **options: Any) -> Any:
        return super().register_forward_hook(_traced(self._path, hook), **options)  # type: ignore[misc]

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        return super().register_forward_pre_hook(_traced(self._path, hook), **options)  # type: ignore[misc]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        refuse(f"the state of {self._path or 'the model'} as a whole")

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        refuse(f"the state of {self._path or 'the model'} as a whole")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        refuse(f"moving or casting {self._path} alone")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        refuse(f"a copy of {self._path}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse(f"a copy of {self._path}")


def _traced(path: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that is there when the model is traced alone, for what it returns."""

    @wraps(hook)
    def told(*args: Any, **kwargs: Any) -> Any:
        made = hook(*args, **kwargs)
        if made is None:
            raise PlacementError(
                f"a hook on the module {path}, which returns nothing, and would not be called by "
                "the parts: accepted are hooks that return what the module is to take or return"
            )
        return made

    return told


def is_registered(own: Mapping[str, Any], name: str) -> bool:
    """Whether a module that has these attributes has a tensor or a module of a name."""
    return any(name in own[one] for one in REGISTRIES)


def check_assigned(own: Mapping[str, Any], path: str, name: str, value: Any) -> None:
    """Raise a PlacementError for an attribute of the model that would be a tensor or a module."""
    if is_registered(own, name) or isinstance(value, Tensor | nn.Module):
        _refuse_assigned(path, name, value)


def _refuse_assigned(path: str, name: str, value: Any) -> NoReturn:
    raise PlacementError(
        f"{_joined(path, name)} would be {type(value).__name__}, with which the parts do not "
        "compute: accepted are modules and tensors of the model, before it is placed, and "
        "values by load_state_dict"
    )


def _reset_running_stats(self: Any) -> None:
    """As the norm's own, in all parts."""
    if self.track_running_stats:
        fresh = {"running_mean": 0, "running_var": 1, "num_batches_tracked": 0}
        state = {
            _joined(self._path, name): torch.full(whole.shape, fresh[name], dtype=whole.dtype)
            for name, whole in vars(self._module)["_buffers"].items()
            if whole is not None and name in fresh
        }
        self._placement.load_state_dict(state, strict=False)


@cache
def _listed_kind(kind: Any) -> type[nn.Module]:
    own: dict[str, Any] = {"__slots__": (), "__module__": kind.__module__}
    if issubclass(kind, _NormBase):
        own["reset_running_stats"] = _reset_running_stats
    made: type[nn.Module] = type(kind.__name__, (_Listed, kind), own)
    return made


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def skeleton(model: M) -> M:
    """A copy of a model without its weights: the floating tensors of its state are on meta."""
    kept = {
        id(tensor): _without_storage(tensor)
        for tensor in model.state_dict(keep_vars=True).values()
        if isinstance(tensor, torch.Tensor) and has_gradients(tensor.dtype)
    }
    # What a model has computed of its weights, and keeps, torch does not copy with its history.
    for module in model.modules():
        for value in pytree.tree_leaves(vars(module)):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                kept[id(value)] = value.detach()
    return copy.deepcopy(model, dict(kept))


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
