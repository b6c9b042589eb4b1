"""Hypergraph + capacities -> part of each vertex, by a partitioner in a process of its own.

KaHyPar ends the process, segfaults, prompts or wraps around where its input is not to its
liking, and holds the GIL: what it must not see is settled here, and the rest it does in a child
(`child.py`) that can be killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError, HypergraphError, MissingPackageError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.partition.problem.balance import pack, scale_costs, scale_weights
from hgpart.partition.problem.checks import LONGEST_LIMIT

COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")))
ANSI_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# Small hypergraphs are partitioned up to MOST_RUNS times and the best is kept. A run of KaHyPar
# takes about 3 us for each of k vertices + 4 pins, so that MOST_STEPS of these are about 6 s.
MOST_RUNS = 16
MOST_STEPS = 2_000_000


def partition_isolated(
    package: str,
    install: str,
    hypergraph: Hypergraph,
    capacities: Int64,
    *,
    seed: int,
    time_limit: float | None,
    settings: dict[str, Any],
    most_runs: int = MOST_RUNS,
) -> Int32:
    """Partition with `package` in a child process; the backends' common contract.

    Parameters
    ----------
    package : {"kahypar", "mtkahypar"}
    install : str
        The command that installs it.
    hypergraph, capacities, seed, time_limit
        As in `backends`.
    settings : dict
        What the function of `child.py` for this package takes; the seeds are added.
    most_runs : int
        The best of up to that many runs is kept, fewer for larger hypergraphs.

    Returns
    -------
    int32 array, shape (vertices,)

    Raises
    ------
    ArgumentError, HypergraphError, MissingPackageError, BackendError
        As in `backends`.
    """
    check(hypergraph, capacities, seed, time_limit)
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"the package {package} is not installed: {install}")

    k, total = len(capacities), int(hypergraph.weights.sum())
    if k == 1 or total <= capacities.max():
        return np.full(hypergraph.vertices, capacities.argmax(), dtype=np.int32)
    sizes = np.diff(hypergraph.pointers)
    counted = (sizes > 1) & (hypergraph.costs > 0)
    if k >= hypergraph.vertices or not counted.any():
        return pack(hypergraph.weights, capacities)

    pins = hypergraph.pins[np.repeat(counted, sizes)]
    costs, sizes = hypergraph.costs[counted], sizes[counted]
    weights, room = scale_weights(hypergraph.weights, capacities)
    runs = MOST_STEPS // (k * len(weights) + 4 * len(pins))
    runs = max(1, min(most_runs, runs))
    request = {
        "package": package,
        "parent": os.getpid(),
        "path": sys.path,
        "sizes": {"vertices": len(weights), "nets": len(costs), "pins": len(pins), "k": k},
        "settings": {
            "seeds": [(seed * MOST_RUNS + run) % 2**31 for run in range(runs)],
            **settings,
        },
    }
    arrays = (
        np.cumsum([0, *sizes], dtype=np.int64),
        pins,
        scale_costs(costs, np.minimum(sizes, k) - 1),
        weights,
        room,
    )
    message = b"".join(
        [json.dumps(request).encode(), b"\n", *(numbers.tobytes() for numbers in arrays)]
    )
    answer = _answer(package, message, time_limit, 4 * len(weights))
    parts: Int32 = np.frombuffer(answer, dtype=np.int32).copy()
    if parts.min() < 0 or parts.max() >= k:
        raise BackendError(
            f"{package} returned parts {parts.min()} to {parts.max()}, expected 0 to {k - 1}"
        )
    return parts


def check(hypergraph: Hypergraph, capacities: Int64, seed: int, time_limit: float | None) -> None:
    """Raise unless the arguments are what the contract says."""
    one_part = np.zeros(hypergraph.vertices, dtype=np.int32)
    part_loads(hypergraph, one_part, 1)
    communication_volume(hypergraph, one_part, 1)
    if hypergraph.vertices == 0:
        raise HypergraphError("the hypergraph has no vertices, expected at least one")
    if len(capacities) == 0 or capacities.min() < 0:
        raise ArgumentError(
            f"capacities are {capacities.tolist()}, expected 0 or more for at least one part"
        )
    if seed < 0:
        raise ArgumentError(f"seed is {seed}, expected 0 or more")
    if time_limit is not None and not 0 < time_limit <= LONGEST_LIMIT:
        raise ArgumentError(
            f"time limit is {time_limit:g} s, expected more than 0 and at most {LONGEST_LIMIT:g}"
        )


def _answer(package: str, message: bytes, time_limit: float | None, size: int) -> bytes:
    """Run the child on a message and return the last of its answers, of `size` bytes each.

    It is killed at the limit, and what it found until then counts; and on Ctrl-C.
    """
    try:
        child = subprocess.run(COMMAND, input=message, capture_output=True, timeout=time_limit)
    except subprocess.TimeoutExpired as expired:
        answers = (expired.stdout or b"")[: len(expired.stdout or b"") // size * size]
        if not answers:
            raise BackendError(
                f"{package} found no partition within the time limit, {time_limit:g} s"
            ) from None
        return answers[-size:]
    if child.returncode != 0 or not child.stdout:
        said = ANSI_CODE.sub("", child.stderr.decode(errors="replace")).split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "nothing")
        raise BackendError(f"{package} {_ending(child.returncode)}; it said last: {last}")
    if len(child.stdout) % size:
        raise BackendError(
            f"{package} returned {len(child.stdout)} bytes, expected a multiple of {size}: 4 for "
            "the part of each vertex"
        )
    return child.stdout[-size:]


def _ending(status: int) -> str:
    """Put a return code of `subprocess` into words."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended without a partition, with status {status}"
