"""What autograd graphs keep for backward -> slower memory, and back when backward needs it.

A graph that is made while its part offloads keeps no maps, but where they lie in slower memory.
Maps are written at once, each memory once, whichever graphs keep it; the original is freed when no
later instruction reads it. Backward reads a map when it comes to the first graph that needs it, and
frees it with the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from hgpart.errors import RunError
from hgpart.execution.offloading.stores import SlowStore, StoredBytes

LEAST = 2**14  # bytes: fewer stay where they are, as moving them takes longer than it is worth


class _Shared:
    """Memory that graphs share: elsewhere, and here again from when backward first needs it."""

    def __init__(self, place: StoredBytes) -> None:
        self._place: StoredBytes | None = place
        self.here: Tensor | None = None

    def read(self) -> Tensor:
        if self.here is None:
            assert self._place is not None
            self.here, self._place = self._place.read(), None
        return self.here


@dataclass(frozen=True, eq=False)
class _Offloaded:
    """A tensor that a graph keeps elsewhere."""

    memory: _Shared
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        met, data = _met.get(), self.memory.here
        if met is not None:
            met.append(self)
            if data is None:
                return _NOTHING
        elif data is None:
            data = self.memory.read()
        return data.view(self.dtype).as_strided(self.shape, self.stride, 0)


@dataclass(frozen=True, eq=False)
class _Staying:
    """A tensor that a graph keeps itself, and the number of changes that it had."""

    kept: Tensor
    version: int

    def tensor(self) -> Tensor:
        if _met.get() is None and self.kept._version != self.version:
            raise RunError(
                f"a tensor of shape {tuple(self.kept.shape)} that backward needs was changed in "
                "place after the forward pass: accepted is to change it after backward"
            )
        return self.kept


_NOTHING = torch.empty(0, device="cpu")
_met: ContextVar[list[_Offloaded] | None] = ContextVar("met", default=None)


@contextmanager
def inspected() -> Iterator[list[_Offloaded]]:
    """Inspect graphs without reading anything back; the list gets what they have offloaded."""
    met: list[_Offloaded] = []
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)


class Offloading:
    """What a part offloads of a batch."""

    def __init__(self, slower: SlowStore) -> None:
        self._slower = slower
        self._memories: WeakValueDictionary[tuple[int, ...], _Shared] = WeakValueDictionary()
        # By number; as long as a memory is known here no other gets its number.
        self._staying: dict[int, StorageWeakRef] = {}
        self._known: dict[int, StorageWeakRef] = {}

    def let_stay(self, tensors: Iterable[Tensor]) -> None:
        """Leave weights where they are, and inputs, which the caller has meanwhile."""
        self._staying.update({ref.cdata: ref for ref in map(_weak, tensors)})

    def graphs(self) -> saved_tensors_hooks:
        """Context in which new graphs keep their tensors in slower memory."""
        return saved_tensors_hooks(self._offloaded, _read)

    def _offloaded(self, tensor: Tensor) -> _Staying | _Offloaded:
        tensor = tensor.detach()
        extent = _extent(tensor)
        if extent is None or tensor.untyped_storage()._cdata in self._staying:
            return _Staying(tensor, tensor._version)
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version, *extent
        memory = self._memories.get(key)
        if memory is None:
            begin, nbytes = extent
            data = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            memory = _Shared(self._slower.write(data.set_(storage, begin, (nbytes,), (1,))))
            self._memories[key] = memory
            self._known[storage._cdata] = _weak(tensor)
        return _Offloaded(memory, tensor.dtype, tensor.shape, tensor.stride())


def _read(kept: _Staying | _Offloaded) -> Tensor:
    return kept.tensor()


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _extent(tensor: Tensor) -> tuple[int, int] | None:
    """Where a tensor's bytes begin in its storage, and how many there are; None if they stay."""
    is_plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    if type(tensor) is not Tensor or not is_plain or not tensor.numel():
        return None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in steps)
    begin, nbytes = int(tensor.storage_offset()) * tensor.itemsize, count * tensor.itemsize
    return (begin, nbytes) if nbytes >= LEAST else None
