"""The process in which CP-SAT solves programs, one after the other.

It is run by its path, and imports neither hgpart nor `cp_model`, whose pandas takes half a second.
`cp_sat.py` is its other side: it sends a program, settings and a deadline, and gets each solution
as it is found, so that what was found counts even if this process ends; then status and bound.
"""

from __future__ import annotations

import signal
import sys
import time
from array import array
from multiprocessing.connection import Connection


def main() -> None:
    """Answer until nobody asks any more."""
    from ortools.sat.python import cp_model_helper as ortools

    connection: Connection = Connection(int(sys.argv[1]))

    class Sender(ortools.SolutionCallback):
        def OnSolutionCallback(self) -> None:  # noqa: N802
            connection.send(array("q", self.Response().solution))

    # CP-SAT hears Ctrl-C while it searches, and then answers; before that it ends this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        try:
            program_text, settings_text, deadline = connection.recv()
        except EOFError:
            return
        program, settings = ortools.CpModelProto(), ortools.SatParameters()
        program.parse_text_format(program_text)
        settings.parse_text_format(settings_text)
        settings.max_time_in_seconds = max(0.0, deadline - time.monotonic())
        solver, sender = ortools.SolveWrapper(), Sender()
        solver.set_parameters(settings)
        solver.add_solution_callback(sender)
        response = solver.solve(program)
        if response.solution:
            connection.send(array("q", response.solution))
        connection.send((response.status.name, response.inner_objective_lower_bound))


if __name__ == "__main__":
    main()
