"""Needs -> order of all actions: each rule is one function in its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hgpart.schedules.needs import Needs
from hgpart.schedules.rules.asynchronous import asynchronous
from hgpart.schedules.rules.dynamic import dynamic
from hgpart.schedules.rules.gpipe import gpipe
from hgpart.schedules.rules.greedy import greedy
from hgpart.schedules.rules.one_f_one_b import one_f_one_b
from hgpart.schedules.rules.sequential import sequential
from hgpart.schedules.rules.zero_bubble import zero_bubble
from hgpart.schedules.schedule import DYNAMIC, TURNS, Action

RULES: Mapping[str, Callable[[Needs], list[Action]]] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero-bubble": zero_bubble,
    "greedy": greedy,
}
DEFAULT = "greedy"
# Rules of a stream of batches, not of a step: parts update their weights.
STREAMS: Mapping[str, Callable[[Needs], list[Action]]] = {
    "async": asynchronous,
    DYNAMIC: dynamic,
    TURNS: dynamic,
}
IN_FLIGHT, MOST_IN_FLIGHT = 2, 1000  # the default, and the most that can be asked for
LONGEST = 256  # most batches of a stream, to keep its order short; then the pipeline is drained
