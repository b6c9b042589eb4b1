"""Parts of a model -> a torch module that lists the model's modules as its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from hgpart.errors import PlacementError
from hgpart.placement.as_module.original_modules import (
    REGISTRIES,
    Holder,
    Listed,
    Registry,
    check_assigned,
    is_registered,
    listed,
    listed_children,
)
from hgpart.placement.as_module.parts import Parts
from hgpart.placement.as_module.settings import Settings
from hgpart.tracing.code.reachable import NO_STATE


class ListingModule(nn.Module):
    """A module that lists a model's modules as its own and has the model's attributes.

    It computes with its parts, which hold its parameters and buffers.

    Attributes
    ----------
    listed : Listed
        The modules that it has listed.
    model_settings : Settings
        Settings of the model's modules, with the model without its weights.
    held_state : Holder
        The model's state as the parts hold it.
    parts : Parts
        The submodules, by part.
    """

    parts: Parts

    def __init__(self, model_settings: Settings, held_state: Holder) -> None:
        super().__init__()
        self.listed = Listed()
        self.model_settings, self.held_state = model_settings, held_state

    def _list_model(self, parts: Parts) -> None:
        """Set the parts and begin to list the model, once all own attributes are set."""
        self.parts = parts
        for name in REGISTRIES:
            self.__dict__[name] = Registry("", self.__dict__[name])

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """The model's own modules; see `named_modules`."""
        for name, module in listed_children(self, self.model_settings.model, "").items():
            if module is not None:
                yield name, module

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The placement and the model's modules, by the names that they have in the model.

        Modes, attributes and their contents, and hooks have the same effect as on the model, whose
        next pass traces it again: norms in evaluation mode, a dropout's rate. Hooks are called when
        the model is traced, not in each pass: those that return nothing are refused. `parameters()`
        of a module are the slices of them that parts hold. No tensor of a module exists as a whole:
        reading or replacing one is a PlacementError.

        >>> import hgpart, torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> [name for name, module in placed.named_modules() if isinstance(module, nn.BatchNorm2d)]
        ['1']
        >>> sum(weight.numel() for weight in placed.get_submodule("1").parameters())
        16
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        model = self.model_settings.model
        own = vars(model)
        if own["_parameters"] or own["_buffers"] or not own["_modules"]:
            whole = listed(self, model, "")  # has the tensors that no module in it has
            yield from whole.named_modules(memo, prefix, remove_duplicate)
            return
        for name, module in self.named_children():
            path = f"{prefix}.{name}" if prefix else name
            yield from module.named_modules(memo, path, remove_duplicate)

    def _named_members(
        self,
        get_members_fn: Callable[..., Any],
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """Parameters and buffers of the parts, by their names in the parts."""
        if recurse:
            prefix = f"{prefix}.parts" if prefix else "parts"
            yield from self.parts._named_members(
                get_members_fn, prefix=prefix, remove_duplicate=remove_duplicate
            )

    def __getattr__(self, name: str) -> Any:
        """A module or an attribute of the model."""
        settings = self.__dict__.get("model_settings")
        if settings is None or name in self._modules:
            return super().__getattr__(name)
        own = vars(settings.model)
        if name in own and name not in NO_STATE:
            return settings.lend(own[name])
        if is_registered(own, name):
            return getattr(listed(self, settings.model, ""), name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; if the model has it, set the model's."""
        parts = self.__dict__.get("_modules", {}).get("parts")
        if parts is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
            return
        own = vars(self.model_settings.model)
        check_assigned(own, "", name, value)
        if name in own and name not in NO_STATE:
            setattr(self.model_settings.model, name, value)
            self.model_settings.were_set()
        else:
            super().__setattr__(name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Refuse any module that is not the model's own, as it was not traced."""
        if "parts" not in self._modules:
            super().add_module(name, module)
        else:
            listed(self, self.model_settings.model, "").add_module(name, module)

    @property
    def original(self) -> nn.Module:
        """The model without weights: its modules, their types and names.

        Settings have the same effect here as in `modules()`; each pass looks for them.
        """
        self.model_settings.lend_modules(self.model_settings.model)
        return self.model_settings.model

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load as a submodule of another module; torch calls this before it loads the parts."""
        own = {name.removeprefix(prefix): state_dict.pop(name) for name in list(state_dict)}
        try:
            names = self.load_state_dict(own, strict=False)
        except PlacementError as error:
            error_msgs.append(str(error))
        else:
            missing_keys += (prefix + name for name in names.missing_keys)
            unexpected_keys += (prefix + name for name in names.unexpected_keys)
        # The parts are filled now, so let torch find in the state what they hold.
        self.parts.state_dict(destination=state_dict, prefix=f"{prefix}parts.", keep_vars=True)
