"""Store of a run -> which of its processes are silent, and which are at work while others wait.

Every process beats: it writes into a store that all share how often it has done so, and whether it
waits for another process. So a process that waits in vain for one that is itself waiting can tell
who is to blame. A process that was stopped, or whose machine is cut off, beats no more; clocks of
two machines are never compared. With each beat a process hears whether one of them has told why it
fails, so that all end with the same cause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from torch.distributed.distributed_c10d import Store

LONGEST_INTERVAL = 0.5  # seconds between beats
SILENCE = 4  # intervals without a beat
LAST_WAIT = 10  # silences that the keeper of the store waits for the others, who may be busy
ANSWER = 4  # silences until the store must have given the cause
Result = TypeVar("Result")


@dataclass(frozen=True)
class Others:
    """The other processes of a run, by rank.

    Attributes
    ----------
    silent : tuple of int
        Ranks that have not beaten for `SILENCE` intervals.
    working : tuple of int
        Ranks that have beaten, and do not wait for anybody.
    calls : mapping of int to str
        The call that each rank was in when it last beat; empty outside of calls.
    """

    silent: tuple[int, ...]
    working: tuple[int, ...]
    calls: Mapping[int, str] = field(default_factory=dict)


class Heartbeats:
    """The beats of a process, from `start` to `stop`, and its view of the others' beats.

    Parameters
    ----------
    timeout : float
        Seconds that processes wait for each other: silence is noticed in half that time.
    keeper : int, optional
        The rank whose process keeps the store, if a rank does.

    Attributes
    ----------
    interval, silence : float
        Seconds between beats, and seconds without a beat that count as silence.
    waits : bool
        Whether this process waits for another; set by the code that makes it wait.
    call : str
        The call that this process is in, as it is written; empty outside of calls.
    cause : str, optional
        Why the run fails, as the first process told it.
    """

    def __init__(
        self, store: Store, rank: int, k: int, timeout: float, keeper: int | None = None
    ) -> None:
        self.waits, self.call = False, ""
        self.cause: str | None = None
        self._store_is_lost = False
        self.interval = min(LONGEST_INTERVAL, timeout / (2 * SILENCE))
        self.silence = SILENCE * self.interval
        # A waiting call blocks its store object; torch's stubs do not have clone.
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._store.set_timeout(timedelta(seconds=self.silence))
        self.keeper, self._rank = keeper, rank
        self._others = [peer for peer in range(k) if peer != rank]
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="hgpart heartbeat", daemon=True)
        self.beat()

    def start(self) -> None:
        """Beat, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating."""
        self._ended.set()
        self._thread.join(self.silence)  # not for ever: the store may not answer

    def tell(self, cause: str) -> str:
        """Tell the others why this process fails; returns the cause that was told first."""
        if self.cause is None:
            call = partial(self._store.compare_set, "cause", "", cause)
            try:
                self.cause = within(ANSWER * self.silence, call).decode()
            except (RuntimeError, TimeoutError):  # the store's keeper is gone, or stopped
                self._store_is_lost = True
        return self.cause or cause

    @property
    def told(self) -> bool:
        """Whether a process has told why it fails, or could not have."""
        return self.cause is not None or self._store_is_lost

    def leave(self) -> None:
        """Stop beating; the keeper of the store first waits until the others have heard the cause.

        They may still be waiting for this process, and look for a cause only when it is gone.
        """
        self.stop()
        if self._rank == self.keeper:
            with suppress(RuntimeError, TimeoutError):
                within(LAST_WAIT * self.silence, self._wait_for_others)

    def _wait_for_others(self) -> None:
        last: dict[int, tuple[bytes, float]] = {}  # each rank's last beat, and since when
        while True:
            now = time.monotonic()
            for rank, beat in self._beats().items():
                if rank not in last or last[rank][0] != beat:
                    last[rank] = beat, now
            if all(
                beat.split()[1] == b"told" or now - since > 2 * self.silence
                for beat, since in last.values()
            ):
                return
            time.sleep(self.interval / 4)

    def beat(self) -> None:
        """Write that this process is alive, and look for a cause."""
        self._count += 1
        if self.cause is None and self._store.check(["cause"]):
            self.cause = self._store.get("cause").decode()
        state = "told" if self.cause is not None else "waits" if self.waits else "works"
        self._store.set(f"beat/{self._rank}", f"{self._count} {state} {self.call}")

    def look(self) -> Others:
        """Wait for a beat of each other process, but no longer than for silence, or a cause."""
        try:
            return within(2 * self.silence, self._look)
        except (RuntimeError, TimeoutError):  # the store itself is silent, or gone
            keeper = [rank for rank in self._others if rank == self.keeper]
            return Others(silent=tuple(keeper), working=())

    def _look(self) -> Others:
        deadline = time.monotonic() + self.silence
        before = self._beats()
        while True:
            beats = self._beats()
            silent = tuple(rank for rank in self._others if beats[rank] == before[rank])
            if not silent or self.told or time.monotonic() > deadline:
                break
            time.sleep(self.interval / 4)
        states = {rank: beat.decode().split(" ", 2) for rank, beat in beats.items()}
        alive = (rank for rank in self._others if rank not in silent)
        working = tuple(rank for rank in alive if states[rank][1] == "works")
        return Others(silent, working, {rank: state[2] for rank, state in states.items()})

    def _beats(self) -> dict[int, bytes]:
        keys = [f"beat/{rank}" for rank in self._others]
        return dict(zip(self._others, self._store.multi_get(keys), strict=True))

    def _beat_on(self) -> None:
        try:
            while not self._ended.wait(self.interval):
                self.beat()
        except RuntimeError:  # the store has gone with the process that kept it
            self._store_is_lost = True


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Make a call that may never return; its errors are raised.

    Raises
    ------
    TimeoutError
        If it has not returned after `seconds`; it goes on in a thread.
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
