"""The layers of the built-in models, each of which is traced once for all of these tests."""

from __future__ import annotations

import random
from collections import defaultdict

import networkx as nx
import pytest
import torch
from builtin_graphs import FAMILIES, builtin_graph, each_model, full_size_graph
from perturbation import LayerRun, check_results
from torch.utils.flop_counter import FlopCounterMode

from hgpart.tracing.traced_model import example_inputs
from hgpart.zoo import load_model


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", each_model())
def test_layers_are_in_topological_order(name: str) -> None:
    _, graph = builtin_graph(name)
    view = graph.to_networkx()
    assert nx.is_directed_acyclic_graph(view)
    place = {layer.name: at for at, layer in enumerate(graph.layers)}
    assert len(place) == len(graph.layers) == len(view)
    assert all(place[source] < place[reader] for source, reader in view.edges)
    # everything is computed for a reason: all layers are between an input and the output
    output = graph.layers[-1].name
    assert nx.ancestors(view, output) | {output} == set(place)
    assert all(view.in_degree(layer.name) for layer in graph.layers if layer.kind != "input")


@pytest.mark.parametrize("name", each_model())
def test_numbering(name: str) -> None:
    _, graph = builtin_graph(name)
    task = 0
    channel = 0
    for layer, first_task, first_channel in zip(
        graph.layers, graph.first_task, graph.first_channel, strict=False
    ):
        assert (first_task, first_channel) == (task, channel)
        made_by = graph.task_of_channel[channel : channel + layer.channels]
        if layer.tasks > 1:
            assert layer.channels == layer.tasks
            assert made_by.tolist() == list(range(task, task + layer.tasks))
        else:
            assert set(made_by.tolist()) <= {task}
        task += layer.tasks
        channel += layer.channels
        for read in layer.reads:
            assert len(read.channels) == len(read.sizes)
            assert len(read.channels) % read.groups == 0
            assert layer.tasks % read.groups == 0
            assert (read.channels >= -1).all()
            assert (read.channels < first_channel).all()
            assert (read.sizes >= 1).all()
    assert (graph.first_task[-1], graph.first_channel[-1]) == (task, channel)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", each_model())
def test_exactly_the_readers_of_a_channel_depend_on_it(name: str) -> None:
    traced, graph = builtin_graph(name)
    targets = {node.name: str(node.target) for node in traced.graph_module.graph.nodes}
    alike = defaultdict(list)  # layers of one kind with the same operators
    for at, layer in enumerate(graph.layers):
        if layer.operators:
            alike[layer.kind, tuple(map(targets.get, layer.operators)), len(layer.reads)].append(at)
    rng = random.Random(name)
    for members in alike.values():
        light = [at for at in members if graph.layers[at].parameters < 2**25] or members
        for at in rng.sample(light, min(2, len(light))):
            run = LayerRun(traced, graph, at)
            of_each_read = [int(rng.choice(read.channels)) for read in run.layer.reads]
            run.check([*of_each_read, int(rng.choice(run.channels_at_hand()))])
    check_results(traced, graph)


@pytest.mark.parametrize("name", each_model())
def test_every_parameter_is_held_and_nothing_kept_whole(name: str) -> None:
    _, graph = builtin_graph(name)
    model, _ = load_model(name, device="meta")
    held = [parameter for layer in graph.layers for parameter in layer.parameter_names]
    assert sorted(held) == sorted(name for name, _ in model.named_parameters())
    assert sum(layer.parameters for layer in graph.layers) == sum(
        parameter.numel() for parameter in model.parameters()
    )
    assert not [layer.name for layer in graph.layers if layer.kind in ("whole", "reduce")]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "published"),
    [  # torchvision's table of models, GFLOPS column (it counts multiply-accumulates)
        *each_model(0.71, names=["alexnet"]),
        *each_model(15.47, names=["vgg16"]),
        *each_model(4.09, names=["resnet50"]),
        *each_model(0.35, names=["squeezenet1_1"]),
        *each_model(0.30, names=["mobilenet_v2"]),
        *each_model(0.14, names=["shufflenet_v2_x1_0"]),
    ],
)
def test_multiply_accumulates_are_the_published_ones(name: str, published: float) -> None:
    graph = full_size_graph(name)
    work = sum(layer.macs * layer.tasks for layer in graph.layers)
    assert abs(work / 1e9 - published) <= 0.0101
    model, shape = load_model(name, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*example_inputs(model, shape))
    assert work == counter.get_total_flops() // 2 // 2


@pytest.mark.full
@pytest.mark.long
def test_fingerprints_differ() -> None:
    prints = [builtin_graph(name)[1].fingerprint for name in FAMILIES]
    assert len(set(prints)) == len(prints)
