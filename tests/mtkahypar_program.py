"""A real partitioner behind a command line ``FILE K EPS SEED``, much as hMETIS is called.

Mt-KaHyPar reads hMETIS's format by a parser of its own, and writes ``FILE.part.K``.
"""

from __future__ import annotations

import sys

import mtkahypar


def main() -> None:
    file, k, eps, seed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    partitioner = mtkahypar.initialize(1, print_warnings=False)
    context = partitioner.context_from_preset(mtkahypar.PresetType.DEFAULT)
    context.set_partitioning_parameters(k, eps, mtkahypar.Objective.KM1)
    context.logging = False
    mtkahypar.set_seed(seed)
    hypergraph = partitioner.hypergraph_from_file(file, context, mtkahypar.FileFormat.HMETIS)
    hypergraph.partition(context).write_partition_to_file(f"{file}.part.{k}")


if __name__ == "__main__":
    main()
