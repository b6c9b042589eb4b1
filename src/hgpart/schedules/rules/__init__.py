"""Needs -> order of all actions: a rule is one function, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hgpart.schedules.needs import Needs
from hgpart.schedules.rules.asynchronous import asynchronous
from hgpart.schedules.rules.gpipe import gpipe
from hgpart.schedules.rules.greedy import greedy
from hgpart.schedules.rules.one_f_one_b import one_f_one_b
from hgpart.schedules.rules.sequential import sequential
from hgpart.schedules.rules.zero_bubble import zero_bubble
from hgpart.schedules.schedule import Action

RULES: Mapping[str, Callable[[Needs], list[Action]]] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero-bubble": zero_bubble,
    "greedy": greedy,
}
DEFAULT = "greedy"
# Not of a step, but of a stream of batches: parts update their weights.
STREAMS: Mapping[str, Callable[[Needs], list[Action]]] = {"async": asynchronous}
IN_FLIGHT, MOST_IN_FLIGHT = 2, 1000  # where nothing is said, and that may be asked for
LONGEST = 256  # batches of a stream: its order should stay short; then none is in flight
