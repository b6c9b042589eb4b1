"""What each rank begins -> whether all begin the same, or who begins what."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import torch

from hgpart.errors import ArgumentError

TYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


class JointCall(Enum):
    """What all ranks call together, as it is written."""

    FORWARD = "model(...)"
    BACKWARD = "loss.backward()"
    STEP = "model.step(...)"
    STREAM = "model.stream(...)"
    VALUE = "model.value(...)"
    SIZES = "model.for_inputs(...)"
    SETTINGS = "a pass with other attributes of modules"
    STATE = "model.gathered_state_dict()"
    OPTIMIZER_STATE = "hgpart.gathered_optimizer_state(...)"
    CLIP = "hgpart.clip_grad_norm_(...)"
    UNSCALE = "scaler.unscale_(...)"
    GATHER = "connection.gather(...)"
    END = "the end of the connection"

    @property
    def number(self) -> int:
        """Its number in messages."""
        return [*JointCall].index(self)


class Begun(NamedTuple):
    """What a rank begins.

    Attributes
    ----------
    call : JointCall
        The call.
    model : int
        Number of the model among those of these processes.
    number : int
        Number of the pass that goes back; 0 in other calls.
    samples : int
        Number of all ranks' samples; 0 where a rank does not know it.
    micro_batches : int
        Number of micro-batches; for a stream, of its batches.
    learns : int
        Whether there are backward passes; in a pass that goes back, whether parameters get
        gradients.
    grad_mode : int
        Whether a backward pass may follow.
    training : int
        The mode of the model.
    counts_classes : int
        Whether ranks add up counts of their targets, for a loss of classes.
    autocast : int
        The type of autocast, numbered in `TYPES` from 1 on; 0 without it.
    """

    call: int = JointCall.GATHER.number
    model: int = 0
    number: int = 0
    samples: int = 0
    micro_batches: int = 1
    learns: int = False
    grad_mode: int = False
    training: int = False
    counts_classes: int = False
    autocast: int = 0

    def difference(self, other: Begun) -> str:
        """How it differs from what another rank begins, in words.

        >>> own = Begun(JointCall.FORWARD.number, samples=4, training=True)
        >>> own.difference(Begun(JointCall.FORWARD.number, samples=3))
        'a batch of 4 samples in training'
        >>> own.difference(Begun(JointCall.STATE.number))
        'model(...)'
        """
        call: str = [*JointCall][self.call].value
        if self.call != other.call:
            return call
        if self.model != other.model:
            return f"{call} of model {self.model}"
        if self.number != other.number:
            return f"{call} of forward pass {self.number}"
        words = (
            f"of {self.samples} sample{'s' * (self.samples > 1)}",
            f"in {self.micro_batches} micro-batch{'es' * (self.micro_batches > 1)}",
            f"with{'' if self.learns else 'out'} backward passes",
            "in grad mode" if self.grad_mode else "under no_grad",
            "in training" if self.training else "in evaluation",
            f"with {'a' if self.counts_classes else 'no'} mean over classes as its loss",
            f"under autocast to {TYPES[self.autocast - 1]}"
            if self.autocast
            else "without autocast",
        )
        differ = (own != theirs for own, theirs in zip(self[3:], other[3:], strict=True))
        return "a batch " + " ".join(
            phrase for phrase, differs in zip(words, differ, strict=True) if differs
        )


def check_same(begun: Mapping[int, Begun]) -> None:
    """Raise an ArgumentError that names two ranks if ranks begin different things."""
    (first, own), *rest = sorted(begun.items())
    for rank, other in rest:
        if other != own:
            raise ArgumentError(
                f"rank {first} begins {own.difference(other)}, rank {rank} "
                f"{other.difference(own)}: accepted is the same on all ranks, in one order"
            )
