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
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import BackendError, MissingPackageError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.contract import check_request, checked_parts, easy_parts
from hgpart.partition.external.scaling import in_32_bits
from hgpart.processes import ending

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
    dearest: int = 1,
    fixed: Int32 | None = None,
) -> Int32:
    """Partition with `package` in a child process; the backends' common contract.

    Parameters
    ----------
    install : str
        The command that installs it.
    hypergraph, capacities, seed, time_limit
        The same as in `backends.Backend`.
    settings : dict
        Arguments of this package's function in `child.py`; the seeds are added.
    most_runs : int
        The best of up to that many runs is kept, fewer for larger hypergraphs.
    dearest : int
        The same as in `in_32_bits`.
    fixed : int32 array, shape (vertices,), optional
        Part of each vertex that may lie in no other; -1 for others.

    Returns
    -------
    int32 array, shape (vertices,)

    Raises
    ------
    ArgumentError, HypergraphError, MissingPackageError, BackendError
        The same as in `backends.Backend`.
    """
    check_request(hypergraph, capacities, seed, time_limit)
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(f"the package {package} is not installed: {install}")

    easy = easy_parts(hypergraph, capacities, fixed)
    if easy is not None:
        return easy
    (scaled, room), k = in_32_bits(hypergraph, capacities, dearest), len(capacities)
    vertices, pins = scaled.vertices, len(scaled.pins)
    runs = MOST_STEPS // (k * vertices + 4 * pins)
    runs = max(1, min(most_runs, runs))
    request = {
        "package": package,
        "parent": os.getpid(),
        "path": sys.path,
        "sizes": {"vertices": vertices, "nets": scaled.nets, "pins": pins, "k": k},
        "settings": {
            "seeds": [(seed * MOST_RUNS + run) % 2**31 for run in range(runs)],
            "fixed": [] if fixed is None else fixed.tolist(),
            **settings,
        },
    }
    arrays = (
        scaled.pointers,
        scaled.pins,
        scaled.costs.astype(np.int32),
        scaled.weights.astype(np.int32),
        room,
    )
    message = b"".join(
        [json.dumps(request).encode(), b"\n", *(numbers.tobytes() for numbers in arrays)]
    )
    answer = _answer(package, message, time_limit, 4 * vertices)
    return checked_parts(package, np.frombuffer(answer, dtype=np.int32), vertices, k)


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
        raise BackendError(
            f"{package} returned no partition: it {ending(child.returncode)}; it said last: {last}"
        )
    if len(child.stdout) % size:
        raise BackendError(
            f"{package} returned {len(child.stdout)} bytes, expected a multiple of {size}: 4 for "
            "the part of each vertex"
        )
    return child.stdout[-size:]
