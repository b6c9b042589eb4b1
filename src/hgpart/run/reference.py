"""Model + batch -> its gradients by micro-batches in turn, with the random masks of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial, reduce
from inspect import signature
from itertools import accumulate
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hgpart.tracing.arguments import Inputs, as_called


def accumulated(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor,
    loss_fn: Callable[[Any, Tensor], Tensor],
    sizes: Sequence[int],
    norms: str = "micro-batch",
    shares: int = 1,
    together: bool = False,
) -> None:
    """Add up gradients over micro-batches, without parts and schedules.

    Each micro-batch's loss is weighted by its number of samples. Random operators draw what they
    draw for the whole batch, sliced: a first pass over it records that. Running statistics are
    updated per micro-batch or, with `norms` ``batch``, once by the input of all of them. If each
    micro-batch is in `shares`, with a size each in `sizes`, the first share updates them; unless
    the model is given all shares `together`, and they only have a loss each.
    """
    args, kwargs = call = as_called(inputs)
    if len(sizes) == 1:
        _backward(loss_fn(model(*args, **kwargs), targets))
        return
    scored = [[size] for size in sizes]
    if together:
        scored = [[*sizes[at : at + shares]] for at in range(0, len(sizes), shares)]
        sizes, shares = [sum(sizes_of_shares) for sizes_of_shares in scored], 1
    drawn: list[Tensor] = []
    note = _Draws(lambda tensor: drawn.append(tensor.clone()))
    with _as_it_was(model), torch.no_grad(), note:
        model(*args, **kwargs)
    given = list[_Given]()
    counters: dict[str, Tensor] = {}
    for number, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
        span = slice(start, start + size)
        with _as_it_was(model) if number % shares else nullcontext():
            with _repeated(drawn, start, size, sum(sizes)), ExitStack() as modes:
                if norms == "batch":
                    given.append(modes.enter_context(_Given()))
                sliced = partial(_some, samples=span, batch_size=sum(sizes))
                args, kwargs = pytree.tree_map(sliced, call)
                result = model(*args, **kwargs)
            losses, samples = [], targets[span]
            firsts = accumulate(scored[number], initial=0)
            for first, share_size in zip(firsts, scored[number], strict=False):
                own = slice(first, first + share_size)
                own_result = pytree.tree_map(partial(_some, samples=own, batch_size=size), result)
                losses.append(loss_fn(own_result, samples[own]) * (share_size / sum(sizes)))
            _backward(reduce(add, losses))
        counters = counters or {name: counter.clone() for name, counter in _counters(model)}
    if norms == "batch":
        _update_once(given)
        for name, counter in _counters(model):
            counter.copy_(counters[name])


def _backward(loss: Tensor) -> None:
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]


def _some(value: Any, samples: slice, batch_size: int) -> Any:
    of_batch = isinstance(value, Tensor) and value.dim() and len(value) == batch_size
    return value[samples] if of_batch else value


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put buffers back at the end of the block."""
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)


def _counters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The buffers in which norms count batches."""
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] == "num_batches_tracked":
            yield name, buffer


class _Given(TorchFunctionMode):
    """Records the inputs of batch norms, in order, which then change no running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is functional.batch_norm:
            call = signature(func).bind(*args, **(kwargs or {})).arguments
            if call.get("training") and call["running_mean"] is not None:
                self.calls.append({**call, "input": call["input"].detach()})
                return func(**{**call, "running_mean": None, "running_var": None})
        return func(*args, **(kwargs or {}))


def _update_once(given: Sequence[_Given]) -> None:
    """Update each norm's statistics once, by its inputs from all micro-batches."""
    for calls in zip(*(recorder.calls for recorder in given), strict=True):
        whole = torch.cat([call["input"] for call in calls])
        with torch.no_grad():
            functional.batch_norm(**{**calls[0], "input": whole})


class _Draws(TorchDispatchMode):
    """Calls a function with each tensor that a random operator draws, in order."""

    def __init__(self, on_draw: Callable[[Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_draw = on_draw

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            for tensor in pytree.tree_leaves(made):
                self._on_draw(tensor)
        return made


def _repeated(drawn: Sequence[Tensor], start: int, size: int, batch_size: int) -> _Draws:
    """A mode in which random operators draw what was recorded, for some samples."""
    left = iter(drawn)

    def repeat(tensor: Tensor) -> None:
        whole = next(left)
        for dim, (all_of_it, wanted) in enumerate(zip(whole.shape, tensor.shape, strict=True)):
            if all_of_it != wanted:
                assert all_of_it * size == wanted * batch_size
                whole = whole.narrow(dim, start * all_of_it // batch_size, wanted)
        tensor.copy_(whole)

    return _Draws(repeat)
