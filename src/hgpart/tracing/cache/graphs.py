"""torch.fx graph and what a trace knows of it <-> plain values, of which JSON is made.

Only what is listed here is written and read: ATen's operators and Python's own on sizes, shapes,
types, and numbers of the batch size. Reading calls nothing else.
"""

from __future__ import annotations

import base64
import math
import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions as torchs

from hgpart.tracing.cache.kept import NotKeptError

_NAMESPACES = ("aten", "prims", "torchvision", "hgpart")
_FUNCTIONS = {
    f"{function.__module__}.{function.__name__}": function
    for owner in (operator, math, torch)
    for name, function in vars(owner).items()
    if callable(function) and not isinstance(function, type)
    if owner is not torch or name.startswith("sym_")
}
_OF_SIZES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(
            kind
            for kind in vars(torchs).values()
            if isinstance(kind, type) and issubclass(kind, sympy.Basic)
        ),
        sympy.Add,
        sympy.Mul,
        sympy.Pow,
        sympy.Eq,
        sympy.Ne,
        sympy.Lt,
        sympy.Le,
        sympy.Gt,
        sympy.Ge,
        sympy.And,
        sympy.Or,
        sympy.Not,
    )
}
_TORCHS = (torch.dtype, torch.layout, torch.memory_format)
_META = ("nn_module_stack", "stack_trace")
_LARGEST = 2**24  # bytes of a constant


