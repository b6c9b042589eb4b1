"""Ways that come with hgpart: figures of their parts, layers that stay whole, what they need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from partitioned_models import MODELS, graph_of

from hgpart.errors import ArgumentError
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.partition.baselines import random_parts
from hgpart.partition.partition import Partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.catalogue import way_named
from hgpart.partition.ways.needs import layers_that_compute
from hgpart.work.figures import flops

CHEAP = ("layerwise", "horizontal", "incremental", "random")


def problem(name: str, k: int = 3, eps: float = 0.2, **modelling: Any) -> Problem:
    graph = graph_of(name)
    return Problem(graph, flops(graph), Modelling(**modelling), k, eps)


def divided(name: str, model: str, seed: int = 0, k: int = 3, **modelling: Any) -> Partition:
    return way_named(name).partition(problem(model, k, **modelling), Search(seed, 0.1))


@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("name", [*CHEAP, "coarse", "fine"])
def test_all_figures_are_those_of_the_parts(name: str, grain: str) -> None:
    found = divided(name, "plain", grain=grain)
    own = way_named(name).grain or grain
    assert (found.k, found.modelling.grain) == (3, own)
    again = evaluate(found.model.hypergraph, found.parts, 3)
    assert found.evaluation.volume == again.volume
    assert found.feasible == (again.imbalance <= 0.2)
    assert np.array_equal(found.parts, divided(name, "plain", grain=grain).parts)


@pytest.mark.parametrize("name", ["layerwise", "horizontal", "incremental"])
def test_a_batch_in_slices_is_divided_alike_in_each(name: str) -> None:
    whole = way_named(name).parts(problem("plain", batch_size=4), Search())
    model, parts = way_named(name).parts(problem("plain", batch_size=4, slices=2), Search())
    assert model.modelling.slices == 2
    assert np.array_equal(parts, np.tile(whole[1], 2))


@pytest.mark.parametrize("name", MODELS)
def test_layers_stay_whole_in_cuts_between_them(name: str) -> None:
    asked = problem(name, 2, grain="fine")
    if layers_that_compute(asked) is not None:
        asked = replace(asked, k=1)
    found = way_named("layerwise").partition(asked, Search())
    for layer in range(len(graph_of(name).layers)):
        assert len(np.unique(found.parts[found.model.vertex_layers == layer])) <= 1


def test_a_random_one_has_every_vertex_anywhere() -> None:
    first, second = (divided("random", "plain", seed, grain="fine") for seed in (0, 1))
    assert first.evaluation.volume != second.evaluation.volume
    assert np.bincount(first.parts, minlength=3).min() > 0.25 * len(first.parts)
    # Nearly no two filters are alike, so that nearly each is a block.
    assert [len(rows) for rows in first.model.blocks.rows] == [2, 17, 17, 17, 2]


@pytest.mark.parametrize("name", MODELS)
def test_too_many_tasks_are_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(random_parts, "MOST_TASKS", 0)
    found, most = divided("random", name, grain="fine"), random_parts.MOST_CUTS
    assert max(len(rows) for rows in found.model.blocks.rows) <= most + 2
    assert max(len(columns) for columns in found.model.blocks.columns) <= most + 2
    assert len(found.parts) == found.model.hypergraph.vertices


@pytest.mark.parametrize(
    ("name", "k", "why"),
    [
        ("layerwise", 4, "4 devices, but only 3 layers that compute"),
        ("hybrid-3", 4, "4 devices for 3 replicas: accepted are hybrid-2, data-parallel"),
        ("hybrid", 2, "need 4 devices or more"),
        ("transformed-parts", 2, "accepted are models of hgpart.transform"),
        ("least-time", 2, "the objective is volume: accepted is time"),
        ("data-parallel", 64, "64"),
    ],
)
def test_what_a_way_needs_is_said(name: str, k: int, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        divided(name, "plain", k=k)
