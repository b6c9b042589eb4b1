"""An exported program -> one that can be divided: its operators and its names are made plain."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from hgpart.operators import moving
from hgpart.operators.calls import argument
from hgpart.operators.products import Product
from hgpart.operators.table import DROPOUTS, operator_of
from hgpart.tracing.programs.functional import made_functional


def divisible(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program that computes the same without writing in place; batch norm returns new statistics.

    Names of its tensors can be written into code, idle dropouts are left out, and products of
    flattened tokens are computed token by token. The program given may be changed.
    """
    _detach_what_has_no_grad(program.graph)
    leave_out_idle_dropouts(program)
    aliases = _quotable_names(program)
    _rename_tensors(program, aliases)
    functional = made_functional(program)
    _rename_tensors(functional, {alias: name for name, alias in aliases.items()})
    _name_results_of_norms(functional.graph)
    _leave_casts_to_buffers(functional.graph)
    _keep_tokens_apart(functional.graph)
    _name_results(functional)
    return functional


def leave_out_idle_dropouts(program: torch.export.ExportedProgram) -> None:
    """Take those dropouts that drop nothing out of a program; torch would copy maps there."""
    graph = program.graph
    for node in graph.nodes:
        if node.target in DROPOUTS and not (node.args[1] and node.args[2]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    _name_results(program)


def _name_results(program: torch.export.ExportedProgram) -> None:
    """Have a program's signature name its results as the nodes that make them now."""
    (output,) = program.graph.find_nodes(op="output")
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if isinstance(value, fx.Node):
            spec.arg.name = value.name
    program.graph_module.recompile()


def _name_results_of_norms(graph: fx.Graph) -> None:
    """Give a norm's first result a node even if nothing reads it: its statistics come with it."""
    for node in list(graph.nodes):
        if operator_of(node).updates and all(user.args[1] != 0 for user in node.users):
            with graph.inserting_after(node):
                made = graph.call_function(operator.getitem, (node, 0))
            made.meta.update(node.meta, val=node.meta["val"][0])


def _leave_casts_to_buffers(graph: fx.Graph) -> None:
    """Drop casts of running statistics: those of 16 bits are made in 32, and the buffer rounds."""
    for node in list(graph.nodes):
        made = node.args[0] if node.args else None
        if (
            isinstance(made, fx.Node)
            and made.target is operator.getitem
            and made.args[1] in operator_of(made.all_input_nodes[0]).updates
            and node.op == "call_function"
            and node.meta["val"].dtype != made.meta["val"].dtype
            and all(user.op == "output" for user in node.users)
        ):
            node.replace_all_uses_with(made)
            graph.erase_node(node)


def _keep_tokens_apart(graph: fx.Graph) -> None:
    """Compute products of flattened tokens token by token, where tokens come apart again behind.

    Samples and tokens in one dimension could not be divided into bands of tokens.
    """
    for node in list(graph.nodes):
        product = operator_of(node).product
        if product is None or not product.is_matrix or node.meta["val"].dim() != 2:
            continue
        flat, bias = argument(node, product.operand), argument(node, product.bias)
        scales = argument(node, "alpha", 1), argument(node, "beta", 1)
        is_plain = scales == (1, 1) and (bias is None or bias.meta["val"].dim() == 1)
        if not is_plain or not _is_view(flat):
            continue
        tokens = next((own for own in map(_tokens_in, node.users) if own is not None), None)
        if tokens is not None:
            _compute_by_token(node, product, tokens)


def _is_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and operator_of(node).rule is moving.viewed


def _tokens_in(view: fx.Node) -> torch.Tensor | None:
    """What a view makes of a flat tensor, its features in one dimension behind several others."""
    if not _is_view(view):
        return None
    value: torch.Tensor = view.meta["val"]
    features = view.all_input_nodes[0].meta["val"].shape[-1]
    for count in range(2, value.dim()):
        known = [isinstance(size, int) for size in value.shape]
        behind = value.shape[count:]
        if sum(known[:count]) >= count - 1 and all(known[count:]) and math.prod(behind) == features:
            return value.flatten(count)
    return None


def _compute_by_token(node: fx.Node, product: Product, value: torch.Tensor) -> None:
    """Put a product of tokens, of which a value is given, in the place of that of flat ones.

    Views of the flat result become views of the new one.
    """
    aten, graph = torch.ops.aten, node.graph
    flat, weight, bias = (
        argument(node, name) for name in (product.operand, product.weight, product.bias)
    )

    def call(target: Any, *args: Any, value: torch.Tensor = value) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta.update(node.meta, val=value)
        return made

    with graph.inserting_before(node):
        tokens, shape = flat.args[0], (*value.shape[:-1], flat.meta["val"].shape[-1])
        if tokens.meta["val"].shape != shape:
            sizes = [size if isinstance(size, int) else -1 for size in shape]
            tokens = call(aten.view.default, tokens, sizes, value=value.new_empty(shape))
        if product.row_dim == 0:
            made = call(aten.linear.default, tokens, weight, bias)
        else:
            made = call(aten.matmul.default, tokens, weight)
            made = made if bias is None else call(aten.add.Tensor, made, bias)
        again = call(aten.view.default, made, [-1, value.shape[-1]], value=node.meta["val"])
    views = [*filter(_is_view, node.users)]
    for view in views:
        view.replace_input_with(node, made)
        if view.meta["val"].shape == value.shape:
            view.replace_all_uses_with(made)
    node.replace_all_uses_with(again)
    for left in (*views, again, node, flat):
        if not left.users:
            graph.erase_node(left)


def quotable(name: str) -> str:
    r"""A name without characters that end a line or a string where torch writes names into code.

    >>> quotable("a\nb")
    'a_b'
    """
    return re.sub(r'["\\\r\n]', "_", name)


def _quotable_names(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Replacements of tensors' names that can't be written into code."""
    taken = {spec.target for spec in program.graph_signature.input_specs}
    aliases: dict[str, str] = {}
    for name in filter(None, taken.copy()):
        alias = quotable(name)
        while alias != name and alias in taken:
            alias += "_"
        if alias != name:
            taken.add(alias)
            aliases[name] = alias
    return aliases


def _rename_tensors(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> None:
    signature = program.graph_signature
    for spec in (*signature.input_specs, *signature.output_specs):
        if spec.target in names:
            spec.target = names[spec.target]
    for tensors in (program.state_dict, program.constants):
        for name in names.keys() & tensors.keys():
            tensors[names[name]] = tensors.pop(name)


def _detach_what_has_no_grad(graph: fx.Graph) -> None:
    """Write `torch.no_grad()` as `detach`: export loses it when it inlines the block."""
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.wrap_with_set_grad_enabled
    ):
        for result in list(node.users) if node.args[0] is False else ():
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta.update(result.meta)
            result.replace_all_uses_with(detached, lambda user, made=detached: user is not made)
