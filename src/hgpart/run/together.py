"""Placement + Connection -> Together: what all ranks begin alike, and end or hear why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hgpart.errors import ArgumentError, PlacementError, RunError
from hgpart.placement import Placement
from hgpart.placement.batches.loss_counts import class_loss
from hgpart.placement.batches.micro_batches import Counts
from hgpart.placement.passes import gradients_wanted
from hgpart.run.processes.agreement import Agreement, Batch
from hgpart.run.processes.connection import Connection
from hgpart.tracing.forms import Sizes


class Together:
    """A rank among the others, from pass to pass.

    Attributes
    ----------
    is_passing : bool
        Whether a pass is under way here.
    """

    def __init__(self, placement: Placement, connection: Connection) -> None:
        self._placement, self._connection = placement, connection
        self.agreement, self.rank = Agreement(connection), connection.rank
        self.is_passing = self._failed = False

    @contextmanager
    def whole_pass(self) -> Iterator[None]:
        """A pass that all ranks take part in, and that must come to its end.

        If it fails here, the others are told why, and wait no longer; even if only this rank finds
        that it can't begin. What was sent by then would be taken for part of a later pass.
        """
        if self._failed:
            raise RunError(
                f"rank {self._connection.rank} begins a pass after a failed one, which ended its "
                "connections: accepted are new processes"
            )
        self.is_passing = True
        try:
            yield
        except BaseException as error:
            self._failed = True
            self._connection.fail(error)
            raise
        finally:
            self.is_passing = False

    def switch(self, sizes: Sizes, batch_size: int | None) -> None:
        """Switch all ranks to a batch of other sizes; see `DistributedModel.for_inputs`."""
        before = self._placement.forms.present
        failed: Exception | None = None
        try:
            self._placement.forms.for_sizes(sizes, batch_size)
        except Exception as error:
            failed = error
        reasons = self._connection.gather(failed and str(failed))
        if failed is not None:
            raise failed
        for rank, reason in enumerate(reasons):
            if reason is not None:
                self._placement.forms.for_sizes(before.sizes, before.batch_size)
                raise PlacementError(f"rank {rank} can't have a batch of these sizes: {reason}")

    def beginning(
        self, micro_batches: int, learns: bool, loss_fn: Callable[[Any, Any], Tensor] | None = None
    ) -> Batch:
        """The batch that this rank begins, in the present modes; its size is not known yet."""
        return Batch(
            samples=0,
            micro_batches=micro_batches,
            learns=learns,
            grad_mode=torch.is_grad_enabled(),
            training=self._placement.training,
            counts_classes=len({*self._placement.programs.output_parts}) > 1
            and class_loss(loss_fn) is not None,
        )

    def agreed_size(
        self, inputs: Sequence[Tensor | None], batch_size: int | None, own: Batch
    ) -> int:
        """Number of samples in the batch that all ranks now begin.

        Errors about the batch size alone occur on all ranks: nobody has to be told.
        """
        if batch_size is not None:
            check_size(batch_size)
        elif len(self._placement.programs.shares) > 1:
            raise ArgumentError(
                "no batch size, and with a plan over slices inputs may hold only this process's "
                "samples: accepted is the size of the whole batch, as in batch_size=32"
            )
        with self.whole_pass():
            if gradients_wanted(inputs):
                raise PlacementError(
                    "an input requires a gradient, like the result of another model, which "
                    "processes do not compute: accepted are inputs without one, as from detach()"
                )
            size = (
                self._placement.programs.arguments.batch_size(inputs)
                if batch_size is None
                else batch_size
            )
            if size is None:
                raise ArgumentError(
                    f"neither inputs nor a batch size on rank {self._connection.rank}: accepted is "
                    "one of them, as in batch_size=32; another model's result is on only one rank"
                )
            self.check_same(size, own)
        return size

    def check_same(self, batch_size: int, own: Batch) -> None:
        """Raise an ArgumentError if other ranks begin another batch, or in another mode.

        This comes before anything that all do together, which may be more in another mode.
        """
        check_size(batch_size)
        own = own._replace(samples=batch_size)
        if len(self._placement.programs.shares) > 1:  # where a rank may send nothing
            self.agreement.check_among_all(own)
            return
        messages = [
            (transfer.sender, transfer.receiver, transfer)
            for transfer in self._placement.programs.parts[self._connection.rank].transfers.values()
        ]
        if own.learns:
            messages += [
                (receiver, sender, transfer)
                for sender, receiver, transfer in messages
                if transfer.differentiable
            ]
        rank = self._connection.rank
        senders = dict.fromkeys(sender for sender, receiver, _ in messages if receiver == rank)
        receivers = dict.fromkeys(receiver for sender, receiver, _ in messages if sender == rank)
        self.agreement.check(own, [*senders], [*receivers])

    def total(self, counts: Counts) -> Counts:
        """Add up the counts of targets over all ranks, if several have some."""
        if len({*self._placement.programs.output_parts}) == 1:
            return counts
        first, second = zip(*self._connection.numbers(counts, torch.float64), strict=True)
        return sum(first), sum(second)


def check_size(batch_size: object) -> None:
    """Raise an ArgumentError unless `batch_size` is a number of samples."""
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise ArgumentError(f"batch size {batch_size!r}: accepted are whole numbers from 1 on")
