"""A plan -> Worker: a process's part of a placed model, by hgpart's schedules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.traced_before import partitioned
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Tick, Worker
from hgpart.placement import place
from hgpart.plan import Plan, PlanFile
from hgpart.run.distributed import DistributedModel
from hgpart.run.placed_model import PlacedModel
from hgpart.run.processes.connection import connect
from hgpart.run.training.batches import batches_here
from hgpart.run.training.scores import cross_entropy


@contextmanager
def placed(way: TrainingWay, job: Job, plan: Plan | PlanFile, rank: int) -> Iterator[Worker]:
    """The worker of a part."""
    with connect(job.workers, timeout=job.timeout) as connection:
        known = partitioned(job.model, job.input_shape, plan, not job.inference)
        placement = place(job.new_model(), known, parts=[rank])
        learner = PlacedModel(DistributedModel(placement, connection), way.scheduling)
        learner.train(not job.inference)
        yield Part(learner, job, rank)


class Part:
    """A Worker and Runner that has a part of the model."""

    def __init__(self, learner: PlacedModel, job: Job, rank: int) -> None:
        self._learner, self._size, self._rank = learner, job.batch_size, rank
        self._batches = job.batches()
        self._optimizer = job.new_optimizer(learner.model)
        self._sizes = learner.scheduling.sizes(self._size)

    @property
    def reads(self) -> Sequence[int]:
        """The samples of the slices that the part begins with."""
        return self._learner.samples_read(self._sizes)

    @property
    def makes(self) -> Sequence[int]:
        """The samples of the slices that the part ends with."""
        return self._learner.samples_of_result(self._sizes)

    def forward(self, images: Tensor | None) -> list[Any]:
        """Run the part's share of a pass, by the schedule."""
        return self._learner.results(images, self._size)

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Run the part's share of steps, or of one stream of them."""
        learner, losses = self._learner, list[float]()
        steps = range(first, first + count)
        here = batches_here(learner, self._batches, steps, self._sizes)
        run = here, count, self._size, cross_entropy, self._update, losses.append, tick
        learner.learn(*run)
        return losses if learner.first else []

    def _update(self, part: int) -> None:
        self._optimizer.step()

    def state(self) -> Mapping[str, Tensor]:
        """Slices of parameters and buffers, each element in one part."""
        state: dict[str, Tensor] = {}
        for _, held, tensor in self._learner.held():
            whole = state.setdefault(held.name, torch.zeros(held.shape, dtype=tensor.dtype))
            held.put(whole, tensor)
        return state

    def sent_bytes(self) -> int | None:
        """Bytes of maps, of their gradients, and of all other transfers."""
        traffic = self._learner.totals().traffic
        sent = traffic.forward_bytes + traffic.backward_bytes + traffic.uncounted_bytes
        return int(sent[self._rank].sum())
