"""What events of a step, and files of them, have to be: the definition, slowly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hgpart.execution.records.events import Doing, Event
from hgpart.schedules.schedule import Direction, Schedule


def assert_covers(events: Sequence[Event], schedule: Schedule, part: int, waits_last: bool) -> None:
    """A part's events are each of its actions once, in order, with all awaits and sends in it."""
    own = [event for event in events if event.action.part == part]
    runs = {event.action: event for event in own if event.doing is Doing.RUN}
    assert [event.action for event in own if event.doing is Doing.RUN] == [
        *schedule.sequences[part]
    ]
    end = 0
    for run in runs.values():
        assert end <= run.begin <= run.end
        end = run.end
    inner = [event for event in own if event.doing is not Doing.RUN]
    if waits_last:  # for what was sent to depart
        last = inner.pop()
        assert (last.action, last.doing) == (schedule.sequences[part][-1], Doing.WAIT)
        assert end <= last.begin <= last.end
    for event in inner:
        assert runs[event.action].begin <= event.begin <= event.end <= runs[event.action].end
    counts = Counter((event.action, event.doing) for event in inner)
    for action in schedule.sequences[part]:
        chunk, halved = schedule.chunk(action), action.direction is Direction.WEIGHTS
        assert counts[action, Doing.WAIT] == (0 if halved else len(chunk.awaits))
        assert counts[action, Doing.SEND] == (0 if halved else len(chunk.sends))


def assert_sent_before_received(events: Sequence[Event], schedule: Schedule) -> None:
    """No part had all that an action awaits before its senders began: their clocks are one."""
    runs = {event.action: event for event in events if event.doing is Doing.RUN}
    waits = {event.action: event for event in events if event.doing is Doing.WAIT}  # the last ones
    done = [action for action in schedule.order if action.direction is not Direction.WEIGHTS]
    senders = {
        (action.micro_batch, action.direction is Direction.FORWARD, sent.transfer): action
        for action in done
        for sent in schedule.chunk(action).sends
    }
    for action in done:
        for transfer in schedule.chunk(action).awaits:
            key = action.micro_batch, action.direction is Direction.FORWARD, transfer
            assert runs[senders[key]].begin < waits[action].end


def assert_is_trace(path: Path, parts: int) -> list[dict[str, object]]:
    """A file is as Chrome's Trace Event Format says; events of a track nest or follow each other.

    Returns its complete events.
    """
    found = json.loads(path.read_text())
    assert found["displayTimeUnit"] in ("ms", "ns")
    events = found["traceEvents"]
    names = [one["args"]["name"] for one in events if one["name"] == "thread_name"]
    assert [name.partition(" (")[0] for name in names] == [f"part {part}" for part in range(parts)]
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    complete = [one for one in events if one["ph"] != "M"]
    for one in complete:
        assert one["ph"] == "X"
        assert isinstance(one["name"], str)
        assert isinstance(one["cat"], str)
        assert one["pid"] > 0  # 0 is Perfetto's own
        assert one["tid"] > 0
        begin, length = round(1000 * one["ts"]), round(1000 * one["dur"])
        assert begin >= 0
        assert length >= 0
        tracks.setdefault((one["pid"], one["tid"]), []).append((begin, begin + length))
    assert len(tracks) == parts
    for spans in tracks.values():
        outer: list[int] = []  # ends of those under way
        for begin, end in spans:
            while outer and outer[-1] <= begin:
                outer.pop()
            assert not outer or end <= outer[-1]
            outer.append(end)
    return complete
