"""A cell -> the branch that it adds to its input, and what follows, as torch.fx graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")


class CellError(Exception):
    """A cell can't be changed as asked; the message says why."""


@dataclass(frozen=True)
class Residual:
    """A cell that computes ``after(x + branch(x))``."""

    branch: nn.Module
    after: nn.Module


def adds_its_input(module: nn.Module) -> bool:
    """Whether a module's own code adds its input to what it computes from it.

    Modules that it calls are not looked into. Code that torch.fx can't trace does not count.

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
        If what follows the addition has parameters, or the cell computes differently in training
        and in evaluation.
    """
    graph = _traced(cell)
    training = cell.training
    try:
        in_other_mode = _traced(cell.train(not training))
    finally:
        cell.train(training)
    if in_other_mode.python_code("self").src != graph.python_code("self").src:
        raise CellError("its own code does one thing in training and another in evaluation")
    total, branch = _addition(cell, graph)
    after_graph = _copied(graph, graph.find_nodes(op="output")[0].args[0], total)
    after = fx.GraphModule(cell, after_graph, "After")
    if any(True for _ in after.parameters()):
        raise CellError("what follows the addition has parameters")
    x = next(node for node in graph.nodes if node.op == "placeholder")
    return Residual(fx.GraphModule(cell, _copied(graph, branch, x), "Branch"), after)


class _OwnCode(fx.Tracer):
    """Traces a module's own code: the modules that it calls are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(module: nn.Module) -> fx.Graph:
    try:
        return _OwnCode().trace(module)
    except Exception as error:
        why = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
        raise CellError(f"torch.fx can't trace its code: {why}") from error


def _addition(module: nn.Module, graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """The node that adds the input, and the operand that it adds it to.

    Only functions of one map stand between the addition and the result.
    """
    x = next((node for node in graph.nodes if node.op == "placeholder"), None)
    node: Any = graph.find_nodes(op="output")[0].args[0]
    while isinstance(node, fx.Node) and node is not x:
        if node.target in ADDITIONS and len(node.args) == 2 and not node.kwargs:
            passed = [_passed_on(operand, module) for operand in node.args]
            if x in passed and passed[0] is not passed[1]:
                branch = node.args[1 - passed.index(x)]
                if isinstance(branch, fx.Node):
                    return node, branch
        if len(node.all_input_nodes) != 1:
            break
        (node,) = node.all_input_nodes
    raise CellError("it does not add its input to what it computes from it")


def _passed_on(operand: Any, module: nn.Module) -> Any:
    """An operand as it was before modules that pass on their input, as a shortcut may be."""
    while (
        isinstance(operand, fx.Node)
        and operand.op == "call_module"
        and isinstance(module.get_submodule(str(operand.target)), nn.Identity)
    ):
        operand = operand.args[0]
    return operand


def _copied(graph: fx.Graph, result: Any, entry: fx.Node) -> fx.Graph:
    """The part of a graph that makes a result from an entry."""
    made = fx.Graph()
    copies = {entry: made.placeholder("x")}
    needed = _needed(result, entry)
    for node in graph.nodes:
        if node in needed:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(copies[result])
    return made


def _needed(result: fx.Node, entry: fx.Node) -> Iterable[fx.Node]:
    """The nodes that a result is made from, without the entry."""
    needed: dict[fx.Node, None] = {}
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node is not entry and node not in needed:
            if node.op == "placeholder":
                raise CellError("it reads more than one map")
            needed[node] = None
            waiting.extend(node.all_input_nodes)
    return needed
