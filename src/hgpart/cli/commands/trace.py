"""hgpart trace: Model -> its layers."""

from __future__ import annotations

from shlex import quote

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.options import InputShape, Model
from hgpart.cli.outputs import GraphFile, check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages, traced_model


def trace(
    context: typer.Context, model: Model, results: GraphFile, input_shape: InputShape = None
) -> None:
    """Show the layers of a model: their tasks, what they read, and which are kept whole.

    Examples
    --------
    $ hgpart trace lenet5
    """
    check_outputs({"--graph": results.graph})
    with Stages() as stage:
        with stage("import"):
            from hgpart.files.graphs import write_graph
            from hgpart.report import print_trace
        _, shape, _, graph = traced_model(stage, model, input_shape)
    if results.graph is not None:
        write_graph(graph.to_networkx(), results.graph)
    print_trace(model, shape, graph, hgpart.flops(graph), plain_console())
    lead_on(f"hgpart partition {quote(model)}{typed(context, 'input_shape')} --k 4")
