"""Who is silent and who is at work: beats of several processes in one, as the test paces them."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import HashStore

from hgpart.run.heartbeats import Heartbeats, Others, within

TIMEOUT = 1.6  # makes 0.8 s without a beat silence


@pytest.mark.parametrize(
    ("states", "silent", "working"),
    [
        (("waits", "waits", "works"), (), (3,)),
        (("waits", "stopped", "works"), (2,), (3,)),
        (("stopped", "waits", "stopped"), (1, 3), ()),
        (("waits", "waits", "waits"), (), ()),
    ],
)
def test_who_beats_no_more_is_silent_and_who_waits_is_not_to_blame(states, silent, working):
    """The rank that was waited for was named, though it waited for the one that was stopped."""
    store = HashStore()
    beats = [Heartbeats(store, rank, 4, TIMEOUT) for rank in range(4)]

    def all_beat():
        for other, state in zip(beats[1:], states, strict=True):
            other.waits = state == "waits"
            if state != "stopped":
                other.beat()
        return False

    assert beats[0].look(all_beat) == Others(silent, working)


def test_what_is_told_ends_the_look():
    store = HashStore()
    first, _ = (Heartbeats(store, rank, 2, 1e6) for rank in range(2))
    told = iter([False, True])
    first.look(lambda: next(told))
    assert next(told, "asked twice") == "asked twice"


class StoppedStore(HashStore):
    """Of a process that was stopped: no request comes back."""

    stopped = False

    def clone(self):
        return self

    def multi_get(self, keys):
        time.sleep(60)


@pytest.mark.parametrize(("keeper", "silent"), [(0, (0,)), (None, ())])
def test_a_store_that_does_not_answer_is_its_keepers_silence(keeper, silent):
    store = StoppedStore()
    assert Heartbeats(store, 1, 2, 0.2, keeper).look() == Others(silent, ())


def test_a_process_beats_until_it_stops():
    store = HashStore()
    first, second = (Heartbeats(store, rank, 2, 0.4) for rank in range(2))
    second.waits = True
    second.start()
    assert first.look() == Others((), ())
    second.stop()
    assert "hgpart heartbeat" not in [thread.name for thread in threading.enumerate()]
    assert first.look() == Others((1,), ())


def test_a_call_within_a_time_returns_raises_or_is_left():
    assert within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0)
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        within(0.1, never.wait)
    never.set()
