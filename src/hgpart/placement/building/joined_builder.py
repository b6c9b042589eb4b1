"""Builders of several shares -> what one part computes for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from hgpart.arrays import Int64
from hgpart.placement.building.part_builder import PartBuilder
from hgpart.placement.building.part_graph import numbered
from hgpart.placement.cutting.step_graph import Source
from hgpart.placement.cutting.steps import PartialSum, Step
from hgpart.placement.shares.joined_graph import Join, JoinedGraph
from hgpart.placement.shares.samples import dimension, dimension_of_piece


@dataclass(eq=False, kw_only=True)
class JoinedBuilder(PartBuilder):
    """The work of one part for several shares of the batch at once.

    Its blueprint, and the state that steps hold, are those of the first share.

    Attributes
    ----------
    prefix : str
        Begin of the names of all that is computed at once.
    members : sequence of PartBuilder
        Builder of each share.
    """

    prefix: str
    members: Sequence[PartBuilder]
    _joins: dict[str, Join] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Sequence[int], members: Sequence[PartBuilder]) -> JoinedBuilder:
        """Build for these shares, given by number."""
        first = members[0]
        builder = cls(
            first.blueprint,
            first.part,
            first.program,
            first.statistics,
            first.slices,
            first.later_slices,
            prefix=f"shares{'_'.join(map(str, shares))}_",
            members=members,
        )
        draws = {name: dimension(node) for node, name in first.blueprint.draws.items()}
        for name, dim in {"batch_size": None, **draws}.items():
            names = tuple(f"{member.blueprint.prefix}{name}" for member in members)
            builder._joins[name] = Join(names, dim)
        return builder

    def _name(self, at: int, partial: bool, sender: int | None, tile: int = 0) -> str:
        name = super()._name(at, partial, sender, tile)
        return f"{self.prefix}{name.removeprefix(self.blueprint.prefix)}"

    def _add(self, step: Step, name: str, band: int = 0) -> tuple[fx.Node, ...]:
        """Add a step; afterwards its results are known by their names in each share."""
        results = self.program.add(step, name)
        self.hold(step, name, band)
        bare = name.removeprefix(self.prefix)
        names = tuple(f"{member.blueprint.prefix}{bare}" for member in self.members)
        self.program.steps[name] = names
        count = len(results) // (1 + len(names))
        by_share = iter(results[count:])
        for index in range(count):
            names_by_share = tuple(numbered(own_name, index) for own_name in names)
            self.program.joined[names_by_share] = numbered(name, index)
            self.program.values.update(zip(names_by_share, by_share, strict=False))
        return results[:count]

    def begin(self, at: int, tasks: Int64, rows: Int64 | None = None) -> JoinedGraph:
        """Begin a step for all shares."""
        plan = self.blueprint
        of_shares = [member._sources(at) for member in self.members]
        sources, apart = dict[fx.Node, Source](), dict[fx.Node, list[Source]]()
        for node in of_shares[0]:
            by_member = [sources_of_member[node] for sources_of_member in of_shares]
            sources[node] = self._together(node, by_member) or by_member[0]
            if sources[node] is by_member[0] and not by_member[0].is_held:
                apart[node] = by_member
        return JoinedGraph(
            plan.facts,
            at,
            tasks,
            sources,
            plan.draws,
            rows=rows,
            joins=self._joins,
            apart=apart,
        )

    def _together(self, node: fx.Node, by_share: Sequence[Source]) -> Source | None:
        """Pieces of all shares together, if they are of the same channels in each share."""
        first = by_share[0]
        dim = dimension_of_piece(node, first.layout)
        names = [{piece.key: piece.name for piece in own.pieces} for own in by_share]
        if dim is None or any(own.keys() != names[0].keys() for own in names):
            return None
        pieces = [
            replace(piece, name=self._joined([own[piece.key] for own in names], dim))
            for piece in first.pieces
        ]
        return replace(first, pieces=tuple(pieces))

    def _joined(self, names: Sequence[str], dim: int | None) -> str:
        """The name of several values as one operand."""
        together = self.program.joined.get(tuple(names), " ".join(names))
        if together not in self.program.values:
            self._joins[together] = Join(tuple(names), dim)
        return together

    def _sums(self, at: int, tasks: Int64) -> list[PartialSum] | None:
        first, *more = (member._sums(at, tasks) for member in self.members)
        if first is None:
            return None
        dim = dimension(self.blueprint.nodes[self.blueprint.graph.layers[at].operators[0]])
        # By what they are of, which several parts may have; in any order, as sums are added up.
        names: list[dict[bytes, list[str]]] = [{} for _ in self.members]
        for alike, own in zip(names, (first, *more), strict=True):
            for summed in own or ():
                alike.setdefault(summed.key, []).append(summed.name)
        return [
            summed._replace(name=self._joined([alike[summed.key].pop(0) for alike in names], dim))
            for summed in first
        ]

    def _send_sums(self, at: int, tasks: Int64) -> None:
        for member in self.members:
            member._send_sums(at, tasks)

    def _send_maps(self, at: int, last: int) -> None:
        for member in self.members:
            member._send_maps(at, last)
