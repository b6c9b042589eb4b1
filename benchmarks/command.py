"""Wall time and peak memory of whole `hgpart partition` commands, as a user would type them.

python benchmarks/command.py
"""

from __future__ import annotations

import resource
import subprocess
import time

from rich.console import Console
from rich.table import Table

# Command, and the most seconds that it may take.
COMMANDS = {
    "hgpart partition vgg16 --k 8 --eps 0.1": 6,
    "hgpart partition vgg16 --modelling grain=fine --k 128 --eps 0.1": 20,
    "hgpart partition resnet152 --k 16 --eps 0.1": 30,
    "hgpart partition densenet121 --k 16 --eps 0.1": 30,
    "hgpart export vgg16 --format patoh -o /tmp/vgg16.patoh": 20,
    "hgpart export vgg16 --format hmetis -o /tmp/vgg16.hgr": 20,
}


def main() -> None:
    table = Table("command", "goal s", "seconds", "largest peak MB so far")
    for command, goal in COMMANDS.items():
        start = time.perf_counter()
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        # Of all children waited for: the maximum over this command and those above it.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
        table.add_row(command, str(goal), f"{seconds:.2f}", f"{peak:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
