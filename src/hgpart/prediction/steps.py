"""Placement -> PartSteps: the layers and samples that the steps of its parts compute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Float64
from hgpart.execution.instructions import Compute, Receive, Send, matrices, prepare
from hgpart.execution.outlines import nbytes_a_sample
from hgpart.execution.weights.gradients import SEVERAL
from hgpart.hypergraph.shares import part_shares
from hgpart.placement import Placement
from hgpart.placement.building.blueprint import Blueprint


@dataclass(frozen=True)
class LayerShare:
    """The share of a layer that a step computes.

    Attributes
    ----------
    layer : int
        Index of the layer.
    share : float
        Fraction of the layer's tasks.
    of_batch : float
        Fraction of the batch, or micro-batch, that it computes them for.
    trains : bool
        Whether gradients of some of its parameters are computed.
    returns : bool
        Whether gradients of what it reads are computed.
    multiplies : bool
        Whether it has multiply-accumulates; if not, it does little more than read and write.
    matrix_bytes, row_bytes : int
        Bytes of matrices that samples are multiplied by, and of what it reads and makes for a
        sample.
    """

    layer: int
    share: float
    of_batch: float
    trains: bool
    returns: bool
    multiplies: bool
    matrix_bytes: int = 0
    row_bytes: int = 0

    def is_product(self, samples: float) -> bool:
        """Whether the gradients of its weights wait for all micro-batches; see `WeightProduct`."""
        if not self.returns or not self.matrix_bytes:
            return False
        return self.matrix_bytes >= SEVERAL * samples * self.row_bytes


class ChunkSteps(NamedTuple):
    """What a chunk computes, packs and unpacks in a pass.

    Attributes
    ----------
    names : tuple of str
        Names of the steps, in the order in which they run; see `Step.name`.
    places : tuple of int
        The place of each of these steps' instructions in its chunk.
    transfers : int
        Transfers that it packs or unpacks.
    nbytes : int
        Bytes of these, per sample.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    transfers: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class PartSteps:
    """The steps of a part's program.

    Attributes
    ----------
    forward, backward : tuple of ChunkSteps
        The steps of each chunk.
    recomputable : tuple of tuple of int
        For each backward chunk, the forward chunks that end in it, which it may have to recompute.
    shares : mapping of str to LayerShare
        Shares by the steps' names; a layer in several steps counts in the first of them.
    owned : mapping of int to float
        For each layer, the fraction of its parameters that the part's optimizer changes.
    """

    forward: tuple[ChunkSteps, ...]
    backward: tuple[ChunkSteps, ...]
    recomputable: tuple[tuple[int, ...], ...]
    shares: Mapping[str, LayerShare]
    owned: Mapping[int, float]


def part_steps(placement: Placement) -> dict[int, PartSteps]:
    """Find the steps of the parts that this process holds, in the placement's present mode."""
    shares: dict[int, dict[str, LayerShare]] = {part: {} for part in placement.programs.parts}
    for blueprint in placement.programs.blueprints:
        of_parts, learns = _shares(blueprint), blueprint.learns(inputs=False)
        for part in shares:
            shares[part].update(_of_part(placement, blueprint, part, of_parts[:, part], learns))
    return {part: _steps(placement, part, shares[part]) for part in sorted(shares)}


def _shares(blueprint: Blueprint) -> Float64:
    """For each layer, the fraction of its tasks that each part has; of split tasks, by work."""
    partition, graph = blueprint.partition, blueprint.graph
    model, k = partition.model, partition.k
    work = part_shares(model, partition.parts, k).layer_work
    shares = np.zeros((len(graph.layers), k))
    for at, view in enumerate(model.views):
        of_part = work[view.first]
        if view.split is None or not of_part.sum():
            of_part = np.array([len(blueprint.finishes(at, part)) for part in range(k)])
        shares[at] = of_part / max(1, of_part.sum())
    return shares


def _of_part(
    placement: Placement,
    blueprint: Blueprint,
    part: int,
    shares: Float64,
    learns: list[bool],
) -> dict[str, LayerShare]:
    graph, of_batch = blueprint.graph, len(blueprint.share.slices) / blueprint.share.of
    program, of_steps = placement.programs.parts[part], {}
    steps = {*dict(program.module.named_children()), *chain(*program.joined.values())}
    for at in np.flatnonzero(shares).tolist():
        name = blueprint.names[at]
        candidates = (f"{name}_partial", f"{name}_before_0")
        first = next((candidate for candidate in candidates if candidate in steps), name)
        layer = graph.layers[at]
        step = dict(program.module.named_children()).get(first)
        operands = [] if step is None else [*matrices(step)]
        of_steps[first] = LayerShare(
            layer=at,
            share=float(shares[at]),
            of_batch=of_batch,
            trains=not blueprint.trainable.isdisjoint(layer.parameter_names),
            returns=any(learns[source] for source in graph.sources(layer)),
            multiplies=layer.macs > 0,
            matrix_bytes=sum(matrix.nbytes for matrix in operands),
            row_bytes=sum(matrix.element_size() * sum(matrix.shape) for matrix in operands),
        )
    return of_steps


def _steps(placement: Placement, part: int, shares: Mapping[str, LayerShare]) -> PartSteps:
    program = placement.programs.parts[part]
    prepared, of_steps = prepare(program), {**shares}
    for name, joined in program.joined.items():
        several = [shares[slice_name] for slice_name in joined if slice_name in shares]
        if several:
            of_batch = sum(share.of_batch for share in several)
            of_steps[name] = replace(several[0], of_batch=of_batch)

    def chunk(places: range, backward: bool) -> ChunkSteps:
        instructions = [prepared.instructions[at][0] for at in places]
        computes = {at: step for at, step in enumerate(instructions) if isinstance(step, Compute)}
        sizes = [
            nbytes_a_sample(instruction.transfer)
            for instruction in instructions
            if isinstance(instruction, Receive | Send)
            and (instruction.transfer.differentiable or not backward)
        ]
        names = tuple(step.name for compute in computes.values() for step in compute.steps)
        return ChunkSteps(names, tuple(computes), len(sizes), sum(sizes))

    ends = [places[-1] if places else None for places in prepared.forward]  # some chunks are empty
    return PartSteps(
        forward=tuple(chunk(places, False) for places in prepared.forward),
        backward=tuple(chunk(places, True) for places in prepared.backward),
        recomputable=tuple(
            tuple(number for number, end in enumerate(ends) if end in places)
            for places in prepared.backward
        ),
        shares=of_steps,
        owned=_owned(placement, part),
    )


def _owned(placement: Placement, part: int) -> dict[int, float]:
    blueprint, slices = placement.programs.blueprint, placement.programs.slices[part]
    shapes, layers = blueprint.parameter_shapes, blueprint.graph.layers
    # A parameter of several layers belongs to the first.
    of_layers = {
        name: at for at in reversed(range(len(layers))) for name in layers[at].parameter_names
    }
    totals, owned = Counter[int](), Counter[int]()
    for name in blueprint.trainable & of_layers.keys():
        totals[of_layers[name]] += math.prod(shapes[name])
    for attribute, parameter in placement.programs.submodule(part).named_parameters():
        name = slices[attribute].name
        if name in blueprint.trainable and name in of_layers:
            owned[of_layers[name]] += parameter.numel()
    return {at: count / totals[at] for at, count in sorted(owned.items()) if count}
