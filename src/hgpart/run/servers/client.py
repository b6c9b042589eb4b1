"""A worker's gradients -> what it pushes; what it fetches -> its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hgpart.execution.records.totals import Traffic
from hgpart.run.processes.connection import Connection
from hgpart.run.servers.server import TICK, Server, flat
from hgpart.run.servers.serving import Serving

PUSH, FETCH = 1, 2  # tags


class Client:
    """The exchange of a worker with all servers, one of which may be in its own process.

    Parameters
    ----------
    shards : mapping of int to sequence of nn.Parameter
        The worker's own parameters, by the rank of who serves them.
    server : Server or None
        The server in this process.

    Attributes
    ----------
    traffic : Traffic
        Bytes between processes: forward of pushes, backward of fetches.
    """

    def __init__(
        self,
        connection: Connection,
        serving: Serving,
        shards: Mapping[int, Sequence[nn.Parameter]],
        server: Server | None,
    ) -> None:
        self._connection, self._serving = connection, serving
        self._shards, self._server = shards, server
        self._accrued: dict[int, Tensor] = {}
        self.traffic = Traffic.none(connection.k)

    def exchange(self, step: int, last: bool, rate: Callable[[], float]) -> None:
        """Push and fetch, or go on with weights of this worker's own, behind a step.

        Parameters
        ----------
        last : bool
            Whether it is the last step of a row.
        rate : callable
            Returns the learning rate of the step; called if the worker changes its own weights.
        """
        serving, own = self._serving, self._connection.rank
        pushes, fetches = serving.pushes(step, last), serving.fetches(step, last)
        self._accrue(0.0 if fetches else rate())
        sent = []
        for rank in self._shards:
            body = self._accrued.pop(rank) if pushes else TICK
            if rank == own:
                self._here.push(own, step, last, body)
            elif pushes or serving.tells_steps:
                sent.append((rank, self._call(rank, dist.isend, body, rank, tag=PUSH)))
                if pushes:
                    self.traffic.count((own, rank), body.nbytes, backward=False, counted=True)
        for rank, shard in self._shards.items():
            if not (fetches or serving.tells_steps):
                break
            if rank == own:
                body = self._here.answer(own, step, last)
            else:
                body = flat(shard) if fetches else torch.empty_like(TICK)
                self._call(rank, dist.recv, body, rank, tag=FETCH)
            if fetches:
                copy_into(shard, body)
                if rank != own:
                    self.traffic.count((rank, own), body.nbytes, backward=True, counted=True)
        for rank, work in sent:
            self._call(rank, work.wait)

    def _accrue(self, rate: float) -> None:
        """Keep gradients for the next push, change the worker's own weights by them, and end them.

        Weights that are fetched at once need not be changed.
        """
        for rank, shard in self._shards.items():
            for parameter in shard:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = flat([parameter.grad for parameter in shard if parameter.grad is not None])
            before = self._accrued.get(rank)
            self._accrued[rank] = gradients if before is None else before.add_(gradients)
            for parameter in shard:
                if rate and parameter.grad is not None:
                    parameter.data.sub_(parameter.grad, alpha=rate)
                parameter.grad = None

    @property
    def _here(self) -> Server:
        assert self._server is not None
        return self._server

    def _call(self, rank: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call = partial(function, *args, **options)
        return self._connection.guard(call, f"exchanged weights with rank {rank}", rank)


def serve(server: Server, serving: Serving, worker: int, steps: range) -> None:
    """Be the server of a worker in a row of steps; both know when it pushes and fetches."""
    gradients = flat(server.parameters)
    for step in steps:
        last = step == steps[-1]
        if (pushes := serving.pushes(step, last)) or serving.tells_steps:
            body = gradients if pushes else torch.empty_like(TICK)
            dist.recv(body, worker, tag=PUSH)
            server.push(worker, step, last, body)
        if serving.fetches(step, last) or serving.tells_steps:
            dist.send(server.answer(worker, step, last), worker, tag=FETCH)


def copy_into(parameters: Sequence[nn.Parameter], weights: Tensor) -> None:
    """Give parameters the numbers of a row of all of them."""
    pieces = torch.split(weights, [parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.data.copy_(piece.view_as(parameter))
