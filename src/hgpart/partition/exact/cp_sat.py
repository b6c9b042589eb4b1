"""CP-SAT programs -> their solutions, found in a process of its own (`child.py`).

CP-SAT ends its process where a check of its own fails (google/or-tools#5025), which must not be the
user's. What it had found by then counts, and Ctrl-C and time limits end it.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from hgpart.processes import OwnProcess, end, ending
from hgpart.terminal import warn

CHILD = Path(__file__).with_name("child.py")
START = "import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
LATE = 5.0  # seconds after its time limit, or Ctrl-C, that CP-SAT may take to answer


@dataclass(frozen=True)
class Answer:
    """What CP-SAT found of a program.

    Attributes
    ----------
    status : str
        OPTIMAL, FEASIBLE, INFEASIBLE, MODEL_INVALID or UNKNOWN.
    solutions : list of arrays
        The value of each variable, by its index; each solution is better than the one before it.
    bound : int or None
        Objective that no solution is below; None if the process ended before it could say.
    interrupted : bool
        Whether Ctrl-C ended the search.
    """

    status: str
    solutions: list[array[int]]
    bound: int | None
    interrupted: bool


class Solver:
    """A process in which CP-SAT solves programs; it ends with the context."""

    def __init__(self) -> None:
        self._connection, child_end = Pipe()
        self._said = TemporaryFile()  # noqa: SIM115
        with child_end:
            self._process = OwnProcess(
                START,
                [str(CHILD), str(child_end.fileno())],
                apart=True,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
            )

    def __enter__(self) -> Solver:
        """The solver itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        end([self._process])
        self._connection.close()
        self._said.close()

    def solve(self, program: Any, settings: Any, deadline: float) -> Answer:
        """Solve a CpModel with SatParameters until the deadline (of `time.monotonic`), or Ctrl-C.

        Where CP-SAT ends its process, a warning says so.
        """
        solutions: list[array[int]] = []
        request = str(program.proto), str(settings), deadline
        interrupted = ended = False
        # A thread reads, so that Ctrl-C leaves no half of a message behind.
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self._ask, request, solutions)
            try:
                left = max(0.0, deadline - time.monotonic())
                wait([asked], min(left + LATE, threading.TIMEOUT_MAX))
            except KeyboardInterrupt:
                interrupted = True
                self._process.send_signal(signal.SIGINT)
                wait([asked], LATE)
            finally:
                if not asked.done():
                    ended = True
                    self._process.kill()
            answer = asked.result()
        if answer is not None:
            return Answer(answer[0], solutions, answer[1], interrupted)
        if not interrupted and not ended:
            self._warn()
        return Answer("FEASIBLE" if solutions else "UNKNOWN", solutions, None, interrupted)

    def _ask(
        self, request: tuple[str, str, float], solutions: list[array[int]]
    ) -> tuple[str, int] | None:
        """Collect the solutions; returns status and bound, or None if the process ends."""
        try:
            self._connection.send(request)
            while isinstance(answer := self._connection.recv(), array):
                solutions.append(answer)
        except (EOFError, OSError):
            return None
        status, bound = answer
        return status, bound

    def _warn(self) -> None:
        self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()] or ["nothing"]
        # A stack trace is behind it.
        telling = next((line for line in said if "Check failed" in line), said[-1])
        warn(
            f"CP-SAT {ending(self._process.returncode)}, so that less is known of how good the "
            f"partition is; it said: {telling}"
        )
