"""What the nodes of a traced graph say: shapes, tensors, operators, multiply-accumulates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from hgpart.errors import TraceError
from hgpart.operators.calls import argument, only_updated, place_of
from hgpart.operators.effects import Call
from hgpart.operators.table import macs_of, operator_of
from hgpart.tracing.autograd_functions import operator_name
from hgpart.tracing.batches import size_said

COUNTER = "num_batches_tracked"
CUMULATIVE = -1.0  # stands for a momentum of 1 / the number of batches so far


def averages_batches(node: fx.Node) -> bool:
    """Whether a norm's running statistics are the mean of all batches (``momentum=None``)."""
    is_training = operator_of(node).is_batch_norm and bool(argument(node, "training"))
    return is_training and argument(node, "momentum") == CUMULATIVE


def concrete(shape: Sequence[Any]) -> tuple[int, ...]:
    """A shape with the traced example's batch size in place of symbols."""
    return tuple(
        size
        if isinstance(size, int)
        else int(size.node.hint if size.node.has_hint() else size.node.expr)
        for size in shape
    )


def described(node: fx.Node, reference: Callable[[fx.Node], str] = lambda node: "_") -> str:
    """A call as text: its operator, its numbers, and for each tensor the name by `reference`.

    The text names no device; the batch size is the word "batch".
    """

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return reference(value) if holds_tensors(value) else text(value.meta.get("val"))
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text, value))}]"
        return size_said(value)

    operands = [text(value) for value in node.args]
    operands += [
        f"{name}={text(value)}"
        for name, value in node.kwargs.items()
        if name not in ("device", "pin_memory")
    ]
    target = node.target
    is_operator = isinstance(target, torch._ops.OpOverload)
    name = operator_name(target) if is_operator else getattr(target, "__name__", str(target))
    return f"{name}({', '.join(operands)})"


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of an operator's (first) result."""
    if not holds_tensors(node):
        raise TraceError(f"{place_of(node)}: it makes a number from data: accepted are tensors")
    shape = first_tensor(node.meta["val"]).shape
    if not all(isinstance(size, int) or _is_known(size.node) for size in shape):
        raise TraceError(
            f"{place_of(node)}: its shape depends on the data: accepted are shapes that depend on "
            "the batch size alone"
        )
    return concrete(shape)


def _is_known(size: Any) -> bool:
    return bool(size.has_hint() or size.expr.is_number)


def first_tensor(value: Any) -> torch.Tensor:
    """The first tensor among the results of an operator."""
    return next(iter(all_tensors(value)))


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, real or fake."""
    return isinstance(value, torch.Tensor)


def holds_tensors(node: fx.Node) -> bool:
    """Whether the value of a node is tensors, not a size."""
    return node.op == "get_attr" or isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))


def elements_of(node: fx.Node) -> int:
    """Number of elements of a node's tensor."""
    return math.prod(concrete(node.meta["val"].shape))


def results_read(node: fx.Node, results: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """The tensors of an operator that are read, or that are among the model's `results`.

    New batch-norm statistics are left out: the graph's output node returns them, and another call
    of the norm replaces them.
    """

    def is_read(result: fx.Node) -> bool:
        return is_tensor(result.meta["val"]) and any(
            reader.op != "output" and result not in only_updated(reader) for reader in result.users
        )

    if is_tensor(node.meta["val"]):
        return (node,)
    return tuple(user for user in node.users if user in results or is_read(user))


def all_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among the results of an operator."""
    parts = [value] if isinstance(value, torch.Tensor) else value
    return [part for part in parts if is_tensor(part)]


def live_nodes(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that results depend on."""
    live: set[fx.Node] = set()
    waiting = list(results)
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            unread = only_updated(node)
            waiting.extend(operand for operand in node.all_input_nodes if operand not in unread)
    return live


def computed_nodes(graph: fx.Graph, results: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that a pass computes: for results, and for running statistics.

    A norm updates its statistics even if nothing reads its result.
    """
    norms = (node for node in graph.nodes if any(True for _ in updated_buffers(node)))
    return live_nodes([*results, *map(first_result, norms)])


def first_result(node: fx.Node) -> fx.Node:
    """The node of a norm's result: the norm itself, or a node beside its statistics."""
    if is_tensor(node.meta["val"]):
        return node
    return next(user for user in node.users if user.args[1] == 0)


def updated_buffers(node: fx.Node) -> Iterable[fx.Node]:
    """Buffers of running statistics that a norm updates, even after another call of the norm."""
    for statistic in only_updated(node):
        if statistic.op == "placeholder":
            yield statistic
        elif statistic.target is operator.getitem:  # the new value that the other call made
            yield from updated_buffers(statistic.all_input_nodes[0])


def is_norms_statistic(node: fx.Node) -> bool:
    """Whether a node is a running statistic that a norm has updated."""
    return node.target is operator.getitem and bool(operator_of(node.all_input_nodes[0]).updates)


def _is_counted(target: Any) -> bool:
    """Whether torch may have a formula for an operator, or for those that it is made of."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return (
        not isinstance(target, torch._ops.OpOverload)
        or target.overloadpacket in flop_registry
        or target.has_kernel_for_dispatch_key(key)
    )


def multiply_accumulates(call: Call) -> int:
    """Multiply-accumulates of a call: by the operator table, else as torch counts them."""
    node, known = call.node, macs_of(call)
    if known is not None or not _is_counted(node.target):
        return known or 0

    def meta(value: Any) -> Any:
        example = value.meta["val"] if isinstance(value, fx.Node) else value
        if isinstance(example, torch.Tensor):
            return torch.empty(concrete(example.shape), dtype=example.dtype, device="meta")
        return example if not isinstance(example, torch.SymInt) else concrete((example,))[0]

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), meta)
    counter = FlopCounterMode(display=False)
    try:
        with counter:
            node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:
        return 0  # an operator that can't run on shapes alone has no formula either
    return int(counter.get_total_flops()) // 2
