"""Programs + a model's state -> the tensors that parts hold: equal slices of a part are one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

from hgpart.errors import PlacementError
from hgpart.placement.cutting.slices import Slice, overlap
from hgpart.placement.mode_programs import Programs, make_on
from hgpart.placement.state.original_state import Original

_Key = tuple[int, tuple[object, ...]]  # part, Slice.key; of a constant the mode as well


class HeldState:
    """The tensors of the parts that a process holds, of all modes.

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
        for part, slices in programs.slices.items():
            module, device = programs.programs[part].module, devices[part]
            for name, held in slices.items():
                key = _key(programs, part, held)
                owner, _, attribute = name.rpartition(".")
                step = module.get_submodule(owner)
                if key not in self._tensors:
                    value = self._new(held, getattr(step, attribute), known.get(held.name), device)
                    if isinstance(getattr(step, attribute), nn.Parameter):
                        value = nn.Parameter(value, held.name in blueprint.trainable)
                    self._tensors[key], self._slices[key] = value, held
                setattr(step, attribute, self._tensors[key])
            module.to(device)
            make_on(module, device)

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
        for part, slices in programs.slices.items():
            for name, held in slices.items():
                owner, _, attribute = name.rpartition(".")
                module = programs.programs[part].module.get_submodule(owner)
                self._tensors[_key(programs, part, held)] = getattr(module, attribute)

    def forget(self, part: int, held: Slice) -> None:
        """Let go of a part's slice of the model's state."""
        self._tensors.pop((part, held.key), None)
        self._slices.pop((part, held.key), None)

    def parameters_beside(self, programs: Programs) -> Iterator[tuple[int, Slice]]:
        """Parameters that parts hold, and that programs of a new mode make no use of."""
        used = {(part, one.key) for part, held in programs.slices.items() for one in held.values()}
        for key, held in self._slices.items():
            if key not in used and isinstance(self._tensors[key], nn.Parameter):
                yield key[0], held

    def gathered(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Those of some tensors that are held, whole; of copies the first part's counts."""
        full: dict[str, torch.Tensor] = {}
        held_by = sorted(self._slices.items(), key=lambda item: item[0][0], reverse=True)
        for key, held in held_by:
            if held.name in names:
                if held.name not in full:
                    full[held.name] = torch.zeros(held.shape, dtype=self._tensors[key].dtype)
                held.put(full[held.name], self._tensors[key])
        return full

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the slices out of tensors of the model's state_dict."""
        given = {one.held_as: name for name, one in self.original.items() if name in state}
        self.unfilled -= given.keys()
        for key, held in self._slices.items():
            if held.name in given:
                self._tensors[key].copy_(held.take(state[given[held.name]]))

    def check_coverage(self) -> None:
        """Raise a PlacementError unless all parts together hold each parameter once."""
        slices: dict[str, list[Slice]] = {}
        for held in self._slices.values():
            slices.setdefault(held.name, []).append(held)
        for name, one in self.original.items():
            several, wanted = slices.get(one.held_as, []), math.prod(one.shape)
            count = sum(math.prod(held.local_shape) for held in several)
            if one.parameter and (count != wanted or overlap(several)):
                raise PlacementError(
                    f"{name}: the parts hold {count} elements of {wanted}: accepted is each once"
                )


def _key(programs: Programs, part: int, held: Slice) -> _Key:
    """What a part's tensor is known by: constants of the code of one mode are not the other's."""
    traced = programs.blueprint.traced
    return part, (*held.key, *([traced.training] if held.name in traced.constants else []))
