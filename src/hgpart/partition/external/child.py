"""The process in which KaHyPar or Mt-KaHyPar runs: a hypergraph on stdin, its parts on stdout.

It is run by its path with ``python -I -S`` and imports neither hgpart nor numpy, so that it
starts in a few hundredths of a second. `isolated.py` is its other side.

stdin: one line of JSON (see `main`), then the arrays, packed: pointers (int64), pins, costs,
weights, capacities (int32). stdout: the part of each vertex (int32), again each time that a
better partition is found, so that the last one counts even if the process is killed.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO


@dataclass(frozen=True)
class Instance:
    """A hypergraph in CSR arrays, and the largest weight of each part; all int32."""

    pointers: array[int]
    pins: array[int]
    costs: array[int]
    weights: array[int]
    capacities: array[int]

    @property
    def k(self) -> int:
        """Number of parts."""
        return len(self.capacities)

    def epsilon(self) -> float | None:
        """Return the eps by which k equal parts have these capacities; None if they differ.

        Both partitioners allow ``int((1 + eps) * ceil(total / k))``; the half keeps the float
        product from falling below the integer.
        """
        if len(set(self.capacities)) > 1:
            return None
        average = -(-sum(self.weights) // self.k)
        return max(0.0, (self.capacities[0] + 0.5) / average - 1)

    def targets(self) -> list[int]:
        """Return the capacities, all raised alike where they do not hold the total weight.

        Both partitioners end the process at part weights that can't be kept.
        """
        missing = max(0, sum(self.weights) - sum(self.capacities))
        return [capacity + -(-missing // self.k) for capacity in self.capacities]

    def overload(self, loads: list[int]) -> int:
        """Return by how much the loads exceed the capacities, at the worst part."""
        return max(0, *(load - most for load, most in zip(loads, self.capacities, strict=True)))


@dataclass(frozen=True)
class Run:
    """Result of one run of a partitioner, by its own figures."""

    overload: int
    cost: int
    parts: list[int]


def run_kahypar(instance: Instance, settings: dict[str, Any]) -> Iterator[Run]:
    """Partition once for each of `settings["seeds"]`, with its `settings["presets"]` in turn."""
    import kahypar

    vertices, nets, k = len(instance.weights), len(instance.costs), instance.k
    epsilon = instance.epsilon()
    for run, seed in enumerate(settings["seeds"]):
        hypergraph = kahypar.Hypergraph(
            vertices, nets, instance.pointers, instance.pins, k, instance.costs, instance.weights
        )
        # A Context that is used twice asks questions on stdin. The preset goes in first: it
        # would overwrite the seed.
        context = kahypar.Context()
        preset = settings["presets"][run % len(settings["presets"])]
        with os.fdopen(os.memfd_create("kahypar.ini"), "w") as file:
            file.write(preset)
            file.flush()
            context.loadINIconfiguration(f"/proc/self/fd/{file.fileno()}")
        context.setK(k)
        context.setSeed(seed)
        context.suppressOutput(True)
        if epsilon is None:
            context.setEpsilon(0.0)
            context.setCustomTargetBlockWeights(instance.targets())
        else:
            context.setEpsilon(epsilon)
        for vertex, part in enumerate(settings["fixed"]):
            if part >= 0:
                hypergraph.fixNodeToBlock(vertex, part)
        kahypar.partition(hypergraph, context)
        loads = [hypergraph.blockWeight(part) for part in range(k)]
        yield Run(
            instance.overload(loads),
            kahypar.connectivityMinusOne(hypergraph),
            [hypergraph.blockID(vertex) for vertex in range(vertices)],
        )


def run_mtkahypar(instance: Instance, settings: dict[str, Any]) -> Iterator[Run]:
    """Partition once for each of `settings["seeds"]`, the vertices shuffled by the seed.

    Where there are `settings["links"]`, what links cost, parts are mapped onto devices.
    """
    import mtkahypar

    vertices, nets, k = len(instance.weights), len(instance.costs), instance.k
    links = settings["links"]
    pairs = [(first, second) for second in range(k) for first in range(second)]
    epsilon = instance.epsilon()
    partitioner = mtkahypar.initialize(settings["threads"], print_warnings=False)
    for seed in settings["seeds"]:
        order = list(range(vertices))
        random.Random(seed).shuffle(order)
        place = array("i", bytes(4 * vertices))
        for index, vertex in enumerate(order):
            place[vertex] = index
        pins = array("i", map(place.__getitem__, instance.pins))

        context = partitioner.context_from_preset(getattr(mtkahypar.PresetType, settings["preset"]))
        if links:
            context.set_mapping_parameters(k, epsilon or 0.0)
        else:
            context.set_partitioning_parameters(k, epsilon or 0.0, mtkahypar.Objective.KM1)
        context.logging = False
        if epsilon is None:
            context.set_individual_target_block_weights(instance.targets())
        mtkahypar.set_seed(seed)
        hypergraph = partitioner.create_hypergraph(
            context,
            vertices,
            nets,
            [pins[instance.pointers[net] : instance.pointers[net + 1]] for net in range(nets)],
            array("i", map(instance.weights.__getitem__, order)),
            instance.costs,
        )
        if links:
            devices = partitioner.create_target_graph(
                context, k, len(pairs), pairs, [links[first][second] for first, second in pairs]
            )
            partitioned = hypergraph.map_onto_graph(devices, context)
            cost = partitioned.steiner_tree(devices)
        else:
            if max(settings["fixed"], default=-1) >= 0:
                hypergraph.add_fixed_vertices([settings["fixed"][vertex] for vertex in order], k)
            partitioned = hypergraph.partition(context)
            cost = partitioned.km1()
        shuffled = partitioned.get_partition()
        loads = [partitioned.block_weight(part) for part in range(k)]
        yield Run(
            instance.overload(loads),
            cost,
            list(map(shuffled.__getitem__, place)),
        )


PARTITIONERS = {"kahypar": run_kahypar, "mtkahypar": run_mtkahypar}


def read_instance(stream: BinaryIO, vertices: int, nets: int, pins: int, k: int) -> Instance:
    """Read the arrays that follow the line of JSON."""

    def read(code: str, count: int) -> array[int]:
        numbers: array[int] = array(code)
        numbers.frombytes(stream.read(count * numbers.itemsize))
        return numbers

    return Instance(
        pointers=read("q", nets + 1),
        pins=read("i", pins),
        costs=read("i", nets),
        weights=read("i", vertices),
        capacities=read("i", k),
    )


def main() -> None:
    """Answer one request, whose JSON has the keys of `isolated.partition_isolated`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it kills this process
    request = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = request["path"]
    processes = runpy.run_path(str(Path(__file__).parents[2] / "processes.py"))
    processes["end_with"](request["parent"])  # the partitioners would never look
    # The partitioners print to file descriptor 1: the answer gets one of its own.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    instance = read_instance(sys.stdin.buffer, **request["sizes"])
    runs = PARTITIONERS[request["package"]](instance, request["settings"])
    best: tuple[int, int] | None = None
    for run in runs:
        if best is None or (run.overload, run.cost) < best:
            best = run.overload, run.cost
            array("i", run.parts).tofile(answer)
            answer.flush()


if __name__ == "__main__":
    main()
