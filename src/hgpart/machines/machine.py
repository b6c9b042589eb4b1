"""Devices, links -> Machine: how long messages take, and what slows computing down.

Measured links are seconds of messages of some sizes; links written by hand are a latency and a
bandwidth. Both are a `Link`, which says how long any message takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError, check_number, check_whole
from hgpart.work.watching import caution

LONG = 2**26  # bytes of the second message of a link that is given by its bandwidth
# The plausible range. No figure computed from such ones is too large for a float.
MOST_SECONDS = 1e9  # some thirty years
MOST_FACTOR = 1e6  # times as long
MOST_BANDWIDTH = 1e18  # bytes per second


@dataclass(frozen=True)
class SlowerMemory:
    """Memory beside a device's own, such as a disk or, of a GPU, its host's.

    Attributes
    ----------
    bandwidth : float
        Bytes per second that the device writes or reads, while the others do so, too.
    memory : int or None
        Bytes that there are; None for any number.
    """

    bandwidth: float
    memory: int | None = None

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a number is out of range."""
        check_number("bandwidth", self.bandwidth, 1, MOST_BANDWIDTH, " bytes per second")
        if self.memory is not None:
            check_whole("slower memory", self.memory, unit=" byte")


@dataclass(frozen=True)
class Device:
    """A device that a process of a run computes on.

    Attributes
    ----------
    kind : str
        The name that it gives itself.
    memory : int or None
        Bytes of memory, where known.
    threads : int
        Number of threads that compute on it, if it is a CPU.
    speed : float
        How many times as fast it computes as the device that layers were timed on.
    slower : SlowerMemory or None
        Slower memory that it can offload to, if any.
    """

    kind: str
    memory: int | None = None
    threads: int = 1
    speed: float = 1.0
    slower: SlowerMemory | None = None

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a number is out of range."""
        if self.memory is not None:
            check_whole("memory", self.memory, unit=" byte")
        check_whole("threads", self.threads)
        check_number("speed", self.speed, 1 / MOST_FACTOR, MOST_FACTOR)


@dataclass(frozen=True)
class Link:
    """The time that a message takes from one device to another.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the messages that are known, ascending, two or more.
    seconds : tuple of float
        Seconds from the send to the arrival of each.
    both_ways : tuple of float
        The same seconds while a message of that size is sent the other way.

    Raises
    ------
    ArgumentError
        If sizes do not ascend, or a longer message takes less time.

    Examples
    --------
    >>> link = Link((1000, 5000), (1e-3, 3e-3), (1e-3, 5e-3))
    >>> link.seconds_of(10), link.seconds_of(3000), link.seconds_of(7000)
    (0.001, 0.002, 0.004)
    >>> link.seconds_of(3000, both_ways=True)
    0.003
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    both_ways: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise an ArgumentError if the times are not those of messages."""
        _check_times(self.sizes, self.seconds)
        _check_times(self.sizes, self.both_ways)

    @staticmethod
    def of(latency: float, bandwidth: float, both_ways: float | None = None) -> Link:
        """Make the link of a latency, in seconds, and a bandwidth, in bytes per second.

        `both_ways` is the bandwidth of each way while messages are sent both ways. Default: the
        two ways do not slow each other down.

        >>> Link.of(latency=1e-3, bandwidth=1e6, both_ways=5e5).seconds_of(2e6, both_ways=True)
        4.001
        """
        check_number("latency", latency, 0, MOST_SECONDS / 2, " s")
        rates = {"bandwidth": bandwidth, "both_ways": bandwidth if both_ways is None else both_ways}
        for name, rate in rates.items():
            check_number(name, rate, 1, MOST_BANDWIDTH, " bytes per second")
        one_way, both = ((latency, latency + LONG / rate) for rate in rates.values())
        return Link((0, LONG), one_way, both)

    def seconds_of(self, nbytes: float, both_ways: bool = False) -> float:
        """Seconds of a message, optionally while another is sent the other way.

        Between known messages, and beyond the longest, times lie on straight lines.
        """
        return _seconds_of(self.sizes, self.both_ways if both_ways else self.seconds, nbytes)

    def seconds_of_all(self, nbytes: Float64, both_ways: bool = False) -> Float64:
        """`seconds_of` each of many messages.

        >>> Link((1000, 5000), (1e-3, 3e-3), (1e-3, 5e-3)).seconds_of_all(np.array([10, 7000.0]))
        array([0.001, 0.004])
        """
        sizes = np.array(self.sizes, dtype=np.float64)
        seconds = np.array(self.both_ways if both_ways else self.seconds)
        at = np.clip(np.searchsorted(sizes, nbytes), 1, len(sizes) - 1)
        per_byte = np.diff(seconds) / np.diff(sizes)
        beyond = np.maximum(nbytes - sizes[at - 1], 0.0)
        of_all: Float64 = seconds[at - 1] + per_byte[at - 1] * beyond
        return of_all

    @property
    def latency(self) -> float:
        """Seconds of the shortest message that is known."""
        return self.seconds[0]

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the longest message that is known, without the latency."""
        return _bandwidth(self.sizes, self.seconds)

    @property
    def bandwidth_both_ways(self) -> float:
        """Bytes per second of each way while messages are sent both ways, without the latency."""
        return _bandwidth(self.sizes, self.both_ways)

    @property
    def least_seconds_a_byte(self) -> float:
        """Least seconds per byte of any message, even while others are sent the other way.

        >>> Link((0, 1000, 5000), (1.0, 2.0, 9.0), (1.0, 3.0, 9.0)).least_seconds_a_byte
        0.0015
        """
        return min(
            _least_a_byte(self.sizes, self.seconds), _least_a_byte(self.sizes, self.both_ways)
        )


