"""PartProgram -> what its passes come to: they run on tensors without memory."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from hgpart.errors import PlacementError, first_line
from hgpart.execution.engine import PartRun
from hgpart.execution.held_memory import of_weights, storages
from hgpart.execution.instructions import prepare
from hgpart.execution.program import PartProgram
from hgpart.execution.recomputation import without_statistics
from hgpart.execution.records.totals import Traffic
from hgpart.execution.step_run import Part, StepRun, Updates
from hgpart.execution.weights.versions import Versions
from hgpart.operators.calls import argument_of
from hgpart.operators.table import record_of
from hgpart.placement.mode_programs import make_on
from hgpart.schedules.schedule import GO_BACK, Action, Direction, Piece

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

    Raises
    ------
    PlacementError
        If torch can't do that without memory.
    """
    module = _without_memory(program.module)
    own = {_WeakStorage(one.untyped_storage()) for one in _tensors(module)}
    with _refused(program.part), torch.enable_grad(), without_statistics(), _Watch() as watch:
        here = _here(values)
        if k == 1:  # ordinary autograd
            sent = Traffic.none(k)
            kept: Any = module(*(here[name] for name in _placeholders(module)))
        else:
            run = PartRun(
                PartProgram(program.part, module, program.transfers),
                _NoWires(program, batch_size),
                META,
                k,
            )
            sent, kept = run.traffic, (run, run.forward(here))
        del here
        kept_bytes = watch.held_bytes(own)
        del kept
    return Rehearsal(kept_bytes, watch.macs, sent)


@contextmanager
def _refused(part: int) -> Iterator[None]:
    """Say by name what torch can't do without memory: an operator may go by the values."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        why = first_line(error).split(". ")[0]
        raise PlacementError(
            f"what part {part} holds can't be computed, as an operator in it can't be run without "
            f"memory: {why}"
        ) from error


@dataclass(frozen=True)
class Moments:
    """What a micro-batch takes of memory in an action of a part, without weights.

    Attributes
    ----------
    held : tuple of int
        Bytes at each moment, as in `hgpart.execution.held_memory`.
    most : int
        The most at a time, with what operators make that is dropped before the action ends.
    sent : frozenset of (Direction, int)
        Direction (as in a `Piece`) and transfer of what it sends and still holds, in the same
        memory, when the action has ended.
    """

    held: tuple[int, ...]
    most: int
    sent: frozenset[tuple[Direction, int]]


class StepRehearsal:
    """What a part holds while it works on a micro-batch, action by action.

    Its methods raise a PlacementError if torch can't do that without memory.

    Parameters
    ----------
    program : PartProgram
    k : int
        Number of parts of the placement, more than one.
    """

    def __init__(self, program: PartProgram, k: int) -> None:
        module = _without_memory(program.module)
        self._program = PartProgram(program.part, module, program.transfers)
        self.part, self._k = program.part, k
        self._known: dict[Any, list[Moments]] = {}  # micro-batches that do alike hold alike

    def moments(
        self,
        values: Mapping[str, Any],
        samples: int,
        actions: Sequence[Action],
        others: int,
        recomputed: Collection[int],
    ) -> list[Moments]:
        """What each action comes to.

        Parameters
        ----------
        values : mapping
            Placeholder name -> value, for a micro-batch; tensors are copied to the meta device.
        samples : int
            Of the micro-batch.
        actions : sequence of Action
            All of one micro-batch, the first.
        others : int
            How many the step has besides.
        recomputed : collection of int
            Forward chunks that are computed again.
        """
        key = samples, tuple(actions), others > 0, tuple(recomputed)
        if key in self._known:
            return self._known[key]
        watch = _Watch()
        learns = any(action.direction in GO_BACK for action in actions)
        updates = None
        if any(action.direction is Direction.UPDATE for action in actions):
            versions = Versions(self._program.module, lambda: None, stash=True)
            updates = Updates(versions, lambda score: None)
        wires, most = _NoWires(self._program, samples), list[int]()
        held_pieces = list[frozenset[tuple[Direction, int]]]()

        def count(step: StepRun) -> int:
            besides = [*step.weights, *step.scores.values()]
            weights = {_WeakStorage(one.untyped_storage()) for one in besides}
            most.append(watch.most_bytes(weights))
            held_pieces.append(wires.held_pieces())
            return watch.held_bytes(weights)

        refused, learning = _refused(self.part), torch.set_grad_enabled(learns)
        with refused, learning, without_statistics(), watch:
            step = _OneOfMany(
                Part(self._program, META, self._k),
                map(_here, [values]),
                score=_sum,
                recomputed=recomputed,
                updates=updates,
                count=count,
            )
            step.others = others
            step.run(actions, wires)
        found, at = [], 0
        for counts in step.counts:
            until = at + len(counts)
            pieces = frozenset(chain.from_iterable(held_pieces[at:until]))
            found.append(Moments(tuple(counts), max(most[at:until]), pieces))
            at = until
        self._known[key] = found
        return found

    def worth_recomputing(self, values: Mapping[str, Any], samples: int) -> frozenset[int]:
        """Forward chunks of which what they read takes less than what backward needs of them.

        Each memory counts once, whatever chunks hold it, at the end of the forward pass: chunk by
        chunk, it is computed again if that leaves less.
        """
        run = PartRun(self._program, _NoWires(self._program, samples), META, self._k)
        alive, reads, keeps = [], list[dict[int, int]](), list[dict[int, int]]()
        with _refused(self.part), torch.enable_grad(), without_statistics(), _Watch():
            run.begin(_here(values))
            for chunk in range(len(prepare(self._program).forward)):
                found = run.note_forward(chunk)
                alive.append(found)  # so that no other memory comes to lie where theirs was
                reads.append({} if found is None else storages(found.held))
                kept = [] if found is None else [run.saved.get(one) for one in found.instructions]
                keeps.append(storages(kept))
        weights = storages(of_weights(self._program.module)).keys()
        return _least(reads, [_without(kept, weights) for kept in keeps])


class _OneOfMany(StepRun):
    """What is left for the end of a step stays, as after any micro-batch but the last."""

    others = 0  # micro-batches that the step has besides

    def _add_products(self) -> None:
        pass

    def _has_several(self, micro_batches: int) -> bool:
        return super()._has_several(micro_batches + self.others)


def _least(
    reads: Sequence[Mapping[int, int]], keeps: Sequence[Mapping[int, int]]
) -> frozenset[int]:
    """Which of the chunks to keep what they read of.

    >>> sorted(_least([{1: 10}, {2: 10}], [{1: 10, 2: 20}, {3: 5}]))
    [0]
    """
    holders = Counter(chain.from_iterable(keeps))
    chosen = set()
    for chunk, (read, kept) in enumerate(zip(reads, keeps, strict=True)):
        freed = sum(size for at, size in kept.items() if holders[at] == 1 and at not in read)
        taken = sum(size for at, size in read.items() if holders[at] == 0)
        if freed > taken:
            chosen.add(chunk)
            holders.subtract(kept.keys())
            holders.update(read.keys())
    return frozenset(chosen)


def _without(held: Mapping[Any, int], others: Collection[Any]) -> dict[Any, int]:
    return {at: size for at, size in held.items() if at not in others}


def _here(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies without memory."""
    return {
        name: _like(value) if isinstance(value, Tensor) else value for name, value in values.items()
    }


