"""hgpart trace: Model -> its layers."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.options import InputTexts, Model
from hgpart.cli.outputs import GraphFile, check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages
from hgpart.files.writing import write_text


@dataclass(frozen=True, kw_only=True)
class LayerFiles(GraphFile):
    """Where the layers go.

    Attributes
    ----------
    json : FILE
        Write all figures of the layers and their rows; - prints them instead of tables.
    """

    json: str | None = None


def trace(
    context: typer.Context,
    model: Model,
    results: LayerFiles,
    rows: bool = False,
    input_shape: InputTexts = None,
) -> None:
    """Show the layers of a model: their tasks, what they read, and which are kept whole.

    Parameters
    ----------
    rows
        Show the rows of the layers' maps instead: how many rows of what it reads each row is
        computed from, and what needs all rows, so that they can't be divided into bands.

    Examples
    --------
    $ hgpart trace lenet5
    """
    check_outputs({"--graph": results.graph, "--json": results.json})
    with Stages() as stage:
        with stage("import"):
            from hgpart.cli.named_model import NamedModel
            from hgpart.files.graphs import write_graph
            from hgpart.report.layers import as_rows_json, print_rows, print_trace
        named = NamedModel(stage, model, input_shape)
        shape, graph = named.shape, named.graph
    if results.graph is not None:
        write_graph(graph.to_networkx(), results.graph)
    work = hgpart.flops(graph)
    if results.json is not None:
        figures = as_rows_json(model, shape, graph, work)
        if results.json == "-":
            print(figures, end="")
            return
        write_text(results.json, figures)
    if rows:
        print_rows(model, shape, graph, plain_console())
    else:
        print_trace(model, shape, graph, work, plain_console())
    lead_on(f"hgpart partition {quote(model)}{typed(context, 'input_shape')} --k 4")
