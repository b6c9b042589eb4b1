"""One persistent thread per part of a placement."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_Jobs = SimpleQueue[Any]  # of (Future, job), and None at the end


class Workers:
    """Threads named "hgpart part 0" to "hgpart part k-1"; they end when this is collected."""

    def __init__(self, k: int) -> None:
        self._jobs: list[_Jobs] = [SimpleQueue() for _ in range(k)]
        self._order = threading.Lock()
        # The threads refer to their queues only, so this object is collected when its users are
        # gone.
        weakref.finalize(self, _end, self._jobs)
        for part, jobs in enumerate(self._jobs):
            name = f"hgpart part {part}"
            threading.Thread(target=_serve, args=(jobs,), name=name, daemon=True).start()

    def run(self, jobs: Sequence[Callable[[], Result]], stop: Callable[[], object]) -> list[Result]:
        """Run one job on each thread and return their results.

        When a job fails, or Ctrl-C comes, `stop` is called, which must end the waits of the others
        for each other; when all have ended, the first failure is raised unchanged.
        """
        futures: list[Future[Result]] = []
        errors: list[BaseException] = []
        try:
            self._hand_out(jobs, futures)
            errors += _failures(futures)
            if errors:
                raise errors[0]
            return [future.result() for future in futures]
        except BaseException:
            stop()
            wait(futures)
            raise
        finally:
            # An error refers to this frame: if the frame referred to the error, both would live
            # until the garbage collector runs, and with them all tensors of the batch.
            errors.clear()
            futures.clear()

    def _hand_out(
        self, jobs: Sequence[Callable[[], Result]], futures: list[Future[Result]]
    ) -> None:
        with self._order:  # the same order of batches on all threads, whichever thread calls
            for queue, job in zip(self._jobs, jobs, strict=True):
                future: Future[Result] = Future()
                queue.put((future, job))
                futures.append(future)


def _failures(futures: Sequence[Future[Any]]) -> list[BaseException]:
    """Wait until a job fails or all have ended; return the errors."""
    done = wait(futures, return_when=FIRST_EXCEPTION).done
    errors = (future.exception() for future in futures if future in done)
    return [error for error in errors if error is not None]


def _serve(jobs: _Jobs) -> None:
    while (item := jobs.get()) is not None:
        future, job = item
        try:
            result = job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
            del result
        del item, future, job  # they hold a batch


def _end(queues: list[_Jobs]) -> None:
    for jobs in queues:
        jobs.put(None)
