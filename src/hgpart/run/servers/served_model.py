"""nn.Module, Serving -> ServedModel: a Learner that is a worker, a server, or both.

Each worker has a copy of the model, and a share of each batch. Its gradients are those of its share
of the loss, so that the gradients of all workers add up to those of the batch. Where a loss is a
mean over something else than samples, as (sum, count), this holds if all shares count alike.

Norms take their statistics from the samples of a worker, and running statistics are those of the
first worker, as in torch's DistributedDataParallel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError
from hgpart.execution.records.totals import Timing, Totals, Traffic
from hgpart.placement.cutting.slices import Slice
from hgpart.run.learner import Learner, LossFunction
from hgpart.run.processes.connection import Connection
from hgpart.run.servers.client import Client, copy_into, serve
from hgpart.run.servers.row import Row
from hgpart.run.servers.server import Server, Update, flat
from hgpart.run.servers.serving import Serving, share_of_batch
from hgpart.tracing.arguments import Inputs, as_called


class ServedModel(Learner):
    """The part of one process in a training by parameter servers.

    Parameters
    ----------
    model : nn.Module
        The model on this process's device, with the same weights in all processes. Servers keep
        theirs on the CPU.
    workers : int
        Number of processes that train, which are the first ones.
    connection : Connection
        The connection of all processes, over gloo.
    autocast : torch.dtype, optional
        The type that torch's autocast casts to in passes.

    Raises
    ------
    ArgumentError
        If the model has nothing to learn.
    """

    def __init__(
        self,
        model: nn.Module,
        serving: Serving,
        workers: int,
        connection: Connection,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__(model)
        self.serving, self.workers, self.autocast = serving, workers, autocast
        self._connection, self._rank = connection, connection.rank
        self.processes = connection.k
        self.first, self.is_worker = self._rank == 0, self._rank < workers
        learned = {name: item for name, item in model.named_parameters() if item.requires_grad}
        if not learned:
            raise ArgumentError(f"{type(model).__name__} has no parameters that learn")
        names = [*learned]
        owned = serving.owned([item.numel() for item in learned.values()], workers)
        self._shards = {
            rank: [learned[names[at]] for at in numbers] for rank, numbers in owned.items()
        }
        self._names = [names[at] for at in owned.get(self._rank, ())]
        self._server: Server | None = None
        if self._rank in self._shards:
            own = self._shards[self._rank]
            if self.is_worker:  # which goes on with weights of its own
                own = [nn.Parameter(item.detach().cpu().clone()) for item in own]
            self._server = Server(self._rank, own, serving, workers)
        self._client = Client(connection, serving, self._shards, self._server)
        self._done = 0
        self.count_anew()

    def samples_read(self, sizes: Sequence[int]) -> Sequence[int]:
        """The samples of this worker; none for a server."""
        if not self.is_worker:
            return range(0)
        return share_of_batch(self._rank, self.workers, sum(sizes))

    def samples_of_result(self, sizes: Sequence[int]) -> Sequence[int]:
        """The same."""
        return self.samples_read(sizes)

    def train(self, mode: bool) -> None:
        """Switch between training and evaluation, which is by the first worker's statistics."""
        super().train(mode)
        if not mode:
            for buffer in self.model.buffers():
                buffer.copy_(self._connection.spread(buffer, 0))

    def forward(self, images: Inputs | None, batch_size: int) -> Any:
        """Compute the results of this worker's samples."""
        if images is None:
            return None

        def cast(tensor: Tensor) -> Tensor:
            dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
            return tensor.to(self.device, dtype)

        args, kwargs = as_called(pytree.tree_map_only(Tensor, cast, images))
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled):
            return self.model(*args, **kwargs)

    def learn(
        self,
        batches: Iterable[tuple[Any, Any]],
        count: int,
        batch_size: int,
        loss_fn: LossFunction,
        update: Update,
        on_loss: Callable[[float], object],
        on_step: Callable[[], object] = lambda: None,
    ) -> Sequence[Sequence[int]]:
        """Run steps; workers and servers call it alike, and afterwards all have the same weights.

        `update` is called with this process's part and the step, counted from 0 in the first call,
        whose gradients are there, or with None for the part; it returns the learning rate of that
        step. `on_loss`
        is called in the first process when all workers have done a step, by a thread, and in the
        others at the end.

        Returns the number of updates that the gradients of each process's pushes lacked; nothing
        for synchronous servers, as there is no such update.
        """
        if not self._done:
            self._spread()  # the servers' weights may be those of a checkpoint
            if self._rank:  # or all workers would draw the same dropout
                torch.manual_seed(torch.initial_seed() + self._rank)
        steps = range(self._done, self._done + count)
        share = len(self.samples_read((batch_size,))) / batch_size
        row, start = Row(self._connection, self._server), time.perf_counter()
        try:
            if self._server is not None:
                self._server.begin(update)
                for worker in range(self.workers):
                    if worker != self._rank:
                        serves = partial(serve, self._server, self.serving, worker, steps)
                        row.start(f"served rank {worker}", worker, serves)
            if self.first:
                hears = partial(row.hear_losses, count, self.workers, on_loss)
                row.start("heard losses", None, hears)
            for step, (images, labels) in zip(steps, batches, strict=True):
                if self.is_worker:
                    row.tell_loss(self._passes(images, labels, share, loss_fn))
                    begun = time.perf_counter()
                    rate = partial(update, None, step)
                    self._client.exchange(step, step == steps[-1], rate)
                    self._timing += Timing(backward_waiting=time.perf_counter() - begun)
                    on_step()
            self._connection.guard(row.join, "waited for the end of steps")
        except BaseException as error:
            raise row.failed(error) from None
        self._done += count
        if not self.is_worker and self._server is not None:
            seconds = time.perf_counter() - start
            busy = self._server.busy
            self._timing += Timing(backward_busy=busy, backward_waiting=seconds - busy)
        return self._concluded(row.losses, on_loss)

    def _passes(self, images: Any, labels: Any, share: float, loss_fn: LossFunction) -> float:
        """Run forward and backward; returns the share of the loss."""
        begin = time.perf_counter()
        value: Any = loss_fn(self.forward(images, 0), labels)
        loss: Tensor = (value[0] / value[1] if isinstance(value, tuple) else value) * share
        forward = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        own = loss.item()
        self._timing += Timing(forward - begin, backward_busy=time.perf_counter() - forward)
        return own

    def _concluded(
        self, losses: Sequence[float], on_loss: Callable[[float], object]
    ) -> Sequence[Sequence[int]]:
        """Tell the other processes the losses; returns the staleness of each."""
        stale = [] if self._server is None else self._server.staleness
        gathered = self._connection.gather((losses, stale))
        for value in () if self.first else gathered[0][0]:
            on_loss(value)
        if self.serving.waits_for_all:
            return ()
        by_worker = zip(*(of_server for _, of_server in gathered if of_server), strict=True)
        lacked = [[*map(max, zip(*pushes, strict=True))] for pushes in by_worker]
        return [*lacked, *([] for _ in range(self.workers, self.processes))]

    def held(self) -> Iterator[tuple[int, Slice, Tensor]]:
        """The parameters that are served here; in the first process also all that is not served."""
        if self._server is not None:
            for name, parameter in zip(self._names, self._server.parameters, strict=True):
                yield self._rank, Slice(name, tuple(parameter.shape)), parameter
        if self.first:
            served = {id(parameter) for shard in self._shards.values() for parameter in shard}
            for _, whole, tensor in super().held():
                if id(tensor) not in served:
                    yield self._rank, whole, tensor

    def sums(self, batch_size: int) -> str:
        """How many workers' gradients are added up, and by whom where losses depend on it."""
        way = f"{self.serving.name} of {self.workers} workers"
        return way if self.serving.waits_for_all else f"{way}, {self.serving.words}"

    def whole_state(self) -> dict[str, Tensor] | None:
        """The model's own state_dict, with what the servers have, in the first process."""
        self._spread()
        return self.model.state_dict() if self.first else None

    def _spread(self) -> None:
        """Give all processes the weights that servers have."""
        for rank, shard in self._shards.items():
            here = self._server is not None and rank == self._rank
            weights = flat(self._server.parameters if self._server and here else shard)
            copy_into(shard, self._connection.spread(weights, rank))

    def add_later(self, value: float) -> Callable[[], float]:
        """Add up a number over all processes."""
        return self._connection.add_later(value)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order."""
        return self._connection.gather(value)

    def count_anew(self) -> None:
        """Let `totals` begin again from zero."""
        self._timing, self._client.traffic = Timing(), Traffic.none(self.processes)

    def totals(self) -> Totals:
        """All processes' seconds, and bytes: forward what is pushed, backward what is fetched.

        A worker waits while it pushes and fetches, a server while it does not update.
        """
        gathered = self._connection.gather((self._timing, self._client.traffic))
        traffic = reduce(add, (of_process for _, of_process in gathered))
        return Totals(tuple(timing for timing, _ in gathered), traffic)

    def moved_bytes(self) -> int:
        """Bytes that this worker has pushed to, and fetched from, other processes."""
        traffic = self._client.traffic
        return int(traffic.forward_bytes.sum() + traffic.backward_bytes.sum())

    def volume_bytes(self) -> int:
        """Bytes of a push, or of a fetch, by all workers, of what other processes serve."""
        return sum(
            flat(shard).nbytes * (self.workers - (rank < self.workers))
            for rank, shard in self._shards.items()
        )
