"""autograd.Function -> an operator of the traced graph that keeps the Function's own backward.

torch.export looks into a Function's forward and loses its backward. While a model is exported
inside `functions_kept`, applying a Function calls an operator made for it instead, into which
export does not look: a sign with a straight-through gradient has this gradient in every part. The
operator is pointwise if everything that the Function's forward and backward call is. If only its
numbers depend on sizes, such as those of a filter, places along its first dimension are apart.
Otherwise no channel rule knows it. This needs a Function that works on tensors and plain values
alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from hgpart.operators import channelwise
from hgpart.operators.calls import has_gradients
from hgpart.operators.table import Operator, describe, record_of
from hgpart.tracing.code.followed_constants import PLAIN, FollowedConstants
from hgpart.tracing.code.model_lines import running_line

_BASE: Any = torch.autograd.Function.__base__  # every `apply` ends in this class's
_WeakStorage: Any = StorageWeakRef  # has no types


@contextmanager
def functions_kept(model: nn.Module, lost: Callable[[str], None]) -> Iterator[None]:
    """Export Functions as operators with a backward; `lost` is told whose gradients are lost.

    Gradients are lost for Functions that are exported as what their forward calls, hooks on
    tensors, gradients taken in the forward pass, and checkpoints that would update buffers twice.
    """

    def apply(function: Any, *args: Any) -> Any:
        plain: Any = super(_BASE, function).apply
        if get_proxy_mode() is None or function is nn.modules._functions.BackwardHookFunction:
            return plain(*args)  # nothing is recorded, or a module's hook, which export sees
        if function is checkpoint.CheckpointFunction:
            return _recomputed(model, lost, *args)
        if not any(_is_differentiable(arg) for arg in args):
            with torch.no_grad():  # as in every Function: tensors found elsewhere get no gradient
                return plain(*args)
        try:
            operator, operands = _operator(function, args)
        except _NotKeptError as reason:
            lost(f"{function.__qualname__}, an autograd.Function that {reason}")
            return plain(*args)
        return operator(*operands)

    def telling(what: str, called: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if get_proxy_mode() is not None:
                lost(what)
            return called(*args, **kwargs)

        return call

    with ExitStack() as patches:
        new = classmethod(apply)
        patches.enter_context(mock.patch.object(_BASE, "apply", new, create=True))
        for owner, name, what in _LOSING:
            new_call = telling(what, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, new_call))
        patches.enter_context(_checkpoints_watched(model, lost))
        yield


_LOSING: tuple[tuple[Any, str, str], ...] = (
    (Tensor, "register_hook", "a hook on a tensor"),
    (Tensor, "detach_", "Tensor.detach_, which no trace keeps"),
    (torch.autograd, "_engine_run_backward", "torch.autograd.grad"),
    (torch.inference_mode, "__enter__", "torch.inference_mode"),
)


# ------------------------------------------------------------------ checkpoints


def _recomputed(
    model: nn.Module, lost: Callable[[str], None], run: Any, _: bool, *args: Any
) -> Any:
    """Run the function of a reentrant checkpoint, as if gradients go through it."""
    if not any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        lost("a reentrant checkpoint whose inputs need no gradient")
    with _buffers_watched(model, lost):
        return run(*args)


@contextmanager
def _checkpoints_watched(model: nn.Module, lost: Callable[[str], None]) -> Iterator[None]:
    """Tell of non-reentrant checkpoints that change buffers."""
    entered: list[Any] = []
    hook: Any = checkpoint._checkpoint_hook
    enter, leave = hook.__enter__, hook.__exit__

    def begin(self: Any) -> Any:
        entered.append(_buffers_watched(model, lost))
        entered[-1].__enter__()
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        entered.pop().__exit__(None, None, None)
        return leave(self, *error)

    with mock.patch.object(hook, "__enter__", begin), mock.patch.object(hook, "__exit__", end):
        yield


@contextmanager
def _buffers_watched(model: nn.Module, lost: Callable[[str], None]) -> Iterator[None]:
    """Tell of a change of buffers, which a checkpoint repeats in the backward pass."""
    before = [buffer._version for buffer in model.buffers()]
    yield
    if before != [buffer._version for buffer in model.buffers()]:
        lost(
            "a checkpoint that updates running statistics again in its backward pass: leave it to "
            "schedule(recompute=True), which updates them once"
        )


# ------------------------------------------------------------------ operators


@dataclass(frozen=True)
class _Application:
    """A Function with its arguments; operands (tensors and symbolic sizes) are left out.

    Attributes
    ----------
    arguments : tuple
        None for each operand, in order; any other argument in a tuple of one.
    """

    function: Any
    arguments: tuple[tuple[Any] | None, ...]

    def __call__(self, *operands: Any) -> Any:
        """Apply it; its own backward is recorded in grad mode."""
        remaining = iter(operands)
        args = (next(remaining) if argument is None else argument[0] for argument in self.arguments)
        return super(_BASE, self.function).apply(*args)  # type: ignore[misc]


@dataclass(frozen=True)
class _Signature:
    """What watching an application tells about it.

    Attributes
    ----------
    differentiable : tuple of bool
        For each result, whether gradients go through it.
    called : tuple of str
        Operators that its forward and backward call, with the numbers in their arguments.
    of_first : bool
        Whether places along the first dimension do not depend on each other.
    """

    schema: str
    differentiable: tuple[bool, ...]
    tags: tuple[torch.Tag, ...]
    called: tuple[str, ...]
    of_first: bool


class _NotKeptError(Exception):
    """A Function can't be an operator; the message says why."""


