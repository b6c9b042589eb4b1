"""Search -> how long it may still take: until its deadline, or Ctrl-C."""

from __future__ import annotations

import math
import time


class Clock:
    """Time left for a search."""

    def __init__(self, deadline: float) -> None:
        self.deadline, self.interrupted = deadline, False

    @property
    def left(self) -> float:
        """Seconds until time is up."""
        return self.deadline - time.monotonic()

    def interrupt(self) -> None:
        """Ctrl-C: nothing that takes long begins any more."""
        self.interrupted, self.deadline = True, -math.inf
