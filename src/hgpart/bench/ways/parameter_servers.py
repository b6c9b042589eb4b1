"""Parameter servers (thesis 5.2.3), as `hgpart train --way` runs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Tick, Worker
from hgpart.run.processes.connection import connect
from hgpart.run.servers.served_model import ServedModel
from hgpart.run.training.batches import batches_here
from hgpart.run.training.scores import cross_entropy


@contextmanager
def served(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """A worker that trains, serves, or does both."""
    assert way.serving is not None
    with connect(way.processes(job.workers), timeout=job.timeout) as connection:
        yield _Served(ServedModel(job.new_model(), way.serving, job.workers, connection), job)


class _Served:
    """A Worker of a `ServedModel`."""

    def __init__(self, model: ServedModel, job: Job) -> None:
        self._model, self._job, self._batches = model, job, job.batches()
        learned = [parameter for own in model.learned().values() for parameter in own]
        self._optimizer = torch.optim.SGD([{"params": learned}], lr=job.lr)

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Train, or serve, in these steps; each worker has an equal share of the losses."""
        model, size = self._model, self._job.batch_size
        losses: list[float] = []
        here = batches_here(model, self._batches, range(first, first + count), (size,))
        model.learn(here, count, size, cross_entropy, self._update, losses.append, tick)
        return [loss / model.workers for loss in losses] if model.is_worker else []

    def _update(self, part: int | None, step: int) -> float:
        if part is not None:
            self._optimizer.step()
        return self._job.lr

    def state(self) -> Mapping[str, Tensor]:
        """The whole state_dict in the first process."""
        return self._model.whole_state() or {}

    def sent_bytes(self) -> int | None:
        """Bytes of gradients pushed to other processes, and of weights that came back.

        Weights count where they arrive, because their step is the worker's.
        """
        return self._model.moved_bytes()