def plain(value: Any) -> Any:
    """A value in a trace as plain values.

    Raises
    ------
    NotKeptError
        If there is no such form of it.

    >>> plain((1, torch.float32, [math.inf]))
    {'tuple': [1, {'torch': 'float32'}, {'list': [{'float': 'inf'}]}]}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    match value:
        case float():
            return {"float": value.hex()}
        case complex():
            return {"complex": [value.real.hex(), value.imag.hex()]}
        case fx.Node():
            return {"node": value.name}
        case torch.device():
            return {"device": str(value)}
        case _ if isinstance(value, _TORCHS):
            return {"torch": str(value).removeprefix("torch.")}
        case slice():
            return {"slice": [plain(part) for part in (value.start, value.stop, value.step)]}
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return {
                type(value).__name__: plain_expression(value.node.expr),
                "hint": value.node.hint,
            }
        case Tensor():
            return {"tensor": [*map(plain, (tuple(value.shape), value.stride()))], **_kind(value)}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, list):
        return {"list": [plain(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    raise NotKeptError(f"its graph holds a {type(value).__name__}")


def plain_values(value: Any) -> Any:
    """A tensor, or tensors in tuples, with what they hold."""
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [plain_values(item) for item in value]}
    if not isinstance(value, Tensor):
        return plain(value)
    if value.is_meta:
        return {"values": None, "like": plain(value)}
    if not value.is_cpu or not value.is_contiguous() or value.nbytes > _LARGEST:
        raise NotKeptError("it holds a constant that is large or not on the CPU")
    return {"values": base64.b64encode(bytes_of(value)).decode(), "like": plain(value)}


def plain_graph(graph: fx.Graph) -> list[Any]:
    """The nodes of a graph, in order."""
    return [
        [
            node.op,
            node.name,
            _plain_target(node),
            plain(node.args),
            plain(node.kwargs),
            plain(node.meta.get("val")),
            *(_plain_meta(node.meta.get(name)) for name in _META),
        ]
        for node in graph.nodes
    ]


def plain_expression(expression: Any) -> Any:
    """An expression of sizes, or a condition on them."""
    if expression in (sympy.true, sympy.false, True, False):
        return bool(expression)
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Rational:
        return {"ratio": [int(expression.p), int(expression.q)]}
    if isinstance(expression, sympy.Symbol):
        if not (expression.is_integer and expression.is_positive):
            raise NotKeptError("sizes in its graph depend on data")
        return {"symbol": expression.name}
    name = type(expression).__name__
    if _OF_SIZES.get(name) is not type(expression):
        raise NotKeptError(f"sizes in its graph are computed by {name}")
    return {name: [plain_expression(argument) for argument in expression.args]}


class Reader:
    """Plain values -> the graph and the values in it.

    Attributes
    ----------
    nodes : dict
        The nodes of the graph by name.
    """

    def __init__(self, batch_size: int) -> None:
        self.nodes: dict[str, fx.Node] = {}
        self._batch_size = batch_size
        self._env = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self._symbols: dict[str, Any] = {}

    def graph(self, listed: list[Any]) -> fx.Graph:
        """The graph of `plain_graph`."""
        graph = fx.Graph()
        for op, name, target, args, kwargs, made, *meta in listed:
            node = graph.create_node(
                op, _target(op, target), self.value(args), self.value(kwargs), name
            )
            node.name = name  # torch.export gives names, too, that fx would change: "input"
            value = self.value(made)
            if value is not None:
                node.meta["val"] = value
            for key, text in zip(_META, meta, strict=True):
                if text is not None:
                    node.meta[key] = _meta(text)
            self.nodes[name] = node
        return graph

    def value(self, held: Any) -> Any:
        """The value of `plain`; tensors are without data."""
        if not isinstance(held, dict):
            return held
        (kind, inner), *others = held.items()
        match kind:
            case "float":
                return float.fromhex(inner)
            case "complex":
                return complex(*map(float.fromhex, inner))
            case "node":
                return self.nodes[inner]
            case "device":
                return torch.device(inner)
            case "torch":
                value = getattr(torch, inner)
                if not isinstance(value, _TORCHS):
                    raise ValueError(f"{inner} is no type")
                return value
            case "slice":
                return slice(*map(self.value, inner))
            case "tuple":
                return tuple(map(self.value, inner))
            case "list":
                return [*map(self.value, inner)]
            case "dict":
                return {self.value(key): self.value(item) for key, item in inner}
            case "tensor":
                return self._tensor(inner, **dict(others))
            case "SymInt":
                return self._env.create_symintnode(self.expression(inner), hint=others[0][1])
            case "SymFloat":
                return self._env.create_symfloatnode(self.expression(inner), hint=others[0][1])
            case "SymBool":
                return self._env.create_symboolnode(self.expression(inner))
        raise ValueError(f"{kind} is no kind of value")

    def values(self, held: Any) -> Any:
        """The value of `plain_values`."""
        kind = next(iter(held)) if isinstance(held, dict) else ""
        if kind in ("tuple", "list"):
            return {"tuple": tuple, "list": list}[kind](map(self.values, held[kind]))
        if kind != "values":
            return self.value(held)
        size, stride = map(self.value, held["like"]["tensor"])
        dtype = self.value(held["like"]["dtype"])
        if held["values"] is None:
            return torch.empty_strided(size, stride, dtype=dtype, device="meta")
        data = bytearray(base64.b64decode(held["values"]))
        if not data:
            return torch.empty(size, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(size)

    def expression(self, held: Any) -> Any:
        """An expression of sizes."""
        if isinstance(held, bool):
            return sympy.true if held else sympy.false
        if isinstance(held, int):
            return sympy.Integer(held)
        (kind, inner), *_ = held.items()
        if kind == "symbol":
            return self._symbol(inner)
        if kind == "ratio":
            return sympy.Rational(*inner)
        return _OF_SIZES[kind](*map(self.expression, inner))

    def _symbol(self, name: str) -> Any:
        from torch._dynamo.source import ConstantSource  # half a second, at first

        if name not in self._symbols:
            self._symbols[name] = self._env.create_symbol(
                self._batch_size, ConstantSource(f"batch size {name}"), DimDynamic.DYNAMIC
            )
        return self._symbols[name]

    def _tensor(self, inner: Any, dtype: Any, device: str, needs_grad: bool) -> Tensor:
        size, stride = map(self.value, inner)
        meta = torch.empty_strided(size, stride, dtype=self.value(dtype), device="meta")
        # Made by an operator, in the mode, it would be the same, but take ten times as long.
        return FakeTensor(self._mode, meta, torch.device(device)).requires_grad_(needs_grad)


def bytes_of(tensor: Tensor) -> bytes:
    """The values of a tensor."""
    data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return data.view(torch.uint8).numpy().tobytes()


def _kind(tensor: Tensor) -> dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotKeptError("its graph holds tensors that are sparse or quantised")
    return {
        "dtype": plain(tensor.dtype),
        "device": str(tensor.device),
        "needs_grad": tensor.requires_grad,
    }


def _plain_target(node: fx.Node) -> str:
    target = node.target
    if node.op in ("placeholder", "output"):
        return str(target)
    if node.op == "call_function":
        if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
            return str(target)
        name = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', '')}"
        if _FUNCTIONS.get(name) is target:
            return name
    raise NotKeptError(f"its graph calls {target}")


def _target(op: str, name: str) -> Any:
    if op in ("placeholder", "output"):
        return name
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, packet, overload = name.split(".")
    if namespace not in _NAMESPACES:
        raise ValueError(f"{name} is no operator")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _plain_meta(value: Any) -> Any:
    """A text, or the modules that a node is in: for each key its path and kind."""
    if not isinstance(value, Mapping):
        return value if value is None else str(value)
    return [[str(key), str(path), str(kind)] for key, (path, kind) in value.items()]


def _meta(held: Any) -> Any:
    return held if isinstance(held, str) else {key: (path, kind) for key, path, kind in held}
