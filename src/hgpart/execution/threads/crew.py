"""Crew: the parts of a placement in this process, one thread per part, as a `Transport`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from hgpart.execution.autocast import autocast_type
from hgpart.execution.program import PartProgram
from hgpart.execution.threads.local_channel import LocalChannel
from hgpart.execution.threads.shared_batches import SharedBatches
from hgpart.execution.threads.workers import Workers
from hgpart.execution.transport import Executor
from hgpart.execution.weights.copies import Travelling
from hgpart.schedules.schedule import Schedule


class Crew:
    """One thread per part, started by the first pass; CPU parts divide the intra-op threads.

    Parameters
    ----------
    devices : sequence of torch.device
        Device of each part.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.parts: Sequence[int] = range(len(devices))
        self._devices = tuple(devices)
        self._workers: Workers | None = None
        self._threads = 0

    def device(self, part: int) -> torch.device:
        """Device of a part."""
        return self._devices[part]

    def gather(self, value: Any) -> list[Any]:
        """The value alone: there is only one process."""
        return [value]

    def so_on_any(self, here: Sequence[bool]) -> Sequence[bool]:
        """The flags as they are: there is only one process."""
        return here

    def add_later(self, value: float, parts: Collection[int]) -> Callable[[], float]:
        """The value as it is: there is only one process."""
        return lambda: value

    def open(
        self,
        schedule: Schedule,
        programs: Mapping[int, PartProgram],
        sizes: Sequence[int],
        travelling: Travelling | None,
        autocast: torch.dtype | None = None,
    ) -> LocalChannel:
        """Open new queues."""
        return LocalChannel(self._devices)

    def batches(self, source: Iterator[Any], under_way: int) -> SharedBatches:
        """Give all batches to each part."""
        return SharedBatches(source, len(self.parts), under_way)

    def executor(self) -> Executor:
        """Run jobs in their parts' threads, with the modes that the caller then has."""
        streams = [
            torch.cuda.current_stream(device)
            for device in dict.fromkeys(self._devices)
            if device.type == "cuda"
        ]
        return partial(self._everywhere, streams)

    def _everywhere(
        self, streams: Sequence[Any], jobs: Sequence[Callable[[], Any]], stop: Callable[[], object]
    ) -> Sequence[Any]:
        modes = _Modes(self._devices)

        def run(job: Callable[[], Any], device: torch.device) -> Any:
            with modes.entered(), ExitStack() as entered:
                # The part's own device comes last, so that it is the current one.
                for stream in sorted(streams, key=lambda stream: stream.device == device):
                    entered.enter_context(torch.cuda.stream(stream))
                return job()

        return self.workers().run(
            [partial(run, job, device) for job, device in zip(jobs, self._devices, strict=True)],
            stop=stop,
        )

    def close(self) -> None:
        """End the threads; the next pass starts new ones."""
        self._workers = None

    def workers(self) -> Workers:
        """Threads of the parts, with their share of the intra-op threads."""
        threads = torch.get_num_threads()
        if self._workers is None:
            self._workers = Workers(len(self.parts))
            self._threads = 0
        if threads != self._threads:
            on_cpu = sum(device.type == "cpu" for device in self._devices)
            share = max(1, threads // max(1, on_cpu))
            jobs = [partial(_set_threads, share)] * len(self.parts)
            self._workers.run(jobs, stop=lambda: None)
            # This sets the number of the calling thread only, but new threads begin with the latest
            # one.
            torch.set_num_threads(threads)
            self._threads = threads
        return self._workers

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have no threads yet."""
        return {**self.__dict__, "_workers": None}


def _set_threads(number: int) -> None:
    # A new thread takes the number that is the latest when it first asks: do that before.
    torch.get_num_threads()
    torch.set_num_threads(number)


class _Modes:
    """The modes that torch keeps per thread, as they are in the thread that makes this."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._grad = torch.is_grad_enabled()
        types = {device.type: autocast_type(device) for device in devices}
        self._autocast = [(kind, dtype) for kind, dtype in types.items() if dtype is not None]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Set the same modes in this thread."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            stack.enter_context(torch.set_grad_enabled(self._grad))
            for kind, dtype in self._autocast:
                # All threads share the cache of casts, and the first that ends would empty it.
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield
