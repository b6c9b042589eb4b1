"""Store of a run -> which of its processes are silent, and which are at work while others wait.

Every process beats: it writes into the store that all share how often it has, and whether it waits
for another one. Who waits in vain for one that waits itself can so tell who is to blame. One that
was stopped, or whose machine is cut off, beats no more; clocks of two machines are never compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

LONGEST_INTERVAL = 0.5  # seconds from beat to beat
SILENCE = 4  # intervals without a beat
Result = TypeVar("Result")


@dataclass(frozen=True)
class Others:
    """The other processes of a run, by rank.

    Attributes
    ----------
    silent : tuple of int
        Have not beaten for `SILENCE` intervals.
    working : tuple of int
        Have beaten, and do not wait for anybody.
    """

    silent: tuple[int, ...]
    working: tuple[int, ...]


class Heartbeats:
    """The beats of one process, from `start` to `stop`, and its look at those of the others.

    Parameters
    ----------
    store : Store
    rank, k : int
    timeout : float
        Seconds that processes wait for each other: silence is noticed in half of them.
    keeper : int, optional
        The rank whose process keeps the store, if one of them does.

    Attributes
    ----------
    interval, silence : float
        Seconds from beat to beat, and without one.
    waits : bool
        Whether this process waits for another one; to be set by who makes it wait.
    """

    def __init__(
        self, store: Store, rank: int, k: int, timeout: float, keeper: int | None = None
    ) -> None:
        self.waits = False
        self.interval = min(LONGEST_INTERVAL, timeout / (2 * SILENCE))
        self.silence = SILENCE * self.interval
        # A call that waits holds its store; torch's stubs do not know of clone.
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=self.silence))
        self.keeper, self._rank = keeper, rank
        self._others = [other for other in range(k) if other != rank]
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="hgpart heartbeat", daemon=True)
        self.beat()

    def start(self) -> None:
        """Beat, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._ended.set()
        self._thread.join(self.silence)  # not for ever: the store may not answer

    def beat(self) -> None:
        """Write that this process is alive."""
        self._count += 1
        self._store.set(f"beat/{self._rank}", f"{self._count} {'waits' if self.waits else 'works'}")

    def look(self, told: Callable[[], bool] = lambda: False) -> Others:
        """Wait for a beat of each of the others, but not longer than for silence.

        Parameters
        ----------
        told : callable
            Asked again and again whether there is no need to wait.
        """
        try:
            return within(2 * self.silence, lambda: self._look(told))
        except (RuntimeError, TimeoutError):  # the store itself is silent, or gone
            keeper = [other for other in self._others if other == self.keeper]
            return Others(silent=tuple(keeper), working=())

    def _look(self, told: Callable[[], bool]) -> Others:
        deadline = time.monotonic() + self.silence
        before = self._beats()
        while True:
            beats = self._beats()
            silent = tuple(other for other in self._others if beats[other] == before[other])
            if not silent or told() or time.monotonic() > deadline:
                break
            time.sleep(self.interval / 4)
        alive = (other for other in self._others if other not in silent)
        return Others(silent, tuple(other for other in alive if beats[other].endswith(b"works")))

    def _beats(self) -> dict[int, bytes]:
        keys = [f"beat/{other}" for other in self._others]
        return dict(zip(self._others, self._store.multi_get(keys), strict=True))

    def _beat_on(self) -> None:
        with suppress(RuntimeError):  # the store has gone with the process that kept it
            while not self._ended.wait(self.interval):
                self.beat()


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Make a call that may never return; what it raises is raised.

    Raises
    ------
    TimeoutError
        If it has not returned after `seconds`: it goes on in a thread.
    """
    answers: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        result, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where the call returns it
