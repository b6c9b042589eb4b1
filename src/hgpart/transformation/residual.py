"""A cell -> what it adds to its input, and what follows the addition, as torch.fx graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")


class CellError(Exception):
    """A cell can't be changed as asked; says why."""


@dataclass(frozen=True)
class Residual:
    """A cell computes ``after(x + branch(x))``."""

    branch: nn.Module
    after: nn.Module


def adds_its_input(module: nn.Module) -> bool:
    """Whether a module's own code adds its input to what it computes of it.

    The modules that it calls are not looked into. Code that torch.fx can't trace does not count.

    >>> class Skip(nn.Module):
    ...     def __init__(self, inner):
    ...         super().__init__()
    ...         self.inner = inner
    ...
    ...     def forward(self, x):
    ...         return torch.relu(self.inner(x) + x)
    >>> adds_its_input(Skip(nn.Conv2d(4, 4, 1))), adds_its_input(nn.Conv2d(4, 4, 1))
    (True, False)
    """
    if not any(True for _ in module.children()):
        return False
    try:
        _addition(module, _traced(module))
    except CellError:
        return False
    return True


def residual(cell: nn.Module) -> Residual:
    """Take a cell apart at the addition of its input.

    Raises
    ------
    CellError
        If what follows the addition has parameters, or the cell computes in another way in
        training than in evaluation.
    """
    graph = _traced(cell)
    training = cell.training
    try:
        other = _traced(cell.train(not training))
    finally:
        cell.train(training)
    if other.python_code("self").src != graph.python_code("self").src:
        raise CellError("its own code does one thing in training and another in evaluation")
    total, branch = _addition(cell, graph)
    after = _copied(graph, graph.find_nodes(op="output")[0].args[0], total)
    made = fx.GraphModule(cell, after, "After")
    if any(True for _ in made.parameters()):
        raise CellError("what follows the addition has parameters")
    x = next(node for node in graph.nodes if node.op == "placeholder")
    return Residual(fx.GraphModule(cell, _copied(graph, branch, x), "Branch"), made)


class _OwnCode(fx.Tracer):
    """Traces a module's own code: what it calls are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(module: nn.Module) -> fx.Graph:
    try:
        return _OwnCode().trace(module)
    except Exception as error:
        why = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        raise CellError(f"torch.fx can't trace its code: {why}") from error


def _addition(module: nn.Module, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """The node that adds the input, and the operand that it is added to.

    Between the addition and the result stands nothing but functions of one map.
    """
    x = next((node for node in graph.nodes if node.op == "placeholder"), None)
    node: Any = graph.find_nodes(op="output")[0].args[0]
    while isinstance(node, fx.Node) and node is not x:
        if node.target in ADDITIONS and len(node.args) == 2 and not node.kwargs:
            passed = [_passed_on(operand, module) for operand in node.args]
            if x in passed and passed[0] is not passed[1]:
                other = node.args[1 - passed.index(x)]
                if isinstance(other, fx.Node):
                    return node, other
        if len(node.all_input_nodes) != 1:
            break
        (node,) = node.all_input_nodes
    raise CellError("it does not add its input to what it computes of it")


def _passed_on(operand: Any, module: nn.Module) -> Any:
    """What an operand is but for modules that hand on what they get, as a shortcut may be."""
    while (
        isinstance(operand, fx.Node)
        and operand.op == "call_module"
        and isinstance(module.get_submodule(str(operand.target)), nn.Identity)
    ):
        operand = operand.args[0]
    return operand


def _copied(graph: fx.Graph, result: Any, entry: fx.Node) -> fx.Graph:
    """The part of a graph that makes a result of an entry."""
    made = fx.Graph()
    copies = {entry: made.placeholder("x")}
    needed = _needed(result, entry)
    for node in graph.nodes:
        if node in needed:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(copies[result])
    return made


def _needed(result: fx.Node, entry: fx.Node) -> Iterable[fx.Node]:
    """What a result is made of, but for the entry."""
    found: dict[fx.Node, None] = {}
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node is not entry and node not in found:
            if node.op == "placeholder":
                raise CellError("it reads more than one map")
            found[node] = None
            waiting.extend(node.all_input_nodes)
    return found
