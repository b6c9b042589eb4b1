"""Parameter servers over torch RPC, as its tutorials build them: Downpour SGD (thesis 5.2.3).

Each worker has a copy of the model. In a step it pushes the gradients of its share of the batch to
the servers, and fetches new weights. A synchronous server waits for the gradients of all workers
before it updates its parameters ("Implementing batch RPC processing using asynchronous executions",
the tutorial); an asynchronous server updates them at once. Either way a worker's gradient is
weighted by its share of the batch, so that all workers' steps together are one step of the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed import rpc

from hgpart.bench.ways.job import Job
from hgpart.bench.ways.way import TrainingWay
from hgpart.bench.ways.worker import Replica, Tick, Worker

_here: list[Server] = []  # the server of this process, if it is one


def greedy_shards(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Give each parameter to the server that has least so far (thesis 5.2.3).

    >>> greedy_shards([10, 4, 5, 2], 2)
    [[0], [1, 2, 3]]
    """
    shards: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for number, size in enumerate(sizes):
        least = loads.index(min(loads))
        shards[least].append(number)
        loads[least] += size
    return shards


class Server:
    """Parameters that a process serves.

    Parameters
    ----------
    workers : int
        Number of workers whose gradients an update waits for: 1 for asynchronous training.
    """

    def __init__(self, parameters: Sequence[Tensor], workers: int, lr: float) -> None:
        self.parameters = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
        self._optimizer = torch.optim.SGD([{"params": self.parameters}], lr=lr)
        self._workers, self._pushed = workers, 0
        self._lock = threading.Condition()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        self.pushes = 0

    def push(self, gradients: Sequence[Tensor]) -> torch.futures.Future[list[Tensor]]:
        """Add gradients, update when all have come, and then answer with the new weights."""
        with self._lock:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient.clone()
                else:
                    parameter.grad += gradient
            future = self._future
            self._pushed += 1
            is_complete = self._pushed == self._workers
            if is_complete:
                self._optimizer.step()
                self._optimizer.zero_grad()
                self._pushed, self._future = 0, torch.futures.Future()
            weights = [weight.detach().clone() for weight in self.parameters] if is_complete else []
            self.pushes += 1
            self._lock.notify_all()
        if is_complete:
            future.set_result(weights)
        return future

    def wait(self, pushes: int) -> None:
        """Wait until gradients have been pushed `pushes` times."""
        with self._lock:
            self._lock.wait_for(lambda: self.pushes >= pushes)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push_and_fetch(gradients: list[Tensor]) -> torch.futures.Future[list[Tensor]]:
    """Push gradients to the server of this process, by remote call; answers with weights."""
    return _here[0].push(gradients)


@contextmanager
def served(way: TrainingWay, job: Job, layout: None, rank: int) -> Iterator[Worker]:
    """A worker that trains, serves, or does both."""
    model = job.new_model()
    learned = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    names = [*learned]
    servers = range(job.workers) if way.distributed else range(job.workers, job.workers + 1)
    owned = greedy_shards([parameter.numel() for parameter in learned.values()], len(servers))
    shards = {server: [names[at] for at in own] for server, own in zip(servers, owned, strict=True)}
    server = None
    if rank in shards:
        waits_for = 1 if way.is_free else job.workers
        server = Server([learned[name] for name in shards[rank]], waits_for, job.lr)
        _here[:] = [server]
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=job.timeout)
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        _name(rank),
        rank=rank,
        world_size=way.processes(job.workers),
        rpc_backend_options=options,
    )
    try:
        if rank < job.workers:
            yield Client(model, learned, shards, job, rank, server)
        else:
            assert server is not None
            yield Serving(server, shards[rank], job)
    except BaseException:
        rpc.shutdown(graceful=False)
        raise
    rpc.shutdown()


def _name(rank: int) -> str:
    return f"rank{rank}"  # no spaces in names


class Client(Replica):
    """A Worker that trains on its share of the batch; it may be a server as well."""

    def __init__(
        self,
        model: nn.Module,
        learned: Mapping[str, Tensor],
        shards: Mapping[int, Sequence[str]],
        job: Job,
        rank: int,
        server: Server | None,
    ) -> None:
        super().__init__(model, job, job.share(rank), first=rank == 0)
        self._learned, self._shards = learned, shards
        self._rank, self._server = rank, server
        self._moved_bytes = 0

    def descend(self, loss: Tensor) -> float:
        """Compute gradients of the share of the loss, push them, and fetch weights."""
        loss = loss * self.share
        loss.backward()  # type: ignore[no-untyped-call]
        self._push_and_fetch()
        return loss.item()

    def _push_and_fetch(self) -> None:
        futures = {}
        for server, names in self._shards.items():
            gradients = [_gradient(self._learned[name]) for name in names]
            if server != self._rank:  # gradients there, weights back
                self._moved_bytes += 2 * sum(gradient.nbytes for gradient in gradients)
            futures[server] = rpc.rpc_async(_name(server), push_and_fetch, args=(gradients,))
        with torch.no_grad():
            for server, future in futures.items():
                for name, value in zip(self._shards[server], future.wait(), strict=True):
                    self._learned[name].copy_(value)

    def state(self) -> Mapping[str, Tensor]:
        """The server's parameters here; on the first worker, also what is not learned."""
        state = {} if self._server is None else served_state(self._server, self._shards[self._rank])
        others = super().state().items()
        return {**state, **{name: value for name, value in others if name not in self._learned}}

    def sent_bytes(self) -> int | None:
        """Bytes of gradients pushed to other processes, and of weights that came back."""
        return self._moved_bytes


class Serving:
    """A Worker that is the server of all parameters, and does not train."""

    def __init__(self, server: Server, names: Sequence[str], job: Job) -> None:
        self._server, self._names, self._workers = server, names, job.workers

    def learn(self, first: int, count: int, tick: Tick) -> list[float]:
        """Wait until all workers have pushed their gradients of these steps."""
        self._server.wait((first + count) * self._workers)
        return []

    def state(self) -> Mapping[str, Tensor]:
        """All parameters that are learned."""
        return served_state(self._server, self._names)

    def sent_bytes(self) -> int | None:
        """0: weights count where they arrive, because their step is the worker's."""
        return 0


def served_state(server: Server, names: Sequence[str]) -> dict[str, Tensor]:
    """A server's parameters by name."""
    return {name: weight.detach() for name, weight in zip(names, server.parameters, strict=True)}


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
