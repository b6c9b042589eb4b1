"""PartProgram -> figures of its passes, which are run on tensors without memory."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from hgpart.execution.instructions import Compute, prepare
from hgpart.execution.program import PartProgram
from hgpart.execution.recomputation import Made, without_statistics
from hgpart.execution.records.totals import Traffic
from hgpart.execution.step_run import PartOnDevice, StepRun, Updates
from hgpart.execution.weights.versions import Versions
from hgpart.operators.calls import argument_of
from hgpart.operators.table import record_of
from hgpart.placement.mode_programs import make_on
from hgpart.schedules.outline import Stretch
from hgpart.schedules.schedule import GO_BACK, Action, Direction, Piece
from hgpart.work.convolution_memory import working_bytes

META = torch.device("meta")

Memory = Mapping[int, int]  # bytes by address

_WeakStorage: Any = StorageWeakRef  # has no types
_has_expired: Any = torch.UntypedStorage._expired


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Figures of a part's forward pass.

    Attributes
    ----------
    kept_bytes : int
        Bytes that it allocates and still holds at its end for the backward pass: each storage once,
        without parameters and buffers.
    most_bytes : int
        The most bytes at a time, without parameters and buffers; with gradients of parameters, from
        when they are computed on.
    macs : int
        Multiply-accumulates, as torch's flop counter counts them.
    sent : Traffic
        What the part sends in the forward pass.
    """

    kept_bytes: int
    most_bytes: int
    macs: int
    sent: Traffic


def rehearse(
    program: PartProgram,
    k: int,
    values: Mapping[str, Any],
    batch_size: int,
    on_cpu: bool = True,
    learns: bool = False,
    *,
    again: bool = False,
) -> Rehearsal:
    """Run a part as the runtimes do, in grad mode.

    Parameters
    ----------
    k : int
        Number of parts of the placement.
    values : mapping
        Values by placeholder name; tensors are copied to the meta device.
    batch_size : int
        Samples of what the part receives.
    on_cpu : bool
        Whether the part is to run on a CPU.
    learns : bool
        Whether a model in one part also goes back, from a loss of all results.
    again : bool
        Whether parameters have gradients already, which then do not count.

    Raises
    ------
    PlacementError
        If torch can't run it without memory.
    """
    module = _without_memory(program.module)
    _begin_gradients(module, again=again)
    own = _memory(of_weights(module))
    watch = _MemoryWatch(on_cpu)
    with _refused(program.part), torch.enable_grad(), without_statistics(), watch:
        here = _here(values)
        if k == 1:  # ordinary autograd
            sent = Traffic.none(k)
            kept: Any = module(*(here[name] for name in _placeholders(module)))
        else:
            run = PartRun(
                PartProgram(program.part, module, program.transfers),
                _NoChannel(program, batch_size),
                META,
                k,
            )
            sent, kept = run.traffic, (run, run.forward(here))
        del here
        kept_bytes, macs = watch.held_bytes(own), watch.macs
        if learns and (score := _sum(0, pytree.tree_leaves(kept))).requires_grad:
            del kept
            score.backward()  # type: ignore[no-untyped-call]
        most_bytes = watch.most_bytes(own)
    return Rehearsal(kept_bytes, most_bytes, macs, sent)


@contextmanager
def _refused(part: int) -> Iterator[None]:
    """Name the part that torch can't run without memory, as an operator may depend on values."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        why = first_line(error).split(". ")[0]
        raise PlacementError(
            f"what part {part} holds can't be counted, as an operator in it can't be run without "
            f"memory: {why}"
        ) from error


@dataclass(frozen=True)
class Moments:
    """Memory of a micro-batch in an action of a part, without weights.

    Attributes
    ----------
    held : tuple of int
        Bytes at each moment, as in `hgpart.execution.held_memory`.
    most, end : int
        The most bytes at a time, including what operators make and drop before the action ends, and
        those at its end; both with gradients of weights that this micro-batch was first to have.
    sent : frozenset of (Direction, int)
        Direction (as in a `Piece`) and transfer of what it sends and still holds in the same memory
        at the end of the action.
    offloaded : int
        Bytes that it writes to slower memory or reads from there.
    elsewhere : int
        Bytes that are in slower memory at its end.
    """

    held: tuple[int, ...]
    most: int
    end: int
    sent: frozenset[tuple[Direction, int]]
    offloaded: int
    elsewhere: int


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The memory of an instruction of a part's program, for a micro-batch.

    Attributes
    ----------
    name : str
        Name of the step; "" for what sends, receives and packs.
    reads : mapping of int to Memory
        The values that it reads, by slot.
    makes : frozenset of int
        Slots of the values that it makes.
    kept : Memory
        What its graph keeps for backward.
    live : Memory
        The values that later instructions read.
    forward_bytes, backward_bytes : int
        The most bytes that it takes while it works, besides what it and all before it keep, and,
        forward, the values that later instructions read; backward also gradients of the weights of
        all behind it.
    inputs : collection of int
        Addresses of the batch's own memory, which the caller has meanwhile.
    """

    name: str
    reads: Mapping[int, Memory]
    makes: frozenset[int]
    kept: Memory
    live: Memory
    forward_bytes: int
    backward_bytes: int
    inputs: Collection[int] = frozenset()


