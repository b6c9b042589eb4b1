"""An exported program -> the same one, in which no operator changes a tensor in place.

torch's own `run_decompositions` traces a program once more for this, which takes twice as long as
to export it. Most programs have little to replace; it remains for those that write into views.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hgpart.operators.table import (
    BATCH_NORM,
    RECURRENT,
    RETURNED_BY,
    RETURNING_NORM,
    TRACED_AS,
    WRITES_UNSAID,
    WRITING_NORM,
    ZEROS,
)
from hgpart.tracing.programs.stand_ins import storage_of

Call = tuple[Any, Any, Any]  # operator, arguments by place, arguments by name

_KEPT_OF_META = "nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack"
_SIZES_COMPUTED_BY = "_operator", "math", "torch.fx.experimental.sym_node"
_STATISTICS = 3, 4  # places of what a norm writes, and of the results of one that returns it


class _NotSimpleError(Exception):
    """Only torch can make a program functional; says what is in the way."""


def made_functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program whose operators only return results, and that returns new values of buffers first.

    Some operators stand for others (`TRACED_AS`): they are recorded as they compute. What they call
    as ``torch.ops.aten.NAME.OVERLOAD`` stays whole. The program given may be changed.
    """
    try:
        graph, buffers = _without_writing(_expanded(program.graph), program)
    except _NotSimpleError:
        decomposed: torch.export.ExportedProgram = program.run_decompositions(dict(TRACED_AS))
        return decomposed
    (output,) = graph.find_nodes(op="output")
    returned = (*buffers.values(), *output.args[0])
    output.args = (returned,)
    specs = program.graph_signature.output_specs
    specs[:0] = [
        OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(name=value.name), target)
        for target, value in buffers.items()
    ]
    for spec, value in zip(specs, returned, strict=True):
        if isinstance(value, fx.Node):
            spec.arg.name = value.name
    graph.eliminate_dead_code()
    program.graph_module.graph = graph
    program.graph_module.recompile()
    return program


# ------------------------------------------------------------------ operators made of others


def _expanded(exported: fx.Graph) -> fx.Graph:
    """The same graph with other operators in the place of those that are made of them.

    A composite operator stays whole only if its schema says that it returns tensors of its own.
    """
    graph = fx.Graph()
    sizes = _Sizes(graph)
    made: dict[fx.Node, Any] = {}  # a node, or nodes in a list or tuple
    moved: set[fx.Node] = set()  # new nodes whose values lie in memory otherwise than exported

    def now(argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda node: made[node])

    for node in exported.nodes:
        if node.op in ("placeholder", "output"):
            made[node] = _same(graph, node, lambda old: made[old])
        elif node.op != "call_function":
            raise _NotSimpleError(node.op)
        elif node.target is operator.getitem and not isinstance(made[node.args[0]], fx.Node):
            made[node] = made[node.args[0]][node.args[1]]
            continue
        else:
            _check_target(node.target)
            call = node.target, now(node.args), now(node.kwargs)
            is_moved = not moved.isdisjoint(_nodes_in(call))
            made[node] = NotImplemented
            if node.target is BATCH_NORM and node.args[5] and None not in node.args[3:5]:
                value = _value_of(call) if is_moved else node.meta["val"]
                made[node] = _norm(graph, call[1], node.meta, value)
            elif node.target in TRACED_AS or _is_made_of_others(node.target):
                begun = node.target, now(_begun_by_none(node)), call[2]
                made[node] = _Recorder(graph, node.meta, sizes).record(begun)
            if made[node] is NotImplemented:
                value = _value_of(call) if is_moved else None
                made[node] = added(graph, call, node.meta, value)
            moved.update(_lying_otherwise(made[node], node.meta.get("val")))
        sizes.note(made[node])
    return graph


