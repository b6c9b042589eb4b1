"""The seconds of a training step, by an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject
from hgpart.partition.problem.objectives.link_costs import LinkCosts, over_links

MOST_MICRO_BATCHES = 10**6
# Where nothing else is asked for: imbalance, and numbers of micro-batches to try.
WIDE = 1.0
MICRO_BATCHES = (1, 2, 4, 8)


@dataclass(frozen=True, eq=False)
class Seconds(LinkCosts):
    """Seconds of a step in m micro-batches.

    The part with most to do works on one micro-batch after the other, and the first of them goes
    through all layers, each as slow as the largest share of it: ((m - 1) max L + P) / m. L is the
    seconds in which a part computes, sends and receives; P adds up the largest shares of the
    layers and the links' seconds of the part with most of these. For a cut between layers P is all
    work, and the value is GPipe's (1 + (k - 1) / m) / k of that, if the cut is even; for replicas
    it is max L, however many micro-batches.

    Attributes
    ----------
    links : float64 array, shape (k, k)
        Seconds of a byte from part s to part r at ``[s, r]``.
    seconds : float
        All work of a step, on a device of speed 1.
    micro_batches : int
        The number m.
    """

    seconds: float = field()
    micro_batches: int = field()
    speeds: tuple[float, ...] | None = None

    name, number, in_seconds, default_eps = "time", 3, True, WIDE

    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        if layer_work is None:
            raise ArgumentError("no work of layers: objective 'time' is of work and traffic")
        cost = self.links * traffic
        sent = cost.sum(axis=0) + cost.sum(axis=1)
        shares = layer_work * (self.seconds / max(1, int(layer_work.sum())))
        if self.speeds is not None:
            shares = shares / self.speeds
        first = shares.max(axis=1).sum() + sent.max()
        busiest = (shares.sum(axis=0) + sent).max()
        return float(((self.micro_batches - 1) * busiest + first) / self.micro_batches)

    def least(self, volume: int, k: int) -> float:
        # Of means over the parts, by their speeds.
        speeds = self.speeds or [1.0] * k
        return (self.seconds + min(speeds) * 2 * (self.cheapest(k) * volume)) / sum(speeds)

    def in_words(self, value: float, volume: int, in_bytes: Callable[[int], str]) -> str:
        count = self.micro_batches
        batches = "1 micro-batch" if count == 1 else f"{count} micro-batches"
        return f"A step of {batches} takes {value:.3g} s by the search's estimate"

    def in_micro_batches(self, count: int) -> Seconds:
        return replace(self, micro_batches=count)

    def check(self, k: int, speeds: Sequence[float] | None) -> None:
        if (self.speeds or (1.0,) * k) != tuple(speeds or (1.0,) * k):
            own = "equal ones" if self.speeds is None else ", ".join(map(str, self.speeds))
            raise ArgumentError(
                f"objective 'time' with other speeds than its machine's: accepted are {own}"
            )
        super().check(k, speeds)

    def record(self) -> dict[str, Any]:
        own = {"work_seconds": self.seconds, "micro_batches": self.micro_batches}
        return {**super().record(), **own}

    @classmethod
    def read(cls, head: JsonObject, k: int) -> Seconds:
        links = super().read(head, k).links
        count = head.whole("micro_batches", 1, MOST_MICRO_BATCHES)
        speeds = head.items("speeds", k) if head.fields.get("speeds") is not None else None
        try:
            return step_time(links, head.number("work_seconds"), count, speeds)
        except ArgumentError as error:
            raise head.wrong("work_seconds", str(error)) from None


def step_time(
    links: Sequence[Sequence[float]] | Float64,
    seconds: float,
    micro_batches: int,
    speeds: Sequence[float] | None = None,
) -> Seconds:
    """Return the objective of the seconds of a step; see `Seconds`.

    Raises
    ------
    ArgumentError
        If links are not a square of numbers from 0 to 1e9, all of them are 0, or the other numbers
        are out of range.
    """
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"a step of {seconds} s of work: accepted is 0 or more")
    if not 1 <= micro_batches <= MOST_MICRO_BATCHES:
        raise ArgumentError(
            f"{micro_batches} micro-batches: accepted are 1 to {MOST_MICRO_BATCHES}"
        )
    own = None if speeds is None else tuple(map(float, speeds))
    return Seconds(over_links(links).links, float(seconds), int(micro_batches), own)
