"""Blueprints of all shares -> the order in which each part computes the layers of all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Int64
from hgpart.execution.program import Transfer
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.shares.joining import WorkUnit, joined
from hgpart.placement.shares.samples import keeps_apart
from hgpart.placement.shares.statistics import NormOfBatch, SharedStatistics
from hgpart.schedules.costs import Costs
from hgpart.work.figures import seconds_a_unit

# Seconds per parameter and step, in addition to those per sample: measured on VGG16, where a sample
# takes 6, 10 and 15 % longer in batches of 4, 2 and 1 than in one of 16.
SECONDS_A_PARAMETER = 2e-10


class LayerPiece(NamedTuple):
    """A part's work on a layer for some shares of the batch: partial sums, or the end of tasks."""

    shares: tuple[int, ...]
    layer: int
    partial: bool
    norms: int = 0  # number of norms of the batch that come before it in the layer


class Sums(NamedTuple):
    """A part's work on the statistics of a norm of the batch: those of its samples, or of all."""

    norm: NormOfBatch
    whole: bool
    group: int = 0  # number of the shares whose statistics these are


Order = Sequence[LayerPiece | Sums]


def order_of_layers(
    blueprints: Sequence[Blueprint], statistics: Sequence[SharedStatistics]
) -> tuple[Order, ...]:
    """For each part the order in which it computes the layers of all shares of the batch."""
    if len(blueprints) == 1:
        pieces: list[LayerPiece | Sums] = []
        for at in range(len(blueprints[0].graph.layers)):
            pieces += (LayerPiece((0,), at, partial) for partial in (True, False))
            for norm in statistics[0].norms.get(at, ()):
                pieces += (Sums(norm, whole) for whole in (False, True))
                pieces.append(LayerPiece((0,), at, False, norm.number + 1))
        return (tuple(pieces),) * blueprints[0].partition.k
    units = _Units(blueprints, statistics)
    order: list[list[LayerPiece | Sums]] = [[] for _ in range(blueprints[0].partition.k)]
    for group in joined(units.all):
        first, *more = (units.pieces[number] for number in group)
        if isinstance(first, LayerPiece):
            together = (first, *(piece for piece in more if isinstance(piece, LayerPiece)))
            shares = chain.from_iterable(piece.shares for piece in together)
            first = first._replace(shares=tuple(shares))
        order[units.all[group[0]].part].append(first)
    return tuple(order)


class _Units:
    """The work of all parts on the layers of all shares, with estimated costs."""

    def __init__(
        self, blueprints: Sequence[Blueprint], statistics: Sequence[SharedStatistics]
    ) -> None:
        self.all: list[WorkUnit] = []
        self.pieces: list[LayerPiece | Sums] = []
        self._blueprints, self._statistics = blueprints, statistics
        self._samples = blueprints[0].partition.modelling.batch_size
        self._k, self._costs = blueprints[0].partition.k, Costs()
        self._work = [self._work_of(blueprint) for blueprint in blueprints]
        self._seconds_per_work = [self._seconds_of_work(blueprint) for blueprint in blueprints]
        first = blueprints[0]
        self._apart = [
            at not in statistics[0].norms and keeps_layer_apart(first, at)
            for at in range(len(first.graph.layers))
        ]
        self._coming = [self._coming_of(blueprint) for blueprint in blueprints]
        self._made: dict[tuple[int, int, bool, int], int] = {}  # share, layer, partial, part
        self._last: dict[tuple[int, int], int] = {}  # by share and part
        for at in range(len(blueprints[0].graph.layers)):
            for share in range(len(blueprints)):
                for partial in (True, False):
                    self._add_layer(share, at, partial)
            for norm in statistics[0].norms.get(at, ()):
                for group in range(len(statistics)):
                    self._add_norm(norm, group)

    def _work_of(self, blueprint: Blueprint) -> np.ndarray:
        partition = blueprint.partition
        return part_shares(partition.model, partition.parts, self._k).layer_work

    def _seconds_of_work(self, blueprint: Blueprint) -> float:
        unit = seconds_a_unit(blueprint.work, self._samples, self._costs.work)
        return unit * blueprint.share.samples(self._samples)

    def _coming_of(
        self, blueprint: Blueprint
    ) -> Mapping[tuple[int, bool, int], Sequence[tuple[int, float]]]:
        """Senders and travel times by layer, whether it is partial sums, and receiver."""
        coming: dict[tuple[int, bool, int], list[tuple[int, float]]] = {}
        for transfer, item in zip(blueprint.transfers, blueprint.channel_transfers, strict=True):
            key = item.layer, item.partial, item.receiver
            coming.setdefault(key, []).append((item.sender, self._travel(transfer)))
        return coming

    def _travel(self, transfer: Transfer) -> float:
        return self._costs.message + self._costs.byte * transfer.nbytes(self._samples)

    def _add(self, unit: WorkUnit, piece: LayerPiece | Sums) -> int:
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
            # If the layer is split, its products are the work of its partial sums.
            done = float(works[part]) if partial == (cells is not None) else 0.0
            alike = _alike(blueprint, at, partial, part) if self._apart[at] else None
            once = done * parameters * SECONDS_A_PARAMETER
            seconds = done * self._seconds_per_work[share]
            unit = WorkUnit(part, seconds, needs, once, alike)
            number = self._add(unit, LayerPiece((share,), at, partial))
            self._made[share, at, partial, part] = self._last[share, part] = number

    def _add_norm(self, norm: NormOfBatch, group: int) -> None:
        """Add statistics of each part's tiles, those of all tiles, and the work after them."""
        at, made = norm.layer, dict[tuple[bool, int], int]()
        statistics = self._statistics[group]
        shares = range(group, group + 1) if len(self._statistics) > 1 else range(len(self._work))
        finish = statistics.finish(at).reshape(len(shares), -1, self._tasks(at))
        for whole in (False, True):
            for part in np.unique(finish).tolist():
                here = np.flatnonzero((finish == part).any(axis=(1, 2))).tolist()
                needs = {self._last[shares[number], part]: 0.0 for number in here}
                if whole:
                    for incoming in statistics.coming(norm, False, part):
                        needs[made[False, incoming.sender]] = self._travel(incoming.transfer)
                    works = len(statistics.owned(at, part))
                else:
                    works = len(statistics.leaving(norm, False, part))
                if works:
                    piece = Sums(norm, whole, group)
                    made[whole, part] = self._add(WorkUnit(part, 0.0, needs), piece)
        for share, own in zip(shares, finish, strict=True):
            for part in np.unique(own).tolist():
                needs = {self._last[share, part]: 0.0}
                if (True, part) in made:
                    needs[made[True, part]] = 0.0
                for incoming in statistics.coming(norm, True, part):
                    if (own[:, incoming.tasks] == part).any():
                        needs[made[True, incoming.sender]] = self._travel(incoming.transfer)
                after = LayerPiece((share,), at, False, norm.number + 1)
                number = self._add(WorkUnit(part, 0.0, needs), after)
                self._made[share, at, False, part] = self._last[share, part] = number

    def _tasks(self, at: int) -> int:
        return self._blueprints[0].graph.layers[at].tasks