def _begun_by_none(node: fx.Node) -> Any:
    """Arguments of a call, None in the place of zeros that the units of a recurrent layer begin as.

    If the weight of the units multiplies nothing but zeros, they stay: it has a gradient, of zeros.
    """
    if not _begins_by_zeros(node):
        return node.args
    inputs: Any
    inputs, states, *others = node.args
    place = RECURRENT[node.target]
    if place is None:
        steps = inputs.meta["val"].shape[1 if node.args[-1] else 0]
        goes_on = isinstance(steps, int) and steps > 1
    else:
        (weight,) = _nodes_in(node.args[place])
        goes_on = not all(map(_begins_by_zeros, weight.users))
    if not goes_on:
        return node.args
    none = None if isinstance(states, fx.Node) else [None for _ in _nodes_in(states)]
    return (inputs, none, *others)


def _begins_by_zeros(node: fx.Node) -> bool:
    """Whether a node is a recurrent layer or cell whose first states are all zeros."""
    is_given = node.target in RECURRENT and len(node.args) > 1
    return is_given and all(state.target in ZEROS for state in _nodes_in(node.args[1]))


def _same(graph: fx.Graph, node: fx.Node, now: Callable[[fx.Node], Any]) -> fx.Node:
    """An input or the output in a new graph, with its name: signatures tell inputs by it."""
    copied = graph.node_copy(node, now)
    copied.name = node.name
    return copied


def _nodes_in(arguments: Any) -> Iterator[fx.Node]:
    return (leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, fx.Node))


