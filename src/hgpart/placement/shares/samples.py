"""Traced nodes -> whether their computation keeps the samples of a batch apart.

If it does, several shares of the batch can be computed at once with the same results. The channel
rules tell, on operands whose samples play the role of channels.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import fx

from hgpart.operators.calls import argument
from hgpart.operators.effects import Reindex, SameIndex
from hgpart.operators.ids import in_order
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.tracing.batches import evenly
from hgpart.tracing.traced_nodes import first_tensor, holds_tensors


def dimension(node: fx.Node) -> int | None:
    """The dimension along which a value's samples lie, one after the other, and nowhere else."""
    growing = _growing(node)
    return growing[0][0] if len(growing) == 1 and growing[0][1] == (1, 0) else None


def dimension_of_piece(node: fx.Node, layout: ChannelLayout) -> int | None:
    """The same dimension in some channels of the value, whose channel dimensions are merged."""
    dim = dimension(node)
    return None if dim is None else layout.dim_of_piece(dim)


def _growing(node: fx.Node) -> list[tuple[int, tuple[int, int] | None]]:
    """Dimensions whose size depends on the batch, and how it does."""
    sizes = enumerate(map(evenly, first_tensor(node.meta["val"]).shape))
    return [(dim, grows) for dim, grows in sizes if grows is None or grows[0]]


def keeps_apart(
    facts: NodeFacts,
    results: Sequence[fx.Node],
    sources: Collection[fx.Node],
    drawn: Collection[fx.Node],
) -> bool:
    """Whether each sample of some nodes depends on the same sample of sources, and on no other.

    The numbers of the random nodes `drawn` are given.
    """
    waiting, seen = [*results], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        given = node in sources or (node in drawn and operator_of(node).cut != "dropout")
        if given and dimension(node) is None:
            return False
        if given or node.op != "call_function":
            continue
        if node.target is not operator.getitem and not _keeps_apart(facts, node):
            return False
        waiting += [operand for operand in node.all_input_nodes if holds_tensors(operand)]
    return bool(results) and all(dimension(node) is not None for node in results)


def _keeps_apart(facts: NodeFacts, node: fx.Node) -> bool:
    known, dim = operator_of(node), dimension(node)
    numbers = any(not holds_tensors(operand) for operand in node.all_input_nodes)
    growing = [value for value in node.all_input_nodes if holds_tensors(value) and _growing(value)]
    if not growing:
        return not _growing(node) or (known.cut == "expand" and dim is not None)
    dims = {operand: dimension(operand) for operand in growing}
    if dim is None or None in dims.values() or facts.shape(node)[dim] < 2:
        return False
    if numbers and not (known.moves_only or known.cut == "expand"):
        return False  # it computes with the batch size
    if known.product is not None:
        operand, weight = (
            argument(node, name) for name in (known.product.operand, known.product.weight)
        )
        rank = len(facts.shape(weight))
        features = len(facts.shape(operand)) + 1 - rank
        is_plain = growing == [operand] and (rank == 2 or not known.product.is_matrix)
        return is_plain and dims[operand] == dim < features
    if known.cut == "norm" and not known.is_batch_norm:  # normalises by running statistics
        return len(growing) == 1 and dims[growing[0]] == dim

    def samples(operand: fx.Node) -> torch.Tensor | None:
        along = dims.get(operand)
        if along is None:
            return None
        shape = facts.shape(operand)
        view = [size if at == along else 1 for at, size in enumerate(shape)]
        return torch.arange(shape[along], dtype=torch.int32).reshape(view).expand(shape)

    effect, _ = facts.effect_on(node, samples)
    if isinstance(effect, SameIndex):
        sample_ids = [ids.expand(facts.shape(node)) for ids in effect.operands]
    elif isinstance(effect, Reindex):
        sample_ids = [effect.ids] if isinstance(effect.ids, torch.Tensor) else [*effect.ids]
    else:
        return False
    return all(_are_samples(ids, dim) for ids in sample_ids)


def _are_samples(ids: torch.Tensor, dim: int) -> bool:
    along = in_order(ids, dim) if dim < ids.dim() else None
    return along is not None and np.array_equal(along, np.arange(len(along)))
