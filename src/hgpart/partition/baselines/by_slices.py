"""Problem over slices -> ways that others train, as partitions: by slices of the batch alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hgpart.arrays import Float64, Int32
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.partition.problem.constraints import NONE
from hgpart.partition.problem.objectives import VOLUME
from hgpart.partition.problem.problem import Problem

AS_GOOD = 1.03  # times the least seconds of the slowest run
MOST_SLICES = 64  # a slice of a sample costs as much to schedule as one of many


def data_parallel(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Give each part the whole model for its share of the slices, a faster one more of them.

    With as many slices as parts the volume is (k - 1) times the parameters.

    Returns
    -------
    CnnHypergraph and int32 array
        Layers of each slice, and their parts.
    """
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, np.repeat(by_turns(problem, problem.k), model.slice_vertices)


def by_turns(problem: Problem, count: int) -> Int32:
    """The number of the run that each slice is in, of `count` runs for equally many parts each."""
    return dealt(problem.modelling.slices, _rates_of_runs(problem, count))


def dealt(slices: int, rates: Sequence[float] | Float64) -> Int32:
    """The number of the run that each slice is in: a run for each rate, about in proportion.

    The run that takes longest takes as little as it can; equal rates get equal runs.

    >>> dealt(6, [2, 2, 1, 1]).tolist(), dealt(5, [1, 1]).tolist()
    ([0, 0, 1, 1, 2, 3], [0, 0, 0, 1, 1])
    """
    count = len(rates)
    if len({*rates}) == 1:
        return (np.arange(slices) * count // slices).astype(np.int32)
    # As Jefferson's seats: none gets less than its share, rounded down.
    counts = [int(slices * rate / sum(rates) - 1e-9) for rate in rates]
    for _ in range(slices - sum(counts)):
        counts[min(range(count), key=lambda run: ((counts[run] + 1) / rates[run], run))] += 1
    return np.repeat(np.arange(count, dtype=np.int32), counts)


def slices_for(problem: Problem, count: int) -> int:
    """The number of slices to deal out to `count` runs: as many, if these are equally fast.

    If not, it is the fewest with which the slowest run takes at most `AS_GOOD` times as long as
    with the number that suits best, of those up to the batch and to `MOST_SLICES`.

    >>> from types import SimpleNamespace as Any
    >>> slices_for(Any(k=4, rates=(2, 2, 1, 1), modelling=Any(batch_size=48)), 4)
    6
    """
    most = min(problem.modelling.batch_size, MOST_SLICES)
    if len({*problem.rates}) == 1 or problem.k % count or most <= count:
        return count
    rates = _rates_of_runs(problem, count)
    if len({*rates}) == 1:
        return count
    longest = {
        slices: float((np.bincount(dealt(slices, rates), minlength=count) / (slices * rates)).max())
        for slices in range(count, most + 1)
    }
    enough = AS_GOOD * min(longest.values())
    return next(slices for slices, seconds in longest.items() if seconds <= enough)


def _rates_of_runs(problem: Problem, count: int) -> Float64:
    """Speed of the parts of each of `count` runs together."""
    rates: Float64 = np.array(problem.rates, dtype=np.float64).reshape(count, -1).sum(axis=1)
    return rates


def in_every_slice(
    problem: Problem, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """A partition of the model, the same for each slice of the batch.

    It sends what it sends without slices; what does not grow with the batch, for every slice.
    """
    sliced = problem.hypergraph(model.blocks)
    return sliced, np.tile(parts, problem.modelling.slices)


# ------------------------------------------------------------------ replicas of several parts


def replica(problem: Problem, replicas: int) -> Problem:
    """What one of some replicas of the model has: k / replicas parts, and no slices.

    Its eps is what the replica with most samples leaves: where the slices are not of one size, a
    part of that replica has more than its share already. Its speeds are means over all replicas, as
    these are divided alike.
    """
    samples = np.array(problem.modelling.samples)
    own = np.bincount(by_turns(problem, replicas), weights=samples, minlength=replicas)
    speeds = None
    if problem.speeds is None:
        most = float(own.max())
        eps = (1 + problem.eps) * problem.modelling.batch_size / (most * replicas) - 1
    else:
        rates = np.array(problem.speeds).reshape(replicas, -1)
        of_replicas = rates.sum(axis=1)
        most = float((own / of_replicas).max() * of_replicas.sum())
        eps = (1 + problem.eps) * problem.modelling.batch_size / most - 1
        speeds = tuple((rates / of_replicas[:, None]).mean(axis=0).tolist())
    return replace(
        problem.in_slices(1),
        k=problem.k // replicas,
        eps=max(0.0, eps),
        speeds=speeds,
        objective=VOLUME,
        memory=None,
        constraints=NONE,
    )


def hybrid(
    problem: Problem, replicas: int, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """Replicas of the model (HyPar-Flow, DistBelief): each by a partition in k / replicas parts.

    Parameters
    ----------
    replicas : int
        Number of replicas of the model: a divisor of k, at most the slices.
    model, parts : CnnHypergraph and int32 array
        A partition of the `replica`, which all of them have.
    """
    sliced = problem.hypergraph(model.blocks)
    first = by_turns(problem, replicas) * (problem.k // replicas)
    return sliced, (first[:, None] + parts).astype(np.int32).ravel()


def opposed_replicas(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Two replicas, the layers of one cut in order and those of the other in opposite order.

    GEMS (Jain et al., SC 2020): part p has the p-th run of layers of every second slice, and the
    p-th from the end of the others, so that its gradients are those of both.
    """
    model = problem.hypergraph(layer_blocks(problem.views))
    whole, layers = problem.in_slices(1), model.vertex_layers[: model.slice_vertices]
    own = opposed = layerwise(whole)[layers]
    if whole.speeds is not None:
        turned = replace(whole, speeds=whole.speeds[::-1], objective=VOLUME, memory=None)
        opposed = layerwise(turned)[layers]
    odd = np.arange(problem.modelling.slices)[:, None] % 2 == 1
    return model, np.where(odd, problem.k - 1 - opposed, own).astype(np.int32).ravel()
