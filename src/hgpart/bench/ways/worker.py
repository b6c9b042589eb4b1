"""Job -> Worker, Runner: what a process does in training steps, or in passes, for all ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._pytree import tree_leaves

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import TrainingWay
from hgpart.run.processes.connection import connect
from hgpart.run.training.scores import cross_entropy

Tick = Callable[[], None]


class Worker(Protocol):
    """The interface of a process of a way."""

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Train on the batches from step `first` on; calls `tick` when each step has ended here.

        Returns
        -------
        list of float
            This process's share of each step's loss; the shares of all processes add up to the
            loss. Empty for a process without a loss.
        """

    def state(self) -> Mapping[str, Tensor]:
        """The process's share of the model's state_dict: whole tensors, 0 where it is elsewhere.

        All processes call it; their shares add up to the state_dict.
        """

    def sent_bytes(self) -> int | None:
        """Bytes sent from here so far, if the way counts them; all processes call it."""


class Runner(Protocol):
    """The interface of a process of a way in inference."""

    @property
    def reads(self) -> Sequence[int]:
        """Samples of each batch whose images it is given."""

    @property
    def makes(self) -> Sequence[int]:
        """Samples whose results it has."""

    def forward(self, images: Tensor | None) -> Any:
        """Run a batch forward, given the images that it reads; None or nothing without a result."""

    def sent_bytes(self) -> int | None:
        """Bytes sent from here so far, if the way counts them."""


# Called with a way, a job, the layout of its cuts, and the number of the process.
Hire = Callable[[TrainingWay, Job, Any, int], AbstractContextManager[Any]]  # a Worker or a Runner


class Replica:
    """A Worker and Runner with the model's own code, for some samples of each batch.

    Parameters
    ----------
    module : nn.Module
        The model, or what a library makes of it.
    samples : sequence of int
        The samples of each batch that it has.
    first : bool
        Whether its state counts, if several processes have the same.
    """

    def __init__(
        self, module: nn.Module, job: Job, samples: Sequence[int], first: bool = True
    ) -> None:
        self.module, self.first = module, first
        self.reads = self.makes = samples
        self._sends = not job.inference
        self.share = len(samples) / job.batch_size
        self._batches = job.batches()
        self._optimizer = job.new_optimizer(module)

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Run steps as in torch's tutorials."""
        losses = []
        for step in range(first, first + count):
            images = self._batches.images(step, self.reads)
            labels = self._batches.labels(step, self.reads)
            self.module.zero_grad()
            loss = cross_entropy(self.module(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            losses.append(loss.item() * self.share)
            tick()
        return losses

    def forward(self, images: Tensor | None) -> Any:
        """Call the model."""
        return self.module(images)

    def state(self) -> Mapping[str, Tensor]:
        """The whole state_dict, running statistics included, on the first process."""
        return self.module.state_dict() if self.first else {}

    def sent_bytes(self) -> int | None:
        """None where the system counts what libraries send; they send nothing in inference."""
        return None if self._sends else 0


@contextmanager
def single(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """The worker of a single process, the baseline of all ways."""
    yield Replica(job.new_model(), job, range(job.batch_size))


class ForwardPasses:
    """A Worker whose steps are passes of a Runner, each begun when all processes are ready.

    Parameters
    ----------
    begin : callable
        Called when a pass begins.
    """

    def __init__(self, runner: Runner, job: Job, begin: Tick) -> None:
        self._runner, self._begin, self._batches = runner, begin, job.batches()
        self._share = len(runner.makes) / job.batch_size

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Run passes; returns this process's share of the mean of each one's results."""
        runner, means = self._runner, []
        with torch.inference_mode():
            for step in range(first, first + count):
                images = self._batches.images(step, runner.reads) if runner.reads else None
                if dist.is_initialized():
                    dist.barrier()
                self._begin()
                results = runner.forward(images)
                tick()
                if self._share:
                    means.append(self._share * _mean(results))
        return means

    def state(self) -> Mapping[str, Tensor]:
        """Nothing, as nothing changes."""
        return {}

    def sent_bytes(self) -> int | None:
        """Bytes sent from here so far."""
        return self._runner.sent_bytes()


def _mean(results: Any) -> float:
    """The mean of all numbers that a model returns."""
    tensors = [value for value in tree_leaves(results) if isinstance(value, Tensor)]
    total = sum(float(tensor.sum(dtype=torch.float64)) for tensor in tensors)
    return total / max(1, sum(tensor.numel() for tensor in tensors))


@dataclass(frozen=True)
class Lap:
    """The record of a process in some steps.

    Attributes
    ----------
    begin : float
        When the steps began, by a clock that all processes of a machine share.
    begins : tuple of float
        When each pass began here, in inference: all processes begin it together.
    ends : tuple of float
        When each step had ended here; empty for a server, which ends none.
    losses : tuple of float
        The process's shares of the losses, or in inference of the means of all results; empty for
        a process without any.
    sent_bytes : int or None
        Bytes sent from here; None if not known.
    peak_bytes : int
        The most memory that the process had, including libraries.
    """

    begin: float
    ends: tuple[float, ...]
    losses: tuple[float, ...]
    cpu_seconds: float
    sent_bytes: int | None
    peak_bytes: int
    begins: tuple[float, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a process can't go on.

    Attributes
    ----------
    is_refusal : bool
        Whether the way can't do this at all, rather than something having gone wrong.
    is_noticed : bool
        Whether the cause is in another process.
    """

    why: str
    is_refusal: bool
    is_noticed: bool = False


@dataclass(frozen=True)
class Learn:
    """An order to train for some steps, or run some passes; the answer is a `Lap`."""

    first: int
    count: int


@dataclass(frozen=True)
class Show:
    """An order to show the model's state here; the answer is numpy arrays by name."""


@contextmanager
def apart(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """The worker of one of several processes that know nothing of each other.

    In inference they begin each batch together.
    """
    with connect(job.workers, timeout=job.timeout) if job.inference else nullcontext():
        yield Replica(job.new_model(), job, job.share(rank), first=rank == 0)
