"""Builders of all shares -> what one part does with the statistics of norms of the batch."""

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
    Taken,
    combining_step,
)


@dataclass(eq=False)
class StatisticsBuilder:
    """What one part does with statistics of norms of the batch, under construction.

    Attributes
    ----------
    builders : sequence of PartBuilder
        Of each share of the batch.
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
        """Name what will arrive."""
        for one in self._statistics.travelling:
            if one.receiver == self._part:
                name = self._statistics.name(one.norm, one.whole, f"_from_{one.sender}")
                self._program.waiting[name] = (one.transfer, name)

    def add(self, norm: NormOfBatch, whole: bool) -> None:
        """Put together those of the part's samples for others, or those of the batch for all."""
        statistics, part = self._statistics, self._part
        sources = self._own(norm)
        if not whole:
            for one in statistics.leaving(norm, False, part):
                name = statistics.name(norm, False, f"_to_{one.receiver}")
                (made,) = self._add(name, norm, one.tasks, sources, updates=False)
                self._program.send(one.transfer, [made])
            return
        finish, own = statistics.finish(norm.layer), statistics.owned(norm.layer, part)
        for one in statistics.coming(norm, False, part):
            name = statistics.name(norm, False, f"_from_{one.sender}")
            sources.append(Taken(name, one.tasks, finish == one.sender))
        name, have = statistics.name(norm, True), norm.positions(own)
        self._add(name, norm, own, sources, updates=True)
        for one in statistics.leaving(norm, True, part):
            places = np.searchsorted(have, norm.positions(one.tasks))
            self._program.send(one.transfer, [self._program.packed(name, 1, places, len(have))])

    def _add(
        self,
        name: str,
        norm: NormOfBatch,
        tasks: Int64,
        sources: Sequence[Taken],
        updates: bool,
    ) -> tuple[fx.Node, ...]:
        samples = [f"{one.blueprint.prefix}batch_size" for one in self.builders]
        begun = self.builders[0].begin(norm.layer, tasks)
        step = combining_step(begun, norm, sources, samples, updates)
        made = self._program.add(step, name)
        self.builders[0].hold(step, name)
        return made

    def _own(self, norm: NormOfBatch) -> list[Taken]:
        """Statistics of the samples that the part has, share by share."""
        finish, found = self._statistics.finish(norm.layer), []
        for share, builder in enumerate(self.builders):
            tasks = np.flatnonzero(finish[share] == self._part)
            if len(tasks):
                own = np.zeros(finish.shape, dtype=np.bool_)
                own[share, tasks] = True
                found.append(Taken(builder.statistics_of(norm), tasks, own))
        return found
