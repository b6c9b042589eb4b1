"""Blueprints -> Programs of the parts that a process holds, in one form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import fx, nn

from hgpart.errors import PlacementError
from hgpart.execution.program import WHOLE, PartProgram, Share, Transfer
from hgpart.operators.calls import has_gradients
from hgpart.partition import Partition
from hgpart.placement.building.blueprint import (
    OWN,
    UNREAD,
    UNUSED,
    Blueprint,
    shared_statistics,
)
from hgpart.placement.building.draws import draw_module
from hgpart.placement.building.order import order_of_layers
from hgpart.placement.building.part_program import build_part
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice, slice_of
from hgpart.placement.programs import Programs
from hgpart.placement.shares.messages import with_parameters
from hgpart.placement.shares.owners import owned
from hgpart.placement.state.batch_statistics import check_averages, check_deferrable, defer
from hgpart.placement.state.original_state import Original
from hgpart.work.figures import Work


def share_blueprints(
    facts: NodeFacts,
    shares: Sequence[tuple[Share, Partition]],
    work: Work,
    trainable: frozenset[str],
    norms: str,
) -> tuple[Blueprint, ...]:
    """Blueprints of all shares; their transfers are numbered on from share to share."""
    share, modelling = shares[0][0], shares[0][1].modelling
    if modelling.bands > 1 or (len(shares) > 1 and modelling.norms == "batch"):
        check_deferrable(facts.traced)
        check_averages(facts.traced)
    if len(shares) > 1 and modelling.norms != "batch" and norms == "batch":
        raise PlacementError(
            f"norms of the batch, which is in {share.of} slices that have norms of their own: "
            "accepted are those of micro-batches, or a plan with norms of the batch"
        )
    blueprints: list[Blueprint] = []
    for at, (share, partition) in enumerate(shares):
        prefix = f"share{at}_" if len(shares) > 1 else ""
        first = blueprints[-1].first_transfer + len(blueprints[-1].transfers) if blueprints else 0
        blueprints.append(Blueprint(facts, partition, work, trainable, norms, share, prefix, first))
    return tuple(blueprints)


def owners_blueprint(blueprints: Sequence[Blueprint], owners: Partition | None = None) -> Blueprint:
    """Blueprint of programs in which parts have only the parameters that they own.

    The owners are given by a partition, or chosen.
    """
    first = blueprints[0]
    if not first.has_tiles:
        return first
    if owners is None:
        learning = with_parameters(first.graph, first.trainable)
        owners = owned([blueprint.partition for blueprint in blueprints], learning, first.work)
    return replace(first, partition=owners, share=WHOLE, prefix="", first_transfer=0)


def build_programs(
    blueprints: Sequence[Blueprint], owners: Blueprint, held: Sequence[int], dtype: torch.dtype
) -> Programs:
    """Build the programs of the parts that a process holds.

    Raises
    ------
    PlacementError
        If the model's forward pass does something that its graph can't hold.
    """
    blueprint = blueprints[0]
    if blueprint.traced.unheld:
        raise PlacementError(
            f"{blueprint.traced.unheld[0]} in each forward pass, which a traced graph can't do: "
            "accepted are models that compute with inputs, parameters, buffers and torch's "
            "generator alone, and return what they make"
        )
    if len(blueprints) > 1:
        blueprint.check_divided("slices", blueprint.partition.modelling.norms)
    statistics = shared_statistics(blueprints)
    order = order_of_layers(blueprints, statistics)
    built = {part: build_part(blueprints, part, order[part], statistics) for part in held}
    drawing = None
    if blueprint.draws:
        drawing = draw_module(blueprint.facts, blueprint.draws)
    own = {part: by_share[0] for part, (_, by_share) in built.items()}
    if blueprint.has_tiles:
        own = {part: _own(owners, part) for part in held}
    slices = {
        part: {name: held for of_share in by_share for name, held in of_share.items()}
        for part, (_, by_share) in built.items()
    }
    if blueprint.norms == "batch":
        check_deferrable(blueprint.traced)
        computed = {blueprint.traced.buffers[buffer.name] for buffer in blueprint.carriers}
        for part, (program, _) in built.items():
            defer(program, slices[part], blueprint.traced, computed)
    copies = {
        part: frozenset(_copies(blueprint, by_share, own[part]))
        for part, (_, by_share) in built.items()
    }
    for part, (program, _) in built.items():
        slices[part].update(_apart(blueprint, program, own[part], slices[part], copies[part]))
        unread = dict(_unread(blueprints, part, program, slices[part]))
        slices[part].update(unread)
        copies[part] |= unread.keys()
    return Programs(
        blueprints=tuple(blueprints),
        transfers=(
            *chain.from_iterable(plan.transfers for plan in blueprints),
            *(item.transfer for own in statistics for item in own.travelling),
        ),
        parts={part: program for part, (program, _) in built.items()},
        slices=slices,
        drawing=drawing,
        idle=tuple(_idle(owners, own)) if 0 in own else (),
        copies=copies,
        owners=owners,
        statistics=statistics,
        dtype=dtype,
    )


def in_turns(programs: Programs) -> tuple[Programs, ...]:
    """Programs for each slice of the batch alone, as if it were a whole batch.

    In a stream whose batches take turns each batch is computed by the parts of one slice, the first
    by those of the first: as PipeDream's replicated stages do (Narayanan et al., SOSP 2019,
    section 3.2).
    """
    of_slice = {at: blueprint for blueprint in programs.blueprints for at in blueprint.share.slices}
    turns, first = list[Programs](), 0
    for at, own in sorted(of_slice.items()):
        alone = replace(own, share=replace(own.share, turn=at), prefix="", first_transfer=first)
        made = build_programs([alone], programs.owners, [*programs.parts], programs.dtype)
        turns.append(made)
        first += len(made.transfers)
    transfers = {
        part: dict(chain.from_iterable(made.parts[part].transfers.items() for made in turns))
        for part in programs.parts
    }
    return tuple(
        replace(
            made,
            parts={
                part: replace(program, transfers=transfers[part])
                for part, program in made.parts.items()
            },
        )
        for made in turns
    )


def _own(owners: Blueprint, part: int) -> Mapping[str, Slice]:
    """Slices that a part's steps would hold if it had only what it owns."""
    statistics = shared_statistics([owners])
    order = order_of_layers([owners], statistics)[part]
    return build_part([owners], part, order, statistics)[1][0]


