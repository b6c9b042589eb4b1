"""Model + batch -> what it makes of micro-batches one after the other, with the whole's masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def accumulated(
    model: nn.Module,
    inputs: Sequence[Any],
    targets: Tensor,
    loss_fn: Callable[[Any, Tensor], Tensor],
    sizes: Sequence[int],
) -> None:
    """Add up gradients over micro-batches, as without parts and schedules.

    Each micro-batch's loss counts by its number of samples. What random operators draw is what
    they draw for the whole batch, sliced: a first pass over it notes that.
    """
    if len(sizes) == 1:
        _backward(loss_fn(model(*inputs), targets))
        return
    with _as_it_was(model), torch.no_grad(), _Note() as note:
        model(*inputs)
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        some = slice(start, start + size)
        with _Repeat(note.drawn, start, size, sum(sizes)):
            result = model(*(_some(one, some, sum(sizes)) for one in inputs))
        _backward(loss_fn(result, targets[some]) * (size / sum(sizes)))


def _backward(loss: Tensor) -> None:
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]


def _some(value: Any, samples: slice, batch_size: int) -> Any:
    of_batch = isinstance(value, Tensor) and value.dim() and len(value) == batch_size
    return value[samples] if of_batch else value


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put buffers back at the end."""
    before = [one.clone() for one in model.buffers()]
    try:
        yield
    finally:
        for one, value in zip(model.buffers(), before, strict=True):
            one.copy_(value)


def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


class _Note(TorchDispatchMode):
    """Keeps what random operators draw, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if _is_random(func):
            self.drawn += (one.clone() for one in pytree.tree_leaves(made))
        return made


class _Repeat(TorchDispatchMode):
    """Lets random operators draw what was kept, of some samples."""

    def __init__(self, drawn: Sequence[Tensor], start: int, size: int, batch_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn, self._start, self._share = iter(drawn), start, (size, batch_size)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if _is_random(func):
            for one in pytree.tree_leaves(made):
                one.copy_(self._slice(next(self._drawn), one.shape))
        return made

    def _slice(self, whole: Tensor, shape: torch.Size) -> Tensor:
        size, batch_size = self._share
        for dim, (all_of_it, wanted) in enumerate(zip(whole.shape, shape, strict=True)):
            if all_of_it != wanted:
                assert all_of_it * size == wanted * batch_size
                whole = whole.narrow(dim, self._start * all_of_it // batch_size, wanted)
        return whole
