"""Placement: a model in parts, each a submodule on its device."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from hgpart.errors import PlacementError
from hgpart.execution.program import PartProgram
from hgpart.execution.transfers import Transfer
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import Evaluation, evaluate
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.placement.blueprint import UNUSED, Blueprint
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice, overlap
from hgpart.placement.mode_programs import (
    Programs,
    build_programs,
    in_dtype,
    make_on,
    with_input_gradients,
)
from hgpart.placement.modes import carried_over, skeleton
from hgpart.placement.original_state import hooked, original_state
from hgpart.placement.traced_values import check_values
from hgpart.placement.weight_files import opened_weights
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.figures import Work

if TYPE_CHECKING:
    from hgpart.execution.local import LocalRuntime
    from hgpart.placement.accounting import PlacementReport

_Key = tuple[int, tuple[object, ...]]  # part, Slice.key; of a constant the mode as well


class Placement(nn.Module):
    """A model in k parts, each a torch.fx GraphModule with its slices of the weights.

    It is called, trained and saved like the model that it was made of: one process runs all parts
    (`hgpart.execution.local`); `hgpart.run.distributed` runs the same submodules in many processes.
    Gradients come with `.backward()`; with several parts `torch.autograd.grad` knows the inputs
    and not the parameters.

    Attributes
    ----------
    k : int
    devices : tuple of torch.device
        One for each part.
    dtype : torch.dtype
        What floating tensors travel in.
    """

    def __init__(
        self,
        model: nn.Module,
        blueprint: Blueprint,
        held: Sequence[int],
        devices: tuple[torch.device, ...],
    ) -> None:
        """Use `hgpart.place`."""
        super().__init__()
        self.k = blueprint.partition.k
        self.devices = devices
        self.training = blueprint.traced.training
        self._held = tuple(held)
        self._skeleton = (skeleton(model),)  # a submodule would count among the placement's own
        self._modes = {self.training: build_programs(blueprint, held)}
        self._original = original_state(model, blueprint.used_state)
        self._tensors: dict[_Key, torch.Tensor] = {}
        self._slices: dict[_Key, Slice] = {}
        self._unfilled: set[str] = set()  # names of what was on the meta device, and is yet to load
        self._runtimes: dict[tuple[bool, bool], LocalRuntime] = {}
        self._last = (self.training, False)  # mode and whether gradients of inputs were wanted
        self._hooked = tuple(hooked(model))
        self.dtype = _float_type((*model.parameters(), *model.buffers(), *blueprint.traced.example))
        self.parts = nn.ModuleDict()
        self._hold_unused(self.training, self._never_used())
        state = dict(model.named_buffers(remove_duplicate=False))
        state.update(model.named_parameters(remove_duplicate=False))
        self._fill(state)
        self._check_coverage()
        self._show()

    # -------------------------------------------------------------- the submodules

    @property
    def _now(self) -> Programs:
        return self._modes[self.training]

    @property
    def blueprint(self) -> Blueprint:
        """What the programs of the present mode were made from."""
        return self._now.blueprint

    @property
    def partition(self) -> Partition:
        """The plan's; in the other mode than the plan's, the same of that mode's layers."""
        return self.blueprint.partition

    @property
    def work(self) -> Work:
        """What it divides."""
        return self.blueprint.work

    @property
    def programs(self) -> Mapping[int, PartProgram]:
        """What the parts that this process holds do, in the present mode."""
        return self._now.programs

    def submodule(self, part: int) -> fx.GraphModule:
        """What a part does: it receives, computes its steps, packs and sends."""
        if part not in self.programs:
            raise PlacementError(f"part {part}: accepted are {', '.join(map(str, self._held))}")
        return self.programs[part].module

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All that travels between parts, in the global order."""
        return self._now.transfers

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return self.blueprint.traced.inputs

    @property
    def output_part(self) -> int:
        """The part that has the result."""
        return self.blueprint.output_part

    def build_results(self, results: Sequence[torch.Tensor]) -> Any:
        """What the model returns, of the tensors in it."""
        return self.blueprint.traced.structure(results)

    def slices(self, part: int) -> Mapping[str, Slice]:
        """What a part holds of the model's state, by dotted attribute of its submodule."""
        return self._now.slices[part]

    def draw(self, batch_size: int) -> dict[str, torch.Tensor]:
        """Random masks for a batch, whole, as the unpartitioned model would draw them now."""
        if self._now.draws is None:
            return {}
        drawn = self._now.draws(batch_size)
        masks = (mask.to(self.dtype) if _is_float(mask) else mask for mask in drawn)
        return dict(zip(self.blueprint.draws.values(), masks, strict=True))

    def check_gradients(self) -> None:
        """Raise a PlacementError if gradients would not be those of the model."""
        lost = (*self._hooked, *self.blueprint.traced.lost_gradients)
        if lost:
            raise PlacementError(
                f"the model's backward pass has what a placement's has not ({lost[0]}): accepted "
                "are passes without gradients, in evaluation under torch.no_grad()"
            )

    def check_batch(self, batch_size: int, inputs: Sequence[Any]) -> None:
        """Check what a pass begins with; a process that reads no inputs may have None for them.

        Raises
        ------
        PlacementError
            If state is yet to be loaded, the model's code fixed another batch size, or an input
            has another type or, but for the batch, another shape than was traced. If gradients
            are wanted that a placement does not have.
        """
        if self._unfilled:
            raise PlacementError(
                f"{min(self._unfilled)} has no value ({len(self._unfilled)} in all): the model was "
                "on the meta device, load a state_dict first"
            )
        needed = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
        if torch.is_grad_enabled() and (needed or self.blueprint.trainable):
            self.check_gradients()
        traced, shapes = self.blueprint.traced, self.blueprint.input_shapes(batch_size)
        for value, example, shape in zip(inputs, traced.example, shapes, strict=True):
            if not isinstance(value, torch.Tensor) or shape is None:
                continue
            dtype = self.dtype if example.is_floating_point() else example.dtype
            if tuple(value.shape) != shape or value.dtype != dtype:
                raise PlacementError(
                    f"input of shape {tuple(value.shape)} and type {value.dtype}: accepted is "
                    f"{shape} and {dtype} in a batch of {batch_size}"
                )

    def report(self, batch_size: int | None = None) -> PlacementReport:
        """What each part holds, computes, sends and keeps, from the submodules themselves.

        At the plan's batch size when none is given; see `hgpart.placement.accounting`.
        """
        from hgpart.placement.accounting import account

        return account(self, batch_size)

    def expected(self, batch_size: int) -> Evaluation:
        """The partition's figures at a batch size, from the hypergraph and not the submodules."""
        return self._evaluated(self._between_parts(batch_size))

    def expected_gradients(self, batch_size: int) -> Evaluation:
        """The same of a backward pass: of the nets whose layer a gradient is computed of.

        What part s sent to part r in the forward pass comes back, so traffic and messages are
        transposed.
        """
        nets = self._between_parts(batch_size)
        returned = np.array(self.blueprint.returned)[nets.net_layers]
        nets = replace(nets, costs=np.where(returned, nets.costs, 0))
        found = self._evaluated(nets)
        return replace(found, traffic=found.traffic.T, messages=found.messages.T)

    def _evaluated(self, between: Hypergraph) -> Evaluation:
        parts = np.arange(self.k, dtype=np.int32)
        return evaluate(between, parts, self.k, self.partition.speeds)

    def _between_parts(self, batch_size: int) -> Hypergraph:
        """The hypergraph whose vertices are the parts, for a batch in the present mode."""
        blueprint = self.blueprint
        as_traced = _float_type(_placeholders(blueprint.traced))
        layers = tuple(
            replace(layer, bytes_per_element=self.dtype.itemsize)
            if nodes and nodes[0].meta["val"].dtype == as_traced  # not what the model converts to
            else layer
            for layer, nodes in zip(blueprint.graph.layers, blueprint.results, strict=True)
        )
        graph = replace(blueprint.graph, layers=layers)
        modelling = replace(self.partition.modelling, batch_size=batch_size, bytes_per_element=None)
        model = cnn_hypergraph(graph, self.work, self.partition.model.blocks, modelling)
        return model.nets.of_parts(model.weights, self.partition.parts, self.k)

    # -------------------------------------------------------------- as an nn.Module

    def forward(self, *inputs: Any) -> Any:
        """What the model returns."""
        traced = self.blueprint.traced
        if len(inputs) != len(traced.inputs):
            raise PlacementError(f"{len(inputs)} inputs: accepted are {len(traced.inputs)}")
        batch_size = next(len(value) for value in inputs if isinstance(value, torch.Tensor))
        self.check_batch(batch_size, inputs)
        values = {
            "batch_size": batch_size,
            **dict(zip(traced.inputs, inputs, strict=True)),
            **self.draw(batch_size),
        }
        wanted = torch.is_grad_enabled() and any(
            value.requires_grad for value in inputs if isinstance(value, torch.Tensor)
        )
        self._last = self.training, wanted
        return self.build_results(self.runtime.run(values))

    @property
    def runtime(self) -> LocalRuntime:
        """Ran all parts in this process; its `last` says what travelled, and who waited."""
        from hgpart.execution.local import LocalRuntime

        if self._last not in self._runtimes:
            training, input_gradients = self._last
            programs = self._modes[training]
            if input_gradients:
                programs = with_input_gradients(programs)
            placed = _Placed(self.k, self.devices, programs.programs, self.output_part)
            self._runtimes[self._last] = LocalRuntime(placed)
        return self._runtimes[self._last]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the steps of the present mode with torch.compile, whose arguments these are."""
        for program in self.programs.values():
            for step in program.module.children():
                if isinstance(step, fx.GraphModule):
                    step.compile(*args, **kwargs)

    def train(self, mode: bool = True) -> Placement:
        """Switch to training or evaluation, as the model itself does."""
        if mode not in self._modes:
            made, new = self._other_mode(mode)
            state = self._gathered(new)
            self._let_go(new)
            self._modes[mode] = made
            self._hold_unused(mode, self._used_otherwise(made))
            self._fill(state)
        super().train(mode)
        self._last = mode, False
        self._show()
        return self

    def _other_mode(self, mode: bool) -> tuple[Programs, set[str]]:
        """What the parts do in another mode, and the buffers that more of them hold for it."""
        first = self.blueprint
        traced = _traced(self._skeleton[0], first.traced.example, self.dtype, mode)
        graph = channel_graph(traced)
        partition, work = carried_over(first.partition, first.work, first.graph, graph)
        made = build_programs(
            Blueprint(NodeFacts(traced, graph), partition, work, first.trainable), self._held
        )
        new = {
            held.name
            for part, slices in made.slices.items()
            for held in slices.values()
            if held.name not in traced.constants and (part, held.key) not in self._tensors
        }
        changing = {*self._original, *(traced.buffers[name] for name in traced.updated)}
        fixed = {name for name, one in self._original.items() if one.parameter}
        for facts in (first.facts, made.blueprint.facts):
            fixed |= {facts.traced.buffers[node.name] for node in facts.carried}
        if divided := new & (fixed if self._has_all else changing):
            raise PlacementError(
                f"{min(divided)} is divided in another way in "
                f"{'training' if mode else 'evaluation'}: place the model in that mode"
            )
        return made, new

    def _let_go(self, names: set[str]) -> None:
        """Forget copies that part 0 held because the other mode had no use for them."""
        for mode, programs in self._modes.items():
            kept = {}
            for attribute, held in programs.slices.get(0, {}).items():
                if attribute.startswith(f"{UNUSED}.") and held.name in names:
                    self._tensors.pop((0, held.key), None)
                    self._slices.pop((0, held.key), None)
                else:
                    kept[attribute] = held
            if kept:
                self._modes[mode] = replace(programs, slices={**programs.slices, 0: kept})

    @property
    def _has_all(self) -> bool:
        return len(self._held) == self.k

    def _show(self) -> None:
        """Make the submodules of the present mode those of the module."""
        for part, program in self.programs.items():
            self.parts[str(part)] = program.module

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Placement:
        """Move all parts, of both modes; what moves is `fn`'s to say, as in `.double()`."""
        devices = tuple(fn(torch.empty(0, device=device)).device for device in self.devices)
        dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        for programs in self._modes.values():
            for program in programs.programs.values():
                program.module._apply(fn)  # type: ignore[no-untyped-call]
            for part, slices in programs.slices.items():
                for name, held in slices.items():
                    module = programs.programs[part].module
                    self._tensors[_key(programs, part, held)] = _attribute(module, name)
        if dtype != self.dtype:
            for mode, programs in self._modes.items():
                self._modes[mode] = in_dtype(programs, self.dtype, dtype)
        self.devices, self.dtype = devices, dtype
        self._runtimes.clear()
        self._fill({})
        self._show()
        return self

    # -------------------------------------------------------------- state

    def held(self, part: int) -> Iterator[tuple[Slice, torch.Tensor]]:
        """What a part holds of the model's state, in whatever mode: each tensor once."""
        names = {one.held_as for one in self._original.values()}
        for (owner, key), held in self._slices.items():
            if owner == part and held.name in names:
                yield held, self._tensors[owner, key]

    def state_dict(  # type: ignore[override]
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The model's own state_dict, on the CPU: its names and shapes, each element once.

        Raises
        ------
        PlacementError
            If this process does not hold all parts.
        """
        if not self._has_all:
            raise PlacementError(f"this process holds {len(self._held)} of {self.k} parts only")
        full = self._gathered({one.held_as for one in self._original.values()})
        found = OrderedDict() if destination is None else destination
        found.update((prefix + name, full[one.held_as]) for name, one in self._original.items())
        return found

    def _gathered(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Those of some tensors that parts hold, whole; of copies the first part's counts."""
        full: dict[str, torch.Tensor] = {}
        held_by = sorted(self._slices.items(), key=lambda item: item[0][0], reverse=True)
        for key, held in held_by:
            if held.name in names:
                if held.name not in full:
                    full[held.name] = torch.zeros(held.shape, dtype=self._tensors[key].dtype)
                held.put(full[held.name], self._tensors[key])
        return full

    def load_state_dict(  # type: ignore[override]  # tensors are always copied, never assigned
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the model's own state_dict; each part takes its slices.

        Raises
        ------
        PlacementError
            If names are missing or unknown (unless not `strict`), a value is no tensor or of
            another shape, or an index is that the parts do not fit.
        """
        if not isinstance(state_dict, Mapping):
            raise PlacementError(
                f"the state is a {type(state_dict).__name__}, expected tensors by name"
            )
        missing = [name for name in self._original if name not in state_dict]
        unknown = [name for name in state_dict if name not in self._original]
        if strict and (missing or unknown):
            what, names = ("lacks", missing) if missing else ("has unknown", unknown)
            raise PlacementError(
                f"the state {what} {names[0]} ({len(names)} names): not this model's"
            )
        here = {held.name for held in self._slices.values()}
        bare = self._skeleton[0].state_dict(keep_vars=True)
        values = {name: value for name, value in bare.items() if not value.is_meta}
        for name, one in self._original.items():
            if name not in state_dict or (one.held_as not in here and name not in values):
                continue
            value = state_dict[name]
            if not isinstance(value, torch.Tensor):
                raise PlacementError(f"{name} is a {type(value).__name__}, expected a tensor")
            if tuple(value.shape) != one.shape:
                raise PlacementError(f"{name} has shape {tuple(value.shape)}, expected {one.shape}")
        for programs in self._modes.values():
            check_values(programs.blueprint.traced, programs.blueprint.graph, state_dict)
        given = {one.held_as: name for name, one in self._original.items() if name in state_dict}
        self._unfilled -= given.keys()
        with torch.no_grad():
            for name in values.keys() & state_dict.keys():  # which the other mode is traced with
                values[name].copy_(state_dict[name])
            for key, held in self._slices.items():
                if held.name in given:
                    self._tensors[key].copy_(held.take(state_dict[given[held.name]]))
        return torch.nn.modules.module._IncompatibleKeys(missing, unknown)

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

    def load_checkpoint(self, path: Path | str) -> None:
        """Load a safetensors or torch file of the model's state_dict.

        Only tensors that a part of this process has elements of are read.

        Raises
        ------
        CheckpointError
            If the file can't be read.
        PlacementError
            If it is of another model.
        """
        with opened_weights(path) as state:
            self.load_state_dict(state)

    def _hold_unused(self, mode: bool, unused: Iterable[tuple[int, Slice]]) -> None:
        """Let parts hold what their steps of a mode make no use of, so that no state is lost."""
        programs = self._modes[mode]
        slices = {part: dict(held) for part, held in programs.slices.items()}
        for part, held in unused:
            module = programs.programs[part].module
            if not hasattr(module, UNUSED):
                module.add_module(UNUSED, nn.Module())
            owner, one = module.get_submodule(UNUSED), self._original[held.name]
            attribute = held.name.replace(".", "_")
            while hasattr(owner, attribute):  # a.b_c and a_b.c are two
                attribute += "_"
            value = torch.empty(held.local_shape, dtype=one.dtype, device="meta")
            if one.parameter:
                value = nn.Parameter(value, requires_grad=one.dtype.is_floating_point)
                owner.register_parameter(attribute, value)
            else:
                owner.register_buffer(attribute, value)
            slices[part][f"{UNUSED}.{attribute}"] = held
        self._modes[mode] = replace(programs, slices=slices)

    def _never_used(self) -> Iterator[tuple[int, Slice]]:
        """What the traced model makes no use of: part 0 holds it."""
        used = {*self.blueprint.used_state}
        for name, one in self._original.items():
            if 0 in self.programs and one.held_as == name and name not in used:
                yield 0, Slice(name, one.shape)
        yield from ((0, held) for held in self._now.idle)

    def _used_otherwise(self, made: Programs) -> Iterator[tuple[int, Slice]]:
        """Parameters that parts hold, and that their programs of a new mode make no use of."""
        used = {(part, one.key) for part, held in made.slices.items() for one in held.values()}
        for key, held in self._slices.items():
            if key not in used and isinstance(self._tensors[key], nn.Parameter):
                yield key[0], held

    def _fill(self, state: Mapping[str, torch.Tensor]) -> None:
        """Give the submodules their tensors; equal slices of a part are one tensor."""
        for programs in self._modes.values():
            traced = programs.blueprint.traced
            fixed = {traced.buffers.get(name, name): value for name, value in traced.values.items()}
            known = {**fixed, **state}
            for part, slices in programs.slices.items():
                module, device = programs.programs[part].module, self.devices[part]
                for name, held in slices.items():
                    key = _key(programs, part, held)
                    owner, _, attribute = name.rpartition(".")
                    step = module.get_submodule(owner)
                    if key not in self._tensors:
                        empty = getattr(step, attribute)
                        self._tensors[key] = self._new(held, empty, known, device)
                        self._slices[key] = held
                    setattr(step, attribute, self._tensors[key])
                module.to(device)
                make_on(module, device)

    def _check_coverage(self) -> None:
        """Raise a PlacementError unless all parts together hold each parameter once."""
        slices: dict[str, list[Slice]] = {}
        for held in self._slices.values():
            slices.setdefault(held.name, []).append(held)
        for name, one in self._original.items():
            several, wanted = slices.get(one.held_as, []), math.prod(one.shape)
            count = sum(math.prod(held.local_shape) for held in several)
            if self._has_all and one.parameter and (count != wanted or overlap(several)):
                raise PlacementError(
                    f"{name}: the parts hold {count} elements of {wanted}: accepted is each once"
                )

    def _new(
        self,
        held: Slice,
        empty: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        device: torch.device,
    ) -> torch.Tensor:
        full = state.get(held.name)
        if full is None or full.is_meta:
            if held.name not in {one.held_as for one in self._original.values()}:
                raise PlacementError(
                    f"{held.name} is on the meta device and no state_dict has it: accepted are "
                    "models that are built on another device"
                )
            self._unfilled.add(held.name)
            value = torch.empty(held.local_shape, dtype=empty.dtype, device=device)
        else:
            value = held.take(full).to(device)
        if not isinstance(empty, nn.Parameter):
            return value
        return nn.Parameter(value, requires_grad=held.name in self.blueprint.trainable)


@dataclass(frozen=True)
class _Placed:
    """What a runtime needs to know."""

    k: int
    devices: tuple[torch.device, ...]
    programs: Mapping[int, PartProgram]
    output_part: int


def _key(programs: Programs, part: int, held: Slice) -> _Key:
    """What a part's tensor is known by: constants of the code of one mode are not the other's."""
    traced = programs.blueprint.traced
    return part, (*held.key, *([traced.training] if held.name in traced.constants else []))


def _float_type(tensors: Iterable[Any]) -> torch.dtype:
    return next((one.dtype for one in tensors if _is_float(one)), torch.float32)


def _placeholders(traced: TracedModel) -> Iterator[Any]:
    """Parameters, buffers and inputs, as they were traced."""
    for node in traced.graph_module.graph.find_nodes(op="placeholder"):
        yield node.meta["val"]


def _traced(
    model: nn.Module, example: Sequence[Any], dtype: torch.dtype, training: bool
) -> TracedModel:
    """Trace a model in another mode and float type than it was."""
    inputs = [value.to(dtype) if _is_float(value) else value for value in example]
    return trace(model.to(dtype).train(training), inputs)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _attribute(module: nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(owner), attribute)
    return found