def _copies(
    blueprint: Blueprint, by_share: Sequence[Mapping[str, Slice]], own: Mapping[str, Slice]
) -> Iterator[str]:
    """Attributes of a part's steps that are copies.

    `by_share` has those of the first band of the first share, and then all others.
    """
    traced = blueprint.traced
    parameters = {*traced.parameters.values()}
    belonging = {held.key for held in own.values()}
    later = 0 not in blueprint.share.slices  # of a share that has turns of its own
    for share, slices in enumerate(by_share):
        for attribute, held in slices.items():
            is_parameter = held.name in parameters
            if held.name in traced.constants:  # of the code: each part has its own
                continue
            if held.key not in belonging if is_parameter else later or share > 0:
                yield attribute


def _apart(
    blueprint: Blueprint,
    program: PartProgram,
    own: Mapping[str, Slice],
    slices: Mapping[str, Slice],
    copies: frozenset[str],
) -> Iterator[tuple[str, Slice]]:
    """Parameters that a part owns and that are no step's own tensor: they are held separately."""
    there = {held.key for attribute, held in slices.items() if attribute not in copies}
    types = {
        name: blueprint.nodes[placeholder].meta["val"].dtype
        for placeholder, name in blueprint.traced.parameters.items()
    }
    parameters = {held.key: held for held in own.values() if held.name in types}
    for held in parameters.values():
        if held.key not in there:
            yield _registered(program, OWN, held, types[held.name], is_parameter=True), held


def _unread(
    blueprints: Sequence[Blueprint], part: int, program: PartProgram, slices: Mapping[str, Slice]
) -> Iterator[tuple[str, Slice]]:
    """Copies of parameters that none of a part's steps reads, although its tasks are said to.

    Tasks read all of a bias that is joined from several parameters; a step of some of them needs
    not all of these. They travel all the same, as the table says.
    """
    there = {held.name for held in slices.values()}
    layers = {at for blueprint in blueprints for at, holder in blueprint.copied if holder == part}
    for node in (node for at in sorted(layers) for node in blueprints[0].results[at]):
        name, value = blueprints[0].traced.parameters[node.name], node.meta["val"]
        if name not in there:
            held = Slice(name, tuple(value.shape))
            yield _registered(program, UNREAD, held, value.dtype, is_parameter=True), held


