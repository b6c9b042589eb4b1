"""Reports of plans of chains of layers, scattered at random, under names that obey no rule."""

from __future__ import annotations

from dataclasses import fields, replace

from torch import nn

from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.layering import channel_graph
from hgpart.partition import Partition
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.partition import evaluated
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import evaluate_layerwise
from hgpart.report.partition.record import Report
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import flops

OWN, FOUND, ASKED = (
    {field.name for field in fields(record)} for record in (Report, Partition, Problem)
)
NASTY = "</script><script>throw 'x'</script><b title=\"&amp;'\">.py:f"


def make_report(layers, k, name=NASTY, channels=8, **modelling):
    """A plan of a chain of layers, scattered at random."""
    chain = [nn.Conv2d(channels, channels, 1) for _ in range(layers)]
    model = nn.Sequential()
    for at, layer in enumerate(chain):
        model.add_module(f"layer<{at}>&", layer)
    graph = channel_graph(trace(model, example_inputs(model, (channels, 4, 4))))
    work, modelling = flops(graph), Modelling(**modelling)
    problem = Problem(graph, work, modelling, k, 0.1)
    blocks, parts = random_parts(problem, 0)
    found = evaluated(problem, blocks, parts, seed=0, backend="random", start="random", bound=0)
    layerwise = evaluate_layerwise(graph, work, modelling, k)
    return Report(found, name, (channels, 4, 4), layerwise, {"total": 1.0})


def changed(report, **changes):
    """The report with other fields, be they its own, or of its partition, problem or modelling."""
    partition, problem = report.partition, report.partition.problem
    own = {field: changes.pop(field) for field in OWN if field in changes}
    found = {field: changes.pop(field) for field in FOUND if field in changes}
    asked = {field: changes.pop(field) for field in ASKED if field in changes}
    asked["modelling"] = replace(asked.get("modelling", problem.modelling), **changes)
    problem = replace(problem, **asked)
    return replace(report, partition=replace(partition, problem=problem, **found), **own)
