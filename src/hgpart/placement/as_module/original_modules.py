"""The model that a placement was made of -> its modules, as the placement lists them.

Each has the type of the model's module, and its attributes, modes and hooks: when one is set, the
placement traces the model again. Its parameters and buffers are the slices that parts hold, each
under its name in the model. No tensor exists as a whole: reading or replacing one is refused, and
the message names it; so is anything that would have no effect.
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
from hgpart.tracing.cache.origins import origin_of_model, set_origin

REGISTRIES = ("_parameters", "_buffers", "_modules")

M = TypeVar("M", bound=nn.Module)


class SliceName(str):
    """Name of one slice of a divided tensor: equal to the name, but not to that of another slice.

    >>> first, second = SliceName("bias", 0), SliceName("bias", 1)
    >>> first == "bias" == second, first == second, len({first: 0, second: 1})
    (True, False, 2)
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, name: str, number: int) -> SliceName:
        """Make the name of the slice with this number."""
        name_of_slice = super().__new__(cls, name)
        name_of_slice.number = number
        return name_of_slice

    def __eq__(self, other: object) -> bool:
        """Whether it is the same name, and not that of another slice."""
        if isinstance(other, SliceName) and other.number != self.number:
            return False
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Needed because `str` has its own."""
        return not self == other

    __hash__ = str.__hash__

    def __radd__(self, prefix: str) -> SliceName:
        """The name after the path of a module."""
        return SliceName(f"{prefix}{self}", self.number)


class Listed(WeakValueDictionary[int, nn.Module]):
    """Modules that a placement has listed, as long as someone uses them; copies begin with none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Listed:
        """An empty collection, as a copy has listed nothing yet."""
        return Listed()


class Holder(Protocol):
    """The state of a placement, as the modules that it lists need it."""

    def slices_of(self, name: str) -> list[Tensor]:
        """The slices of a tensor of the model's state that parts hold, by its name there."""


class Lister(Protocol):
    """A placement, as the modules that it lists need it."""

    listed: Listed
    model_settings: Settings

    @property
    def held_state(self) -> Holder:
        """The model's state as the parts hold it."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load some or all of the model's state."""


def listed(placement: Lister, module: nn.Module, path: str) -> nn.Module:
    """A module of the model as its placement lists it; the same object for each call."""
    listed_module = placement.listed.get(id(module))
    if listed_module is None:
        module_type: Any = type(module)
        kind = _listed_kind(module_type)
        listed_module = kind.__new__(kind)
        object.__setattr__(listed_module, "__dict__", vars(module))
        object.__setattr__(listed_module, "_placement", placement)
        object.__setattr__(listed_module, "_module", module)
        object.__setattr__(listed_module, "_path", path)
        placement.listed[id(module)] = listed_module
    return listed_module


def listed_children(placement: Lister, module: nn.Module, path: str) -> dict[str, nn.Module | None]:
    """Modules in a module, by name."""
    children = {
        name: None if child is None else listed(placement, child, _joined(path, name))
        for name, child in vars(module)["_modules"].items()
    }
    return Registry(path, children)


def slices_of(
    placement: Lister, registry: Mapping[str, Tensor | None], path: str
) -> dict[str, Tensor | None]:
    """Slices of a module's tensors that parts hold, each under the name of its tensor."""
    by_name: dict[str, Tensor | None] = {}
    for name, whole in registry.items():
        slices = [] if whole is None else placement.held_state.slices_of(_joined(path, name))
        if len(slices) == 1:
            by_name[name] = slices[0]
        for number, tensor_slice in enumerate(slices if len(slices) > 1 else ()):
            by_name[SliceName(name, number)] = tensor_slice
        if whole is None:
            by_name[name] = None
    return Registry(path, by_name)


def refuse(what: str) -> NoReturn:
    """Raise the PlacementError for what is not possible where parts hold slices of tensors."""
    raise PlacementError(
        f"{what}, where parts hold slices: accepted are the model itself, before it is placed, "
        "state_dict and load_state_dict of the placement, slices by parameters() of a module, and "
        "requires_grad_(False) of a module, which freezes them"
    )


