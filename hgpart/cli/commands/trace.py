"""hgpart trace: Model -> its layers."""

from __future__ import annotations

from hgpart.cli.options import InputShape, Model
from hgpart.cli.outputs import plain_console
from hgpart.cli.stages import Stages, traced_model


def trace(model: Model, input_shape: InputShape = None) -> None:
    """Show the layers of a model: their tasks, what they read, and what was kept whole."""
    with Stages() as stage:
        with stage("import"):
            from hgpart.report import print_trace
            from hgpart.work.figures import flops
        _, shape, _, graph = traced_model(stage, model, input_shape)
    print_trace(model, shape, graph, flops(graph), plain_console())
