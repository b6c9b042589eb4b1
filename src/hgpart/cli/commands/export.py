"""hgpart export: Model -> its hypergraph in a file, for other partitioners."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

import hgpart
from hgpart.cli.command_lines import typed
from hgpart.cli.groups import COUNTED, Counting
from hgpart.cli.options import Model
from hgpart.cli.outputs import check_outputs, lead_on, plain_console
from hgpart.cli.stages import Stages
from hgpart.errors import not_one_of


def export(
    context: typer.Context,
    model: Model,
    output: Path,
    counting: Counting,
    file_format: str = "patoh",
) -> None:
    """Write the full hypergraph of a model, for other partitioners.

    Partitioners add up weights and costs in 32 bits: where the sums are larger, all are divided by
    a factor, which is printed.

    Parameters
    ----------
    output : FILE
        Write the hypergraph.
    file_format : patoh|hmetis
        File format.

    Examples
    --------
    $ hgpart export lenet5 --format hmetis -o lenet5.hgr
    """
    check_outputs({"--work": counting.kept_work, "--output": output})
    with Stages() as stage:
        with stage("import"):
            from hgpart.cli.named_model import NamedModel
            from hgpart.hypergraph.blocks import single_blocks
            from hgpart.hypergraph.formats import write_hmetis, write_patoh
            from hgpart.partition.problem.balance import MOST_FITTED, fitted
        writers = {"patoh": write_patoh, "hmetis": write_hmetis}
        if file_format not in writers:
            raise not_one_of("format", file_format, writers)
        modelling = counting.modelling_of(counting.batch_size)
        counting.check_work()
        named = NamedModel(stage, model, counting.input_shape)
        graph = named.graph
        work = counting.measured(stage, named)
        with stage("hypergraph"):
            blocks = single_blocks(graph, modelling)
            hypergraph = hgpart.cnn_hypergraph(graph, work, blocks, modelling).hypergraph
        with stage("write"):
            fit = fitted(hypergraph)
            writers[file_format](fit.hypergraph, output)
    plain_console().print(
        f"{output}: {hypergraph.vertices:,} vertices, {hypergraph.nets:,} nets, "
        f"{len(hypergraph.pins):,} pins",
        soft_wrap=True,
    )
    divided = [f"weights by {fit.weights_by:,}"] * (fit.weights_by > 1)
    divided += [f"costs by {fit.costs_by:,}"] * (fit.costs_by > 1)
    if divided:
        off = f"{100 * fit.rounding:.1g} %"
        plain_console().print(
            f"Divided, so that sums of up to {MOST_FITTED} parts fit in 32 bits: "
            f"{' and '.join(divided)}; by rounding, a part's work is off by {off} of all at most"
        )
    same = typed(context, *COUNTED, "slices", "bands")
    lead_on(f"a partitioner, then hgpart partition {quote(model)}{same} --partition FILE")
