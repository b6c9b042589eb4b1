"""A process of a quick calibration: each figure once or twice, of short messages.

Its arguments are a folder and what happens: nothing, a signal to rank 1 when slow-downs are
measured, each process is as if on a computer of its own, or the second is slow.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hgpart.calibration import (
    calibrate,
    handling,
    links,
    slowdown,
    speeds,
    stalls,
    steady,
)
from hgpart.errors import HgpartError
from hgpart.machines.machine_files import save_machine
from hgpart.run.processes.connection import connect


def main(folder: str, happens: str) -> None:
    links.SIZES = calibrate.SIZES = links.SIZES[::4]
    slowdown.COMPUTING = 0.002
    handling.MESSAGES, handling.COVERED = 2, 1
    stalls.EXCHANGES, stalls.MOMENT = 2, 1e-4
    if happens == "apart":
        os.environ["LOCAL_RANK"] = "0"
    speeds.NOISE = 3.0  # so few repetitions differ
    if happens == "slow" and os.environ["RANK"] == "1":
        seconds = slowdown.OperationTimer.seconds
        slowdown.OperationTimer.seconds = lambda bench: 50 * seconds(bench)
    wanted = steady.steady
    for module in (links, slowdown, speeds, handling, stalls):
        module.steady = lambda measure, *_: wanted(measure, steady.RoundLimits(1, 1))
    k, timeout = int(os.environ["WORLD_SIZE"]), 3 if happens.startswith("SIG") else 60
    with connect(k, timeout=timeout) as found:
        (Path(folder) / f"{found.rank}.pid").write_text(str(os.getpid()))
        told: list[tuple[str, float]] = []

        def tell(what: str, done: float) -> None:
            told.append((what, done))
            if "norm" in what and found.rank == 1 and happens.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, happens))

        machine = calibrate.calibrate(found, 1, tell)
        assert [done for _, done in told] == sorted(done for _, done in told)
        assert all(0 <= done <= 1 for _, done in told)
        assert found.gather(machine) == [machine] * found.k
    save_machine(machine, Path(folder) / f"{found.rank}.json")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HgpartError as error:
        print(f"hgpart: error: {error}", file=sys.stderr)
        os._exit(error.exit_status)  # as the hgpart command does in a rank
