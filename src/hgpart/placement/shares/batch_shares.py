"""Partition over slices of the batch <-> partitions of the model, one for each share of the batch.

Slices with the same layout on all parts are one share, with the samples of all of them: they are
computed as one batch, and what mixes samples, as a norm in training does, mixes these. The samples
of a batch go to the shares in order, beginning with the first share.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from hgpart.execution.program import Share
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.partition import Partition
from hgpart.work.figures import Work


def in_shares(partition: Partition, work: Work) -> list[tuple[Share, Partition]]:
    """Each share of the batch, ordered by its first slice, with its partition of the model.

    Where rows are in bands and slices have norms of their own, each slice is a share: its bands
    send each other statistics of its samples alone, as the plan counts.
    """
    slices = partition.modelling.slices
    if slices == 1:
        return [(Share(), partition)]
    by_slice = partition.parts.reshape(slices, -1)
    modelling, members = partition.modelling, dict[Hashable, list[int]]()
    alone = modelling.bands > 1 and modelling.norms == "slice"
    for number, parts in enumerate(by_slice):
        members.setdefault((parts.tobytes(), alone and number), []).append(number)
    model = _in_slices(partition.model, work, 1)
    return [
        (Share(tuple(numbers), slices), _of(partition, model, by_slice[numbers[0]]))
        for numbers in members.values()
    ]


def joined(shares: Sequence[tuple[Share, Partition]], work: Work) -> Partition:
    """The partition over slices that these shares make up: the inverse of `in_shares`."""
    share, first = shares[0]
    if share.of == 1 or share.turn is not None:
        return first
    model = _in_slices(first.model, work, share.of)
    parts = np.empty((share.of, len(first.parts)), dtype=np.int32)
    for own, partition in shares:
        parts[[*own.slices]] = partition.parts
    return _of(first, model, parts.ravel())


def sizes_of(shares: Sequence[Share], batch_size: int) -> tuple[int, ...]:
    """Samples of each share."""
    return tuple(share.samples(batch_size) for share in shares)


def _in_slices(model: CnnHypergraph, work: Work, slices: int) -> CnnHypergraph:
    modelling = replace(model.modelling, slices=slices)
    return cnn_hypergraph(model.graph, work, model.blocks, modelling)


def _of(partition: Partition, model: CnnHypergraph, parts: np.ndarray) -> Partition:
    problem = replace(partition.problem, modelling=model.modelling)
    return replace(
        partition,
        problem=problem,
        model=model,
        parts=parts,
        evaluation=evaluate_parts(model, parts, problem.k, problem.speeds),
    )
