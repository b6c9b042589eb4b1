"""A step of several shares of the batch: their samples one behind another, and apart again."""

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
    """What each share has, by the names of operands, and the dimension of the samples.

    None is of sizes, which add up.
    """

    names: tuple[str, ...]
    dim: int | None


@dataclass(eq=False, kw_only=True)
class JoinedGraph(CutGraph):
    """A step under construction, which returns each result whole, and then by share.

    Samples of a share lie together, so by share results are views of the whole; what comes from
    shares that were computed apart is copied. Neither needs zeros in backward passes.

    Attributes
    ----------
    joins : mapping of str to Join
        Operands that are those of all shares together. One of them is the batch size.
    apart : mapping of fx.Node to sequence of Source
        Nodes of which the shares' pieces have other channels each, and come together whole.
    """

    joins: Mapping[str, Join]
    apart: Mapping[fx.Node, Sequence[Source]]
    _joined: dict[str, fx.Node] = field(default_factory=dict)

    def placeholder(self, name: str) -> fx.Node:
        """An operand, the same one whenever it is asked for."""
        if name not in self.joins:
            return super().placeholder(name)
        if name not in self._joined:
            join = self.joins[name]
            each = self._of_shares(name)
            self._joined[name] = (
                reduce(lambda one, other: self.call(operator.add, one, other), each)
                if join.dim is None
                else self.call(aten.cat.default, each, join.dim)
            )
        return self._joined[name]

    def _of_shares(self, name: str) -> list[fx.Node]:
        found = []
        for one in self.joins[name].names:
            found.append(super().placeholder(one))
        return found

    def _from_source(self, node: fx.Node, box: Box) -> fx.Node:
        if node not in self.apart:
            return super()._from_source(node, box)
        sources, each = self.sources, []
        for one in self.apart[node]:
            self.sources = {node: one}
            each.append(super()._from_source(node, box))
        self.sources = sources
        return self.call(aten.cat.default, each, dimension(node))

    def returned(self, made: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
        """What the step returns, of what it made of nodes: that, and then each by share."""
        sizes, by_share = self._of_shares("batch_size"), []
        for one, node in zip(made, nodes, strict=True):
            dim = dimension_of_piece(node, self.facts.layout(self.at, node))
            pieces = self.call(aten.split_with_sizes.default, one, sizes, dim)
            by_share += [self.call(operator.getitem, pieces, at) for at in range(len(sizes))]
        return [*made, *by_share]
