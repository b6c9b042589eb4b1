"""Parts of a model -> a torch module that lists the modules of the model as its own."""

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
from hgpart.tracing.reachable import NO_STATE


class ListingModule(nn.Module):
    """A module that lists the modules of a model as its own, and has the model's attributes.

    What it computes with are its parts, whose parameters and buffers are its own.

    Attributes
    ----------
    listed : Listed
        The modules that it has listed.
    model_settings : Settings
        Those of the model's modules, and the model without its weights.
    held_state : Holder
        What parts hold of the model's state.
    parts : Parts
        The submodules, by part.
    """

    parts: Parts

    def __init__(self, model_settings: Settings, held_state: Holder) -> None:
        super().__init__()
        self.listed = Listed()
        self.model_settings, self.held_state = model_settings, held_state

    def _list_model(self, parts: Parts) -> None:
        """From now on have these parts, and list the model: its own attributes are complete."""
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
        """The placement and the model's own modules, by the names that they have in the model.

        Modes, attributes, what is within these, and hooks have the effect that they have on the
        model, whose next pass traces it once more: norms in evaluation, a dropout's rate.
        Hooks are called in the trace, not in each pass: those that return nothing are refused.
        `parameters()` of a module are what parts hold of it. Its tensors as a whole are nowhere:
        reading or replacing one is a PlacementError.

        >>> import hgpart, torch
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        >>> placed = hgpart.place(model, k=2, example=torch.zeros(2, 3, 8, 8))
        >>> [name for name, module in placed.named_modules() if isinstance(module, nn.BatchNorm2d)]
        ['1']
        >>> sum(one.numel() for one in placed.get_submodule("1").parameters())
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
            whole = listed(self, model, "")  # which has what no module in it has
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
        """The parameters and buffers of parts, by the parts' names."""
        if recurse:
            prefix = f"{prefix}.parts" if prefix else "parts"
            yield from self.parts._named_members(
                get_members_fn, prefix=prefix, remove_duplicate=remove_duplicate
            )

    def __getattr__(self, name: str) -> Any:
        """A module of the model's, or an attribute of the model itself."""
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
        """Set an attribute: of the model, if that has it."""
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
        """Refuse another module than the model's own, of which there is no trace."""
        if "parts" not in self._modules:
            super().add_module(name, module)
        else:
            listed(self, self.model_settings.model, "").add_module(name, module)

    @property
    def original(self) -> nn.Module:
        """The model that it was made of, without weights: its modules, their kinds and names.

        What is set there has the effect that it has on `modules()`, and each pass looks for it.
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
        """Load as part of a module that the placement is in: torch calls this, then the parts."""
        own = {name.removeprefix(prefix): state_dict.pop(name) for name in list(state_dict)}
        try:
            found = self.load_state_dict(own, strict=False)
        except PlacementError as error:
            error_msgs.append(str(error))
        else:
            missing_keys += (prefix + name for name in found.missing_keys)
            unexpected_keys += (prefix + name for name in found.unexpected_keys)
        # The parts are filled now: let torch find there what they hold.
        self.parts.state_dict(destination=state_dict, prefix=f"{prefix}parts.", keep_vars=True)
