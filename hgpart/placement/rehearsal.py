"""PartProgram -> Rehearsal: one forward pass on tensors without memory, and what it comes to."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hgpart.execution.engine import PartRun
from hgpart.execution.program import PartProgram
from hgpart.execution.totals import Traffic
from hgpart.execution.transfers import Transfer
from hgpart.placement.mode_programs import make_on

META = torch.device("meta")

_WeakStorage: Any = StorageWeakRef  # has no types


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What a part's forward pass comes to.

    Attributes
    ----------
    kept_bytes : int
        Of the memory that it takes and that is still held when it has ended, for the backward
        pass: each storage once, without parameters and buffers.
    macs : int
        Multiply-accumulates, as torch's flop counter counts them.
    sent : Traffic
        What the part sent; nothing of a backward pass.
    """

    kept_bytes: int
    macs: int
    sent: Traffic


def rehearse(program: PartProgram, k: int, values: Mapping[str, Any], batch_size: int) -> Rehearsal:
    """Run a part as the runtimes do, in grad mode.

    Parameters
    ----------
    program : PartProgram
    k : int
        Number of parts of the placement.
    values : mapping
        Placeholder name -> value; tensors are copied to the meta device.
    batch_size : int
        Of what the part receives.
    """
    module = _without_memory(program.module)
    own = {_WeakStorage(one.untyped_storage()) for one in _tensors(module)}
    with torch.enable_grad(), _Watch() as watch:
        here = {
            name: _like(value) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        if k == 1:  # ordinary autograd
            sent = Traffic.none(k)
            kept: Any = module(*(here[name] for name in _placeholders(module)))
        else:
            run = PartRun(
                PartProgram(program.part, module, program.transfers), _NoWire(batch_size), META, k
            )
            sent, kept = run.traffic, (run, run.forward(here))
        del here
        kept_bytes = watch.held_bytes(own)
        del kept
    return Rehearsal(kept_bytes, watch.macs, sent)


class _Watch(TorchDispatchMode):
    """Notes what operators compute, and which memory they take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0
        self._taken: dict[Any, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=made)
            self.macs += flops // 2
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._taken[_WeakStorage(storage)] = storage.nbytes()
        return made

    def held_bytes(self, others: set[Any]) -> int:
        """Of the storages that something still holds, but for some."""
        return sum(
            nbytes
            for storage, nbytes in self._taken.items()
            if not storage.expired() and storage not in others
        )


class _NoWire:
    """Delivers tensors of the right shapes."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Nobody waits for them."""

    def receive(self, transfer: Transfer) -> Sequence[Tensor]:
        return [
            torch.empty(one.shape(self.batch_size), dtype=one.dtype, device=META)
            for one in transfer.tensors
        ]

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        raise AssertionError("a rehearsal has no backward pass")

    receive_gradient = receive


def _without_memory(module: fx.GraphModule) -> fx.GraphModule:
    """A copy with all tensors on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        empty = _like(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = empty
    copied = copy.deepcopy(module, memo)
    make_on(copied, META)
    return copied


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


def _placeholders(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