def keeps_layer_apart(blueprint: Blueprint, at: int) -> bool:
    """Whether a layer can be computed for several shares of the batch at once."""
    layer, results = blueprint.graph.layers[at], blueprint.results
    if layer.kind in (INPUT, OUTPUT, PARAMETER) or at in blueprint.buffer_updates:
        return False
    sources = {node for source in blueprint.graph.sources(layer) for node in results[source]}
    return keeps_apart(blueprint.facts, results[at], sources, blueprint.draws)


def _alike(blueprint: Blueprint, at: int, partial: bool, part: int) -> Hashable:
    """What must be equal in several shares for a part to compute them at once."""
    layer, contents = blueprint.graph.layers[at], [f"{at} {partial}".encode()]
    for source in blueprint.graph.sources(layer):
        pieces: list[tuple[Int64, Int64 | None]] = [
            (blueprint.channels(source, tile.tasks), tile.rows)
            for tile in blueprint.tiles(source, part)
        ]
        for item in blueprint.arriving.get((source, False, part), []):
            pieces += [(piece.members, piece.rows) for piece in item.pieces]
        if blueprint.row_dim(source) is None:
            channels = np.concatenate([np.zeros(0, np.int64), *(members for members, _ in pieces)])
            pieces = [(np.unique(channels), None)]
        contents += sorted(_texts(pieces))
    cells = blueprint.owners.cells[at]
    if partial and cells is not None:
        rectangles = cells[part]
        contents += [array.tobytes() for own in rectangles for array in (own.tasks, own.positions)]
    else:
        tasks = blueprint.finishes(at, part)
        contents += _texts((tile.tasks, tile.rows) for tile in blueprint.tiles(at, part))
        if cells is not None:
            cell_tasks = (rectangle.tasks for rectangle in cells[part])
            own = np.sort(np.concatenate([np.zeros(0, np.int64), *cell_tasks]))
            arriving = blueprint.arriving.get((at, True, part), [])
            sums = [(part, own[np.isin(own, tasks)])]
            sums += [(item.sender, item.members) for item in arriving]
            counted = (
                (some, blueprint.statistic_counts(at, sender, some)) for sender, some in sums
            )
            contents += sorted(_texts(pair for pair in counted if len(pair[0])))
    return tuple(contents)


def _texts(pieces: Iterable[tuple[Int64, Int64 | None]]) -> list[bytes]:
    """Texts that are equal for the same channels in the same rows, or tasks with these counts."""
    return [
        members.tobytes() + b" " + (b"" if rows is None else rows.tobytes())
        for members, rows in pieces
    ]
