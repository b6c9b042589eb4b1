"""The batch that each rank begins -> whether all begin the same, before anything of it is sent."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from hgpart.errors import ArgumentError
from hgpart.run.processes.connection import NEVER, Connection

TAG = NEVER + 1  # tag of the messages here


class Batch(NamedTuple):
    """The batch that a rank begins.

    Attributes
    ----------
    samples : int
        Number of all ranks' samples.
    micro_batches : int
        Number of micro-batches; for a stream, of its batches.
    learns : int
        Whether there are backward passes.
    grad_mode : int
        Whether a backward pass may follow.
    training : int
        The mode of the model.
    counts_classes : int
        Whether ranks add up counts of their targets, for a loss of classes.
    """

    samples: int
    micro_batches: int
    learns: int
    grad_mode: int
    training: int
    counts_classes: int

    def difference(self, other: Batch) -> str:
        """How the batch differs from another one, in words.

        >>> own = Batch(4, 1, True, True, True, False)
        >>> own.difference(Batch(3, 1, True, True, False, False))
        'of 4 samples in training'
        """
        words = (
            f"of {self.samples} sample{'s' * (self.samples > 1)}",
            f"in {self.micro_batches} micro-batch{'es' * (self.micro_batches > 1)}",
            f"with{'' if self.learns else 'out'} backward passes",
            "in grad mode" if self.grad_mode else "under no_grad",
            "in training" if self.training else "in evaluation",
            f"with {'a' if self.counts_classes else 'no'} mean over classes as its loss",
        )
        differ = (own != theirs for own, theirs in zip(self, other, strict=True))
        return " ".join(phrase for phrase, differs in zip(words, differ, strict=True) if differs)


class Agreement:
    """Compares what ranks begin, from pass to pass.

    A rank hears only from ranks that are going to send to it, and waits for no others to begin, so
    that in a row of passes without gradients the first parts may be ahead of the last. If the batch
    is in slices it hears from all. Without this check, gloo would end the process on a message of
    unexpected size.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._going: list[tuple[int, Tensor, dist.Work | None]] = []

    def check(self, own: Batch, senders: Collection[int], receivers: Collection[int]) -> None:
        """Tell receivers what this rank begins, and hear from senders what they begin.

        Raises
        ------
        ArgumentError
            If a sender begins something else.
        """
        connection = self._connection
        arriving = []
        for peer in senders:
            body = torch.empty(len(own), dtype=torch.int64)
            call = partial(dist.irecv, body, peer, tag=TAG)
            arriving.append((peer, body, connection.guard(call, _heard(peer), peer)))
        for peer in receivers:
            body = torch.tensor(own, dtype=torch.int64)
            call = partial(dist.isend, body, peer, tag=TAG)
            self._going.append((peer, body, connection.guard(call, _told(peer), peer)))
        for peer, body, work in arriving:
            if work is not None:
                connection.guard(work.wait, _heard(peer), peer)
            check_same({connection.rank: own, peer: Batch(*body.tolist())})

    def check_among_all(self, own: Batch) -> None:
        """Compare with all ranks, including those that send nothing."""
        check_same({rank: Batch(*row) for rank, row in enumerate(self._connection.numbers(own))})

    def settle(self) -> None:
        """Wait until all receivers have heard; they have, if they got what this rank sent."""
        for peer, _, work in self._going:
            if work is not None:
                self._connection.guard(work.wait, _told(peer), peer)
        self._going.clear()


def check_same(begun: dict[int, Batch]) -> None:
    """Raise an ArgumentError that names two ranks if ranks begin different batches."""
    (first, batch), *rest = sorted(begun.items())
    for rank, other_batch in rest:
        if other_batch != batch:
            raise ArgumentError(
                f"rank {first} begins a batch {batch.difference(other_batch)}, rank {rank} one "
                f"{other_batch.difference(batch)}: accepted is the same on all ranks"
            )


def _heard(peer: int) -> str:
    return f"waited for rank {peer} to begin"


def _told(peer: int) -> str:
    return f"sent rank {peer} what it begins"
