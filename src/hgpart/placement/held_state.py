"""Programs + a model's state -> the tensors that parts hold; a part's equal slices are one tensor.

If a part owns some of a tensor that it computes with, that is a parameter and a view of it.
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

_Key = tuple[int, Key]  # part, Slice.key; for constants with the form


class HeldState:
    """The tensors of the parts that a process holds, for all forms.

    Attributes
    ----------
    original : mapping of str to Original
        Entries of the model's state_dict.
    unfilled : set of str
        Names of tensors that were on the meta device and are still to be loaded.
    """

    def __init__(self, original: Mapping[str, Original]) -> None:
        self.original = original
        self.unfilled: set[str] = set()
        self._names = {entry.held_as for entry in original.values()}
        self._tensors: dict[_Key, torch.Tensor] = {}
        self._slices: dict[_Key, Slice] = {}
        self._copies: dict[_Key, Slice] = {}  # of other parts' slices, or of this part's own
        self._windows: dict[_Key, tuple[_Key, tuple[slice, ...]]] = {}  # own slices within copies
        self._by_name: dict[str, list[_Key]] | None = None  # keys of slices, built when needed

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, in which torch has separated parameters that were views."""
        self.__dict__.update(state)
        self.join()

    @property
    def names(self) -> set[str]:
        """Names of all that parts hold some of."""
        return {held.name for held in self._slices.values()}

    def holds(self, part: int, held: Slice) -> bool:
        """Whether a part holds a slice."""
        return (part, held.key) in self._tensors

    def of(self, part: int) -> Iterator[tuple[Slice, torch.Tensor]]:
        """The slices of the model's state_dict that a part holds: each tensor once."""
        for (owner, key), held in self._slices.items():
            if owner == part and held.name in self._names:
                yield held, self._tensors[owner, key]

    def slices_of(self, name: str) -> list[torch.Tensor]:
        """The slices of an entry of the model's state_dict, part by part."""
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
        """Give submodules their tensors; new ones are taken from a state."""
        blueprint = programs.blueprint
        traced = blueprint.traced
        fixed = {traced.buffers.get(name, name): value for name, value in traced.values.items()}
        known = {**fixed, **state}
        for part in programs.slices:
            module, device = programs.parts[part].module, devices[part]
            of_part = [*_keys(programs, part)]
            for name, held, key, is_copy in sorted(of_part, key=lambda item: not item[3]):
                owner, _, attribute = name.rpartition(".")
                step = module.get_submodule(owner)
                empty, learns = getattr(step, attribute), held.name in blueprint.trainable
                if key not in self._tensors:
                    full, view = known.get(held.name), None
                    if owner == OWN:  # else steps would see in it what arrives for a copy
                        keys_of_copies = [copy_key for _, _, copy_key, copied in of_part if copied]
                        view = self._in_copy(key, held, keys_of_copies)
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
                # Copies are not the model's parameters.
                if is_copy and isinstance(empty, nn.Parameter):
                    delattr(step, attribute)
                    step.register_buffer(attribute, self._tensors[key], persistent=False)
                setattr(step, attribute, self._tensors[key])
            module.to(device)
            make_on(module, device)
        self.join()

    def _in_copy(self, key: _Key, held: Slice, copies: Sequence[_Key]) -> torch.Tensor | None:
        """A view of the own slice in a copy that the part has anyway, if it is within one."""
        for copy in copies:
            place = window(self._copies[copy], held)
            if place is not None:
                self._windows[key] = copy, place
                return self._tensors[copy].detach()[place]
        return None

    def join(self) -> None:
        """Make own slices views of copies again, where they no longer are."""
        for key, (copy, place) in self._windows.items():
            own, view = self._tensors[key], self._tensors[copy].detach()[place]
            if own.data_ptr() != view.data_ptr():
                view.copy_(own.detach())  # a stream has replaced it
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
        """Take over the tensors of the submodules after they were moved."""
        for part in programs.slices:
            for name, held, key, is_copy in _keys(programs, part):
                owner, _, attribute = name.rpartition(".")
                tensor = getattr(programs.parts[part].module.get_submodule(owner), attribute)
                if is_copy:  # torch moves them as buffers
                    tensor = tensor.detach()
                    tensor.requires_grad_(held.name in programs.blueprint.trainable)
                self._tensors[key] = tensor

    def forget(self, part: int, held: Slice) -> None:
        """Forget a part's slice."""
        self._windows.pop((part, held.key), None)
        self._tensors.pop((part, held.key), None)
        self._slices.pop((part, held.key), None)
        self._by_name = None

    def parameters_beside(self, programs: Programs) -> Iterator[tuple[int, Slice]]:
        """Parameters that parts hold and that the programs of a new form do not use."""
        used = {key for part in programs.slices for _, _, key, _ in _keys(programs, part)}
        for key, held in self._slices.items():
            if key not in used and isinstance(self._tensors[key], nn.Parameter):
                yield key[0], held

    def gathered(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Some of the held tensors as a whole; of several copies the first part's counts."""
        by_part = sorted(self._slices.items(), key=lambda item: item[0][0])
        return assembled((held, self._tensors[key]) for key, held in by_part if held.name in names)

    def check_filled(self) -> None:
        """Raise a PlacementError if some state is still to be loaded."""
        if self.unfilled:
            raise PlacementError(
                f"{min(self.unfilled)} has no value ({len(self.unfilled)} in all): the model was "
                "on the meta device, load a state_dict first"
            )

    def check_learning(self, programs: Programs) -> None:
        """Raise a PlacementError if a gradient would not be that of all tiles."""
        for part in programs.parts:
            for held, tensor in self.of(part):
                if not tensor.requires_grad:
                    continue
                if held.name not in programs.blueprint.trainable:
                    raise PlacementError(
                        f"{held.name} requires a gradient, and did not when it was placed: "
                        "accepted in slices or bands is placing the model again"
                    )
                if has_hooks(tensor):
                    raise PlacementError(
                        f"a hook on {held.name}, whose gradient is added up from slices or bands: "
                        "accepted are parameters without hooks, and passes without gradients"
                    )

    def check_values(self, state: Mapping[str, Any], beside: Collection[str]) -> None:
        """Raise a PlacementError if values of a state_dict do not fit the model.

        Only names are checked that parts in this process hold some of, or that are in `beside`.
        """
        names = self.names
        for name, entry in self.original.items():
            if name not in state or (entry.held_as not in names and name not in beside):
                continue
            value = state[name]
            if not isinstance(value, torch.Tensor):
                raise PlacementError(f"{name} is a {type(value).__name__}, expected a tensor")
            if tuple(value.shape) != entry.shape:
                raise PlacementError(
                    f"{name} has shape {tuple(value.shape)}, expected {entry.shape}"
                )

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the slices out of tensors of the model's state_dict."""
        given = {entry.held_as: name for name, entry in self.original.items() if name in state}
        self.unfilled -= given.keys()
        for key, held in (*self._slices.items(), *self._copies.items()):
            if held.name in given:
                self._tensors[key].copy_(held.take(state[given[held.name]]))

    def whole(self, held: Iterable[tuple[Slice, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The model's own state_dict, given what all parts hold; see `of`."""
        full = assembled(held)
        return {name: full[entry.held_as] for name, entry in self.original.items()}

    def holding(self, programs: Programs, part: int) -> Holding:
        """What a part holds of the model's state: its own slices, and copies for its program."""
        own = {key: held for (owner, key), held in self._slices.items() if owner == part}
        used = {key[1]: held for _, held, key, is_copy in _keys(programs, part) if is_copy}
        return Holding(own, used)

    def copies_of_steps(self, programs: Programs) -> dict[nn.Module, list[tuple[int, Key]]]:
        """Part and key of the copies that each step computes with."""
        by_step: dict[nn.Module, list[tuple[int, Key]]] = {}
        for part in programs.slices:
            for name, _, key, is_copy in _keys(programs, part):
                if is_copy:
                    step = programs.parts[part].module.get_submodule(name.rpartition(".")[0])
                    by_step.setdefault(step, []).append(key)
        return by_step

    def tensor(self, part: int, key: Key) -> torch.Tensor:
        """The tensor that a part holds under a key."""
        return self._tensors[part, key]

    def check_not_replaced(self, programs: Programs) -> None:
        """Raise a PlacementError if a submodule has another tensor in place of a held one.

        `torch.func.functional_call` does that: copies would still equal the held tensor.
        """
        for part in programs.slices:
            for name, held, key, _ in _keys(programs, part):
                owner, _, attribute = name.rpartition(".")
                step = programs.parts[part].module.get_submodule(owner)
                if getattr(step, attribute) is not self._tensors[key]:
                    raise PlacementError(
                        f"another tensor is in the place of {held.name}, of which other parts have "
                        "copies: accepted in slices or bands are the placement's own "
                        "parameters, which load_state_dict and `p.data = ...` change"
                    )

    def check_coverage(self, slices: Iterable[Slice] | None = None) -> None:
        """Raise a PlacementError unless all parts together hold each parameter once.

        They hold `slices`, some of them in other processes. Default: all slices in this process.
        """
        by_name: dict[str, list[Slice]] = {}
        for held in self._slices.values() if slices is None else slices:
            by_name.setdefault(held.name, []).append(held)
        for name, entry in self.original.items():
            slices_of_name, wanted = by_name.get(entry.held_as, []), math.prod(entry.shape)
            count = sum(math.prod(held.local_shape) for held in slices_of_name)
            if entry.parameter and (count != wanted or overlap(slices_of_name)):
                raise PlacementError(
                    f"{name}: the parts hold {count} elements of {wanted}: accepted is each once"
                )


def assembled(held: Iterable[tuple[Slice, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Whole tensors by name, from slices; if several have an element, the first counts."""
    full: dict[str, torch.Tensor] = {}
    for piece, tensor in reversed([*held]):
        if piece.name not in full:
            full[piece.name] = torch.zeros(piece.shape, dtype=tensor.dtype)
        piece.put(full[piece.name], tensor)
    return full


def _keys(programs: Programs, part: int) -> Iterator[tuple[str, Slice, _Key, bool]]:
    """Attribute, slice and key of all that a part's program holds, and whether it is a copy.

    Constants of the code are not shared between forms.
    """
    traced = programs.blueprint.traced
    copies = programs.copies.get(part, frozenset())
    for name, held in programs.slices[part].items():
        key = (*held.key, *([traced.form] if held.name in traced.constants else []))
        is_copy = name in copies
        yield name, held, (part, ("copy", *key) if is_copy else key), is_copy
