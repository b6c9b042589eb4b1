"""Who is silent and who is at work: beats of several processes in one, as the test paces them."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import HashStore

from hgpart.run.processes.heartbeats import Heartbeats, Others, within

TIMEOUT = 1.6  # makes 0.8 s without a beat silence


class Clock:
    """Time that passes as someone sleeps, which others do something in."""

    def __init__(self, meanwhile):
        self.now, self.meanwhile = 0.0, meanwhile

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile(self.now)


@pytest.mark.parametrize(
    ("states", "silent", "working"),
    [
        (("waits", "waits", "works"), (), (3,)),
        (("waits", "stopped", "works"), (2,), (3,)),
        (("stopped", "waits", "stopped"), (1, 3), ()),
        (("waits", "waits", "waits"), (), ()),
    ],
)
def test_who_beats_no_more_is_silent_and_who_waits_is_not_to_blame(
    monkeypatch, states, silent, working
):
    """The rank that was waited for was named, though it waited for the one that was stopped."""
    store = HashStore()
    beats = [Heartbeats(store, rank, 4, TIMEOUT) for rank in range(4)]

    def all_beat(now):
        for other, state in zip(beats[1:], states, strict=True):
            other.waits = state == "waits"
            if state != "stopped":
                other.beat()

    monkeypatch.setattr("hgpart.run.processes.heartbeats.time", Clock(all_beat))
    beats[2].call = "model.step(...)"
    seen = beats[0].look()
    assert (seen.silent, seen.working) == (silent, working)
    assert seen.calls == {1: "", 2: "" if 2 in silent else "model.step(...)", 3: ""}


def test_what_is_told_ends_the_look(monkeypatch):
    store = HashStore()
    first, second = (Heartbeats(store, rank, 2, 1e6) for rank in range(2))

    def tell(now):
        second.tell("rank 1: out of memory")
        first.beat()

    clock = Clock(tell)
    monkeypatch.setattr("hgpart.run.processes.heartbeats.time", clock)
    assert first.look() == Others((1,), (), {1: ""})
    assert first.cause == "rank 1: out of memory"
    assert clock.now == first.interval / 4


def test_what_is_told_first_is_the_cause_for_all():
    store = HashStore()
    first, second, third = (Heartbeats(store, rank, 3, TIMEOUT) for rank in range(3))
    assert first.tell("rank 2 is gone") == second.tell("rank 0 is gone") == "rank 2 is gone"
    assert not third.told
    third.beat()
    assert third.told
    store.set("cause", "read no more")
    assert third.tell("rank 0 is gone") == "rank 2 is gone"


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
    assert first.look() == Others((), (), {1: ""})
    second.stop()
    assert "hgpart heartbeat" not in [thread.name for thread in threading.enumerate()]
    assert first.look() == Others((1,), (), {1: ""})


def test_who_keeps_the_store_leaves_last(monkeypatch):
    """One that waited for the keeper looked for a cause when the store was gone with it."""
    store = HashStore()
    keeper, busy, _ = (Heartbeats(store, rank, 3, TIMEOUT, keeper=0) for rank in range(3))
    keeper.start()

    def beat(now):
        if now > 30:
            busy.beat()  # hears the cause
        else:
            store.set("beat/1", f"{now} waits")

    clock = Clock(beat)
    monkeypatch.setattr("hgpart.run.processes.heartbeats.time", clock)
    keeper.tell("rank 2 is gone")
    keeper.leave()
    assert busy.cause == "rank 2 is gone"
    # The third beats no more: it was ended.
    assert 30 < clock.now < 31


def test_a_call_within_a_time_returns_raises_or_is_left():
    assert within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0)
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
        within(0.1, never.wait)
    never.set()
