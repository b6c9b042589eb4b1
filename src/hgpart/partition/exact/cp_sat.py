"""A CP-SAT program -> its solution; Ctrl-C ends the search and keeps what was found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any


def solve(solver: Any, program: Any, *callbacks: Any) -> tuple[Any, bool]:
    """Solve in a thread of its own: CP-SAT would keep Ctrl-C from Python's main thread.

    Returns
    -------
    CpSolverStatus and bool
        Whether Ctrl-C ended it.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        solving = pool.submit(solver.solve, program, *callbacks)
        try:
            return solving.result(), False
        except KeyboardInterrupt:
            while not solving.done():  # a search that has not begun yet does not hear it
                solver.stop_search()
                wait([solving], timeout=0.1)
            return solving.result(), True
