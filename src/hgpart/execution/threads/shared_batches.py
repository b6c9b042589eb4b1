"""Batches of a stream -> the same for each part, when it may begin them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from threading import Condition
from typing import Any

from hgpart.execution.threads.local_wires import StoppedError


class SharedBatches:
    """The batches of a stream: each part gets all of them, what all have had is let go.

    A part that depends on no other is kept from running ahead: no more are under way at a time than
    in the schedule's order. While one loads a batch, the others end theirs and take what is there.
    """

    def __init__(self, batches: Iterator[Any], k: int, under_way: int) -> None:
        self._batches, self._k, self._most = batches, k, under_way
        self._changed = Condition()  # all that follows
        self._is_loading = False  # a part is, and nobody else
        self._there: dict[int, list[Any]] = {}  # batch -> its values, once for each part to come
        self._ended = [0] * k
        self._error: Exception | None = None

    def of(self, part: int) -> Iterator[Any]:
        """What a part gets, when it may begin it; where one finds an error, all do."""
        for batch in count():
            with self._changed:
                self._changed.wait_for(partial(self._may_go_on, batch))
                if self._error is not None:
                    raise self._error
                loads = batch not in self._there
                self._is_loading |= loads
            if loads:
                self._load(batch)
            with self._changed:
                values = self._there[batch].pop()
                if not self._there[batch]:
                    del self._there[batch]
            yield values

    def _may_go_on(self, batch: int) -> bool:
        """Whether it may be begun and is there, or can be loaded: parts take batches in order."""
        if self._error is not None:
            return True
        may_begin = batch < min(self._ended) + self._most
        return may_begin and (batch in self._there or not self._is_loading)

    def _load(self, batch: int) -> None:
        there: dict[int, list[Any]] = {}
        try:
            there = {batch: [next(self._batches)] * self._k}
        except Exception as error:
            self._error = error
            raise
        finally:
            with self._changed:
                self._there |= there
                self._is_loading = False
                self._changed.notify_all()

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
