"""Builders of some shares -> one part's work on the statistics of norms over their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.placement.building.part_builder import PartBuilder
from hgpart.placement.building.part_graph import PartGraph
from hgpart.placement.shares.statistics import (
    NormOfBatch,
    SharedStatistics,
    SourceStatistics,
    combining_step,
)


@dataclass(eq=False)
class StatisticsBuilder:
    """One part's work on statistics of norms over several tiles, under construction.

    Attributes
    ----------
    builders : sequence of PartBuilder
        Builder of each share that the norms are over.
    """

    builders: Sequence[PartBuilder]

    @property
    def _statistics(self) -> SharedStatistics:
        return self.builders[0].statistics

    @property
    def _part(self) -> int:
        return self.builders[0].part

    @property
    def _program(self) -> PartGraph:
        return self.builders[0].program

    def expect(self) -> None:
        """Note the names of all that will arrive."""
        for item in self._statistics.travelling:
            if item.receiver == self._part:
                name = self._statistics.name(item.norm, item.whole, f"_from_{item.sender}")
                self._program.waiting[name] = (item.transfer, name)

    def add(self, norm: NormOfBatch, whole: bool) -> None:
        """Combine statistics of the part's own tiles for others, or those of all tiles."""
        statistics, part = self._statistics, self._part
        sources = self._own(norm)
        if not whole:
            for item in statistics.leaving(norm, False, part):
                name = statistics.name(norm, False, f"_to_{item.receiver}")
                (combined,) = self._add(name, norm, item.tasks, sources, updates=False)
                self._program.send(item.transfer, [combined])
            return
        finish, own = statistics.finish(norm.layer), statistics.owned(norm.layer, part)
        if not len(own):
            return
        for item in statistics.coming(norm, False, part):
            name = statistics.name(norm, False, f"_from_{item.sender}")
            sources.append(SourceStatistics(name, item.tasks, finish == item.sender))
        name, have = statistics.name(norm, True), norm.positions(own)
        self._add(name, norm, own, sources, updates=True)
        for item in statistics.leaving(norm, True, part):
            places = np.searchsorted(have, norm.positions(item.tasks))
            packed = self._program.packed(name, [(1, places, len(have))])
            self._program.send(item.transfer, [packed])

    def _add(
        self,
        name: str,
        norm: NormOfBatch,
        tasks: Int64,
        sources: Sequence[SourceStatistics],
        updates: bool,
    ) -> tuple[fx.Node, ...]:
        samples = [f"{builder.blueprint.prefix}batch_size" for builder in self.builders]
        begun = self.builders[0].begin(norm.layer, tasks)
        step = combining_step(begun, norm, sources, samples, updates)
        results = self._program.add(step, name)
        self.builders[0].hold(step, name)
        return results

    def _own(self, norm: NormOfBatch) -> list[SourceStatistics]:
        """Statistics of the part's own samples and rows, tile by tile."""
        finish, sources = self._statistics.finish(norm.layer), []
        bands = len(norm.row_cuts) - 1
        for share, builder in enumerate(self.builders):
            for number, tile in enumerate(builder.blueprint.tiles(norm.layer, self._part)):
                own = np.zeros(finish.shape, dtype=np.bool_)
                for band in tile.bands:
                    own[share * bands + band, tile.tasks] = True
                name = builder.statistics_of(norm, number)
                sources.append(SourceStatistics(name, tile.tasks, own))
        return sources
