"""Placement -> PartSteps: the layers and samples that the steps of its parts compute."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Int64
from hgpart.execution.instructions import Compute, Receive, Send, matrices, prepare
from hgpart.execution.outlines import nbytes_a_sample
from hgpart.execution.program import PartProgram
from hgpart.execution.weights.gradients import SEVERAL
from hgpart.placement import Placement
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.programs import Programs


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
        Fraction of the batch, or micro-batch, that it computes them for; of a tile, the fraction of
        its rows, too: fewer rows of each sample take as long as all rows of fewer samples.
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
    shares : mapping of str to LayerShare
        Shares by the steps' names; a tile in several steps counts in the first of them.
    owned : mapping of int to float
        For each layer, the fraction of its parameters that the part's optimizer changes.
    """

    forward: tuple[ChunkSteps, ...]
    backward: tuple[ChunkSteps, ...]
    shares: Mapping[str, LayerShare]
    owned: Mapping[int, float]


def part_steps(placement: Placement, programs: Programs | None = None) -> dict[int, PartSteps]:
    """Find the steps of the parts that this process holds.

    Default: by the programs of the placement in its present mode.
    """
    programs = programs or placement.programs
    steps = {}
    for part, program in sorted(programs.parts.items()):
        shares: dict[str, LayerShare] = {}
        for blueprint in programs.blueprints:
            shares.update(_of_part(program, blueprint))
        steps[part] = _steps(program, shares, _owned(placement, part))
    return steps


def _of_part(program: PartProgram, blueprint: Blueprint) -> dict[str, LayerShare]:
    graph, learns = blueprint.graph, blueprint.learns(inputs=False)
    share = blueprint.share
    of_batch = len(share.slices) / share.of if share.turn is None else 1.0
    part, of_steps = program.part, {}
    modules = dict(program.module.named_children())
    steps = {*modules, *chain(*program.joined.values())}
    for at, layer in enumerate(graph.layers):
        for suffix, of_layer, rows in portions(blueprint, at, part):
            name = f"{blueprint.names[at]}{suffix}"
            before = f"{blueprint.names[at]}_before_0{suffix}"
            first = before if before in steps else name
            step = modules.get(first)
            operands = [] if step is None else [*matrices(step)]
            of_steps[first] = LayerShare(
                layer=at,
                share=of_layer,
                of_batch=of_batch * rows,
                trains=not blueprint.trainable.isdisjoint(layer.parameter_names),
                returns=any(learns[source] for source in graph.sources(layer)),
                multiplies=layer.macs > 0,
                matrix_bytes=sum(matrix.nbytes for matrix in operands),
                row_bytes=sum(matrix.element_size() * sum(matrix.shape) for matrix in operands),
            )
    return of_steps


def portions(blueprint: Blueprint, at: int, part: int) -> Iterator[tuple[str, float, float]]:
    """What a part computes of a layer: suffix of a step's name, and fractions of tasks and rows."""
    owners, tasks = blueprint.owners, blueprint.graph.layers[at].tasks
    if (cells := owners.cells[at]) is None:
        for number, tile in enumerate(blueprint.tiles(at, part)):
            rows = rows_computed(blueprint, at, tile.rows)
            yield f"_tile_{number}" * (number > 0), len(tile.tasks) / tasks, rows
    elif cells[part]:
        here = sum(len(cell.tasks) for cell in cells[part])
        area = sum(len(cell.tasks) * len(cell.positions) for cell in cells[part])
        if owners.sums_rows(at):
            yield "_partial", here / tasks, area / (here * owners.cell_cuts[at][-1])
        else:  # each task reads its group's channels, or the part some of them
            read = blueprint.graph.layers[at].reads[owners.splits[at] or 0]
            yield "_partial", area * read.groups / (tasks * len(read.channels)), 1.0


def rows_computed(blueprint: Blueprint, at: int, rows: Int64 | None) -> float:
    """The fraction of a layer's rows that its first operator computes for rows of its maps.

    Where windows overlap behind it, as of a pooling, neighbouring tiles compute some rows twice.
    """
    if rows is None:
        return 1.0
    head = blueprint.graph.layer_rows[at].head
    if head is None:
        return len(rows) / blueprint.owners.height(at)
    return len(np.unique(head.reads.take(rows).values)) / head.height


def _steps(
    program: PartProgram, shares: Mapping[str, LayerShare], owned: Mapping[int, float]
) -> PartSteps:
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

    return PartSteps(
        forward=tuple(chunk(places, False) for places in prepared.forward),
        backward=tuple(chunk(places, True) for places in prepared.backward),
        shares=of_steps,
        owned=owned,
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
