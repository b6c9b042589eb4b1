"""What a training step sends, against each slice as a model of its own, with and without inputs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import banded_graphs
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, modellings

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, PARAMETER, ChannelGraph
from hgpart.partition.step_traffic import border_bytes, step_flows
from hgpart.work.figures import Work, flops

K = 3


def volume_of_maps(
    graph: ChannelGraph, work: Work, modelling: Modelling, parts: np.ndarray, inputs: bool
) -> int:
    """Of all slices, one after the other; without inputs they send nothing.

    What is read of parameters is a map where there is one slice alone.
    """
    found = 0
    apart = {PARAMETER} if modelling.slices > 1 else set()
    for samples, own in zip(modelling.samples, parts.reshape(modelling.slices, -1), strict=True):
        one = modelling.of_samples(samples)
        if one.input_vertex and not inputs:
            model = cnn_hypergraph(graph, work, single_blocks(graph, one), one)
            kinds = [graph.layers[at].kind for at in model.vertex_layers.tolist()]
            own = own[[kind != INPUT for kind in kinds]]
            one = replace(one, input_vertex=False)
        model = cnn_hypergraph(graph, work, single_blocks(graph, one), one)
        nets = model.hypergraph
        layers = nets.net_layers % max(1, len(graph.layers))
        are_maps = [graph.layers[at].kind not in apart for at in layers.tolist()]
        maps = replace(nets, costs=nets.costs * np.array(are_maps, dtype=np.int64))
        found += evaluate(maps, np.ascontiguousarray(own), K).volume
    return found


@given(
    channel_graphs(),
    modellings,
    st.integers(1, 4),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_a_step_sends_maps_their_gradients_and_what_parameters_need(
    worked: tuple[ChannelGraph, Work], base: Modelling, slices: int, rest: int, random: Random
) -> None:
    modelling = replace(base, batch_size=slices + rest, slices=slices, norms="slice")
    model = cnn_hypergraph(*worked, single_blocks(worked[0], modelling), modelling)
    parts = np.array([random.randrange(K) for _ in range(model.vertices)], dtype=np.int32)
    flows = step_flows(model, parts, K)
    assert list(flows) == ["maps forward", "maps backward", "gradients", "weights"]
    assert flows["maps forward"].volume == volume_of_maps(*worked, modelling, parts, inputs=True)
    assert flows["maps backward"].volume == volume_of_maps(*worked, modelling, parts, inputs=False)
    found = evaluate_parts(model, parts, K)
    both = flows["maps forward"], flows["gradients"]
    assert sum(flow.volume for flow in both) == found.volume
    assert (sum(flow.sent for flow in both) == found.sent).all()
    assert (sum(flow.received for flow in both) == found.received).all()
    assert sum(flow.messages for flow in both) == found.message_count
    assert (flows["weights"].sent == flows["gradients"].received).all()
    assert (flows["weights"].received == flows["gradients"].sent).all()

    together = replace(modelling, norms="batch")
    of_norms = cnn_hypergraph(*worked, model.blocks, together)
    more = step_flows(of_norms, parts, K)
    assert set(more) - set(flows) == {"statistics", "statistics back"}
    once = *both, more["statistics"]
    assert sum(flow.volume for flow in once) == evaluate_parts(of_norms, parts, K).volume
    assert more["statistics back"].volume == more["statistics"].volume

    inferring = replace(modelling, training=False)
    alone = step_flows(cnn_hypergraph(*worked, model.blocks, inferring), parts, K)
    assert list(alone) == ["maps forward"]
    assert (alone["maps forward"].sent == flows["maps forward"].sent).all()


@given(st.integers(0, 7), banded_graphs.modellings(), st.integers(0, 2**16), st.booleans())
def test_borders_are_rows_for_parts_that_make_others_of_the_same_maps(
    graph_seed: int, modelling: Modelling, seed: int, in_runs: bool
) -> None:
    """Net by net; and with bands, too, all flows add up to the volume."""
    graph = banded_graphs.graph_of(graph_seed)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    parts = banded_graphs.random_parts(model, seed)
    if in_runs:  # neighbouring layers on one part: some maps are sent whole
        parts = np.sort(parts)
    nets, bands = model.map_nets.written_out(model.weights), model.first_bands
    expected = 0
    for cost, first, last in zip(nets.costs, nets.pointers, nets.pointers[1:], strict=False):
        root, *readers = nets.pins[first:last].tolist()
        slice_, within = divmod(root, model.slice_vertices)
        same = slice_ * model.slice_vertices + np.flatnonzero(bands == bands[within])
        makers = set(parts[same].tolist()) - {int(parts[root])}
        expected += int(cost) * len(makers & set(parts[readers].tolist()))
    assert border_bytes(model, parts, K) == expected
    flows = step_flows(model, parts, K)
    once = [flow for name, flow in flows.items() if name in ("maps forward", "gradients")]
    once += [flows["statistics"]] if modelling.training else []
    assert sum(flow.volume for flow in once) == evaluate_parts(model, parts, K).volume


def test_without_bands_there_are_no_borders() -> None:
    graph = banded_graphs.graph_of(0)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, Modelling()), Modelling())
    assert border_bytes(model, banded_graphs.random_parts(model, 0), K) == 0
