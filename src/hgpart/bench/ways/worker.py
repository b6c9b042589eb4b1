"""Job -> Worker: what a process does of training steps, whichever way it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import Way
from hgpart.run.training.loop import cross_entropy

Tick = Callable[[], None]


class Worker(Protocol):
    """What one process of a way does."""

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Train on the batches from step `first` on; `tick` when each of the steps has ended here.

        Returns
        -------
        list of float
            This process's share of each step's loss: that of all processes is their sum. Empty
            where it has none.
        """

    def state(self) -> Mapping[str, Tensor]:
        """What is here of the model's state_dict: each tensor whole, 0 where it is elsewhere.

        All processes call it; what they have adds up to the state_dict.
        """

    def sent_bytes(self) -> int | None:
        """Bytes that have departed from here up to now, if the way counts them; all call it."""


# Of a way, a job, what its processes must know of its cuts, and the number of the process.
Hire = Callable[[Way, Job, Any, int], AbstractContextManager[Worker]]


class Replica:
    """A Worker that has the model's own code, for some samples of each batch.

    Parameters
    ----------
    module : nn.Module
        The model, or what a library makes of it.
    job : Job
    samples : sequence of int
        Of each batch.
    first : bool
        Whether its state counts, of several that are alike.
    """

    def __init__(
        self, module: nn.Module, job: Job, samples: Sequence[int], first: bool = True
    ) -> None:
        self.module, self.first = module, first
        self._samples, self._share = samples, len(samples) / job.batch_size
        self._batches = job.batches()
        self._optimizer = job.new_optimizer(module)

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Steps as torch's tutorials have them."""
        losses = []
        for step in range(first, first + count):
            images = self._batches.images(step, self._samples)
            labels = self._batches.labels(step, self._samples)
            if self._optimizer is not None:
                self._optimizer.zero_grad()
            loss = cross_entropy(self.module(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if self._optimizer is not None:
                self._optimizer.step()
            losses.append(loss.item() * self._share)
            tick()
        return losses

    def state(self) -> Mapping[str, Tensor]:
        """All of it, of the first; so are running statistics of norms."""
        return self.module.state_dict() if self.first else {}

    def sent_bytes(self) -> int | None:
        """What libraries send is counted by the system."""
        return None


@contextmanager
def single(way: Way, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """Be the only process: what the others are measured against."""
    yield Replica(job.new_model(), job, range(job.batch_size))


@dataclass(frozen=True)
class Lap:
    """What one process did in some steps.

    Attributes
    ----------
    begin : float
        When they began, by a clock that all processes of a machine share.
    ends : tuple of float
        When each of them had ended here; empty where none did, as in a server.
    losses : tuple of float
        Its shares of their losses; empty where it has none.
    cpu_seconds : float
    sent_bytes : int or None
        That departed from here; None where that is not known.
    peak_bytes : int
        The most memory that it had, libraries included.
    """

    begin: float
    ends: tuple[float, ...]
    losses: tuple[float, ...]
    cpu_seconds: float
    sent_bytes: int | None
    peak_bytes: int


@dataclass(frozen=True)
class Failure:
    """Why a process can't go on.

    Attributes
    ----------
    why : str
    is_refusal : bool
        Whether it is the way that can't do this, and not something that went wrong.
    is_noticed : bool
        Whether the cause is in another process.
    """

    why: str
    is_refusal: bool
    is_noticed: bool = False


@dataclass(frozen=True)
class Learn:
    """An order: train for some steps; answered with a `Lap`."""

    first: int
    count: int


@dataclass(frozen=True)
class Show:
    """An order: answered with what is here of the model's state, as numpy arrays by name."""


@contextmanager
def apart(way: Way, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """Be one of several that know nothing of each other."""
    yield Replica(job.new_model(), job, job.share(rank), first=rank == 0)