def _registered(
    program: PartProgram, folder: str, held: Slice, dtype: torch.dtype, is_parameter: bool
) -> str:
    """Register a tensor in a part besides its steps; return the attribute."""
    module = program.module
    if not hasattr(module, folder):
        module.add_module(folder, nn.Module())
    owner, attribute = module.get_submodule(folder), held.name.replace(".", "_")
    while hasattr(owner, attribute):  # a.b_c and a_b.c are different names
        attribute += "_"
    value = torch.empty(held.local_shape, dtype=dtype, device="meta")
    if is_parameter:
        value = nn.Parameter(value, has_gradients(dtype))
        owner.register_parameter(attribute, value)
    else:
        owner.register_buffer(attribute, value)
    return f"{folder}.{attribute}"


def _idle(blueprint: Blueprint, slices: Mapping[int, Mapping[str, Slice]]) -> Iterator[Slice]:
    """Elements that no step uses, of parameters that operators use only in part."""
    partly = blueprint.partly_read
    held: list[Slice] = []
    for part in range(blueprint.partition.k) if partly else ():
        of_part = slices[part] if part in slices else _own(blueprint, part)  # in another process
        held += of_part.values()
    for placeholder in partly:
        name = blueprint.traced.parameters[placeholder]
        shape = blueprint.facts.shape(blueprint.nodes[placeholder])
        idle = np.ones(shape, dtype=np.bool_)
        for piece in held:
            if piece.name == name:
                idle[piece.places] = False
        if idle.any():
            yield slice_of(name, shape, np.flatnonzero(idle))


def never_used(programs: Programs, original: Mapping[str, Original]) -> Iterator[tuple[int, Slice]]:
    """State that the traced graph does not use: part 0 has it, if it is held here."""
    used = {*programs.blueprint.used_state}
    for name, entry in original.items():
        if 0 in programs.parts and entry.held_as == name and name not in used:
            yield 0, Slice(name, entry.shape)
    yield from ((0, held) for held in programs.idle)


def with_unused(
    programs: Programs, original: Mapping[str, Original], unused: Iterable[tuple[int, Slice]]
) -> Programs:
    """The same programs with state that their steps do not use, so that none is lost."""
    slices = {part: dict(held) for part, held in programs.slices.items()}
    for part, held in unused:
        entry = original[held.name]
        attribute = _registered(programs.parts[part], UNUSED, held, entry.dtype, entry.parameter)
        slices[part][attribute] = held
    return replace(programs, slices=slices)


def with_input_gradients(programs: Programs) -> Programs:
    """The same programs with gradients of the inputs, which go back to the parts that have them."""
    learns = programs.blueprint.learns(inputs=True)
    differentiable = chain(
        *(blueprint.differentiable(inputs=True) for blueprint in programs.blueprints),
        (learns[item.norm.layer] for own in programs.statistics for item in own.travelling),
    )
    transfers = tuple(
        replace(transfer, differentiable=wanted)
        for transfer, wanted in zip(programs.transfers, differentiable, strict=True)
    )
    return _with_transfers(programs, transfers)


def in_dtype(programs: Programs, dtype: torch.dtype) -> Programs:
    """The same programs with floating tensors in another type."""
    transfers = tuple(transfer.in_dtype(programs.dtype, dtype) for transfer in programs.transfers)
    return replace(_with_transfers(programs, transfers), dtype=dtype)


def _with_transfers(programs: Programs, transfers: tuple[Transfer, ...]) -> Programs:
    return replace(
        programs,
        transfers=transfers,
        parts={
            part: replace(program, transfers={n: transfers[n] for n in program.transfers})
            for part, program in programs.parts.items()
        },
    )


def make_on(module: nn.Module, device: torch.device) -> None:
    """Let operators make new tensors on a device."""
    for step in module.modules():
        if isinstance(step, fx.GraphModule):
            changed = False
            for node in step.graph.nodes:
                if isinstance(node.kwargs.get("device"), torch.device):
                    changed |= node.kwargs["device"] != device
                    node.kwargs = {**node.kwargs, "device": device}
            if changed:
                step.recompile()
