"""Equal shares of every layer: who gets what, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings

from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.by_slices import dealt
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work

UNITS = Modelling(batch_size=1, bytes_per_element=1, output_vertex=False)


@given(channel_graphs(), modellings, st.integers(1, 5))
def test_shares_of_a_layer_differ_by_a_task_at_most(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int
) -> None:
    graph, work = graph_and_work
    coarse = replace(modelling, grain="coarse")
    model, parts = horizontal(Problem(graph, work, coarse, k))
    of_tasks = full_parts(model, parts)
    first = 0
    for at, layer in enumerate(graph.layers):
        if not coarse.has_vertices(layer) or layer.tied_to != at:
            continue
        count = 1 if coarse.is_solid(layer) else layer.tasks
        own = of_tasks[first : first + count]
        first += count
        assert (np.diff(own) >= 0).all()
        if count == 1:
            assert own.tolist() == [0]
            continue
        shares = np.bincount(own, minlength=k)
        if count >= k:
            assert shares.max() - shares.min() <= 1
        else:
            assert shares.max() == 1
    assert first == len(of_tasks)


several_speeds = st.lists(st.sampled_from([0.2, 1.0, 2.0, 3.0]), min_size=2, max_size=4)


@given(channel_graphs(), modellings, several_speeds)
def test_shares_of_a_layer_are_in_proportion_to_speeds(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, speeds: list[float]
) -> None:
    graph, work = graph_and_work
    coarse = replace(modelling, grain="coarse")
    model, parts = horizontal(Problem(graph, work, coarse, len(speeds), speeds=speeds))
    of_tasks, first = full_parts(model, parts), 0
    for at, layer in enumerate(graph.layers):
        if not coarse.has_vertices(layer) or layer.tied_to != at:
            continue
        count = 1 if coarse.is_solid(layer) else layer.tasks
        own = of_tasks[first : first + count]
        first += count
        if count > 1 and len({*speeds}) > 1:
            assert own.tolist() == dealt(count, speeds).tolist()


@given(channel_graphs(), modellings, st.integers(1, 5), st.booleans())
def test_fine_grain_gives_the_same(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int, differ: bool
) -> None:
    graph, work = graph_and_work
    speeds = [1.0 + part for part in range(k)] if differ else None
    coarse, fine = (
        evaluate(model.hypergraph, parts, k)
        for model, parts in (
            horizontal(Problem(graph, work, replace(modelling, grain=grain), k, speeds=speeds))
            for grain in ("coarse", "fine")
        )
    )
    assert fine.loads.tolist() == coarse.loads.tolist()
    assert fine.volume == coarse.volume


@given(
    st.integers(1, 6).flatmap(
        lambda k: st.tuples(
            st.just(k), st.lists(st.integers(1, 4).map(k.__mul__), min_size=1, max_size=5)
        )
    ),
    st.data(),
)
def test_dense_layers_send_each_map_to_every_other_part(
    k_and_widths: tuple[int, list[int]], data: st.DataObject
) -> None:
    k, widths = k_and_widths
    count = len(widths)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    each = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    loads = [width * task for width, task in zip(widths, each, strict=True)]
    graph, work = chain(widths, loads, sizes)
    model, parts = horizontal(Problem(graph, work, UNITS, k))
    found = evaluate(model.hypergraph, parts, k)
    assert found.loads.tolist() == [sum(loads) // k] * k
    # The input and all maps but the last, which none reads.
    made = zip(widths[:-1], sizes[:-1], strict=True)
    travelling = graph.layers[0].map_elements + sum(width * size for width, size in made)
    assert found.volume == (k - 1) * travelling


def test_a_layer_of_fewer_tasks_than_parts_is_spread_evenly() -> None:
    graph, work = chain([8, 2, 8], [8, 2, 8], [1, 1, 1])
    model, parts = horizontal(Problem(graph, work, UNITS, 4))
    tasks = full_parts(model, parts).tolist()
    assert tasks == [0, *(0, 0, 1, 1, 2, 2, 3, 3), *(0, 2), *(0, 0, 1, 1, 2, 2, 3, 3)]