class StepRehearsal:
    """Memory of a part while it works on a micro-batch, action by action.

    Its methods raise a PlacementError if torch can't run the part without memory.

    Parameters
    ----------
    k : int
        Number of parts of the placement, more than one.
    on_cpu : bool
        Whether the part is to run on a CPU.
    """

    def __init__(self, program: PartProgram, k: int, on_cpu: bool = True) -> None:
        module = _without_memory(program.module)
        self._program = PartProgram(program.part, module, program.transfers)
        self.part, self._k, self._on_cpu = program.part, k, on_cpu
        self._known: dict[Any, list[Moments]] = {}  # equal micro-batches hold equal amounts

    def moments(
        self,
        values: Mapping[str, Any],
        samples: int,
        actions: Sequence[Action],
        others: int,
        dropped: Sequence[Stretch],
        *,
        again: bool = False,
    ) -> list[Moments]:
        """Memory in each action.

        Parameters
        ----------
        values : mapping
            Values by placeholder name, for a micro-batch; tensors are copied to the meta device.
        samples : int
            Samples of the micro-batch.
        actions : sequence of Action
            All actions of one micro-batch, numbered as the first.
        others : int
            Number of other micro-batches in the step.
        dropped : sequence of Stretch
            Stretches that are recomputed or offloaded.
        again : bool
            Whether weights have gradients already, to which this micro-batch adds.
        """
        key = samples, tuple(actions), others > 0, tuple(dropped), again
        if key in self._known:
            return self._known[key]
        _begin_gradients(self._program.module, again=again)
        own = of_weights(self._program.module)
        watch = _MemoryWatch(self._on_cpu)
        learns = any(action.direction in GO_BACK for action in actions)
        versions: Versions | None = None
        if any(action.direction is Direction.UPDATE for action in actions):
            versions = Versions([self._program.module], lambda: None, stash=True)
        channel = _NoChannel(self._program, samples)
        most, ends, moved, elsewhere = (list[int]() for _ in range(4))
        slower = _NoSlowerMemory()
        held_pieces = list[frozenset[tuple[Direction, int]]]()

        def count(step: StepRun) -> int:
            scores = [*step.scores.values()]
            leaves = [] if versions is None else versions.leaves_in_flight
            without_gradients = _memory([*own, *leaves, *scores])
            most.append(watch.most_bytes(without_gradients))
            ends.append(watch.held_bytes(without_gradients))
            held_pieces.append(channel.held_pieces())
            moved.append(slower.moved_since())
            elsewhere.append(slower.nbytes)
            return watch.held_bytes(_memory([*step.weights, *scores]))

        refused, learning = _refused(self.part), torch.set_grad_enabled(learns)
        with refused, learning, without_statistics(), watch:
            step = _OneOfMany(
                PartOnDevice((self._program,), META, self._k, slower),
                map(_here, [values]),
                score=_sum,
                dropped=dropped,
                updates=None if versions is None else Updates(versions, lambda score: None),
                count=count,
            )
            step.others = others
            step.run(actions, channel)
        by_action, begin = [], 0
        for counts in step.counts:
            end = begin + len(counts)
            pieces = frozenset(chain.from_iterable(held_pieces[begin:end]))
            facts = max(most[begin:end]), ends[end - 1], pieces
            there = sum(moved[begin:end]), elsewhere[end - 1]
            by_action.append(Moments(tuple(counts), *facts, *there))
            begin = end
        self._known[key] = by_action
        return by_action

    def steps(self, values: Mapping[str, Any], samples: int) -> list[StepMemory]:
        """Memory of each instruction for a micro-batch, with all graphs kept."""
        reads, kept, live, inputs = self._addresses(values, samples)
        forward, backward = self._most_by_instruction(values, samples)
        steps, held = [], dict[int, int]()
        for at, (instruction, _) in enumerate(prepare(self._program).instructions):
            held.update(kept[at])
            makes = instruction.makes if isinstance(instruction, Made) else ()
            step = StepMemory(
                name=instruction.steps[0].name if isinstance(instruction, Compute) else "",
                reads=reads[at],
                makes=frozenset(slot for slot in makes if slot is not None),
                kept=kept[at],
                live=live[at],
                forward_bytes=max(0, forward[at] - sum({**held, **live[at]}.values())),
                backward_bytes=max(0, backward[at] - sum(held.values())),
                inputs=inputs,
            )
            steps.append(step)
        return steps

    def _new_run(self, samples: int) -> PartRun:
        return PartRun(self._program, _NoChannel(self._program, samples), META, self._k, False)

    def _addresses(
        self, values: Mapping[str, Any], samples: int
    ) -> tuple[list[dict[int, Memory]], list[Memory], list[Memory], frozenset[int]]:
        """What each instruction reads, by slot, keeps, and leaves to others; without weights.

        The last result are the addresses of the inputs.
        """
        reads, kept, live = list[dict[int, Memory]](), list[Memory](), list[Memory]()
        alive = list[Any]()  # so that no other memory gets the same address
        weights = storages(_tensors(self._program.module)).keys()
        run, prepared = self._new_run(samples), prepare(self._program)
        with _refused(self.part), torch.enable_grad(), without_statistics(), _MemoryWatch():
            run.begin(_here(values))
            inputs = frozenset(storages(run.values))
            alive.append([*run.values])
            for chunk, places in enumerate(prepared.forward):
                for number, at in enumerate(places):
                    instruction = prepared.instructions[at][0]
                    slots = instruction.reads if isinstance(instruction, Made) else ()
                    own = {slot: run.values[slot] for slot in slots}
                    run.forward_chunk(chunk, (number, number + 1))
                    graph = run.saved.get(instruction) if isinstance(instruction, Compute) else None
                    alive.append((own, [*run.values], graph))
                    reads.append(
                        {slot: _without(storages(value), weights) for slot, value in own.items()}
                    )
                    kept.append(_without(storages(graph), weights))
                    live.append(_without(storages(run.values), weights))
        return reads, kept, live, inputs

    def _most_by_instruction(
        self, values: Mapping[str, Any], samples: int
    ) -> tuple[list[int], list[int]]:
        """The most bytes at a time in each instruction, forward and backward.

        Gradients of weights count from when they are computed on.
        """
        watch, prepared = _MemoryWatch(self._on_cpu), prepare(self._program)
        run = self._new_run(samples)
        forward, backward = ([0] * len(prepared.instructions) for _ in range(2))
        _begin_gradients(self._program.module)
        weights = _memory(of_weights(self._program.module))

        def most() -> int:
            return watch.most_bytes(weights)

        with _refused(self.part), torch.enable_grad(), without_statistics(), watch:
            run.begin(_here(values))
            for chunk, places in enumerate(prepared.forward):
                for number, at in enumerate(places):
                    run.forward_chunk(chunk, (number, number + 1))
                    forward[at] = most()
            results = run.results()
            run.begin_backward(
                [torch.empty_like(result) if result.requires_grad else None for result in results]
            )
            for chunk, places in enumerate(prepared.backward):
                for number, at in enumerate(places):
                    run.backward_chunk(chunk, piece=(number, number + 1))
                    backward[at] = most()
        return forward, backward


