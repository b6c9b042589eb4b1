"""Optimizer of parts <-> its state by the names of the model's parameters, as for the whole model.

The state is that of `torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`: it fits the
model itself, placed or not, with any plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hgpart.errors import ArgumentError
from hgpart.placement import Placement
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.held_state import assembled
from hgpart.run.distributed import in_processes
from hgpart.run.processes.begun import JointCall

State = dict[str, Any]


def gathered_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State | None:
    """The state of an optimizer of a model's parts, as of the model itself, on the CPU.

    Parameters
    ----------
    model : nn.Module
        Any module, a `Placement`, or a `DistributedModel`, for which all processes call it.
    optimizer : torch.optim.Optimizer
        Has parameters of the model, in groups that are the same in all processes.

    Returns
    -------
    dict or None
        ``state``: for each parameter's name the whole tensors and numbers that the optimizer keeps
        for it. ``param_groups``: settings of each group, with the names of its parameters. None on
        all ranks but the first.

    Raises
    ------
    ArgumentError
        If the optimizer has a tensor that is no parameter of the model, keeps something that has
        neither the shape of the parameter nor one element, or has other groups on other ranks.
    """
    names = {id(tensor): held for held, tensor in _held(model)}
    here: list[tuple[Slice, str, Any]] = []
    groups: list[State] = []
    for number, group in enumerate(optimizer.param_groups):
        settings = {key: value for key, value in group.items() if key != "params"}
        slices = [_slice_of(tensor, names, number) for tensor in group["params"]]
        groups.append({**settings, "params": [held.name for held in slices]})
        for held, tensor in zip(slices, group["params"], strict=True):
            for kind, value in optimizer.state.get(tensor, {}).items():
                _check(held, kind, value, tensor)
                own = value.detach().cpu() if isinstance(value, Tensor) else value
                here.append((held, kind, own))
    parts = [(here, groups)]
    if (whole := in_processes(model)) is not None:
        collected = whole.connection.collect((here, groups), JointCall.OPTIMIZER_STATE)
        if collected is None:
            return None
        parts = collected
    return {"state": _whole(chain(*(kept for kept, _ in parts))), "param_groups": _joined(parts)}


def load_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Load the state of `gathered_optimizer_state` into an optimizer of a model's parts.

    Each part takes its slices. Parameters may be in other groups than they were.

    Parameters
    ----------
    state : mapping
        A state by names, of this model placed by any plan or not at all.

    Raises
    ------
    ArgumentError
        If the state is not one by names, or is of a model with other shapes.
    """
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise ArgumentError(
            f"an optimizer's state of {_said(state)}: accepted is what "
            "hgpart.gathered_optimizer_state returns, with state and param_groups"
        )
    by_name, names = state["state"], {id(tensor): held for held, tensor in _held(model)}
    settings = {name: group for group in state["param_groups"] for name in group["params"]}
    loaded: dict[Tensor, State] = {}
    for number, group in enumerate(optimizer.param_groups):
        slices = [_slice_of(tensor, names, number) for tensor in group["params"]]
        given = next((settings[held.name] for held in slices if held.name in settings), None)
        if given is None and number < len(state["param_groups"]):  # no parameter of it is here
            given = state["param_groups"][number]
        # "whole" is of this process's parameters; see `hgpart.param_groups`.
        ours = ("params", "whole")
        group.update({key: value for key, value in (given or {}).items() if key not in ours})
        on_device = bool(group.get("fused") or group.get("capturable"))
        for held, tensor in zip(slices, group["params"], strict=True):
            if held.name in by_name:
                loaded[tensor] = {
                    kind: _own(held, kind, value, tensor, on_device)
                    for kind, value in by_name[held.name].items()
                }
    optimizer.state.clear()
    optimizer.state.update(loaded)


def _held(model: nn.Module) -> Iterator[tuple[Slice, Tensor]]:
    """The parameters here, and the elements of the model's parameters that they are."""
    whole = in_processes(model)
    placement = model if whole is None else whole.placement
    if isinstance(placement, Placement):
        for part in placement.programs.parts:
            yield from placement.held(part)
    else:
        for name, tensor in model.named_parameters():
            yield Slice(name, tuple(tensor.shape)), tensor


def _slice_of(tensor: Tensor, names: Mapping[int, Slice], group: int) -> Slice:
    if id(tensor) not in names:
        raise ArgumentError(
            f"group {group} has a tensor of shape {tuple(tensor.shape)} that is no parameter of "
            "the model: accepted is an optimizer of model.parameters()"
        )
    return names[id(tensor)]


def _check(held: Slice, kind: str, value: Any, tensor: Tensor) -> None:
    if isinstance(value, Tensor) and value.numel() != 1 and value.shape != tensor.shape:
        raise ArgumentError(
            f"the optimizer keeps {kind} of shape {tuple(value.shape)} for {held.name}, of which "
            f"{tuple(tensor.shape)} is here: accepted are tensors of the same shape, and numbers"
        )


def _whole(kept: Iterator[tuple[Slice, str, Any]]) -> dict[str, State]:
    """What is kept for each parameter, put together from its slices."""
    pieces: dict[str, list[tuple[Slice, Tensor]]] = {}
    whole: dict[str, State] = {}
    for held, kind, value in kept:
        if isinstance(value, Tensor) and value.shape == held.local_shape and held.shape:
            pieces.setdefault(kind, []).append((held, value))
        else:  # a number of steps, which all slices have alike
            whole.setdefault(held.name, {})[kind] = value
    for kind, of_kind in pieces.items():
        for name, tensor in assembled(of_kind).items():
            whole.setdefault(name, {})[kind] = tensor
    return whole


def _joined(parts: list[tuple[Any, list[State]]]) -> list[State]:
    """The groups of all ranks, each with the names of all of its parameters."""
    counts = {len(groups) for _, groups in parts}
    if len(counts) > 1:
        raise ArgumentError(
            f"optimizers of {' and '.join(map(str, sorted(counts)))} groups on the ranks: accepted "
            "are the same groups on all, some of which may be empty"
        )
    joined = []
    for of_ranks in zip(*(groups for _, groups in parts), strict=True):
        names = chain(*(group["params"] for group in of_ranks))
        joined.append({**of_ranks[0], "params": [*dict.fromkeys(names)]})
    return joined


def _own(held: Slice, kind: str, value: Any, tensor: Tensor, on_device: bool) -> Any:
    """What a part keeps of a parameter's value, in the parameter's type, as torch loads it."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return value.to(tensor.device, copy=True) if on_device else value.clone()
    if tuple(value.shape) != held.shape:
        raise ArgumentError(
            f"{kind} of {held.name} has shape {tuple(value.shape)}: accepted is {held.shape}"
        )
    dtype = tensor.dtype if value.is_floating_point() else value.dtype
    return held.take(value).to(tensor.device, dtype)


def _said(state: Any) -> str:
    return ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
