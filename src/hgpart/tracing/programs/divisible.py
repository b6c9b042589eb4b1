"""An exported program -> one that can be divided: its operators and its names are made plain."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping

import torch
from torch import fx

from hgpart.operators.table import DROPOUTS, operator_of
from hgpart.tracing.programs.functional import made_functional
from hgpart.tracing.programs.joined_dimensions import keep_apart


def divisible(
    program: torch.export.ExportedProgram, of_one: bool = False
) -> torch.export.ExportedProgram:
    """A program that computes the same without writing in place; batch norm returns new statistics.

    Names of its tensors can be written into code, idle dropouts are left out, and samples are not
    joined with tokens or windows in one dimension. `of_one` says that it is for a single sample.
    The program given may be changed.
    """
    _detach_what_has_no_grad(program.graph)
    leave_out_idle_dropouts(program)
    aliases = _quotable_names(program)
    _rename_tensors(program, aliases)
    functional = made_functional(program)
    _rename_tensors(functional, {alias: name for name, alias in aliases.items()})
    _name_results_of_norms(functional.graph)
    _leave_casts_to_buffers(functional.graph)
    inputs = functional.graph_signature.user_inputs if of_one else ()
    keep_apart(functional.graph, {*map(str, inputs)})
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