class _OneOfMany(StepRun):
    """Leaves work for the end of a step undone, as after any micro-batch but the last."""

    others = 0  # other micro-batches of the step

    def _add_products(self) -> None:
        pass

    def _has_several(self, micro_batches: int) -> bool:
        return super()._has_several(micro_batches + self.others)


def _without(held: Mapping[Any, int], excluded: Collection[Any]) -> dict[Any, int]:
    return {key: size for key, size in held.items() if key not in excluded}


def _here(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of values without memory."""
    return {
        name: _like(value) if isinstance(value, Tensor) else value for name, value in values.items()
    }


def _sum(micro_batch: int, results: Sequence[Tensor]) -> Tensor:
    """A loss of all results."""
    terms = [result.sum().float() for result in results if result.requires_grad]
    return torch.stack(terms).sum() if terms else torch.zeros((), device=META)


class _MemoryWatch(TorchDispatchMode):
    """Notes what operators compute, and the memory that they allocate.

    On a CPU this includes what convolutions take while they work.
    """

    def __init__(self, on_cpu: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs, self._on_cpu = 0, on_cpu
        self._taken: dict[Any, int] = {}
        self._before: dict[Any, int] = {}  # memory in use when `most_bytes` was last called
        self._changes: list[tuple[Any, int]] = []  # since then: memory that was allocated or freed

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._note_freed()
        results = func(*args, **(kwargs or {}))
        if record_of(func).is_batch_norm and not argument_of(func, args, kwargs or {}, "training"):
            # What it saves of the batch for backward: nothing on a CPU, where it normalises by
            # running statistics, but a number per channel on the meta device.
            results = results[0], *(saved.new_empty(0) for saved in results[1:3]), *results[3:]
        if func.overloadpacket in flop_registry:
            flops = flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=results)
            self.macs += flops // 2
        made = pytree.tree_leaves(results)
        for tensor in made:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                memory, size = _WeakStorage(storage), storage.nbytes()
                self._changes.append((memory, size - self._taken.get(memory, 0)))
                self._taken[memory] = size
        if self._on_cpu and (size := working_bytes(func, args, kwargs or {}, made)):
            self._changes += [(None, size), (None, -size)]
        return results

    def _note_freed(self) -> None:
        # `expired` of each of these, of which there are thousands, without its two calls in Python.
        for memory in [taken for taken in self._taken if _has_expired(taken.cdata)]:
            self._changes.append((memory, -self._taken.pop(memory)))

    def held_bytes(self, excluded: set[Any]) -> int:
        """Bytes of the storages that are still in use, except the excluded ones."""
        self._note_freed()
        return sum(_without(self._taken, excluded).values())

    def most_bytes(self, excluded: set[Any]) -> int:
        """The most bytes in use at a time since the last call, except the excluded storages."""
        self._note_freed()
        changes = (size for memory, size in self._changes if memory not in excluded)
        before = sum(_without(self._before, excluded).values())
        self._before, self._changes = {**self._taken}, []
        return max(accumulate(changes, initial=before))


class _NoSlowerMemory:
    """Counts what would be written to slower memory and read from there.

    Attributes
    ----------
    nbytes : int
        Bytes that are there.
    """

    def __init__(self) -> None:
        self.nbytes = self._moved = 0

    def moved_since(self) -> int:
        """Bytes that were written or read since the last call."""
        moved, self._moved = self._moved, 0
        return moved

    def write(self, data: Tensor) -> _Nowhere:
        """Count the bytes."""
        self._moved += data.nbytes
        self.nbytes += data.nbytes
        return _Nowhere(self, data.nbytes)

    def read(self, nbytes: int) -> Tensor:
        """Count them again, and take memory for them."""
        self._moved += nbytes
        return torch.empty(nbytes, dtype=torch.uint8, device=META)


@dataclass(frozen=True, eq=False)
class _Nowhere:
    slower: _NoSlowerMemory
    nbytes: int

    def read(self) -> Tensor:
        return self.slower.read(self.nbytes)

    def __del__(self) -> None:
        self.slower.nbytes -= self.nbytes


class _NoChannel:
    """Delivers tensors of the right shapes, without memory."""

    def __init__(self, program: PartProgram, samples: int) -> None:
        self._transfers, self._samples = program.transfers, samples
        self._sent: list[tuple[tuple[Direction, int], list[Any]]] = []

    def held_pieces(self) -> frozenset[tuple[Direction, int]]:
        """Transfers sent since the last call whose tensors are still in use."""
        held = frozenset(
            sent for sent, memory in self._sent if not all(storage.expired() for storage in memory)
        )
        self._sent.clear()
        return held

    def send(self, piece: Piece, receiver: int, tensors: Sequence[Tensor]) -> None:
        """Note their memory; nobody receives them."""
        memory = [_WeakStorage(tensor.untyped_storage()) for tensor in tensors]
        self._sent.append(((piece.direction, piece.number), memory))

    def receive(self, piece: Piece) -> Sequence[Tensor]:
        """Make tensors of the right shapes."""
        return [
            torch.empty(tensor.shape(self._samples), dtype=tensor.dtype, device=META)
            for tensor in self._transfers[piece.number].tensors
        ]

    def settle(self) -> bool:
        """Nothing departs, so there is nothing to wait for."""
        return False

    def stop(self) -> None:
        """Nobody waits, so there is nobody to wake."""


def _without_memory(module: fx.GraphModule) -> fx.GraphModule:
    """A copy with all tensors on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        empty = _like(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        elif tensor.requires_grad:  # a copy of a parameter, registered as a buffer
            empty.requires_grad_()
        memo[id(tensor)] = empty
    copied = copy.deepcopy(module, memo)
    make_on(copied, META)
    return copied


def _memory(tensors: Iterable[Tensor]) -> set[Any]:
    return {_WeakStorage(tensor.untyped_storage()) for tensor in tensors}


def _begin_gradients(module: nn.Module, *, again: bool = False) -> None:
    """Let weights have no gradients or, `again`, all of them."""
    for tensor in _tensors(module):
        tensor.grad = torch.empty_like(tensor) if again and tensor.requires_grad else None


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


def _placeholders(module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
