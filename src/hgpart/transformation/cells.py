"""TracedModel -> its stages: runs of consecutive residual cells with maps of one shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx, nn

from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import concrete, described, holds_tensors, is_tensor
from hgpart.transformation.residual import adds_its_input


@dataclass(frozen=True)
class Cell:
    """A module that adds its input, a map of channels, to what it computes from it.

    Attributes
    ----------
    path : str
        Path of the module.
    shape : tuple of int
        Shape of its input and of its result, without the batch.
    computes : str
        Its operators and their sizes, as text: equal for equal cells.
    entry, result : fx.Node
        Nodes of its input and its result in the traced graph.
    """

    path: str
    shape: tuple[int, ...]
    computes: str
    entry: fx.Node
    result: fx.Node


@dataclass(frozen=True)
class Stage:
    """Cells in a row: nothing else reads what a cell hands to the next."""

    cells: tuple[Cell, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the maps between the cells, without the batch."""
        return self.cells[0].shape


def stages_of(model: nn.Module, traced: TracedModel) -> tuple[Stage, ...]:
    """Find the stages of a model, in the order in which they are computed.

    Parameters
    ----------
    traced : TracedModel
        The traced model.
    """
    made_in = _nodes_of_modules(traced.graph_module.graph)
    order = {node: at for at, node in enumerate(traced.graph_module.graph.nodes)}
    cells: list[Cell] = []
    # Outer modules come before those in them; what is inside a cell is part of it.
    for path in sorted(made_in, key=lambda path: path.count(".")):
        if not any(path.startswith(f"{cell.path}.") for cell in cells):
            cell = _cell(model, traced, path, made_in[path])
            if cell is not None:
                cells.append(cell)
    cells.sort(key=lambda cell: order[cell.result])
    rows: list[list[Cell]] = []
    for cell in cells:
        if rows and _follows(rows[-1][-1], cell, made_in[cell.path], traced):
            rows[-1].append(cell)
        else:
            rows.append([cell])
    return tuple(Stage(tuple(stage)) for stage in rows)


def _nodes_of_modules(graph: fx.Graph) -> Mapping[str, Sequence[fx.Node]]:
    """The nodes that each module's code makes, in order, including those of modules inside it."""
    nodes: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            if node.op == "call_function" and path:
                nodes.setdefault(path, []).append(node)
    return nodes


def _cell(
    model: nn.Module, traced: TracedModel, path: str, nodes: Sequence[fx.Node]
) -> Cell | None:
    """The cell that a module is; None if it is no cell."""
    own = dict.fromkeys(nodes)
    held = traced.parameters.keys() | traced.buffers.keys() | traced.constants.keys()
    entries = dict.fromkeys(
        operand
        for node in nodes
        for operand in node.all_input_nodes
        if operand not in own and operand.name not in held and holds_tensors(operand)
    )
    results = [node for node in nodes if _leaves(node, own, traced)]
    if len(entries) != 1 or len(results) != 1:
        return None
    entry, result = *entries, *results
    if not (is_tensor(entry.meta.get("val")) and is_tensor(result.meta.get("val"))):
        return None
    shape = concrete(result.meta["val"].shape)
    if len(shape) < 3 or concrete(entry.meta["val"].shape) != shape:
        return None
    try:
        module = model.get_submodule(path)
    except AttributeError:  # the second call of a module: one cell can't be two
        return None
    if not adds_its_input(module):
        return None
    return Cell(path, shape[1:], _computed(nodes, entry), entry, result)


def _leaves(node: fx.Node, own: Iterable[fx.Node], traced: TracedModel) -> bool:
    """Whether anything outside reads a node; new statistics of norms are not read."""
    return node in traced.results or any(
        user not in own and user.op != "output" for user in node.users
    )


def _computed(nodes: Sequence[fx.Node], entry: fx.Node) -> str:
    """The computation of a cell: its calls, and the shapes of their parameters and buffers."""
    numbers = {entry: "x"}

    def name(node: fx.Node) -> str:
        if node not in numbers:
            is_held = node.op == "placeholder" and is_tensor(node.meta.get("val"))
            shape = list(node.meta["val"].shape) if is_held else ""
            numbers[node] = f"%{len(numbers)}{shape}"
        return numbers[node]

    return "\n".join(f"{name(node)} = {described(node, name)}" for node in nodes)


def _follows(before: Cell, cell: Cell, nodes: Sequence[fx.Node], traced: TracedModel) -> bool:
    """Whether a cell, and nothing else, reads the result of another."""
    own = dict.fromkeys(nodes)
    return (
        cell.entry is before.result
        and before.result not in traced.results
        and all(user in own for user in before.result.users)
    )
