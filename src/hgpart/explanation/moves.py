"""Partition + a move of a layer or of a share -> Move: what it would cost, by hgpart's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Float64, Int32, Int64
from hgpart.explanation.share_nets import ShareNets
from hgpart.partition import Partition
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.memory import COPIES, part_memory
from hgpart.partition.problem.objectives import Objective
from hgpart.partition.steering.checking import broken


@dataclass(frozen=True, eq=False)
class Move:
    """Another place for a layer, and what the partition is with it.

    Attributes
    ----------
    layer : str
        Name of the layer.
    source : int or None
        The part whose share of the layer moves; None if all of it does.
    target : int
        The part that it moves to.
    partition : Partition
        The partition with the move made, with all figures computed anew.
    more_bytes : int
        Bytes that travel more than before; below 0 where they are fewer.
    more_value : float
        What the problem's objective is larger by: of volume, the same.
    memory_bytes : int64 array, shape (k,)
        Bytes that each part needs, by `part_memory`.
    over_load : int
        Work by which the target exceeds what it may have; 0 if the move is within eps.
    over_memory : int
        Bytes by which a part exceeds its memory limit; 0 without limits.
    broken : tuple of str
        Names of the constraints that it breaks, and the partition does not.
    seconds : float or None
        Simulated seconds of a step, where it was simulated.
    """

    layer: str
    source: int | None
    target: int
    partition: Partition = field(repr=False)
    more_bytes: int
    more_value: float
    memory_bytes: Int64 = field(repr=False)
    over_load: int
    over_memory: int
    broken: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def volume(self) -> int:
        """Bytes that travel once it is made."""
        return self.partition.evaluation.volume

    @property
    def imbalance(self) -> float:
        """Imbalance once it is made."""
        return self.partition.evaluation.imbalance

    @property
    def is_allowed(self) -> bool:
        """Whether it is within eps and memory, and keeps to the constraints."""
        return not self.over_load and not self.over_memory and not self.broken


class OtherPlace(NamedTuple):
    """A move before it is evaluated.

    Attributes
    ----------
    value : float
        Change of the problem's objective.
    busiest : float
        The largest load over speed, once it is made.
    over_load : int
        See `Move`.
    """

    layer: int
    source: int | None
    target: int
    value: float
    busiest: float
    over_load: int

    @property
    def order(self) -> tuple[float, float]:
        """Sort key: the least of the objective, then the most even."""
        return self.value, self.busiest


@dataclass(frozen=True, eq=False)
class Moves:
    """All moves of single layers and of single shares of a partition.

    A partition that is not within eps, or not within memory, allows its parts what they have now;
    constraints that it breaks hold nothing.
    """

    partition: Partition

    @cached_property
    def nets(self) -> ShareNets:
        """The nets between the shares."""
        return ShareNets.of(self.partition)

    @cached_property
    def layer_work(self) -> Int64:
        """Work of each layer in each part, by the first of those that share a weight."""
        return self.partition.shares.layer_work

    @cached_property
    def load_limits(self) -> Int64:
        """The largest work of each part."""
        problem, loads = self.partition.problem, self.partition.evaluation.loads
        limits: Int64 = np.maximum(capacities(problem.total, problem.rates, problem.eps), loads)
        return limits

    @cached_property
    def memory_bytes(self) -> Int64:
        """Bytes that each part needs now."""
        return memory_of(self.partition)

    @cached_property
    def memory_limits(self) -> Int64 | None:
        """The most bytes of each part, where memory is limited."""
        memory = self.partition.problem.memory
        return None if memory is None else np.maximum(memory.bytes, self.memory_bytes)

    @cached_property
    def rates(self) -> Float64:
        """Relative speed of each part's device."""
        return np.array(self.partition.problem.rates, dtype=np.float64)

    def parts_of(self, layer: int) -> list[int]:
        """The parts that have some of a layer."""
        held: list[int] = self.nets.parts[self.nets.layers == layer].tolist()
        return held

    def places(self, layer: int) -> list[OtherPlace]:
        """All other places of a layer, those of the least objective first."""
        return sorted(self._places(layer), key=lambda place: place.order)

    def _places(self, layer: int) -> Iterator[OtherPlace]:
        k, held = self.partition.k, self.parts_of(layer)
        loads, work = self.partition.evaluation.loads, self.layer_work[layer]
        objective, before = self.partition.problem.objective, self.partition.objective_value
        whole, shares = self.nets.changes(layer)
        sources = [None, *held] if len(held) > 1 else [None]
        for source in sources:
            for target in range(k):
                if target == source or (source is None and held == [target]):
                    continue
                after = loads.copy()
                if source is None:
                    after -= work
                    after[target] += work.sum()
                    value = float(whole[target])
                else:
                    after[source] -= work[source]
                    after[target] += work[source]
                    value = float(shares[source, target])
                if not objective.is_volume:
                    value = self.value_of(objective, layer, source, target) - before
                yield OtherPlace(
                    layer,
                    source,
                    target,
                    value,
                    float((after / self.rates).max()),
                    max(0, int(after[target] - self.load_limits[target])),
                )

    def value_of(self, objective: Objective, layer: int, source: int | None, target: int) -> float:
        """The value of an objective once a share, or where there is no source a layer, has moved.

        It is not computed from the partition with the move made, which takes longer.
        """
        traffic = self.nets.traffic_of(layer, source, target)
        work = self.layer_work.copy()
        sources = slice(None) if source is None else [source]
        work[layer, sources] = 0
        work[layer, target] += self.layer_work[layer, sources].sum()
        return objective.value(traffic, work)

    def move(self, place: OtherPlace) -> Move:
        """Make a move, and compute what the partition then costs."""
        before = self.partition
        moved = before.with_parts(before.model, moved_parts(before, place))
        needed = memory_of(moved)
        limits = self.memory_limits
        return Move(
            layer=before.model.views[place.layer].layer.name,
            source=place.source,
            target=place.target,
            partition=moved,
            more_bytes=moved.evaluation.volume - before.evaluation.volume,
            more_value=moved.objective_value - before.objective_value,
            memory_bytes=needed,
            over_load=max(0, int((moved.evaluation.loads - self.load_limits).max())),
            over_memory=0 if limits is None else max(0, int((needed - limits).max())),
            broken=tuple(name for name in moved.broken if name not in before.broken),
        )

    def keeps_constraints(self, place: OtherPlace) -> bool:
        """Whether a move breaks no constraint that the partition keeps."""
        before = self.partition
        if not before.problem.constraints:
            return True
        parts = moved_parts(before, place)
        return set(broken(before.model, parts, before.problem.constraints)) <= set(before.broken)

    def first_allowed(self, places: list[OtherPlace]) -> Move | None:
        """The first of some moves that is allowed."""
        for place in places:
            if not place.over_load:
                move = self.move(place)
                if move.is_allowed:
                    return move
        return None


def moved_parts(partition: Partition, place: OtherPlace) -> Int32:
    """The part of each block with a move made."""
    moves = partition.model.vertex_layers == place.layer
    if place.source is not None:
        moves &= partition.parts == place.source
    parts: Int32 = np.where(moves, place.target, partition.parts).astype(np.int32)
    return parts


def memory_of(partition: Partition) -> Int64:
    """Bytes that each part needs, to train with Adam where the problem does not say how."""
    memory = partition.problem.memory
    if memory is None or partition.memory_bytes is None:
        return part_memory(partition.model, partition.parts, partition.k, COPIES)
    return partition.memory_bytes
