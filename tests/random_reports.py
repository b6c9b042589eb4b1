"""Reports of plans of chains of layers, scattered at random, under names that obey no rule."""

from __future__ import annotations

from torch import nn

from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.layering import channel_graph
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.report import Report
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import flops

NASTY = "</script><script>throw 'x'</script><b title=\"&amp;'\">.py:f"


def make_report(layers, k, name=NASTY, channels=8, **modelling):
    """A plan of a chain of layers, scattered at random."""
    chain = [nn.Conv2d(channels, channels, 1) for _ in range(layers)]
    model = nn.Sequential()
    for at, layer in enumerate(chain):
        model.add_module(f"layer<{at}>&", layer)
    graph = channel_graph(trace(model, example_inputs(model, (channels, 4, 4))))
    work, modelling = flops(graph), Modelling(**modelling)
    blocks, parts = random_parts(Problem(graph, work, modelling, k), 0)
    found = evaluate(blocks.hypergraph, parts, k)
    return Report(
        model=name,
        input_shape=(channels, 4, 4),
        graph=graph,
        work=work,
        modelling=modelling,
        k=k,
        eps=0.1,
        speeds=None,
        backend="random",
        start="random",
        seed=0,
        blocks=blocks,
        parts=parts,
        feasible=found.imbalance <= 0.1,
        evaluation=found,
        lower_bound=0,
        shares=part_shares(blocks, parts, k),
        layerwise=evaluate_layerwise(graph, work, modelling, k),
        seconds={"total": 1.0},
    )