_made: dict[tuple[Any, str, _Signature], Any] = {}
_names: dict[Any, str] = {}
_count = itertools.count()


def operator_name(target: Any) -> str:
    """Name of an operator; those made for Functions have the same name in all processes."""
    return _names.get(target, str(target))


def _operator(function: Any, args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The operator of an application, and its operands."""
    operands = [arg for arg in args if isinstance(arg, (Tensor, torch.SymInt))]
    arguments = tuple(None if isinstance(arg, (Tensor, torch.SymInt)) else (arg,) for arg in args)
    for leaf in pytree.tree_leaves(arguments):
        if not isinstance(leaf, PLAIN):
            raise _NotKeptError(f"takes a {type(leaf).__name__}")
    application = _Application(function, arguments)
    signature = _signature(application, operands)
    key = (function, repr(arguments), signature)
    if key not in _made:
        _made[key] = _make(application, signature)
        given = ", ".join("_" if argument is None else repr(argument[0]) for argument in arguments)
        called = ", ".join(signature.called)
        _names[_made[key]] = f"{function.__qualname__}({given}) of {called}"
    return _made[key], operands


def _make(application: _Application, signature: _Signature) -> Any:
    """An operator that runs a Function, and whose backward runs it again to go back through it."""

    def run(*operands: Any) -> Any:
        with torch.no_grad():
            return _own(application(*operands), operands)

    def run_without_data(*operands: Any) -> Any:
        with FollowedConstants(are_kept=False):
            return run(*operands)

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.sizes = tuple(None if isinstance(value, Tensor) else value for value in inputs)
        ctx.set_materialize_grads(False)
        results = zip(_in_tuple(output), signature.differentiable, strict=True)
        ctx.mark_non_differentiable(*(result for result, back in results if not back))

    def backward(ctx: Any, *gradients: Any) -> Any:
        # Grad mode here means that gradients of gradients are wanted: operands keep their history.
        twice = torch.is_grad_enabled()
        saved = iter(tensor if twice else tensor.detach() for tensor in ctx.saved_tensors)
        operands = [next(saved) if size is None else size for size in ctx.sizes]
        wanted = [
            operand.requires_grad_()
            for operand, needed in zip(operands, ctx.needs_input_grad, strict=True)
            if needed
        ]
        with torch.enable_grad():
            results = _in_tuple(application(*operands))
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        input_gradients: Iterator[Any] = iter([None] * len(wanted))
        if pairs and wanted:
            ends, upstream = zip(*pairs, strict=True)
            input_gradients = iter(
                torch.autograd.grad(ends, wanted, upstream, create_graph=twice, allow_unused=True)
            )
        return tuple(next(input_gradients) if needed else None for needed in ctx.needs_input_grad)

    name = re.sub(r"\W", "_", application.function.__name__)
    made: Any = torch.library.custom_op(
        f"autograd_function_{next(_count)}::{name}",
        run,
        mutates_args=(),
        schema=signature.schema,
        tags=signature.tags,
    )
    made.register_fake(run_without_data)
    made.register_autograd(backward, setup_context=keep)
    if signature.of_first:
        describe(made._opoverload, Operator(channelwise.of_first))
    return made._opoverload


def _in_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _own(results: Any, operands: Sequence[Any]) -> Any:
    """Results in memory of their own: an operator may not return its operands."""
    seen = {_storage(operand) for operand in operands if isinstance(operand, Tensor)}
    own = []
    for result in _in_tuple(results):
        own.append(result.clone() if _storage(result) in seen else result)
        seen.add(_storage(result))
    return tuple(own) if isinstance(results, tuple) else own[0]


def _storage(tensor: Tensor) -> Any:
    return _WeakStorage(tensor.untyped_storage())


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and has_gradients(value.dtype)


# ------------------------------------------------------------------ what a Function does


def _numbers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The plain numbers in a call's arguments; lists hold sizes, and are left out."""
    return [
        repr(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, (int, float, complex))
    ]


def _signature(application: _Application, operands: Sequence[Any]) -> _Signature:
    """Watch an application; raises a _NotKeptError if it can't be an operator."""
    watch, results = _watched(application, operands)
    if not all(isinstance(result, Tensor) for result in results):
        raise _NotKeptError("returns something other than tensors")
    if watch.foreign:
        raise _NotKeptError("reads tensors that are not its arguments")
    if watch.writes:
        raise _NotKeptError("changes its argument in place")
    if watch.drawn_backward is not None:
        at = f" at {watch.drawn_backward}" if watch.drawn_backward else ""
        raise _NotKeptError(f"draws random numbers in its backward pass{at}")
    tags = [torch.Tag.nondeterministic_seeded] if watch.random else []
    taken = [operand for operand in operands if isinstance(operand, Tensor)]
    pointwise = watch.pointwise and all(map(watch.is_full, results))
    pointwise &= all(watch.is_full(operand) or watch.is_once(operand) for operand in taken)
    of_first = pointwise and _is_same_of_other_sizes(application, operands, watch, dims=1)
    if of_first and _is_same_of_other_sizes(application, operands, watch):
        tags.append(torch.Tag.pointwise)
        of_first = False
    kinds = ("Tensor" if isinstance(operand, Tensor) else "SymInt" for operand in operands)
    given = ", ".join(f"{kind} operand_{at}" for at, kind in enumerate(kinds))
    made = ", ".join(["Tensor"] * len(results))
    return _Signature(
        schema=f"({given}) -> {made}" if len(results) == 1 else f"({given}) -> ({made})",
        differentiable=tuple(result.requires_grad for result in results),
        tags=tuple(tags),
        called=tuple(watch.called),
        of_first=of_first,
    )


def _watched(
    application: _Application, operands: Sequence[Any]
) -> tuple[_FunctionWatch, tuple[Any, ...]]:
    """Apply a Function to tensors without data, and go back through it; returns its results too."""
    with disable_proxy_modes_tracing(), torch.enable_grad():
        leaves = [
            operand.detach().requires_grad_(_is_differentiable(operand))
            if isinstance(operand, Tensor)
            else operand
            for operand in operands
        ]
        # Clones, because leaves can't be changed in place.
        given = [operand.clone() if isinstance(operand, Tensor) else operand for operand in leaves]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    watch = _FunctionWatch([leaf for leaf in given if isinstance(leaf, Tensor)])
    kept = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    constants = FollowedConstants(are_kept=False)
    with disable_proxy_modes_tracing(), torch.enable_grad(), kept, watch, constants:
        try:
            results = _in_tuple(application(*given))
            ends = [end for end in results if isinstance(end, Tensor) and end.requires_grad]
            if ends:
                watch.is_forward = False
                upstream = [watch.known(torch.empty_like(result)) for result in ends]
                torch.autograd.grad(ends, wanted, upstream, allow_unused=True)
        except Exception as error:
            lines = (str(error).splitlines() or [""])[0]
            raise _NotKeptError(f"fails without data ({lines or type(error).__name__})") from error
    return watch, results


def _is_same_of_other_sizes(
    application: _Application,
    operands: Sequence[Any],
    watch: _FunctionWatch,
    dims: int | None = None,
) -> bool:
    """Whether a Function calls the same operators when a part holds only some of the channels.

    Channels may lie along any dimension, or along the first `dims`.
    """
    for resized in (lambda size: 1, lambda size: size + 1):
        with disable_proxy_modes_tracing():
            resized_operands = [
                operand.new_empty(
                    [
                        *(
                            resized(size) if isinstance(size, int) else size
                            for size in operand.shape[:dims]
                        ),
                        *(() if dims is None else operand.shape[dims:]),
                    ]
                )
                if isinstance(operand, Tensor) and watch.is_full(operand)
                else operand
                for operand in operands
            ]
        try:
            resized_watch, _ = _watched(application, resized_operands)
        except _NotKeptError:
            return False
        if resized_watch.called != watch.called:
            return False
    return True


class _FunctionWatch(TorchDispatchMode):
    """Notes which operators are called, and on which tensors.

    Attributes
    ----------
    foreign : bool
        Whether a tensor was read that is neither an operand nor made from operands.
    writes : bool
        Whether an operand was changed.
    random : bool
        Whether random numbers were drawn in the forward pass.
    drawn_backward : str or None
        The line that drew random numbers in the backward pass; None if none did.
    pointwise : bool
        Whether each element depends only on those at its own place, and on values that a whole
        sample shares.
    called : list of str
        Names of the operators, with the numbers in their arguments.
    """

    def __init__(self, operands: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.foreign = self.writes = self.random = False
        self.drawn_backward: str | None = None
        self.is_forward = self.pointwise = True
        self.called: list[str] = []
        self._operands = {_storage(operand) for operand in operands}
        self._alive = list(operands)  # so that no storage is mistaken for another
        self._known = set(self._operands)
        self._shape = tuple(map(str, next(filter(_is_differentiable, operands)).shape))

    def known(self, tensor: Tensor) -> Tensor:
        """Treat a tensor as one that the Function is given."""
        self._alive.append(tensor)
        self._known.add(_storage(tensor))
        return tensor

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        taken = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        results = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]
        if not results:
            return made
        self.called.append(" ".join([str(func), *_numbers(args, kwargs)]))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.random |= self.is_forward
            if not self.is_forward and self.drawn_backward is None:
                self.drawn_backward = running_line()
        if not record_of(func).is_number:
            self.foreign |= not self._known.issuperset(map(_storage, taken))
        for value, declared in zip(args, func._schema.arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                self.writes |= _storage(value) in self._operands
        self.pointwise &= self._is_pointwise(func, taken, results)
        for result in results:
            self.known(result)
        return made

    def _is_pointwise(self, func: Any, taken: list[Tensor], results: list[Tensor]) -> bool:
        tensors = [*taken, *results]
        record = record_of(func)
        by_mask = record.is_put and all(tensor.dtype == torch.bool for tensor in taken[1:-1])
        known = torch.Tag.pointwise in func.tags or record.keeps_places
        if all(self._is_small(tensor) for tensor in tensors):
            moved = record.cut in ("reshape", "permutation", "detach") or (
                record.cut == "slice" and taken[0].shape == results[0].shape
            )
            return known or moved or not any(self._is_of_samples(tensor) for tensor in taken)
        if taken and not (known or by_mask):
            return False
        return all(self.is_full(tensor) or self.is_once(tensor) for tensor in tensors)

    def is_full(self, tensor: Tensor) -> bool:
        """Whether a tensor has the shape of the (first) operand."""
        return tuple(map(str, tensor.shape)) == self._shape

    def is_once(self, tensor: Tensor) -> bool:
        """Whether a tensor has one value for all elements of a sample."""
        first, rest = tensor.shape[:1], tensor.shape[1:]
        alike = all(str(size) == "1" for size in rest)
        per_sample = tensor.dim() == len(self._shape) and str(first[0]) == self._shape[0]
        return alike and (per_sample or all(str(size) == "1" for size in first))

    def _is_small(self, tensor: Tensor) -> bool:
        """Whether a tensor has one element, or one for each sample."""
        sizes = [str(size) for size in tensor.shape if str(size) != "1"]
        return not sizes or sizes == list(self._shape[:1])

    def _is_of_samples(self, tensor: Tensor) -> bool:
        """Whether a small tensor has one element for each sample."""
        return any(str(size) != "1" for size in tensor.shape)