@dataclass(frozen=True)
class AllReduce:
    """The time that all devices take to add up what each of them has.

    Attributes
    ----------
    sizes : tuple of int
        Bytes that each device has, ascending, two or more.

    Raises
    ------
    ArgumentError
        For the reasons of `Link`.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise an ArgumentError if the times are not those of all-reduces."""
        _check_times(self.sizes, self.seconds)

    def seconds_of(self, nbytes: float) -> float:
        """Seconds for the bytes that each device has; see `Link.seconds_of`."""
        return _seconds_of(self.sizes, self.seconds, nbytes)


@dataclass(frozen=True)
class Slowdown:
    """Factors by which computing on a device slows down.

    Attributes
    ----------
    together : tuple of float
        Entry ``[n-1]`` is the factor while n devices of the node compute; it is 1 for one device.
        The last entry holds for any higher number.

    Raises
    ------
    ArgumentError
        If a number is below 1 or above `MOST_FACTOR`, or the first one is not 1.
    """

    together: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        """Raise an ArgumentError if a factor is out of range."""
        for factor in self.together:
            check_number("slow-down", factor, 1, MOST_FACTOR)
        if self.together[:1] != (1.0,):
            raise ArgumentError(
                f"slow-downs {list(self.together)}: accepted is 1 for one device, then a factor "
                "for each further device"
            )

    def of(self, computing: int) -> float:
        """The factor while `computing` devices compute.

        >>> Slowdown((1.0, 1.5)).of(3)
        1.5
        """
        return self.together[min(computing, len(self.together)) - 1]


