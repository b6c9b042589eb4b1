"""All bytes, each times the cost of the link that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hgpart.arrays import Float64, Int64
from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject
from hgpart.partition.problem.objectives.objective import Objective

MOST_COST = 1e9  # of a byte on a link, relative to others


@dataclass(frozen=True, eq=False)
class LinkCosts(Objective):
    """All bytes, each times the cost of its link; see `over_links`."""

    links: Float64 = field()

    name, number = "links", 2

    def value(self, traffic: Int64, layer_work: Int64 | None = None) -> float:
        return float((self.links * traffic).sum())

    def least(self, volume: int, k: int) -> float:
        return self.cheapest(k) * volume

    def cheapest(self, k: int) -> float:
        """Cost of a byte on the cheapest link between k devices."""
        return float(self.links[~np.eye(k, dtype=bool)].min()) if k > 1 else 0.0

    def in_words(self, value: float, volume: int, in_bytes: Callable[[int], str]) -> str:
        return f"A byte costs {value / max(1, volume):.3g} on the links that it takes, on average"

    def record(self) -> dict[str, Any]:
        return {**super().record(), "links": self.links.tolist()}

    @classmethod
    def read(cls, head: JsonObject, k: int) -> LinkCosts:
        try:
            return over_links(head.items("links", k))
        except ArgumentError as error:
            raise head.wrong("links", str(error)) from None


def over_links(costs: Sequence[Sequence[float]] | Float64) -> LinkCosts:
    """Return the objective of k x k link costs; the diagonal does not count.

    Raises
    ------
    ArgumentError
        If they are not a square of numbers from 0 to 1e9, or all of them are 0.
    """
    try:
        links = np.array(costs, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        links = np.zeros(0)
    if links.ndim != 2 or links.shape[0] != links.shape[1]:
        raise ArgumentError("link costs are not a square of numbers, expected k rows of k numbers")
    if not ((links >= 0) & (links <= MOST_COST)).all():
        raise ArgumentError(f"a link cost is not a number from 0 to {MOST_COST:g}")
    np.fill_diagonal(links, 0.0)
    if len(links) > 1 and links.max() == 0:
        raise ArgumentError("all link costs are 0, expected one above 0")
    return LinkCosts(links)
