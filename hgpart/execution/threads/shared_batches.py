"""Batches of a stream -> the same for each part, when it may begin them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from threading import Condition, Lock
from typing import Any

from hgpart.execution.threads.local_wires import StoppedError


class SharedBatches:
    """The batches of a stream: each part gets all of them, what all have had is let go.

    A part that depends on no other is kept from running ahead: no more are under way at a time than
    in the schedule's order. While one loads a batch, the others end theirs and take what is there.
    """

    def __init__(self, batches: Iterator[Any], k: int, under_way: int) -> None:
        self._batches, self._k, self._most = batches, k, under_way
        self._loading = Lock()  # by one part at a time; where both are taken, this is first
        self._changed = Condition()  # all that follows
        self._there: dict[int, list[Any]] = {}  # batch -> its values, once for each part to come
        self._ended = [0] * k
        self._error: Exception | None = None

    def of(self, part: int) -> Iterator[Any]:
        """What a part gets, when it may begin it; where one finds an error, all do."""
        for batch in count():
            with self._changed:
                self._changed.wait_for(partial(self._may_begin, batch))
            if not self._is_there(batch):
                self._load(batch)
            with self._changed:
                values = self._there[batch].pop()
                if not self._there[batch]:
                    del self._there[batch]
            yield values

    def _is_there(self, batch: int) -> bool:
        with self._changed:
            if self._error is not None:
                raise self._error
            return batch in self._there

    def _load(self, batch: int) -> None:
        """Parts take batches in order, so what is not there is the next one."""
        with self._loading:
            if self._is_there(batch):
                return
            try:
                values = next(self._batches)
            except Exception as error:
                self._error = error
                raise
            with self._changed:
                self._there[batch] = [values] * self._k

    def _may_begin(self, batch: int) -> bool:
        return self._error is not None or batch < min(self._ended) + self._most

    def end(self, part: int) -> None:
        """Note that a part has ended a batch."""
        with self._changed:
            self._ended[part] += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake all that wait and let none wait again."""
        with self._changed:
            self._error = self._error or StoppedError()
            self._changed.notify_all()
