"""Hypergraph + capacities -> part of each vertex, by KaHyPar."""

from __future__ import annotations

from pathlib import Path

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.isolated import MOST_RUNS, partition_isolated

PRESET = Path(__file__).with_name("kahypar.ini")

# (t, s): vertices are merged until t k are left, none above s / t of the average part. Blocks of
# a layer are few and heavy, so far below KaHyPar's own t = 160, at which nothing would be
# merged. The first is best for fine-grain blocks, the second for coarse-grain ones.
COARSENING = ((24, 1), (8, 2), (12, 1))


def kahypar(
    hypergraph: Hypergraph,
    capacities: Int64,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    fixed: Int32 | None = None,
    most_runs: int = MOST_RUNS,
) -> Int32:
    """Partition with KaHyPar (direct k-way, connectivity objective); see `backends`.

    The best of up to `most_runs` runs is kept, fewer for larger hypergraphs, with settings that
    differ in how far vertices are merged at first.

    Parameters
    ----------
    fixed : int32 array, shape (vertices,), optional
        Part of each vertex that may lie in no other; -1 for others.

    Notes
    -----
    Unequal capacities are set as KaHyPar's individual part weights. Its results are better
    with an eps, so that equal capacities are given as the eps that allows exactly them.
    """
    preset = PRESET.read_text(encoding="utf-8")
    return partition_isolated(
        "kahypar",
        "pip install kahypar",
        hypergraph,
        capacities,
        seed=seed,
        time_limit=time_limit,
        most_runs=most_runs,
        fixed=fixed,
        settings={"presets": [f"{preset}\nc-t={t}\nc-s={s}\n" for t, s in COARSENING]},
    )
