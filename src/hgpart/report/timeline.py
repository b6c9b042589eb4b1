"""Timeline -> trace-event JSON: what Perfetto and chrome://tracing open, with a track a part.

The format is Chrome's "Trace Event Format": complete events (``"ph": "X"``) in microseconds, and
metadata (``"M"``) that names the tracks. Events of a track follow each other, or lie in each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hgpart.execution.records.events import Doing, Timeline
from hgpart.files.writing import write_text

PROCESS = 1  # numbers of processes and threads begin with 1: Perfetto takes 0 for the idle one


def write_timeline(
    path: Path | str, timeline: Timeline, model: str, devices: Sequence[str]
) -> None:
    """Write the events of all steps; an action's name is its direction, micro-batch and chunk.

    Parameters
    ----------
    devices : sequence of str
        Device of each part.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    events = [*_names(model, devices), *_events(timeline)]
    lines = ",\n".join(json.dumps(event) for event in events)
    write_text(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')


def _names(model: str, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": model}}
    for part, device in enumerate(devices):
        track = {"ph": "M", "pid": PROCESS, "tid": part + 1}
        yield {**track, "name": "thread_name", "args": {"name": f"part {part} ({device})"}}
        yield {**track, "name": "thread_sort_index", "args": {"sort_index": part}}


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Events of the timeline, in microseconds from the first of all."""
    origin = min((event.begin for step in timeline for event in step), default=0)
    for number, step in enumerate(timeline):
        for action, doing, begin, end in step:
            part, direction, micro_batch, chunk, _ = action
            yield {
                "name": str(action) if doing is Doing.RUN else doing.value,
                "cat": doing.value,
                "ph": "X",
                "ts": (begin - origin) / 1000,
                "dur": (end - begin) / 1000,
                "pid": PROCESS,
                "tid": part + 1,
                "args": {
                    "step": number,
                    "direction": direction.name.lower(),
                    "micro_batch": micro_batch,
                    "chunk": chunk,
                },
            }
