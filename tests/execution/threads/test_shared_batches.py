"""Batches of a stream, that parts take when they come to them."""

from __future__ import annotations

import threading
import time

from hgpart.execution.threads.shared_batches import SharedBatches


def test_what_is_there_is_taken_while_another_part_loads_the_next():
    """Who had waited for a batch then waited for the lock of the next one: all stood still."""
    taken = []

    def batches():
        other.start()
        time.sleep(0.05)  # so that it waits for this batch
        yield "first"
        end = time.monotonic() + 30
        while not taken and time.monotonic() < end:
            time.sleep(0.01)
        yield "second" if taken else "nobody had the first"

    shared = SharedBatches(batches(), k=2, under_way=2)
    other = threading.Thread(target=lambda: taken.append(next(shared.of(1))))
    mine = shared.of(0)
    assert [next(mine), next(mine), *taken] == ["first", "second", "first"]
    other.join()
