"""Connection -> Machine: measure links, all-reduces and slow-downs, one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, count

from hgpart.calibration.handling import handling
from hgpart.calibration.here import device_here, first_of_node, how_measured
from hgpart.calibration.links import SIZES, all_reduce, link_between
from hgpart.calibration.slowdown import MOST as MOST_SLOWDOWNS
from hgpart.calibration.slowdown import convolution, norm, slowdown
from hgpart.calibration.stalls import stall
from hgpart.calibration.steady import MOST, medians
from hgpart.machines.machine import Link, Machine
from hgpart.run.processes.connection import Connection


def calibrate(
    connection: Connection,
    threads: int,
    on_progress: Callable[[str, float], None] = lambda what, done: None,
) -> Machine:
    """Measure the devices and links of a run's processes.

    All processes call this, with nothing else running, and all get the result. Pairs are measured
    one by one, because their messages share the network.

    Parameters
    ----------
    connection : Connection
        Two processes or more.
    threads : int
        Number of threads that each process computes with.
    on_progress : callable
        Called with what is measured next, and the fraction of all measurements that is done.

    Raises
    ------
    RunError
        If a process is gone or does not answer.
    """
    counts = Counter(connection.gather(first_of_node()))
    nodes = tuple(counts[first] for first in sorted(counts))
    device = device_here(connection.device, threads, counts[first_of_node()])
    devices = connection.gather(device)
    ranks = [*combinations(range(connection.k), 2)]
    of_links = (len(ranks) + 1) * len(SIZES)
    all_steps = of_links + 2 * (MOST_SLOWDOWNS + 1) + 2 * (MOST + 1)  # at most

    def steps(what: str, begin: int) -> Callable[[], None]:
        done = count(begin)
        return lambda: on_progress(what, next(done) / all_steps)

    pairs = {
        (first, second): link_between(
            connection, first, second, steps(f"link of {first} and {second}", at * len(SIZES))
        )
        for at, (first, second) in enumerate(ranks)
    }
    begin = len(ranks) * len(SIZES)
    reduced = all_reduce(connection, steps("all-reduce", begin))
    slowdowns = []
    for at, operation in enumerate((convolution, norm)):
        what = f"slow-down of a {operation.__name__}"
        on_round = steps(what, of_links + at * (MOST_SLOWDOWNS + 1))
        slowdowns.append(slowdown(connection, nodes, operation(connection.device), on_round))
    handled, stalled = (
        measure(
            connection,
            pairs[0, 1],
            convolution(connection.device),
            steps(f"what {what} costs", all_steps - (2 - at) * (MOST + 1)),
        )
        for at, (measure, what) in enumerate(((handling, "each byte"), (stall, "each message")))
    )
    node = [at for at, size in enumerate(nodes) for _ in range(size)]
    within = [link for (first, second), link in pairs.items() if node[first] == node[second]]
    across = [link for (first, second), link in pairs.items() if node[first] != node[second]]
    kinds = " and ".join(sorted({device.kind for device in devices}))
    return Machine(
        name=f"{connection.k} processes on {kinds}",
        devices=tuple(devices),
        nodes=nodes,
        inside=_typical(within or across),
        between=_typical(across) if across else None,
        pairs=pairs,
        all_reduce=reduced,
        together=slowdowns[0].together,
        memory_bound=slowdowns[1],
        handling=handled,
        stall=stalled,
        note=how_measured("nccl" if connection.nccl else "gloo"),
    )


def _typical(links: Sequence[Link]) -> Link:
    """The medians of several links, up to the longest message that all of them have."""
    sizes = min((link.sizes for link in links), key=len)
    times = [(link.seconds[: len(sizes)], link.both_ways[: len(sizes)]) for link in links]
    seconds, both_ways = (medians(column) for column in zip(*times, strict=True))
    return Link(sizes, seconds, both_ways)
