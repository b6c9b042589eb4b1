"""torch.nn.parallel.DistributedDataParallel, used as its documentation says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Replica, Worker
from hgpart.run.processes.connection import connect


@contextmanager
def ddp(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """A worker of one of the processes, each with an equal share of the batch."""
    with connect(job.workers, timeout=job.timeout):
        model = DistributedDataParallel(job.new_model())
        yield _Replica(model, job, job.share(rank), first=rank == 0)


class _Replica(Replica):
    def state(self) -> Mapping[str, Tensor]:
        """The model's state_dict, with its own names."""
        state = super().state().items()
        return {name.removeprefix("module."): tensor for name, tensor in state}