def _no_update() -> None:
    """Weights without memory have nothing to change."""


def _sum(micro_batch: int, results: Sequence[Tensor]) -> Tensor:
    """A loss of all results."""
    terms = [one.sum().float() for one in results if one.requires_grad]
    return torch.stack(terms).sum() if terms else torch.zeros((), device=META)


class _Watch(TorchDispatchMode):
    """Notes what operators compute, and which memory they take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0
        self._taken: dict[Any, int] = {}
        self._before: dict[Any, int] = {}  # what was taken when it was last asked for the most
        self._changes: list[tuple[Any, int]] = []  # since then: memory that was taken, or freed

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._note_freed()
        made = func(*args, **(kwargs or {}))
        if record_of(func).is_batch_norm and not argument_of(func, args, kwargs or {}, "training"):
            # What it saves of the batch for backward, which autograd keeps: nothing on a CPU, where
            # it goes by running statistics, but without memory a number of each channel.
            made = made[0], *(one.new_empty(0) for one in made[1:3]), *made[3:]
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=made)
            self.macs += flops // 2
        for tensor in pytree.tree_leaves(made):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                memory, size = _WeakStorage(storage), storage.nbytes()
                self._changes.append((memory, size - self._taken.get(memory, 0)))
                self._taken[memory] = size
        return made

    def _note_freed(self) -> None:
        for memory in [one for one in self._taken if one.expired()]:
            self._changes.append((memory, -self._taken.pop(memory)))

    def held_bytes(self, others: set[Any]) -> int:
        """Of the storages that something still holds, but for some."""
        self._note_freed()
        return sum(_without(self._taken, others).values())

    def most_bytes(self, others: set[Any]) -> int:
        """The most that was held at a time since this was last asked, but for some."""
        self._note_freed()
        changes = (size for memory, size in self._changes if memory not in others)
        before = sum(_without(self._before, others).values())
        self._before, self._changes = {**self._taken}, []
        return max(accumulate(changes, initial=before))


class _NoWires:
    """Delivers tensors of the right shapes, without memory."""

    def __init__(self, program: PartProgram, samples: int) -> None:
        self._transfers, self._samples = program.transfers, samples
        self._sent: list[tuple[tuple[Direction, int], list[Any]]] = []

    def held_pieces(self) -> frozenset[tuple[Direction, int]]:
        """What somebody still holds of what was sent since this was last asked."""
        held = frozenset(
            one for one, memory in self._sent if not all(at.expired() for at in memory)
        )
        self._sent.clear()
        return held

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Nobody waits for them."""
        memory = [_WeakStorage(one.untyped_storage()) for one in tensors]
        self._sent.append(((piece.direction, piece.number), memory))

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Make them."""
        return [
            torch.empty(one.shape(self._samples), dtype=one.dtype, device=META)
            for one in self._transfers[piece.number].tensors
        ]

    def settle(self) -> bool:
        """Nothing departs."""
        return False

    def stop(self) -> None:
        """Nobody waits."""


def _without_memory(module: fx.GraphModule) -> fx.GraphModule:
    """A copy with all tensors on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        empty = _like(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:  # a copy of a parameter, that no part of the model's is
            empty.requires_grad_()
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
