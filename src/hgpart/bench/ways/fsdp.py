"""torch.distributed.fsdp.fully_shard, used as its documentation says: modules, then the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Replica, Worker
from hgpart.run.processes.connection import connect


@contextmanager
def fsdp(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """A worker of one of the processes, each with an equal share of the batch."""
    with connect(job.workers, timeout=job.timeout):
        model = job.new_model()
        mesh = init_device_mesh("cpu", (job.workers,))
        for unit in _units(model):
            fully_shard(unit, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no averages
        yield _Shards(model, job, job.share(rank), first=rank == 0)


def _units(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that are gathered one by one: children with parameters, or items of containers."""
    for child in model.children():
        # The first two have no forward pass, and the third may be most of the model.
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or type(child) is nn.Sequential:
            yield from _units(child)
        elif next(child.parameters(), None) is not None:
            yield child


class _Shards(Replica):
    def state(self) -> Mapping[str, Tensor]:
        """Gathered parameters; running statistics of norms are those of the first process."""
        whole = {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in self.module.state_dict().items()
        }
        return whole if self.first else {}
