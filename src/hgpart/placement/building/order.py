"""Blueprints of all shares -> in which order each part goes through the layers of all of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from hgpart.execution.transfers import Transfer
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.shares.interleaving import Unit
from hgpart.placement.shares.joining import joined
from hgpart.placement.shares.samples import keeps_apart
from hgpart.placement.shares.statistics import NormOfBatch, SharedStatistics
from hgpart.schedules.costs import Costs

# Seconds of a parameter in a step, besides those of its samples: measured on VGG16, which takes 6,
# 10 and 15 % longer a sample in batches of 4, 2 and 1 than of 16.
SECONDS_A_PARAMETER = 2e-10


class Piece(NamedTuple):
    """What a part does of a layer, for shares of the batch: partial sums, or what ends tasks."""

    shares: tuple[int, ...]
    layer: int
    partial: bool
    norms: int = 0  # of the batch, that come before it in the layer


class Sums(NamedTuple):
    """What a part does of the statistics of a norm of the batch: those of its samples, or all."""

    norm: NormOfBatch
    whole: bool


Order = Sequence[Piece | Sums]


def order_of_layers(
    blueprints: Sequence[Blueprint], statistics: SharedStatistics
) -> tuple[Order, ...]:
    """For each part, in which order it goes through the layers of all shares of the batch."""
    layers, k = range(len(blueprints[0].graph.layers)), blueprints[0].partition.k
    if len(blueprints) == 1:
        return (tuple(Piece((0,), at, partial) for at in layers for partial in (True, False)),) * k
    units = _Units(blueprints, statistics)
    order: list[list[Piece | Sums]] = [[] for _ in range(k)]
    for group in joined(units.all):
        first, *others = (units.pieces[number] for number in group)
        if isinstance(first, Piece):
            together = (first, *(one for one in others if isinstance(one, Piece)))
            shares = chain.from_iterable(one.shares for one in together)
            first = first._replace(shares=tuple(shares))
        order[units.all[group[0]].part].append(first)
    return tuple(order)


class _Units:
    """What parts do of the layers of all shares, by estimated costs."""

    def __init__(self, blueprints: Sequence[Blueprint], statistics: SharedStatistics) -> None:
        self.all: list[Unit] = []
        self.pieces: list[Piece | Sums] = []
        self._blueprints, self._statistics = blueprints, statistics
        self._samples = blueprints[0].partition.modelling.batch_size
        self._k, self._costs = blueprints[0].partition.k, Costs()
        self._work = [self._work_of(one) for one in blueprints]
        self._each = [self._seconds_of_work(one) for one in blueprints]
        first = blueprints[0]
        self._apart = [
            at not in statistics.norms and _keeps_apart(first, at)
            for at in range(len(first.graph.layers))
        ]
        self._coming = [self._coming_of(one) for one in blueprints]
        self._made: dict[tuple[int, int, bool, int], int] = {}  # share, layer, partial, part
        self._last: dict[tuple[int, int], int] = {}  # by share and part
        for at in range(len(blueprints[0].graph.layers)):
            for share in range(len(blueprints)):
                for partial in (True, False):
                    self._add_layer(share, at, partial)
            for norm in statistics.norms.get(at, ()):
                self._add_norm(norm)

    def _work_of(self, blueprint: Blueprint) -> np.ndarray:
        partition = blueprint.partition
        return part_shares(partition.model, partition.parts, self._k).layer_work

    def _seconds_of_work(self, blueprint: Blueprint) -> float:
        work = blueprint.work
        each = (1.0 if work.unit == "s" else self._costs.work) / work.units
        return each * blueprint.share.samples(self._samples)

    def _coming_of(
        self, blueprint: Blueprint
    ) -> Mapping[tuple[int, bool, int], Sequence[tuple[int, float]]]:
        """By layer, whether it is partial sums, and receiver: from whom, and how long it takes."""
        coming: dict[tuple[int, bool, int], list[tuple[int, float]]] = {}
        for transfer, item in zip(blueprint.transfers, blueprint.shipments, strict=True):
            key = item.layer, item.partial, item.receiver
            coming.setdefault(key, []).append((item.sender, self._travel(transfer)))
        return coming

    def _travel(self, transfer: Transfer) -> float:
        return self._costs.message + self._costs.byte * transfer.nbytes(self._samples)

    def _add(self, unit: Unit, piece: Piece | Sums) -> int:
        self.all.append(unit)
        self.pieces.append(piece)
        return len(self.all) - 1

    def _add_layer(self, share: int, at: int, partial: bool) -> None:
        blueprint = self._blueprints[share]
        layer, cells = blueprint.graph.layers[at], blueprint.owners.cells[at]
        read = [(source, False) for source in blueprint.graph.sources(layer)]
        works = self._work[share][layer.tied_to]
        parameters = blueprint.graph.layers[layer.tied_to].parameters / max(1, int(works.sum()))
        for part in range(self._k):
            own = cells[part] if cells is not None else ()
            if not len(own if partial else blueprint.finishes(at, part)):
                continue
            last = self._last.get((share, part))
            needs = {} if last is None else {last: 0.0}
            for source, sums in read if partial else [*read, (at, True)]:
                for sender, travel in self._coming[share].get((source, sums, part), ()):
                    needs[self._made[share, source, sums, sender]] = travel
            # The products, where they are apart.
            done = float(works[part]) if partial == (cells is not None) else 0.0
            alike = _alike(blueprint, at, partial, part) if self._apart[at] else None
            once = done * parameters * SECONDS_A_PARAMETER
            unit = Unit(part, done * self._each[share], needs, once, alike)
            number = self._add(unit, Piece((share,), at, partial))
            self._made[share, at, partial, part] = self._last[share, part] = number

    def _add_norm(self, norm: NormOfBatch) -> None:
        """Statistics of the samples of each part, those of the batch, and what comes behind."""
        at, made = norm.layer, dict[tuple[bool, int], int]()
        finish = self._statistics.finish(at)
        for whole in (False, True):
            for part in np.unique(finish).tolist():
                here = np.flatnonzero((finish == part).any(axis=1)).tolist()
                needs = {self._last[share, part]: 0.0 for share in here}
                if whole:
                    for one in self._statistics.coming(norm, False, part):
                        needs[made[False, one.sender]] = self._travel(one.transfer)
                    works = len(self._statistics.owned(at, part))
                else:
                    works = len(self._statistics.leaving(norm, False, part))
                if works:
                    made[whole, part] = self._add(Unit(part, 0.0, needs), Sums(norm, whole))
        for share, own in enumerate(finish):
            for part in np.unique(own).tolist():
                needs = {self._last[share, part]: 0.0}
                if (True, part) in made:
                    needs[made[True, part]] = 0.0
                for one in self._statistics.coming(norm, True, part):
                    if (own[one.tasks] == part).any():
                        needs[made[True, one.sender]] = self._travel(one.transfer)
                piece = Piece((share,), at, False, norm.number + 1)
                number = self._add(Unit(part, 0.0, needs), piece)
                self._made[share, at, False, part] = self._last[share, part] = number


def _keeps_apart(blueprint: Blueprint, at: int) -> bool:
    """Whether a layer can be computed for several shares of the batch at once."""
    layer, results = blueprint.graph.layers[at], blueprint.results
    if layer.kind in (INPUT, OUTPUT, PARAMETER) or at in blueprint.buffer_updates:
        return False
    sources = {node for source in blueprint.graph.sources(layer) for node in results[source]}
    return keeps_apart(blueprint.facts, results[at], sources, blueprint.draws)


def _alike(blueprint: Blueprint, at: int, partial: bool, part: int) -> Hashable:
    """What has to be the same in shares of which a part does something at once."""
    layer, found = blueprint.graph.layers[at], [f"{at} {partial}".encode()]
    for source in blueprint.graph.sources(layer):
        pieces = [blueprint.channels(source, blueprint.finishes(source, part))]
        pieces += [item.members for item in blueprint.arriving.get((source, False, part), [])]
        found.append(np.unique(np.concatenate(pieces)).tobytes())
    cells = blueprint.owners.cells[at]
    if partial and cells is not None:
        found += [array.tobytes() for one in cells[part] for array in (one.tasks, one.positions)]
    else:
        tasks = blueprint.finishes(at, part)
        found.append(tasks.tobytes())
        if cells is not None:
            own = np.concatenate([np.zeros(0, np.int64), *(one.tasks for one in cells[part])])
            sums = [item.members for item in blueprint.arriving.get((at, True, part), [])]
            pieces = [np.sort(own[np.isin(own, tasks)]), *sums]
            found += sorted(piece.tobytes() for piece in pieces if len(piece))
    return tuple(found)
