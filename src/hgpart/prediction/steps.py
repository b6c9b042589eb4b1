"""Placement -> PartSteps: what the steps of its parts compute, of which layers and samples."""

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
    """What a step computes.

    Attributes
    ----------
    layer : int
        Its index.
    share : float
        Of the layer's tasks.
    of_batch : float
        Share of the batch, or micro-batch, that it computes them for.
    trains : bool
        Whether gradients are computed of some of its parameters.
    returns : bool
        Whether they are computed of what it reads.
    multiplies : bool
        Whether it has multiply-accumulates; else it does little more than read and write.
    matrix_bytes, row_bytes : int
        Of matrices that samples are multiplied by, and of what it reads and makes of a sample.
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


class Moved(NamedTuple):
    """What a chunk packs to send it, or takes apart when it has come.

    Attributes
    ----------
    transfers : int
    nbytes : int
        For a sample.
    """

    transfers: int
    nbytes: int


@dataclass(frozen=True, eq=False)
class PartSteps:
    """The steps of a part's program, in the order in which they run; see `Step.name`.

    Attributes
    ----------
    forward, backward : tuple of tuple of str
        Of each chunk.
    forward_places, backward_places : tuple of tuple of int
        Where the instruction of each of these steps stands in its chunk.
    forward_moved, backward_moved : tuple of Moved
        Of each chunk.
    again : tuple of tuple of int
        Of each backward chunk, the forward chunks that end in it: of these, it computes again what
        is to be computed again.
    shares : mapping of str to LayerShare
        By name; a layer's in several steps is the first one's.
    owned : mapping of int to float
        By layer, the share of its parameters that the part's optimizer changes.
    """

    forward: tuple[tuple[str, ...], ...]
    backward: tuple[tuple[str, ...], ...]
    forward_places: tuple[tuple[int, ...], ...]
    backward_places: tuple[tuple[int, ...], ...]
    forward_moved: tuple[Moved, ...]
    backward_moved: tuple[Moved, ...]
    again: tuple[tuple[int, ...], ...]
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
    """Of each layer, the share of its tasks that each part has; of split ones by their work."""
    partition, graph = blueprint.partition, blueprint.graph
    model, k = partition.model, partition.k
    work = part_shares(model, partition.parts, k).layer_work
    found = np.zeros((len(graph.layers), k))
    for at, view in enumerate(model.views):
        of_parts = work[view.first]
        if view.split is None or not of_parts.sum():
            of_parts = np.array([len(blueprint.finishes(at, part)) for part in range(k)])
        found[at] = of_parts / max(1, of_parts.sum())
    return found


def _of_part(
    placement: Placement,
    blueprint: Blueprint,
    part: int,
    shares: Float64,
    learns: list[bool],
) -> dict[str, LayerShare]:
    graph, of_batch = blueprint.graph, len(blueprint.share.slices) / blueprint.share.of
    program, found = placement.programs.parts[part], {}
    steps = {*dict(program.module.named_children()), *chain(*program.joined.values())}
    for at in np.flatnonzero(shares).tolist():
        name = blueprint.names[at]
        first = next((one for one in (f"{name}_partial", f"{name}_before_0") if one in steps), name)
        layer = graph.layers[at]
        step = dict(program.module.named_children()).get(first)
        of_step = [] if step is None else [*matrices(step)]
        found[first] = LayerShare(
            layer=at,
            share=float(shares[at]),
            of_batch=of_batch,
            trains=not blueprint.trainable.isdisjoint(layer.parameter_names),
            returns=any(learns[source] for source in graph.sources(layer)),
            multiplies=layer.macs > 0,
            matrix_bytes=sum(one.nbytes for one in of_step),
            row_bytes=sum(one.element_size() * sum(one.shape) for one in of_step),
        )
    return found


def _steps(placement: Placement, part: int, shares: Mapping[str, LayerShare]) -> PartSteps:
    program = placement.programs.parts[part]
    prepared, of_steps = prepare(program), {**shares}
    for name, joined in program.joined.items():
        several = [shares[one] for one in joined if one in shares]
        if several:
            of_steps[name] = replace(several[0], of_batch=sum(one.of_batch for one in several))

    def names(places: range) -> tuple[str, ...]:
        instructions = (prepared.instructions[at][0] for at in places)
        computes = (one for one in instructions if isinstance(one, Compute))
        return tuple(step.name for one in computes for step in one.steps)

    def steps_at(places: range) -> tuple[int, ...]:
        instructions = (prepared.instructions[at][0] for at in places)
        return tuple(at for at, one in enumerate(instructions) if isinstance(one, Compute))

    def moved(places: range, backward: bool) -> Moved:
        found = (prepared.instructions[at][0] for at in places)
        transfers = (one.transfer for one in found if isinstance(one, Receive | Send))
        sizes = [nbytes_a_sample(one) for one in transfers if one.differentiable or not backward]
        return Moved(len(sizes), sum(sizes))

    ends = [places[-1] if places else None for places in prepared.forward]  # some do nothing
    return PartSteps(
        forward=tuple(map(names, prepared.forward)),
        backward=tuple(map(names, prepared.backward)),
        forward_places=tuple(map(steps_at, prepared.forward)),
        backward_places=tuple(map(steps_at, prepared.backward)),
        forward_moved=tuple(moved(places, False) for places in prepared.forward),
        backward_moved=tuple(moved(places, True) for places in prepared.backward),
        again=tuple(
            tuple(chunk for chunk, end in enumerate(ends) if end in places)
            for places in prepared.backward
        ),
        shares=of_steps,
        owned=_owned(placement, part),
    )


def _owned(placement: Placement, part: int) -> dict[int, float]:
    blueprint, slices = placement.programs.blueprint, placement.programs.slices[part]
    shapes, layers = blueprint.parameter_shapes, blueprint.graph.layers
    # One that several layers have is the first one's.
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
