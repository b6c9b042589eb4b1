"""Builders of several shares -> what one part does of all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from hgpart.arrays import Int64
from hgpart.placement.building.part_builder import PartBuilder
from hgpart.placement.building.part_graph import numbered
from hgpart.placement.cutting.step_graph import Source
from hgpart.placement.cutting.steps import Step
from hgpart.placement.shares.joined_graph import Join, JoinedGraph
from hgpart.placement.shares.samples import dimension, dimension_of_piece


@dataclass(eq=False, kw_only=True)
class JoinedBuilder(PartBuilder):
    """What one part does with several shares of the batch at once.

    The blueprint, and what steps hold, are those of the first of them.

    Attributes
    ----------
    prefix : str
        What the names of all that is made at once begin with.
    members : sequence of PartBuilder
        Of each share.
    """

    prefix: str
    members: Sequence[PartBuilder]
    _joins: dict[str, Join] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Sequence[int], members: Sequence[PartBuilder]) -> JoinedBuilder:
        """Of several shares by their numbers."""
        first = members[0]
        made = cls(
            first.blueprint,
            first.part,
            first.united,
            first.program,
            first.statistics,
            first.slices,
            prefix=f"shares{'_'.join(map(str, shares))}_",
            members=members,
        )
        draws = {name: dimension(node) for node, name in first.blueprint.draws.items()}
        for name, dim in {"batch_size": None, **draws}.items():
            names = tuple(f"{one.blueprint.prefix}{name}" for one in members)
            made._joins[name] = Join(names, dim)
        return made

    def _name(self, at: int, partial: bool, sender: int | None) -> str:
        name = super()._name(at, partial, sender)
        return f"{self.prefix}{name.removeprefix(self.blueprint.prefix)}"

    def _add(self, step: Step, name: str) -> tuple[fx.Node, ...]:
        """Add a step, whose results are known by the names of each share from then on."""
        made = self.program.add(step, name)
        self.slices.update({f"{name}.{at}": held for at, held in step.slices.items()})
        bare = name.removeprefix(self.prefix)
        names = tuple(f"{one.blueprint.prefix}{bare}" for one in self.members)
        self.program.steps[name] = names
        count = len(made) // (1 + len(names))
        by_share = iter(made[count:])
        for index in range(count):
            each = tuple(numbered(one, index) for one in names)
            self.program.joined[each] = numbered(name, index)
            self.program.values.update(zip(each, by_share, strict=False))
        return made[:count]

    def begin(self, at: int, tasks: Int64) -> JoinedGraph:
        """A step of all of them."""
        plan = self.blueprint
        of_shares = [one._sources(at) for one in self.members]
        sources, apart = dict[fx.Node, Source](), dict[fx.Node, list[Source]]()
        for node in of_shares[0]:
            each = [one[node] for one in of_shares]
            sources[node] = self._together(node, each) or each[0]
            if sources[node] is each[0] and not each[0].is_held:
                apart[node] = each
        return JoinedGraph(
            *(plan.facts, at, tasks, sources, plan.draws, self.united),
            joins=self._joins,
            apart=apart,
        )

    def _together(self, node: fx.Node, each: Sequence[Source]) -> Source | None:
        """Pieces of all shares, if these have the same channels each."""
        layout, dim = each[0].layout, dimension_of_piece(node, each[0].layout)
        names = [{members.tobytes(): name for name, members in one.pieces} for one in each]
        if dim is None or any(one.keys() != names[0].keys() for one in names):
            return None
        pieces = [
            (self._joined([one[members.tobytes()] for one in names], dim), members)
            for _, members in each[0].pieces
        ]
        return Source(layout, tuple(pieces))

    def _joined(self, names: Sequence[str], dim: int | None) -> str:
        """The operand that several are together."""
        found = self.program.joined.get(tuple(names), " ".join(names))
        if found not in self.program.values:
            self._joins[found] = Join(tuple(names), dim)
        return found

    def _sums(self, at: int, tasks: Int64) -> list[tuple[str, Int64]] | None:
        first, *others = (one._sums(at, tasks) for one in self.members)
        if first is None:
            return None
        dim = dimension(self.blueprint.nodes[self.blueprint.graph.layers[at].operators[0]])
        # Those of the same tasks, which several parts may have; in any order, as they are added up.
        names: list[dict[bytes, list[str]]] = [{} for _ in self.members]
        for found, own in zip(names, (first, *others), strict=True):
            for name, some in own or ():
                found.setdefault(some.tobytes(), []).append(name)
        return [
            (self._joined([found[some.tobytes()].pop(0) for found in names], dim), some)
            for _, some in first
        ]

    def _send_sums(self, at: int, tasks: Int64) -> None:
        for one in self.members:
            one._send_sums(at, tasks)

    def _send_maps(self, at: int, tasks: Int64) -> None:
        for one in self.members:
            one._send_maps(at, tasks)