class Registry(dict[str, Any]):
    """Modules or tensors of a listed module; none can be added or removed."""

    def __init__(self, path: str, registered: Mapping[str, Any]) -> None:
        super().__init__(registered)
        self._path = path

    def __deepcopy__(self, memo: dict[int, Any]) -> Registry:
        """The registry of the copied module."""
        return Registry(self._path, copy.deepcopy(dict(self), memo))

    def __setitem__(self, name: str, value: Any) -> None:
        """Refuse the assignment, with the name of the entry."""
        _refuse_assigned(self._path, name, value)

    def __delitem__(self, name: str) -> None:
        """Refuse the deletion, with the name of the entry."""
        _refuse_assigned(self._path, name, None)

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]  # unlike `|`, it makes no new dict
        """Refuse the update, with the name of an entry."""
        self._refuse_change()

    def _refuse_change(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse_assigned(self._path, next(iter(self), "all"), None)

    pop = popitem = clear = update = setdefault = _refuse_change


class _Listed:
    """The differences between a listed module and the model's own."""

    __slots__ = ("_module", "_path", "_placement")
    _module: nn.Module
    _path: str
    _placement: Lister

    @property
    def _modules(self) -> dict[str, nn.Module | None]:
        """Modules in it, as they are listed."""
        return listed_children(self._placement, self._module, self._path)

    @property
    def _parameters(self) -> dict[str, Tensor | None]:
        """Slices of its parameters that parts hold."""
        return slices_of(self._placement, vars(self._module)["_parameters"], self._path)

    @property
    def _buffers(self) -> dict[str, Tensor | None]:
        """Slices of its buffers that parts hold."""
        return slices_of(self._placement, vars(self._module)["_buffers"], self._path)

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name == "__dict__" or (
            name in object.__getattribute__(self, "__dict__") and name not in REGISTRIES
        ):
            # Torch stores hooks in these attributes, too.
            self._placement.model_settings.lend(value)
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
    """A hook that is called only when the model is traced, for what it returns."""

    @wraps(hook)
    def checked(*args: Any, **kwargs: Any) -> Any:
        returned = hook(*args, **kwargs)
        if returned is None:
            raise PlacementError(
                f"a hook on the module {path}, which returns nothing, and would not be called by "
                "the parts: accepted are hooks that return what the module takes or returns"
            )
        return returned

    return checked


def is_registered(own: Mapping[str, Any], name: str) -> bool:
    """Whether a module with these attributes has a tensor or module of this name."""
    return any(name in own[registry] for registry in REGISTRIES)


def check_assigned(own: Mapping[str, Any], path: str, name: str, value: Any) -> None:
    """Raise a PlacementError if a model's attribute is, or would become, a tensor or module."""
    if is_registered(own, name) or isinstance(value, Tensor | nn.Module):
        _refuse_assigned(path, name, value)


def _refuse_assigned(path: str, name: str, value: Any) -> NoReturn:
    raise PlacementError(
        f"{_joined(path, name)} would be {type(value).__name__}, with which the parts do not "
        "compute: accepted are modules and tensors of the model, before it is placed, and "
        "values by load_state_dict"
    )


def _reset_running_stats(self: Any) -> None:
    """Reset the statistics of a norm in all parts, as the norm's own method does."""
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
    listed_type: type[nn.Module] = type(kind.__name__, (_Listed, kind), own)
    return listed_type


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def skeleton(model: M) -> M:
    """A copy of a model without its weights: the floating tensors of its state are on meta."""
    kept = {
        id(tensor): _without_storage(tensor)
        for tensor in model.state_dict(keep_vars=True).values()
        if isinstance(tensor, torch.Tensor) and has_gradients(tensor.dtype)
    }
    # torch refuses to copy tensors with history, which a model may have computed from its weights.
    for module in model.modules():
        for value in pytree.tree_leaves(vars(module)):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                kept[id(value)] = value.detach()
    bare = copy.deepcopy(model, dict(kept))
    set_origin(bare, origin_of_model(model))
    return bare


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
