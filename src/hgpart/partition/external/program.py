"""A command line of the user's -> a backend: a program that reads a file, and writes the parts."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError, FormatError
from hgpart.hypergraph.formats import read_partition, write_hmetis, write_patoh
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.external.contract import check_request, checked_parts, easy_parts
from hgpart.partition.external.isolated import ANSI_CODE
from hgpart.partition.external.scaling import in_32_bits
from hgpart.processes import OwnProcess, end, ending

PREFIX = "command:"
PATOH, HMETIS = "patoh", "hmetis"
WRITERS: dict[str, Callable[[Hypergraph, Path], None]] = {PATOH: write_patoh, HMETIS: write_hmetis}
FILES = ("graph", *WRITERS)  # placeholders that stand for the hypergraph's file
PLACEHOLDERS = (*FILES, "k", "eps", "ubfactor", "seed", "output")
PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")

EPS_UNITS = 10**9  # eps is rounded up to a multiple of 1e-9: that is less than one unit of weight
LEAST_UBFACTOR, MOST_UBFACTOR = 1, 49  # per cent, what hMETIS takes
LAST_BYTES = 4096  # of the output, in which the last line is looked for
LONGEST_LINE = 200

# It becomes the program, and with it what has been asked for: to end when this process does.
# Python ignores SIGPIPE, which programs do not.
BECOME = (
    "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class ProgramBackend:
    """A backend that runs a program for each hypergraph; see `load_backend`.

    Parameters
    ----------
    spec : str
        ``command:`` and a command line with placeholders; it is the backend's name.

    Raises
    ------
    ArgumentError
        If it is no command line, names no file of the hypergraph, or has unknown placeholders.
    BackendError
        If there is no such program.
    """

    def __init__(self, spec: str) -> None:
        self.name = spec
        try:
            words = shlex.split(spec.removeprefix(PREFIX))
        except ValueError as error:  # a quotation that does not end
            raise ArgumentError(f"backend {spec!r} is no command line: {error}") from None
        named = [name for word in words for name in PLACEHOLDER.findall(word)]
        for name in named:
            if name not in PLACEHOLDERS:
                accepted = ", ".join(f"{{{known}}}" for known in PLACEHOLDERS)
                raise ArgumentError(f"backend {spec!r} has {{{name}}}: accepted are {accepted}")
        files = [name for name in FILES if name in named]
        if not words or len(files) != 1:
            several = " and ".join(f"{{{name}}}" for name in files) or "no file"
            raise ArgumentError(
                f"backend {spec!r} names {several}: accepted is a program and one of {{graph}}, "
                "{patoh} and {hmetis}, as in command:patoh {graph} {k}"
            )
        file = files[0]
        if file == "graph":
            file = PATOH if any(PATOH in Path(word).name.lower() for word in words) else HMETIS
        self.format = file
        program = shutil.which(words[0])
        if program is None:
            raise BackendError(
                f"there is no program {words[0]!r}: accepted is one on the PATH, or its path"
            )
        self.words = [program, *words[1:]]

    def __call__(
        self,
        hypergraph: Hypergraph,
        capacities: Int64,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Int32:
        """Partition as `Backend` says, in one run of the program.

        Its file has weights and costs in 32 bits, see `in_32_bits`. It is asked for equal parts,
        whatever the capacities are: what exceeds them, the caller moves.

        Raises
        ------
        BackendError
            If the program fails, writes what is not a partition, or nothing in time.
        """
        check_request(hypergraph, capacities, seed, time_limit)
        easy = easy_parts(hypergraph, capacities)
        if easy is not None:
            return easy
        scaled, room = in_32_bits(hypergraph, capacities)
        k, vertices = len(capacities), hypergraph.vertices
        eps = eps_of_equal_parts(scaled.weights, room)
        with TemporaryDirectory(prefix="hgpart-", ignore_cleanup_errors=True) as folder:
            graph, output = Path(folder, f"graph.{self.format}"), Path(folder, "output.part")
            WRITERS[self.format](scaled, graph)
            values = {
                **dict.fromkeys(FILES, str(graph)),
                "k": str(k),
                "eps": f"{eps:.9f}",
                "ubfactor": str(ubfactor(eps, k)),
                "seed": str(seed % 2**31),
                "output": str(output),
            }
            words = [PLACEHOLDER.sub(lambda own: values[own[1]], word) for word in self.words]
            status, said = _run(words, Path(folder, "said"), time_limit)
            try:
                if status:
                    raise BackendError(f"it {ending(status)}")
                parts = read_partition(_written(graph, output, k), vertices, k)
            except (BackendError, FormatError) as error:
                if status is None:
                    raise BackendError(
                        f"{self.name} found no partition within the time limit, {time_limit:g} s"
                    ) from None
                why = str(error).replace(f"{folder}{os.sep}", "")
                raise BackendError(
                    f"{self.name} returned no partition: {why}; it said last: {said}"
                ) from None
        return checked_parts(self.name, parts, vertices, k)


def ubfactor(eps: float, k: int) -> int:
    """Return hMETIS's UBfactor for an eps: per cent from the middle in each bisection.

    ``(50 + UBfactor) / 100`` of a part's weight may come into one half of it, so that after log2 k
    bisections the largest part has at most ``((50 + UBfactor) / 100) ** log2(k)`` of all weight.
    It is rounded down, but is 1 at least. Source: the manual, where `shmetis` is described.

    >>> ubfactor(0.1, 2), ubfactor(0.1, 4), ubfactor(0.1, 8), ubfactor(0.1, 64)
    (5, 2, 1, 1)
    """
    exact = 50 * (math.pow(1 + eps, 1 / math.ceil(math.log2(k))) - 1)
    return max(LEAST_UBFACTOR, min(MOST_UBFACTOR, math.floor(exact + 1e-6)))


def eps_of_equal_parts(weights: Int64, room: Int32) -> float:
    """Return the eps that allows k equal parts the mean of the capacities.

    >>> import numpy as np
    >>> eps_of_equal_parts(np.array([6, 4]), np.array([4, 4, 4], dtype=np.int32))
    0.2
    """
    total, in_all = int(weights.sum()), int(room.sum(dtype=np.int64))
    return max(0, -(-in_all * EPS_UNITS // total) - EPS_UNITS) / EPS_UNITS


def _written(graph: Path, output: Path, k: int) -> Path:
    """The file of parts that a program wrote."""
    by_default = graph.with_name(f"{graph.name}.part.{k}")
    for path in (output, by_default):
        if path.is_file():
            return path
    # KaHyPar and Mt-KaHyPar append their settings to the name.
    written = [path for path in graph.parent.glob(f"{graph.name}.part*") if path.is_file()]
    if len(written) != 1:
        raise BackendError(
            f"it wrote {len(written)} files {graph.name}.part*, expected {by_default.name} or "
            "what {output} stands for"
        )
    return written[0]


def _run(words: list[str], said: Path, time_limit: float | None) -> tuple[int | None, str]:
    """Run a program: its exit status, None if it was ended at the limit, and its last line."""
    with said.open("wb") as log:
        process = OwnProcess(
            BECOME, words, apart=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            status: int | None = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end([process])  # and what it has started
    with said.open("rb") as log:
        log.seek(max(0, said.stat().st_size - LAST_BYTES))
        lines = ANSI_CODE.sub("", log.read().decode(errors="replace")).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
    return status, last[-LONGEST_LINE:]
