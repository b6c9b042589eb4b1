"""Transfers + autocast -> MapTypes: the types in which a part's maps travel.

Autocast gives maps other types than those that were placed, and only who computes a map knows
which. So in the first pass under autocast each message says the types of its tensors, and has room
for the largest; from then on both ends know them, and messages have the bytes of their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from hgpart.errors import RunError
from hgpart.execution.program import Transfer, TransferredTensor
from hgpart.run.processes.begun import TYPES

WORD = 8  # bytes that say a type, before the tensor


class MapTypes:
    """The types of the tensors that a part sends and receives, in one state of autocast.

    Parameters
    ----------
    transfers : mapping of int to Transfer
        The part's transfers, as they were placed.
    are_known : bool
        Whether maps have the types that were placed.
    """

    def __init__(self, transfers: Mapping[int, Transfer], are_known: bool = True) -> None:
        self._transfers = dict(transfers)
        self._open = set[int]() if are_known else {*transfers}
        self._layouts: dict[tuple[int, int], _Layout] = {}

    @property
    def are_known(self) -> bool:
        """Whether messages have the bytes of their tensors, and do not say types."""
        return not self._open

    def layer(self, number: int) -> str:
        """Layer of a transfer."""
        return self._transfers[number].layer

    def nbytes(self, number: int, samples: int, says_types: bool) -> int:
        """Bytes of a transfer in a message."""
        transfer = self._transfers[number]
        if not says_types:
            return transfer.nbytes(samples)
        return sum(WORD + _room(tensor, samples) for tensor in transfer.tensors)

    def packed(
        self, number: int, samples: int, tensors: Sequence[Tensor], says_types: bool
    ) -> list[Tensor]:
        """The bytes of a transfer's tensors in a message.

        Raises
        ------
        RunError
            If they have other types or sizes than the receiver expects.
        """
        transfer, pieces = self._transfers[number], [as_bytes(tensor) for tensor in tensors]
        if not says_types:
            sent, wanted = sum(map(len, pieces)), self._layout(number, samples).nbytes
            if sent != wanted:
                raise RunError(f"{transfer.layer} sends {sent} bytes, accepted is {wanted}")
            return pieces
        body = []
        for tensor, piece, known in zip(tensors, pieces, transfer.tensors, strict=True):
            room = _room(known, samples) - len(piece)
            if tensor.shape != known.shape(samples) or room < 0:
                raise RunError(
                    f"{transfer.layer} sends {tuple(tensor.shape)} of {tensor.dtype}, accepted is "
                    f"{known.shape(samples)} of {known.dtype} or fewer bytes"
                )
            word = torch.tensor([TYPES.index(tensor.dtype)], device=tensor.device)
            body += [as_bytes(word), piece, piece.new_zeros(room)]
        return body

    def unpacked(
        self, number: int, samples: int, body: Tensor, says_types: bool
    ) -> tuple[Tensor, ...]:
        """The tensors of a transfer, from its bytes."""
        if not says_types:
            return self._layout(number, samples).tensors(body)
        made, at = [], 0
        for tensor in self._transfers[number].tensors:
            dtype = TYPES[int(_as_type(body[at : at + WORD], torch.int64))]
            begin, shape = at + WORD, tensor.shape(samples)
            end = begin + replace(tensor, dtype=dtype).nbytes(samples)
            made.append(_as_type(body[begin:end], dtype).view(shape))
            at = begin + _room(tensor, samples)
        return tuple(made)

    def _layout(self, number: int, samples: int) -> _Layout:
        key = number, samples
        if key not in self._layouts:
            self._layouts[key] = _Layout.of(self._transfers[number], samples)
        return self._layouts[key]

    def note(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Note the types of a transfer that was sent or received."""
        if number in self._open:
            self._open.remove(number)
            self._layouts.clear()
            transfer = self._transfers[number]
            pairs = zip(transfer.tensors, tensors, strict=True)
            typed = tuple(replace(known, dtype=tensor.dtype) for known, tensor in pairs)
            self._transfers[number] = replace(transfer, tensors=typed)


@dataclass(frozen=True)
class _Layout:
    """Types and shapes of a transfer's tensors, and where the bytes of each end."""

    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]

    @staticmethod
    def of(transfer: Transfer, samples: int) -> _Layout:
        """Find where the tensors of so many samples lie."""
        tensors = transfer.tensors
        return _Layout(
            tuple(tensor.dtype for tensor in tensors),
            tuple(tensor.shape(samples) for tensor in tensors),
            tuple(accumulate(tensor.nbytes(samples) for tensor in tensors)),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, of which there is one at least."""
        return self.ends[-1]

    def tensors(self, body: Tensor) -> tuple[Tensor, ...]:
        """The tensors, from their bytes."""
        places = zip((0, *self.ends[:-1]), self.ends, self.dtypes, self.shapes, strict=True)
        return tuple(
            _as_type(body[begin:end], dtype).view(shape) for begin, end, dtype, shape in places
        )


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor's elements, in their order.

    For a conjugate, or its imaginary part, torch keeps the memory and only notes the difference.
    >>> as_bytes(torch.tensor([1.0 + 2.0j]).conj().imag).view(torch.float32)
    tensor([-2.])
    """
    made = tensor.resolve_conj().resolve_neg().contiguous()
    return made.as_strided((made.numel(),), (1,)).view(torch.uint8)  # of one element, any stride


def _room(tensor: TransferredTensor, samples: int) -> int:
    """Bytes that a tensor can have under autocast, which makes no type larger than float32."""
    size = tensor.dtype.itemsize
    if tensor.dtype.is_floating_point:
        size = max(size, torch.float32.itemsize)
    return tensor.nbytes(samples) // tensor.dtype.itemsize * size


def _as_type(body: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as elements of a type, which can begin only at multiples of its size."""
    aligned = body.clone() if body.storage_offset() % dtype.itemsize else body
    return aligned.view(dtype)