@dataclass(frozen=True)
class Machine:
    """Devices in nodes, and the links between them.

    Attributes
    ----------
    nodes : tuple of int
        Number of devices in each node, in their order.
    inside, between : Link
        Link between two devices of a node, and between two nodes; None for a single node.
    pairs : mapping of (int, int) to Link
        Links of single pairs (sender, receiver), where known; an entry one way holds both ways.
    all_reduce : AllReduce or None
        All-reduces of all devices, where known.
    together : tuple of float
        Factors as in `Slowdown`, for convolutions, where most time of a CNN goes.
    memory_bound : Slowdown or None
        Factors for operators that do little more than read and write maps, such as norms, where
        known.
    handling : float
        Seconds of computing that a byte of a message costs its sender, and its receiver.
    stall : float
        Seconds that a message of any length costs its sender, and its receiver, while others
        compute.
    note : str
        Where the figures come from.
    disturbed : str
        What disturbed the measurement, as `hgpart.work.watching` says it; empty where nothing did.

    Raises
    ------
    ArgumentError
        If these do not fit together.
    """

    name: str
    devices: tuple[Device, ...]
    nodes: tuple[int, ...]
    inside: Link
    between: Link | None = None
    pairs: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    all_reduce: AllReduce | None = None
    together: tuple[float, ...] = (1.0,)
    memory_bound: Slowdown | None = None
    handling: float = 0.0
    stall: float = 0.0
    note: str = ""
    disturbed: str = ""

    def __post_init__(self) -> None:
        """Raise an ArgumentError if the fields do not fit together."""
        Slowdown(self.together)
        check_number("handling", self.handling, 0, MOST_SECONDS, " s a byte")
        check_number("stall", self.stall, 0, MOST_SECONDS, " s a message")
        for devices in self.nodes:
            check_whole("devices of a node", devices)
        if sum(self.nodes) != self.k:
            raise ArgumentError(
                f"nodes of {list(self.nodes)} devices: accepted are {self.k} in all"
            )
        if len(self.nodes) > 1 and self.between is None:
            raise ArgumentError(f"no link between {len(self.nodes)} nodes: accepted is one")
        for pair in self.pairs:
            if not all(0 <= device < self.k for device in pair) or pair[0] == pair[1]:
                raise ArgumentError(
                    f"a link from {pair[0]} to {pair[1]}: accepted are two of the {self.k} devices"
                )

    @property
    def caution(self) -> str:
        """Why the figures can't be trusted; empty where nothing is known against them."""
        return caution("The machine's figures", self.disturbed)

    @property
    def k(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @cached_property
    def node_of(self) -> tuple[int, ...]:
        """The node of each device."""
        return tuple(node for node, size in enumerate(self.nodes) for _ in range(size))

    @property
    def speeds(self) -> tuple[float, ...] | None:
        """Speeds of the devices; None where all are equally fast."""
        speeds = tuple(device.speed for device in self.devices)
        return speeds if len({*speeds}) > 1 else None

    @property
    def by_speed(self) -> tuple[int, ...]:
        """The numbers of its devices, the fastest first; of those equally fast, in their order."""
        return tuple(sorted(range(self.k), key=lambda device: -self.devices[device].speed))

    def fastest(self, k: int) -> tuple[int, ...]:
        """The numbers of its k fastest devices, ascending; the first of those equally fast.

        Raises
        ------
        ArgumentError
            If it has fewer.

        >>> boards = tuple(Device("board", speed=speed) for speed in (1, 4, 2, 1))
        >>> Machine("m", boards, (4,), Link.of(latency=1e-5, bandwidth=1e9)).fastest(3)
        (0, 1, 2)
        """
        check_whole("number of devices", k)
        if k > self.k:
            raise ArgumentError(
                f"machine {self.name} of {self.k} devices for k={k}: accepted are {k} or more"
            )
        return tuple(sorted(self.by_speed[:k]))

    def of_fastest(self, k: int) -> Machine:
        """The machine of its k fastest devices, in their order; an ArgumentError if it has fewer.

        >>> link = Link.of(latency=1e-5, bandwidth=1e9)
        >>> Machine("m", (Device("GPU"),) * 6, (2, 4), link, link).of_fastest(3).nodes
        (2, 1)
        """
        chosen = self.fastest(k)
        nodes = [len([*same]) for _, same in groupby(self.node_of[device] for device in chosen)]
        place = {device: at for at, device in enumerate(chosen)}
        return replace(
            self,
            devices=tuple(self.devices[device] for device in chosen),
            nodes=tuple(nodes),
            between=self.between if len(nodes) > 1 else None,
            pairs={
                (place[sender], place[receiver]): link
                for (sender, receiver), link in self.pairs.items()
                if sender in place and receiver in place
            },
            all_reduce=self.all_reduce if len(chosen) == self.k else None,
        )

    def link(self, sender: int, receiver: int) -> Link:
        """The link for messages from one device to another."""
        known = self.pairs.get((sender, receiver)) or self.pairs.get((receiver, sender))
        if known is not None:
            return known
        if self.between is None or self.node_of[sender] == self.node_of[receiver]:
            return self.inside
        return self.between

    def links(self, k: int) -> tuple[list[Link], Int64]:
        """The different links between the first k devices, and the number of each pair's.

        The numbers have shape (k, k), by sender and receiver.
        """
        links, nodes = [self.inside, self.between or self.inside], np.array(self.node_of[:k])
        numbers = (nodes[:, None] != nodes).astype(np.int64)
        for sender, receiver in self.pairs:
            for pair in ((sender, receiver), (receiver, sender)):
                if max(pair) < k:
                    numbers[pair] = len(links)
                    links.append(self.link(*pair))
        return links, numbers


def _check_times(sizes: Sequence[int], seconds: Sequence[float]) -> None:
    for size in sizes:
        check_whole("size of a message", size, 0, unit=" bytes")
    for time in seconds:
        check_number("seconds of a message", time, 0, MOST_SECONDS, " s")
    if len(sizes) < 2 or len(seconds) != len(sizes):
        raise ArgumentError(
            f"{len(seconds)} times of messages of {len(sizes)} sizes: accepted is one of each, "
            "and two sizes at least"
        )
    if any(size >= longer for size, longer in pairwise(sizes)):
        raise ArgumentError(f"messages of {list(sizes)} bytes: accepted are ascending sizes")
    falls = any(earlier > later for earlier, later in pairwise(seconds))
    if falls or seconds[0] == seconds[-1]:
        raise ArgumentError(f"messages that take {list(seconds)} s: accepted are ascending times")
    if sizes[-1] - sizes[0] > 1.01 * MOST_BANDWIDTH * (seconds[-1] - seconds[0]):  # 1 % of rounding
        raise ArgumentError(
            f"messages of {list(sizes)} bytes that take {list(seconds)} s: accepted are "
            f"{MOST_BANDWIDTH:g} bytes per second at most"
        )


def _seconds_of(sizes: Sequence[int], seconds: Sequence[float], nbytes: float) -> float:
    if nbytes <= sizes[0]:
        return seconds[0]
    at = min(bisect_left(sizes, nbytes), len(sizes) - 1)
    per_byte = (seconds[at] - seconds[at - 1]) / (sizes[at] - sizes[at - 1])
    return seconds[at - 1] + per_byte * (nbytes - sizes[at - 1])


def _bandwidth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    return (sizes[-1] - sizes[0]) / (seconds[-1] - seconds[0])


def _least_a_byte(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    # On a line between two sizes, seconds per byte are least at one of them; beyond the longest
    # they approach the slope of the last line.
    known = [time / size for size, time in zip(sizes, seconds, strict=True) if size]
    last = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return min(*known, last)
