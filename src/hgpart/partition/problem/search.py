"""Seed, effort and time -> Search: the settings of a search, whatever the problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hgpart.partition.problem.checks import check_search

Progress = Callable[[float, "int | None"], object]  # share done, volume of the best so far


@dataclass(frozen=True, eq=False)
class Search:
    """Settings of a search.

    Attributes
    ----------
    seed : int
        The same seed gives the same partition.
    effort : float
        Length of the native solver's search, relative to its default.
    time_limit : float or None
        Seconds, counted from when this is made.
    on_progress : function of a float and an int or None, optional
        Called several times a second with the share of the search that is done, and the volume in
        bytes of the best partition so far, None at first.
    deadline : float
        Time to stop, by `time.monotonic`.

    Raises
    ------
    ArgumentError
        If a number is out of range.
    """

    seed: int = 0
    effort: float = 1.0
    time_limit: float | None = None
    on_progress: Progress | None = None
    deadline: float = field(init=False, default=math.inf)

    def __post_init__(self) -> None:
        """Check every field at the door, and begin."""
        check_search(self.seed, self.effort, self.time_limit)
        object.__setattr__(self, "seed", int(self.seed))
        if self.time_limit is not None:
            object.__setattr__(self, "deadline", time.monotonic() + self.time_limit)

    def part(
        self, share: float = 1.0, effort: float = 1.0, begin: float = 0.0, end: float = 1.0
    ) -> Search:
        """A search with a share of the time that is left, and of the effort.

        Its progress is that of this search from `begin` to `end`.
        """
        limit = None if self.time_limit is None else max(0.01, share * self.left)
        tell = self.on_progress
        if tell is None or (begin, end) == (0.0, 1.0):
            return Search(self.seed, effort * self.effort, limit, tell)

        def tell_of_part(done: float, volume: int | None) -> None:
            tell(begin + (end - begin) * done, volume)

        return Search(self.seed, effort * self.effort, limit, tell_of_part)

    @property
    def left(self) -> float:
        """Seconds until time is up."""
        return self.deadline - time.monotonic()
