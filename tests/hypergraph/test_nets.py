"""Nets by shared readers: pins and metrics are those of the nets written out one by one."""

from __future__ import annotations

from dataclasses import fields

import channel_graphs as graphs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, divided_graphs

from hgpart.errors import HypergraphError
from hgpart.hypergraph.blocks import Blocks, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.nets import Nets
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.problem.problem import Problem
from hgpart.sequences import Sequences
from hgpart.work.figures import Work, flops


def same(one: object, other: object) -> bool:
    """Whether two records of arrays and numbers are equal."""
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(one)  # type: ignore[arg-type]  # both are Evaluations
    )


@given(divided_graphs(), st.integers(1, 5), st.integers(0, 9))
def test_metrics_without_pins_are_those_of_the_pins(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks], k: int, seed: int
) -> None:
    """Any blocks in any parts, down to single tasks and channels at random."""
    graph, work, modelling, blocks = divided
    for of in (blocks, single_blocks(graph, modelling)):
        model = cnn_hypergraph(graph, work, of, modelling)
        parts = np.random.default_rng(seed).integers(0, k, model.vertices).astype(np.int32)
        assert same(evaluate_parts(model, parts, k), evaluate(model.hypergraph, parts, k))
        assert model.nets.sizes().tolist() == np.diff(model.hypergraph.pointers).tolist()


@given(graphs.channel_graphs(), graphs.modellings(), st.integers(1, 7))
def test_pins_are_the_same_however_many_are_written_out_at_once(
    graph: ChannelGraph, modelling: Modelling, few: int
) -> None:
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hgpart.hypergraph.nets.PINS_AT_ONCE", few)
        in_pieces = model.nets.written_out(model.weights)
    assert in_pieces.pins.tolist() == model.hypergraph.pins.tolist()


def test_ten_billion_pins_are_not_written_out() -> None:
    """A random partition has blocks of single tasks, whose hypergraph is the full one."""
    width, k = 100_000, 3
    graph, work = chain([width, width], [width, width], [1, 1])
    model, parts = random_parts(Problem(graph, work, Modelling(batch_size=1), k), seed=0)
    assert int(model.nets.sizes().sum()) > 4 * 10**9
    made = np.zeros((4, k), dtype=np.int64)
    sizes = np.concatenate([np.diff(rows) for rows in model.blocks.rows])
    np.add.at(made, (model.vertex_layers, parts), sizes)
    away = 1 - np.eye(k, dtype=np.int64)
    # Each map, of 4 bytes, goes to the parts of the next layer but its own (design section 3).
    expected = sum(4 * int(made[at] @ away @ (made[at + 1] > 0)) for at in range(3))
    assert evaluate_parts(model, parts, k).volume == expected


def test_what_is_no_partition_or_too_much_is_refused() -> None:
    graph, work = chain([4, 4], [4, 4], [1, 1])
    modelling = Modelling(batch_size=1)
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    parts = np.zeros(model.vertices, dtype=np.int32)
    for wrong in (parts[1:], parts + 2, parts - 1):
        with pytest.raises(HypergraphError, match="parts"):
            evaluate_parts(model, wrong, 2)
    nets = Nets(
        costs=np.array([2**62, 2**62]),
        gathers=np.zeros(2, np.bool_),
        layers=np.zeros(2, np.int32),
        roots=np.zeros(2, np.int32),
        readers=np.array([0, 0]),
        lists=Sequences(np.array([0, 1]), np.array([0])),
        sets=Sequences(np.array([0, 1]), np.array([1])),
    )
    weights = np.ones(2, dtype=np.int64)
    within = nets.of_parts(weights, np.array([0, 0], dtype=np.int32), 2)
    assert within.nets == 0
    with pytest.raises(HypergraphError, match="64 bits"):
        nets.of_parts(weights, np.array([0, 1], dtype=np.int32), 2)
