"""Parts of slices -> the same partition with slices and parts numbered as they come.

Slices of as many samples are alike, and so are devices that are: however they are numbered, as many
bytes travel. Slices that begin on one part then follow each other, and are one batch there.
"""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.problem.problem import Problem


def in_order(problem: Problem, model: CnnHypergraph, parts: Int32) -> Int32:
    """Number slices of as many samples by where they lie, then parts by which comes first.

    Volume and loads stay what they are. Where devices differ, or what each sends counts, so does
    the partition.
    """
    alike = problem.speeds is None and problem.memory is None and problem.layer_constraints is None
    if model.modelling.slices == 1 or not alike or not problem.objective.is_volume:
        return parts
    by_slice = parts.reshape(model.modelling.slices, -1).tolist()
    samples = model.modelling.samples
    places = {
        size: [at for at, own_size in enumerate(samples) if own_size == size] for size in samples
    }
    order = np.arange(len(samples))
    for own in places.values():
        order[own] = sorted(own, key=lambda at: by_slice[at])
    ordered = parts.reshape(len(samples), -1)[order]
    _, first, numbers = np.unique(ordered.T, return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first))
    renumbered: Int32 = ranks[numbers.reshape(-1, len(samples))].T.ravel().astype(np.int32)
    return renumbered
