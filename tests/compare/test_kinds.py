"""Partitions to try a placement on: each is what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from partitioned_models import MODELS, graph_of

from hgpart.compare import kinds
from hgpart.compare.kinds import KINDS, partition_of_kind
from hgpart.errors import ArgumentError
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.work.figures import flops


def partition(name, kind, grain="coarse", k=3, seed=0):
    graph = graph_of(name)
    modelling = Modelling(grain=grain)
    return partition_of_kind(kind, graph, flops(graph), k, 0.2, modelling=modelling, seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_figures_are_those_of_the_parts(kind, grain):
    found = partition("plain", kind, grain)
    assert (found.k, found.modelling.grain) == (3, grain)
    again = evaluate(found.model.hypergraph, found.parts, 3)
    assert found.evaluation.volume == again.volume
    assert found.feasible == (again.imbalance <= 0.2)
    assert np.array_equal(found.parts, partition("plain", kind, grain).parts)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MODELS)
def test_layers_stay_whole(name):
    found = partition(name, "layers", "fine", k=2)
    for layer in range(len(graph_of(name).layers)):
        assert len(np.unique(found.parts[found.model.vertex_layers == layer])) <= 1


def test_a_random_one_has_every_vertex_anywhere():
    first, second = (partition("plain", "random", "fine", seed=seed) for seed in (0, 1))
    assert first.evaluation.volume != second.evaluation.volume
    assert np.bincount(first.parts, minlength=3).min() > 0.25 * len(first.parts)
    # Nearly no two filters are alike, so that nearly each is a block.
    assert [len(rows) for rows in first.model.blocks.rows] == [2, 17, 17, 17, 2]


@pytest.mark.parametrize("name", MODELS)
def test_too_many_vertices_are_drawn_in_blocks(monkeypatch, name):
    monkeypatch.setattr(kinds, "MOST_RANDOM_VERTICES", 0)
    found = partition(name, "random", "fine")
    assert max(len(rows) for rows in found.model.blocks.rows) <= kinds.MOST_CUTS + 2
    assert max(len(columns) for columns in found.model.blocks.columns) <= kinds.MOST_CUTS + 2
    assert len(found.parts) == found.model.hypergraph.vertices


def test_arguments():
    with pytest.raises(ArgumentError, match="'best': accepted are good, random, horizontal, la"):
        partition("plain", "best")
    with pytest.raises(ArgumentError, match="k"):
        partition("plain", "random", k=0)
