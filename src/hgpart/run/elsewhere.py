"""A result that other ranks have -> Elsewhere: a stand-in here, from which a loss is computed.

The lines that compute a loss run on all ranks. Where the result is, they compute numbers; elsewhere
they make the same autograd graph without numbers, whose backward pass takes part in that of the
model. So a loop needs not know where results are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

from hgpart.errors import RunError


class Elsewhere(Tensor):
    """Stands in for a tensor whose values other ranks have.

    Anything computed from it is a stand-in, too, with the real tensor's shape, type and device.

    Parameters
    ----------
    like : Tensor
        A tensor on the meta device.
    ranks : sequence of int
        The ranks that have the values.

    >>> result = Elsewhere(torch.ones(2, 3, device="meta"), torch.device("cpu"), ranks=[1])
    >>> loss = (result - torch.ones(2, 3)).mean()
    >>> loss
    Elsewhere(shape=(), dtype=float32, rank 1)
    """

    meta: Tensor
    ranks: tuple[int, ...]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, like: Tensor, device: torch.device, ranks: Sequence[int]) -> Elsewhere:
        """Make a stand-in."""
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=device,
        )
        made.meta, made.ranks = like, (*ranks,)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute shapes and types of results."""
        given = args, dict(kwargs or {})
        tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
        stand_ins = [tensor for tensor in tensors if isinstance(tensor, cls)]
        ranks = sorted({rank for tensor in stand_ins for rank in tensor.ranks})
        first = stand_ins[0]
        name = function.overloadpacket.__name__
        for written in _written(function, args, given[1]):
            if not isinstance(written, cls):
                raise RunError(
                    f"{_name(function)} writes values that {_of(ranks)} into a tensor of this "
                    "rank: accepted are new tensors, and layers that learn within the model"
                )
        goes_by_shape = name.startswith("new_") or name.endswith("_like")
        # In a backward pass such a tensor is filled with gradients, which are elsewhere.
        if goes_by_shape and torch._C._current_graph_task_id() == -1:
            here = pytree.tree_map_only(cls, _ones, given)
            return function(*here[0], **here[1])
        if torch.Tag.nondeterministic_seeded in function.tags:
            # Other ranks draw as many random numbers: generators stay alike.
            here = pytree.tree_map_only(cls, _ones, given)
            made = function(*here[0], **here[1])
            return pytree.tree_map_only(
                Tensor, lambda drawn: cls(drawn.to("meta"), drawn.device, ranks), made
            )
        device = given[1].get("device") or first.device
        on_meta = pytree.tree_map_only(Tensor, _on_meta, given)
        if "device" in given[1]:
            on_meta[1]["device"] = torch.device("meta")
        try:
            made = function(*on_meta[0], **on_meta[1])
        except RuntimeError as error:
            if _needs_values(function, error):
                raise _no_values(_name(function), ranks) from None
            raise
        if not all(
            isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(made) if leaf is not None
        ):
            raise _no_values(_name(function), ranks)
        wrapped = pytree.tree_map_only(Tensor, lambda meta: cls(meta, device, ranks), made)
        return return_and_correct_aliasing(function, *given, wrapped)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:  # type: ignore[override]
        """Shape, type and ranks in place of values."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Elsewhere(shape={tuple(self.shape)}, dtype={dtype}, {_ranks(self.ranks)})"

    def __format__(self, form: str) -> str:
        """The same; a form of numbers raises a RunError: values are on other ranks."""
        if form:
            raise _no_values(f"a number in the form {form!r}", self.ranks)
        return repr(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise a RunError: values are on other ranks."""
        raise _no_values("a file", self.ranks)

    def numpy(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise a RunError: values are on other ranks."""
        raise _no_values("numpy()", self.ranks)

    def tolist(self) -> NoReturn:
        """Raise a RunError: values are on other ranks."""
        raise _no_values("tolist()", self.ranks)

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise a RunError: values are on other ranks."""
        raise _no_values("an array", self.ranks)


def _ones(stand_in: Elsewhere) -> Tensor:
    return torch.ones(stand_in.shape, dtype=stand_in.dtype, device=stand_in.device)


def _on_meta(tensor: Tensor) -> Tensor:
    return tensor.meta if isinstance(tensor, Elsewhere) else tensor.to("meta")


def _written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that an operator changes."""
    arguments = function._schema.arguments
    named = zip((argument.name for argument in arguments), args, strict=False)
    given = {**dict(named), **kwargs}
    aliases = ((argument.name, argument.alias_info) for argument in arguments)
    written = (given.get(name) for name, alias in aliases if alias and alias.is_write)
    return [leaf for leaf in pytree.tree_leaves([*written]) if isinstance(leaf, Tensor)]


def _needs_values(function: Any, error: Exception) -> bool:
    """Whether an operator failed because sizes or numbers depend on values."""
    data_dependent = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return isinstance(error, NotImplementedError) or any(
        tag in function.tags for tag in data_dependent
    )


def _no_values(what: str, ranks: Sequence[int]) -> RunError:
    return RunError(
        f"{what} of a result that {_of(ranks)}: accepted are model.value(...), which all ranks "
        "call, and a loss that only ranks with results compute, with model.backward(loss)"
    )


def _name(function: Any) -> str:
    name = function.overloadpacket.__name__
    return "item()" if name == "_local_scalar_dense" else str(name)


def _of(ranks: Sequence[int]) -> str:
    return f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
