"""Placement + Connection -> DistributedModel: one process's part of a placed model."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from hgpart.errors import ArgumentError, RunError
from hgpart.execution.engine import PartRun
from hgpart.execution.program import PartProgram
from hgpart.execution.totals import Timing, Traffic
from hgpart.execution.transfers import Transfer
from hgpart.run.connection import Connection

if TYPE_CHECKING:
    from hgpart.placement import Placement

AHEAD = 8  # receives that are posted before they are needed; more only takes memory earlier


class _Pass:
    """The messages of one pass, forward or backward; a message is bytes.

    Receives are posted, and between any two parts messages depart, in the global order of
    transfers (backward in reverse), as NCCL tells messages apart by nothing else. A gradient that
    is held back for that delays nobody: it goes to a part that waits for them in the same order.
    """

    def __init__(
        self,
        connection: Connection,
        transfers: Iterable[Transfer],
        batch_size: int,
        backward: bool,
    ) -> None:
        self.connection, self.batch_size, self.backward = connection, batch_size, backward
        # Where messages lie while they travel.
        self.place = connection.device if connection.nccl else torch.device("cpu")
        self.to_post: deque[Transfer] = deque()
        self.to_depart: dict[int, deque[Transfer]] = {}  # by receiver
        self.posted: dict[int, tuple[Tensor, dist.Work | None]] = {}
        self.ready: dict[int, Tensor] = {}
        self.sent: list[tuple[Transfer, Tensor, dist.Work | None]] = []
        for transfer in transfers:
            target = self._ends(transfer)[1]
            if target == connection.rank:
                self.to_post.append(transfer)
            else:
                self.to_depart.setdefault(target, deque()).append(transfer)
        self._post(AHEAD)

    def _ends(self, transfer: Transfer) -> tuple[int, int]:
        """Who sends the bytes, and who receives them."""
        ends = transfer.sender, transfer.receiver
        return ends[::-1] if self.backward else ends

    def _tag(self, transfer: Transfer) -> int:
        return 2 * transfer.number + self.backward

    def _post(self, count: int) -> None:
        for _ in range(min(count, len(self.to_post))):
            transfer = self.to_post.popleft()
            source, target = self._ends(transfer)
            size = transfer.nbytes(self.batch_size)
            message = torch.empty(size, dtype=torch.uint8, device=self.place)
            group = self.connection.group(source, target)
            call = partial(dist.irecv, message, source, group, self._tag(transfer))
            work = self.connection.guard(call, *self._words(transfer, source))
            self.posted[transfer.number] = message, work

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        pieces = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        message = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(self.place)
        if len(message) != transfer.nbytes(self.batch_size):  # the receiver waits for as many
            raise RunError(
                f"{transfer.layer} sends {len(message)} bytes, accepted is "
                f"{transfer.nbytes(self.batch_size)}, as it was placed (autocast changes types, "
                "and every process needs the same batch size)"
            )
        self.ready[transfer.number] = message
        source, target = self._ends(transfer)
        waiting = self.to_depart[target]
        while waiting and waiting[0].number in self.ready:
            transfer = waiting.popleft()
            message = self.ready.pop(transfer.number)
            group = self.connection.group(source, target)
            call = partial(dist.isend, message, target, group, self._tag(transfer))
            work = self.connection.guard(call, *self._words(transfer, target))
            self.sent.append((transfer, message, work))

    def receive(self, transfer: Transfer) -> tuple[Tensor, ...]:
        while transfer.number not in self.posted and self.to_post:
            self._post(1)
        self._post(AHEAD - len(self.posted))
        message, work = self.posted.pop(transfer.number)
        self._wait(work, transfer, self._ends(transfer)[0])
        message = message.to(self.connection.device)
        sizes = [tensor.nbytes(self.batch_size) for tensor in transfer.tensors]
        pieces = [message] if len(sizes) == 1 else [*map(torch.clone, torch.split(message, sizes))]
        return tuple(
            piece.view(tensor.dtype).view(tensor.shape(self.batch_size))
            for piece, tensor in zip(pieces, transfer.tensors, strict=True)
        )

    def finish(self) -> None:
        """Wait until all that was sent has departed."""
        for transfer, _, work in self.sent:
            self._wait(work, transfer, self._ends(transfer)[1])
        self.sent.clear()

    def _wait(self, work: dist.Work | None, transfer: Transfer, peer: int) -> None:
        if work is not None:
            self.connection.guard(work.wait, *self._words(transfer, peer))

    def _words(self, transfer: Transfer, peer: int) -> tuple[str, int]:
        source, _ = self._ends(transfer)
        what = f"{'the gradient of ' * self.backward}{transfer.layer}"
        if peer == source:
            return f"waited for {what}", peer
        return f"sent {what}", peer


class DistributedWire:
    """One part's ends of all its transfers, for one batch, over torch.distributed.

    Parameters
    ----------
    connection : Connection
    transfers : iterable of Transfer
        Those of this part.
    batch_size : int
    """

    def __init__(
        self, connection: Connection, transfers: Iterable[Transfer], batch_size: int
    ) -> None:
        self._connection, self._batch_size = connection, batch_size
        self._transfers = sorted(transfers, key=lambda transfer: transfer.number)
        self._forward = _Pass(connection, self._transfers, batch_size, backward=False)
        self._backward: _Pass | None = None

    def send(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let tensors depart."""
        self._forward.send(transfer, tensors)

    def receive(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for what the sender sent."""
        return self._forward.receive(transfer)

    def finish_forward(self) -> None:
        """Wait until all maps have departed."""
        self._forward.finish()

    def begin_backward(self) -> None:
        """Be ready for gradients."""
        transfers = [transfer for transfer in self._transfers[::-1] if transfer.differentiable]
        self._backward = _Pass(self._connection, transfers, self._batch_size, backward=True)

    def send_gradient(self, transfer: Transfer, tensors: Sequence[Tensor]) -> None:
        """Let a gradient depart for the sender."""
        assert self._backward is not None
        self._backward.send(transfer, tensors)

    def receive_gradient(self, transfer: Transfer) -> tuple[Tensor, ...]:
        """Wait for the receiver's gradient."""
        assert self._backward is not None
        return self._backward.receive(transfer)

    def finish_backward(self) -> None:
        """Wait until all gradients have departed."""
        assert self._backward is not None
        self._backward.finish()


class DistributedModel(nn.Module):
    """A placed model of which this process holds its rank's part.

    All processes make the same calls, in the same order. They must be seeded alike where the model
    draws random numbers (dropout): each draws the whole masks, as the model itself would.

    Parameters
    ----------
    placement : Placement
        Holds at least the part of this rank.
    connection : Connection

    Attributes
    ----------
    traffic : Traffic
        What this rank sent in the last run, forward and backward.
    timing : Timing
        Of the last run.
    """

    def __init__(self, placement: Placement, connection: Connection) -> None:
        super().__init__()
        if placement.k != connection.k:
            raise RunError(
                f"the placement has k={placement.k}, there are {connection.k} processes: accepted "
                "is one for each part"
            )
        self.placement, self.connection = placement, connection
        self.traffic, self.timing = Traffic.none(connection.k), Timing()
        self._run: tuple[PartRun, DistributedWire, tuple[Tensor, ...]] | None = None

    @property
    def program(self) -> PartProgram:
        """What this rank does, in the present mode."""
        return self.placement.programs[self.connection.rank]

    @property
    def reads_inputs(self) -> bool:
        """Whether this rank needs the values of the inputs."""
        placeholders = self.program.module.graph.find_nodes(op="placeholder")
        return not {node.target for node in placeholders}.isdisjoint(self.placement.inputs)

    @property
    def makes_result(self) -> bool:
        """Whether this rank gets the result."""
        return self.connection.rank == self.placement.output_part

    def forward(self, *inputs: Tensor | None, batch_size: int | None = None) -> Any:
        """Compute this rank's share of one batch.

        Parameters
        ----------
        inputs : tensors, or None
            As the model takes them. A rank that does not read them may have None, or tensors on
            the meta device.
        batch_size : int, optional
            Where no input says it.

        Returns
        -------
        Any
            What the model returns on the rank that makes the result, None on the others. In grad
            mode a loss is computed from it, for `backward`.

        Raises
        ------
        RunError
            If another rank is gone.
        """
        batch = next((value.shape[0] for value in inputs if value is not None), batch_size)
        if batch is None:
            raise ArgumentError("neither inputs nor a batch size: one of them is needed")
        self.placement.check_batch(batch, inputs or [None] * len(self.placement.inputs))
        self._run = None
        program = self.program
        wire = DistributedWire(self.connection, program.transfers.values(), batch)
        run = PartRun(program, wire, self.connection.device, self.connection.k)
        self.traffic, self.timing = run.traffic, run.timing
        values = {
            name: value
            for name, value in zip(self.placement.inputs, inputs, strict=False)
            if value is not None and not value.is_meta
        }
        results = run.forward({**values, **self.placement.draw(batch), "batch_size": batch})
        started = perf_counter()
        wire.finish_forward()
        run.timing.forward_waiting += perf_counter() - started
        if torch.is_grad_enabled():
            self._run = run, wire, results
        return self.placement.build_results(results) if self.makes_result else None

    def backward(self, loss: Tensor | None = None) -> None:
        """Add to the gradients of this rank's parameters.

        Parameters
        ----------
        loss : Tensor or None
            A number computed from what `forward` returned; None on the other ranks.

        Raises
        ------
        RunError
            If there was no forward pass in grad mode before, or if another rank is gone.
        """
        if self._run is None:
            raise RunError("backward without a forward pass in grad mode before it")
        if self.makes_result != (loss is not None):
            raise ArgumentError(
                f"rank {self.connection.rank} got {'no' if loss is None else 'a'} loss: the rank "
                f"that makes the result, {self.placement.output_part}, has one, the others None"
            )
        (run, wire, results), self._run = self._run, None
        wire.begin_backward()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        run.backward([result.grad for result in results])
        started = perf_counter()
        wire.finish_backward()
        run.timing.backward_waiting += perf_counter() - started
