"""Programs + a model's state -> the tensors that parts hold: equal slices of a part are one.

What of a tensor that a part computes with belongs to it is a parameter, a view of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hgpart.errors import PlacementError
from hgpart.execution.weights.exchanges import Key
from hgpart.placement.building.blueprint import OWN
from hgpart.placement.cutting.slices import Slice, overlap
from hgpart.placement.mode_programs import make_on
from hgpart.placement.programs import Programs
from hgpart.placement.shares.exchanges import Holding, window
from hgpart.placement.state.original_state import Original, has_hooks

_Key = tuple[int, Key]  # part, Slice.key; of a constant the form as well


class HeldState:
    """The tensors of the parts that a process holds, of all modes and sizes of inputs.

    Attributes
    ----------
    original : mapping of str to Original
        The entries of the model's state_dict.
    unfilled : set of str
        Names of what was on the meta device, and is yet to be loaded.
    """

    def __init__(self, original: Mapping[str, Original]) -> None:
        self.original = original
        self.unfilled: set[str] = set()
        self._names = {one.held_as for one in original.values()}
        self._tensors: dict[_Key, torch.Tensor] = {}
        self._slices: dict[_Key, Slice] = {}
        self._copies: dict[_Key, Slice] = {}  # of what other parts have, or this part elsewhere
        self._windows: dict[_Key, tuple[_Key, tuple[slice, ...]]] = {}  # of own parts of copies
        self._by_name: dict[str, list[_Key]] | None = None  # keys of slices, found when asked for

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make it what another one is: of parameters torch makes copies apart."""
        self.__dict__.update(state)
        self.join()

    @property
    def names(self) -> set[str]:
        """What is held some of."""
        return {held.name for held in self._slices.values()}

    def holds(self, part: int, held: Slice) -> bool:
        """Whether a part has a slice of the model's state."""
        return (part, held.key) in self._tensors

    def of(self, part: int) -> Iterator[tuple[Slice, torch.Tensor]]:
        """What a part holds of the model's state_dict: each tensor once."""
        for (owner, key), held in self._slices.items():
            if owner == part and held.name in self._names:
                yield held, self._tensors[owner, key]

    def slices_of(self, name: str) -> list[torch.Tensor]:
        """What parts hold of an entry of the model's state_dict, part by part."""
        if name not in self.original:
            return []
        if self._by_name is None:
            self._by_name = {}
            for key, held in sorted(self._slices.items(), key=lambda item: item[0][0]):
                self._by_name.setdefault(held.name, []).append(key)
        return [self._tensors[key] for key in self._by_name.get(self.original[name].held_as, ())]

    def fill(
        self,
        programs: Programs,
        devices: Sequence[torch.device],
        state: Mapping[str, torch.Tensor],
    ) -> None:
        """Give submodules their tensors; those that are new are taken from a state."""
        blueprint = programs.blueprint
        traced = blueprint.traced
        fixed = {traced.buffers.get(name, name): value for name, value in traced.values.items()}
        known = {**fixed, **state}
        for part in programs.slices:
            module, device = programs.parts[part].module, devices[part]
            of_part = [*_keys(programs, part)]
            for name, held, key, is_copy in sorted(of_part, key=lambda one: not one[3]):
                owner, _, attribute = name.rpartition(".")
                step = module.get_submodule(owner)
                empty, learns = getattr(step, attribute), held.name in blueprint.trainable
                if key not in self._tensors:
                    full, view = known.get(held.name), None
                    if owner == OWN:  # else steps would see in it what comes to a copy
                        view = self._in_copy(key, held, [one for _, _, one, it in of_part if it])
                    if view is not None:
                        value = view
                    elif is_copy and full is None:  # the first pass fills it
                        value = torch.zeros(held.local_shape, dtype=empty.dtype, device=device)
                    else:
                        value = self._new(held, empty, full, device)
                    if is_copy:
                        value.requires_grad_(learns)
                    elif isinstance(empty, nn.Parameter):
                        value = nn.Parameter(value, learns)
                    self._tensors[key] = value
                    (self._copies if is_copy else self._slices)[key] = held
                    self._by_name = None
                if is_copy and isinstance(empty, nn.Parameter):  # no parameter of the model's
                    delattr(step, attribute)
                    step.register_buffer(attribute, self._tensors[key], persistent=False)
                setattr(step, attribute, self._tensors[key])
            module.to(device)
            make_on(module, device)
        self.join()

    def _in_copy(self, key: _Key, held: Slice, copies: Sequence[_Key]) -> torch.Tensor | None:
        """What belongs to a part, where it is some of a copy that it has anyway."""
        for copy in copies:
            place = window(self._copies[copy], held)
            if place is not None:
                self._windows[key] = copy, place
                return self._tensors[copy].detach()[place]
        return None

    def join(self) -> None:
        """Let what belongs to parts be some of their copies again, if it no longer is."""
        for key, (copy, place) in self._windows.items():
            own, view = self._tensors[key], self._tensors[copy].detach()[place]
            if own.data_ptr() != view.data_ptr():
                view.copy_(own.detach())  # in a stream it has become another
                own.data = view

    def _new(
        self, held: Slice, empty: torch.Tensor, full: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor:
        if full is None or full.is_meta:
            if held.name not in self._names and device.type != "meta":
                raise PlacementError(
                    f"{held.name} is on the meta device and no state_dict has it: accepted are "
                    "models that are built on another device"
                )
            self.unfilled.add(held.name)
            return torch.empty(held.local_shape, dtype=empty.dtype, device=device)
        return held.take(full).to(device)

    def follow(self, programs: Programs) -> None:
        """Take over what the submodules have since they were moved."""
        for part in programs.slices:
            for name, held, key, is_copy in _keys(programs, part):
                owner, _, attribute = name.rpartition(".")
                tensor = getattr(programs.parts[part].module.get_submodule(owner), attribute)
                if is_copy:  # torch moves them as buffers
                    tensor = tensor.detach()
                    tensor.requires_grad_(held.name in programs.blueprint.trainable)
                self._tensors[key] = tensor

    def forget(self, part: int, held: Slice) -> None:
        """Let go of a part's slice of the model's state."""
        self._windows.pop((part, held.key), None)
        self._tensors.pop((part, held.key), None)
        self._slices.pop((part, held.key), None)
        self._by_name = None

    def parameters_beside(self, programs: Programs) -> Iterator[tuple[int, Slice]]:
        """Parameters that parts hold, and that programs of a new mode make no use of."""
        used = {key for part in programs.slices for _, _, key, _ in _keys(programs, part)}
        for key, held in self._slices.items():
            if key not in used and isinstance(self._tensors[key], nn.Parameter):
                yield key[0], held

    def gathered(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Those of some tensors that are held, whole; of copies the first part's counts."""
        by_part = sorted(self._slices.items(), key=lambda item: item[0][0])
        return assembled((held, self._tensors[key]) for key, held in by_part if held.name in names)

    def check_filled(self) -> None:
        """Raise a PlacementError if state is yet to be loaded."""
        if self.unfilled:
            raise PlacementError(
                f"{min(self.unfilled)} has no value ({len(self.unfilled)} in all): the model was "
                "on the meta device, load a state_dict first"
            )

    def check_learning(self, programs: Programs) -> None:
        """Raise a PlacementError if a gradient would not be that of all shares of the batch."""
        for part in programs.parts:
            for held, tensor in self.of(part):
                if not tensor.requires_grad:
                    continue
                if held.name not in programs.blueprint.trainable:
                    raise PlacementError(
                        f"{held.name} requires a gradient, and did not when it was placed: "
                        "accepted in slices of the batch is to place the model anew"
                    )
                if has_hooks(tensor):
                    raise PlacementError(
                        f"a hook on {held.name}, whose gradient is added up from slices of the "
                        "batch: accepted are parameters without hooks, and passes without gradients"
                    )

    def check_values(self, state: Mapping[str, Any], beside: Collection[str]) -> None:
        """Raise a PlacementError if values of a state_dict are none of the model's.

        Of those that parts here have some of, or that are needed `beside` them.
        """
        names = self.names
        for name, one in self.original.items():
            if name not in state or (one.held_as not in names and name not in beside):
                continue
            value = state[name]
            if not isinstance(value, torch.Tensor):
                raise PlacementError(f"{name} is a {type(value).__name__}, expected a tensor")
            if tuple(value.shape) != one.shape:
                raise PlacementError(f"{name} has shape {tuple(value.shape)}, expected {one.shape}")

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the slices out of tensors of the model's state_dict."""
        given = {one.held_as: name for name, one in self.original.items() if name in state}
        self.unfilled -= given.keys()
        for key, held in (*self._slices.items(), *self._copies.items()):
            if held.name in given:
                self._tensors[key].copy_(held.take(state[given[held.name]]))

    def whole(self, held: Iterable[tuple[Slice, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The model's own state_dict, of what all parts hold; see `of`."""
        full = assembled(held)
        return {name: full[one.held_as] for name, one in self.original.items()}

    def holding(self, programs: Programs, part: int) -> Holding:
        """What a part has of the model's state, its own and what its program copies."""
        own = {key: held for (owner, key), held in self._slices.items() if owner == part}
        used = {key[1]: held for _, held, key, is_copy in _keys(programs, part) if is_copy}
        return Holding(own, used)

    def copies_of_steps(self, programs: Programs) -> dict[nn.Module, list[tuple[int, Key]]]:
        """By step, part and keys of the copies that it computes with."""
        found: dict[nn.Module, list[tuple[int, Key]]] = {}
        for part in programs.slices:
            for name, _, key, is_copy in _keys(programs, part):
                if is_copy:
                    step = programs.parts[part].module.get_submodule(name.rpartition(".")[0])
                    found.setdefault(step, []).append(key)
        return found

    def tensor(self, part: int, key: Key) -> torch.Tensor:
        """What a part holds under a key."""
        return self._tensors[part, key]

    def check_not_replaced(self, programs: Programs) -> None:
        """Raise a PlacementError if a submodule has another tensor in the place of a held one.

        As in `torch.func.functional_call`: copies would go on being like the held one.
        """
        for part in programs.slices:
            for name, held, key, _ in _keys(programs, part):
                owner, _, attribute = name.rpartition(".")
                step = programs.parts[part].module.get_submodule(owner)
                if getattr(step, attribute) is not self._tensors[key]:
                    raise PlacementError(
                        f"another tensor is in the place of {held.name}, of which other parts have "
                        "copies: accepted in slices of the batch are the placement's own "
                        "parameters, which load_state_dict and `p.data = ...` change"
                    )

    def check_coverage(self, slices: Iterable[Slice] | None = None) -> None:
        """Raise a PlacementError unless all parts together hold each parameter once.

        They hold `slices`, some of them in other processes; by default all that is here.
        """
        by_name: dict[str, list[Slice]] = {}
        for held in self._slices.values() if slices is None else slices:
            by_name.setdefault(held.name, []).append(held)
        for name, one in self.original.items():
            several, wanted = by_name.get(one.held_as, []), math.prod(one.shape)
            count = sum(math.prod(held.local_shape) for held in several)
            if one.parameter and (count != wanted or overlap(several)):
                raise PlacementError(
                    f"{name}: the parts hold {count} elements of {wanted}: accepted is each once"
                )


def assembled(held: Iterable[tuple[Slice, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Whole tensors by name, of slices; where several have an element the first counts."""
    full: dict[str, torch.Tensor] = {}
    for one, tensor in reversed([*held]):
        if one.name not in full:
            full[one.name] = torch.zeros(one.shape, dtype=tensor.dtype)
        one.put(full[one.name], tensor)
    return full


def _keys(programs: Programs, part: int) -> Iterator[tuple[str, Slice, _Key, bool]]:
    """Attribute, slice and key of all that a part's program has, and whether it is a copy.

    Constants of the code in one form are not another's.
    """
    traced = programs.blueprint.traced
    copies = programs.copies.get(part, frozenset())
    for name, held in programs.slices[part].items():
        key = (*held.key, *([traced.form] if held.name in traced.constants else []))
        is_copy = name in copies
        yield name, held, (part, ("copy", *key) if is_copy else key), is_copy
