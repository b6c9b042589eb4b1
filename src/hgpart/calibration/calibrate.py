"""Connection -> Machine: measure links, all-reduces and slow-downs, one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, count

from hgpart.calibration.handling import handling
from hgpart.calibration.here import device_here, first_of_node, how_measured
from hgpart.calibration.links import SIZES, all_reduce, link_between
from hgpart.calibration.slowdown import ROUNDS as SLOWDOWN_ROUNDS
from hgpart.calibration.slowdown import convolution, norm, slowdown
from hgpart.calibration.speeds import with_speeds
from hgpart.calibration.stalls import stall
from hgpart.calibration.steady import BRIEF, USUAL, medians
from hgpart.machines.machine import Link, Machine
from hgpart.run.processes.connection import Connection
from hgpart.work.watching import Watch


def calibrate(
    connection: Connection,
    threads: int,
    on_progress: Callable[[str, float], None] = lambda what, done: None,
    *,
    briefly: bool = False,
) -> Machine:
    """Measure the devices and links of a run's processes.

    All processes call this, with nothing else running, and all get the result. Pairs are measured
    one by one, because their messages share the network. A measurement that
    other programs disturb is made once more; if they disturb that as well, the machine says so.

    Parameters
    ----------
    connection : Connection
        Two processes or more.
    threads : int
        Number of threads that each process computes with.
    on_progress : callable
        Called with what is measured next, and the fraction of all measurements that is done.
    briefly : bool
        Whether seconds must do, where steps are run afterwards: each figure is that of two rounds,
        links are known by three sizes of messages, and neither all-reduces nor speeds are measured.

    Raises
    ------
    RunError
        If a process is gone or does not answer.
    """
    counts = Counter(connection.gather(first_of_node()))
    nodes = tuple(counts[first] for first in sorted(counts))
    device = device_here(connection.device, threads, counts[first_of_node()])
    watch, on_device = Watch(connection.gather, repeats=not briefly), convolution(connection.device)
    usual, of_slowdown = (BRIEF, BRIEF) if briefly else (USUAL, SLOWDOWN_ROUNDS)
    sizes = SIZES[:: len(SIZES) // 3] if briefly else SIZES
    devices = connection.gather(device)
    if not briefly:
        devices = watch.measure(partial(with_speeds, connection, nodes, devices, on_device))
    ranks = [*combinations(range(connection.k), 2)]
    of_links = (len(ranks) + 1) * len(sizes)
    all_steps = of_links + 2 * (of_slowdown.most + 1) + 2 * (usual.most + 1)  # at most

    def steps(what: str, begin: int, most: int) -> Callable[[], None]:
        done = count(begin)  # which repetitions may count too far
        return lambda: on_progress(what, min(next(done), begin + most) / all_steps)

    pairs = {}
    for at, (first, second) in enumerate(ranks):
        on_size = steps(f"link of {first} and {second}", at * len(sizes), len(sizes))
        measure_link = partial(link_between, connection, first, second, on_size)
        pairs[first, second] = watch.measure(partial(measure_link, sizes=sizes, rounds=usual))
    on_size = steps("all-reduce", len(ranks) * len(sizes), len(sizes))
    reduced = None if briefly else watch.measure(partial(all_reduce, connection, on_size))
    slowdowns = []
    for at, operation in enumerate((convolution, norm)):
        what = f"slow-down of a {operation.__name__}"
        most = of_slowdown.most + 1
        on_round, run = steps(what, of_links + at * most, most), operation(connection.device)
        asked = connection, nodes, run, on_round, of_slowdown
        slowdowns.append(watch.measure(partial(slowdown, *asked)))
    costs = []
    for at, (measure, what) in enumerate(((handling, "each byte"), (stall, "each message"))):
        most = usual.most + 1
        on_round = steps(f"what {what} costs", all_steps - (2 - at) * most, most)
        run = convolution(connection.device)
        asked_of = connection, pairs[0, 1], run, on_round, usual
        costs.append(watch.measure(partial(measure, *asked_of)))
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
        handling=costs[0],
        stall=costs[1],
        note=how_measured("nccl" if connection.nccl else "gloo"),
        disturbed=watch.disturbed,
    )


def _typical(links: Sequence[Link]) -> Link:
    """The medians of several links, up to the longest message that all of them have."""
    sizes = min((link.sizes for link in links), key=len)
    times = [(link.seconds[: len(sizes)], link.both_ways[: len(sizes)]) for link in links]
    seconds, both_ways = (medians(column) for column in zip(*times, strict=True))
    return Link(sizes, seconds, both_ways)
