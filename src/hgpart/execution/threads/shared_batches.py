"""Batches of a stream -> the same batches for each part, when it may begin them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from threading import Condition
from typing import Any

from hgpart.execution.threads.local_channel import StoppedError


class SharedBatches:
    """The batches of a stream: each part gets all of them, and those that all have had are freed.

    A part that depends on no other can't run ahead: no more batches are under way at a time than in
    the schedule's order. While a part loads a batch, the others end theirs and take what is loaded.
    """

    def __init__(self, batches: Iterator[Any], k: int, under_way: int) -> None:
        self._batches, self._k, self._most = batches, k, under_way
        self._changed = Condition()  # guards all that follows
        self._is_loading = False  # whether a part loads a batch; only one does at a time
        self._loaded: dict[int, list[Any]] = {}  # batch -> its values, once for each part to come
        self._ended = [0] * k
        self._error: Exception | None = None

    def of(self, part: int) -> Iterator[Any]:
        """Batches of a part, each as soon as the part may begin it; an error reaches all parts."""
        for batch in count():
            with self._changed:
                self._changed.wait_for(partial(self._may_go_on, batch))
                if self._error is not None:
                    raise self._error
                loads = batch not in self._loaded
                self._is_loading |= loads
            if loads:
                self._load(batch)
            with self._changed:
                values = self._loaded[batch].pop()
                if not self._loaded[batch]:
                    del self._loaded[batch]
            yield values

    def _may_go_on(self, batch: int) -> bool:
        """Whether a batch may begin and is loaded, or can be; parts take batches in order."""
        if self._error is not None:
            return True
        may_begin = batch < min(self._ended) + self._most
        return may_begin and (batch in self._loaded or not self._is_loading)

    def _load(self, batch: int) -> None:
        loaded: dict[int, list[Any]] = {}
        try:
            loaded = {batch: [next(self._batches)] * self._k}
        except Exception as error:
            self._error = error
            raise
        finally:
            with self._changed:
                self._loaded |= loaded
                self._is_loading = False
                self._changed.notify_all()

    def end(self, part: int) -> None:
        """Note that a part has ended a batch."""
        with self._changed:
            self._ended[part] += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake all that wait, and let nothing wait any more."""
        with self._changed:
            self._error = self._error or StoppedError()
            self._changed.notify_all()
