"""A step for several shares of the batch: their samples are joined, and split by share again."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import torch
from torch import fx

from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.step_graph import Box, Source
from hgpart.placement.shares.samples import dimension, dimension_of_piece

aten = torch.ops.aten


class Join(NamedTuple):
    """Operands of each share by name, and the dimension of their samples.

    The dimension is None for batch sizes, which are added up.
    """

    names: tuple[str, ...]
    dim: int | None


@dataclass(eq=False, kw_only=True)
class JoinedGraph(CutGraph):
    """A step under construction that returns each result whole, and then by share.

    The samples of a share are consecutive, so results by share are views of the whole; operands
    from shares that were computed separately are copied. Neither needs zeros in backward passes.

    Attributes
    ----------
    joins : mapping of str to Join
        Operands that are joined from all shares; one of them is the batch size.
    apart : mapping of fx.Node to sequence of Source
        Nodes whose pieces have other channels in each share: they are joined after they are
        complete.
    """

    joins: Mapping[str, Join]
    apart: Mapping[fx.Node, Sequence[Source]]
    _joined: dict[str, fx.Node] = field(default_factory=dict)

    def placeholder(self, name: str) -> fx.Node:
        """An operand by name, always the same node."""
        if name not in self.joins:
            return super().placeholder(name)
        if name not in self._joined:
            join = self.joins[name]
            by_share = self._of_shares(name)
            self._joined[name] = (
                reduce(lambda total, size: self.call(operator.add, total, size), by_share)
                if join.dim is None
                else self.call(aten.cat.default, by_share, join.dim)
            )
        return self._joined[name]

    def _of_shares(self, name: str) -> list[fx.Node]:
        operands = []
        for own_name in self.joins[name].names:
            operands.append(super().placeholder(own_name))
        return operands

    def _from_source(self, node: fx.Node, box: Box) -> fx.Node:
        if node not in self.apart:
            return super()._from_source(node, box)
        sources, by_share = self.sources, []
        for source in self.apart[node]:
            self.sources = {node: source}
            by_share.append(super()._from_source(node, box))
        self.sources = sources
        return self.call(aten.cat.default, by_share, dimension(node))

    def returned(self, results: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
        """Outputs of the step: its own versions of some nodes, and then each of them by share."""
        sizes, by_share = self._of_shares("batch_size"), []
        for value, node in zip(results, nodes, strict=True):
            dim = dimension_of_piece(node, self.facts.layout(self.at, node))
            pieces = self.call(aten.split_with_sizes.default, value, sizes, dim)
            by_share += [self.call(operator.getitem, pieces, at) for at in range(len(sizes))]
        return [*results, *by_share]