def _lying_otherwise(made: Any, exported: Any) -> Iterator[fx.Node]:
    """The new nodes whose values have other strides than those that were exported.

    Operators behind them may return values with other strides, too, of which there may be no view.
    """
    if isinstance(made, fx.Node):
        new, old = (
            [_type_of(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
            for value in (made.meta.get("val"), exported)
        )
        if new != old:
            yield made
        return
    for node, value in zip(made, exported, strict=True):
        yield from _lying_otherwise(node, value)


def _value_of(call: Call) -> Any:
    """The value that a call makes of those of its arguments; nothing is written."""
    target, args, kwargs = fx.node.map_arg(call, lambda node: node.meta["val"])
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        return args[0]
    with torch.no_grad(), enable_python_dispatcher(), _no_new_symbols(call):
        return target(*args, **kwargs)


@contextmanager
def _no_new_symbols(call: Call) -> Iterator[None]:
    """Leave a call to torch if it fails here, or needs the values of tensors as numbers."""
    values = [node.meta["val"] for node in _nodes_in(call)]
    modes = [value.fake_mode for value in values if isinstance(value, FakeTensor)]
    shape_env = modes[0].shape_env if modes else None
    try:
        with shape_env.ignore_fresh_unbacked_symbols() if shape_env else nullcontext():
            yield
    except Exception as error:
        raise _NotSimpleError(call[0]) from error


def _norm(graph: fx.Graph, args: Any, meta: Mapping[str, Any], value: Any) -> fx.Node:
    """A batch norm that writes new statistics, by the operator for which there is another.

    torch would compute the shapes of all that it is made of, which takes longest of all operators.
    """
    statistics = [argument.meta["val"] for argument in args[3:5]]
    norm = added(graph, (WRITING_NORM, args[:8], {}), meta, (value, *statistics))
    return added(graph, (operator.getitem, (norm, 0), {}), meta, value)


def _check_target(target: Any) -> None:
    if (
        not isinstance(target, OpOverload)
        and target is not operator.getitem
        and getattr(target, "__module__", "") not in _SIZES_COMPUTED_BY
    ):
        raise _NotSimpleError(target)


def _is_made_of_others(target: Any) -> bool:
    return (
        isinstance(target, OpOverload)
        and target._can_decompose()
        and (
            torch.Tag.maybe_aliasing_or_mutating in target.tags
            or any(argument.alias_info is not None for argument in target._schema.arguments)
        )
    )


def added(graph: fx.Graph, call: Call, meta: Mapping[str, Any], value: Any = None) -> fx.Node:
    """A new node of a graph, named after its operator; like another but for its value."""
    target, args, kwargs = call
    packet: Any = getattr(target, "overloadpacket", target)
    name = packet.__name__.rpartition(".")[2]
    node = graph.create_node("call_function", target, args, kwargs, name)
    if value is None:
        node.meta.update(meta)
    else:
        node.meta.update({key: meta[key] for key in _KEPT_OF_META if key in meta}, val=value)
    return node


class _Sizes:
    """Sizes that depend on the batch -> nodes that compute them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[Any, fx.Node] = {}
        self._places: dict[Any, tuple[fx.Node, int]] = {}  # dimensions of the program's inputs

    def note(self, node: Any) -> None:
        """Remember the size that a node computes, or those of an input."""
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(value, torch.SymInt):
            self._nodes.setdefault(value.node.expr, node)
        elif isinstance(value, torch.Tensor) and node.op == "placeholder":
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    self._places.setdefault(size.node.expr, (node, dim))

    def node_of(self, size: torch.SymInt, meta: Mapping[str, Any]) -> fx.Node | int:
        """The node that computes a size, or the number that it is; a new one is like `meta`."""
        wanted = size.node.expr
        factor, rest = wanted.as_coeff_Mul()
        if wanted.is_number:
            return int(wanted)
        if wanted in self._places and wanted not in self._nodes:
            size_of = torch.ops.aten.sym_size.int
            call: Call = (size_of, self._places[wanted], {})
            self._nodes[wanted] = added(self._graph, call, meta, size)
        if wanted not in self._nodes and factor != 1 and rest in {*self._nodes, *self._places}:
            base = self.node_of(size.node.shape_env.create_symintnode(rest, hint=None), meta)
            call = (operator.mul, (base, int(factor)), {})
            self._nodes[wanted] = added(self._graph, call, meta, size)
        if wanted not in self._nodes:
            raise _NotSimpleError(wanted)
        return self._nodes[wanted]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds what is called to a graph."""

    def __init__(self, graph: fx.Graph, meta: Mapping[str, Any], sizes: _Sizes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._meta, self._sizes = graph, meta, sizes
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []  # else another one could have the same id
        self.is_paused = False

    def record(self, call: Call) -> Any:
        """Add what a call computes; its result is a node, nodes in a list, or NotImplemented."""

        def value_of(node: fx.Node) -> Any:
            if isinstance(node.meta["val"], torch.Tensor):
                self._note(node.meta["val"], node)
            return node.meta["val"]

        target, args, kwargs = fx.node.map_arg(call, value_of)
        modes = [tensor.fake_mode for tensor in self._alive if isinstance(tensor, FakeTensor)]
        if not modes:
            raise _NotSimpleError(target)
        computes = TRACED_AS.get(target, target)
        with (
            torch.no_grad(),
            enable_python_dispatcher(),
            _no_new_symbols(call),
            modes[0],
            self,
            _WholeCalls(self),
        ):
            result = computes(*args, **kwargs)
        if result is NotImplemented:
            return result
        return pytree.tree_map(self._node_of, result)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.is_paused:
            self.add(func, args, kwargs or {}, result)
        return result

    def add(self, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add a call that makes tensors."""
        if not any(isinstance(part, torch.Tensor) for part in pytree.tree_leaves(result)):
            return  # such as a device, or a size
        call = target, *pytree.tree_map(self._node_of, (args, kwargs))
        node = added(self._graph, call, self._meta, result)
        if isinstance(result, torch.Tensor):
            self._note(result, node)
            return
        for place, tensor in enumerate(result):
            if isinstance(tensor, torch.Tensor):
                taken: Call = (operator.getitem, (node, place), {})
                self._note(tensor, added(self._graph, taken, self._meta, tensor))

    def _note(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._alive.append(tensor)
        self._nodes[id(tensor)] = node

    def _node_of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._nodes:
                raise _NotSimpleError(value)
            return self._nodes[id(value)]
        if isinstance(value, torch.SymFloat | torch.SymBool):
            raise _NotSimpleError(value)
        is_size = isinstance(value, torch.SymInt)
        return self._sizes.node_of(value, self._meta) if is_size else value


class _WholeCalls(TorchFunctionMode):
    """Has composite operators recorded whole that a replacement calls by their overloads."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        is_composite = isinstance(func, OpOverload) and func._can_decompose()
        if not is_composite or _is_made_of_others(func):
            return func(*args, **(kwargs or {}))
        self._recorder.is_paused = True
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self._recorder.is_paused = False
        self._recorder.add(func, args, kwargs or {}, result)
        return result


# ------------------------------------------------------------------ operators that write


def _without_writing(
    expanded: fx.Graph, program: torch.export.ExportedProgram
) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """The same graph without operators that write, and the new values of buffers by their names."""
    inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph = fx.Graph()
    memory = _SharedMemory(expanded)
    now: dict[fx.Node, fx.Node] = {}  # the value of each tensor, as written last
    written: set[fx.Node] = set()

    def write(argument: Any, writer: fx.Node, call: Call) -> None:
        tensor = memory.tensor(argument)
        memory.check_alone(tensor, writer)
        if tensor.op == "placeholder" and inputs[tensor.name].kind != InputKind.BUFFER:
            raise _NotSimpleError(tensor)
        value = tensor.meta["val"]
        if call[0] is not operator.getitem and not _is_like_its_tensor(call):
            value = _value_of(call)
        if _type_of(value) != _type_of(tensor.meta["val"]):
            raise _NotSimpleError(writer)
        now[tensor] = added(graph, call, writer.meta, value)
        if not _shares(call[0]):
            written.add(tensor)

    for node in expanded.nodes:
        if node.op != "call_function":
            now[node] = _same(graph, node, lambda old: now[memory.tensor(old)])
            continue
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda old: now[memory.tensor(old)]
        )
        if node.target is WRITING_NORM:
            values = *node.meta["val"], *(argument.meta["val"] for argument in args[3:5])
            now[node] = added(graph, (RETURNING_NORM, args, kwargs), node.meta, values)
            for result in node.users:
                taken: Call = (operator.getitem, (now[node], result.args[1]), {})
                now[result] = added(graph, taken, result.meta)
            for place in _STATISTICS:
                write(node.args[place], node, (operator.getitem, (now[node], place), {}))
        elif _writes(node.target):
            write(node.args[0], node, _returning(node.target, args, kwargs))
        elif node not in now:
            now[node] = added(graph, (node.target, args, kwargs), node.meta)
    placeholders = {node.name: node for node in written if node.op == "placeholder"}
    _check_apart(placeholders.keys(), program)
    return graph, {
        str(spec.target): now[placeholders[name]]
        for name, spec in inputs.items()
        if name in placeholders
    }


def _check_apart(written: Set[str], program: torch.export.ExportedProgram) -> None:
    """Raise a _NotSimpleError if an input that is written shares memory with another one.

    A module that has two names is read under one of them.
    """
    tensors = {**program.state_dict, **program.constants}
    names: dict[int, list[str]] = defaultdict(list)
    used = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    for spec in program.graph_signature.input_specs:
        if spec.arg.name not in used:
            continue
        if isinstance(tensor := tensors.get(spec.target or ""), torch.Tensor):
            names[storage_of(tensor)].append(spec.arg.name)
    for sharing in names.values():
        if len(sharing) > 1 and not written.isdisjoint(sharing):
            raise _NotSimpleError(sharing)


def _writes(target: Any) -> bool:
    if target in WRITES_UNSAID:
        raise _NotSimpleError(target)
    return isinstance(target, OpOverload) and target._schema.is_mutable


def _returning(target: OpOverload, args: Any, kwargs: Any) -> Call:
    """The call that returns what another one writes into its first argument."""
    arguments = target._schema.arguments
    if target in RETURNED_BY:  # which may have no defaults
        defaults = [argument.default_value for argument in arguments if not argument.kwarg_only]
        return RETURNED_BY[target], (*args, *defaults[len(args) :]), kwargs
    name = target.overloadpacket.__name__
    packet = getattr(getattr(torch.ops, target.namespace), name[:-1], None)
    returning = getattr(packet, target._overloadname, None)
    if not name.endswith("_") or not isinstance(returning, OpOverload):
        raise _NotSimpleError(target)
    schema = returning._schema
    if (
        [argument.name for argument in schema.arguments] != [given.name for given in arguments]
        or [argument.alias_info is None for argument in arguments].index(False) != 0
        or any(argument.alias_info is not None for argument in (*arguments[1:], *schema.returns))
    ):
        raise _NotSimpleError(target)
    return returning, args, kwargs


def _is_like_its_tensor(call: Call) -> bool:
    """Whether an operator that could write its result into its only tensor returns one like it.

    For torch it takes a fifth of the time of tracing to compute that.
    """
    target = call[0]
    tensors = [*_nodes_in(call)]
    if len(tensors) > 1 or torch.Tag.pointwise not in getattr(target, "tags", ()):
        return False
    value = tensors[0].meta["val"]
    return bool(value.is_floating_point() and value.is_contiguous())


def _shares(target: Any) -> bool:
    """Whether results may share memory with arguments."""
    return isinstance(target, OpOverload) and any(
        result.alias_info is not None for result in target._schema.returns
    )


def _type_of(value: torch.Tensor) -> tuple[Any, ...]:
    """Type, sizes and strides; as texts, which asks nothing of the batch."""
    strides = value.stride() if value.layout is torch.strided else ()
    return value.dtype, [*map(str, value.shape)], [*map(str, strides)]


class _SharedMemory:
    """Says which values of a graph are one tensor, or share memory."""

    def __init__(self, graph: fx.Graph) -> None:
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._tensors: dict[fx.Node, fx.Node] = {}  # what a writer returns is what it writes into
        self._names: dict[fx.Node, list[fx.Node]] = {}
        self._sharers: dict[fx.Node, set[fx.Node]] = {}
        for node in graph.nodes:
            if _writes(node.target) and node.target is not WRITING_NORM:
                if not isinstance(node.args[0], fx.Node):  # several tensors
                    raise _NotSimpleError(node.target)
                self._tensors[node] = self.tensor(node.all_input_nodes[0])
                self._names[self._tensors[node]].append(node)
                continue
            self._names[node] = [node]
            sharers = {node}.union(*(self._sharers[other] for other in self._shared(node)))
            for sharer in sharers:
                self._sharers[sharer] = sharers

    def _shared(self, node: fx.Node) -> Iterator[fx.Node]:
        """The tensors with which a value may share memory."""
        tensors = [
            self.tensor(value)
            for value in node.all_input_nodes
            if not isinstance(value.meta["val"], torch.SymInt)
        ]
        if node.target is operator.getitem:
            yield from (shared for shared in tensors if len(self._sharers[shared]) > 1)
        elif _shares(node.target):
            yield from tensors

    def tensor(self, node: fx.Node) -> fx.Node:
        """The first value that is the same tensor."""
        return self._tensors.get(node, node)

    def check_alone(self, tensor: fx.Node, writer: fx.Node) -> None:
        """Raise a _NotSimpleError if anything reads what is written under another name."""
        written = self._places[writer]
        for other in self._sharers[tensor] - {tensor}:
            readers = (user for name in self._names[other] for user in name.users)
            is_read = any(self._places[reader] > written for reader in readers)
            if other.op == "placeholder" or (is_read and self._places[other] < written):
                raise _NotSimpleError(writer)
