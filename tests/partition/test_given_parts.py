"""Parts that somebody else has found become a partition, which is what hgpart makes of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from banded_graphs import BATCH, random_parts
from banded_graphs import graph_of as rows_of
from hypothesis import given
from partitioned_graphs import partitioned_graphs
from partitioned_models import built

import hgpart
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.given_parts import partition_of_parts
from hgpart.partition.problem.problem import Problem
from hgpart.partitioned_model import partitioned_as
from hgpart.work.figures import flops

MODEL, EXAMPLE = built("plain")  # three layers of 16
PARTS = [0] * 8 + [1] * 8, [0, 1] * 8, 1


@given(case=partitioned_graphs())
def test_the_parts_of_a_partition_give_it_back(case: tuple[ChannelGraph, Partition]) -> None:
    _, partition = case
    again = partition_of_parts(partition.problem, full_parts(partition.model, partition.parts))
    assert again.evaluation.loads.tolist() == partition.evaluation.loads.tolist()
    assert again.evaluation.traffic.tolist() == partition.evaluation.traffic.tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("modelling", [Modelling(slices=3), Modelling(), Modelling(grain="fine")])
def test_inputs_and_outputs_go_with_the_first_and_the_last(modelling: Modelling) -> None:
    first = hgpart.partition_model(MODEL, EXAMPLE, 2, modelling=modelling, effort=0).partition
    every = full_parts(first.model, first.parts).reshape(modelling.slices, -1)
    inner = every[:, 1:-1]
    every = np.concatenate([inner[:, :1], inner, inner[:, -1:]], axis=1)
    result = partitioned_as(MODEL, EXAMPLE, inner.ravel(), modelling=modelling).partition
    assert full_parts(result.model, result.parts).tolist() == every.ravel().tolist()
    whole = partitioned_as(MODEL, EXAMPLE, every.ravel(), 2, modelling=modelling).partition
    assert whole.evaluation.traffic.tolist() == result.evaluation.traffic.tolist()


@pytest.mark.parametrize("seed", [1, 5])  # networks with a mean over rows
def test_parts_of_bands_with_and_without_ends_and_by_layer(seed: int) -> None:
    graph, modelling = rows_of(seed), Modelling(batch_size=BATCH, slices=2, bands=3)
    problem = Problem(graph, flops(graph), modelling, 3, 9.0)
    model = problem.hypergraph(single_blocks(graph, modelling))
    parts = random_parts(model, seed)
    every = full_parts(model, parts)
    whole = partition_of_parts(problem, every)
    assert whole.evaluation.traffic.tolist() == evaluate_parts(model, parts, 3).traffic.tolist()
    kinds = [graph.layers[at].kind for at in model.vertex_layers.tolist()]
    is_inner = [kind not in ("input", "output") for kind in kinds]
    inner = partition_of_parts(problem, parts[is_inner])
    again = full_parts(inner.model, inner.parts)
    assert again[is_inner].tolist() == parts[is_inner].tolist()
    by_layer = {layer.name: at % 3 for at, layer in enumerate(graph.layers)}
    result = partition_of_parts(problem, by_layer)
    owners = result.model.vertex_layers
    assert result.parts.tolist() == [by_layer[graph.layers[at].name] for at in owners.tolist()]


@cache
def names() -> list[str]:
    graph = hgpart.channel_graph(hgpart.trace(MODEL, EXAMPLE))
    return [layer.name for layer in graph.layers]


def test_parts_by_layer_are_saved_and_placed(tmp_path: Path) -> None:
    result = partitioned_as(MODEL, EXAMPLE, by_layer(), eps=1)
    assert result.partition.feasible
    result.save(tmp_path / "plan.json")
    placed = hgpart.place(MODEL, hgpart.files.load_plan(tmp_path / "plan.json"))
    assert placed.programs.partition.parts.tolist() == result.partition.parts.tolist()
    images = torch.randn_like(EXAMPLE[0])
    assert torch.allclose(placed(images), MODEL(images), atol=1e-5)
    flat = np.concatenate(
        [
            np.broadcast_to(part, n)
            for part, n in zip(by_layer().values(), (16, 16, 16), strict=True)
        ]
    )
    other = partitioned_as(MODEL, EXAMPLE, flat).partition
    assert other.evaluation.traffic.tolist() == result.partition.evaluation.traffic.tolist()


def by_layer(**changes: Any) -> dict[str, Any]:
    inner = names()[1:-1]
    return dict(zip(inner, PARTS, strict=True)) | changes


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([0, 1], r"^2 parts: accepted are 50, one for each vertex, or 48 without inputs and"),
        ([0.5] * 48, "^parts: accepted are whole numbers, in one list or array"),
        ([[0], [0, 1]], "^parts: accepted are whole numbers, in one list or array"),
        (np.zeros((2, 24), int), "^parts: accepted are whole numbers, in one list or array"),
        ([0] * 47 + [-1], "^part -1: accepted are 0 to 1"),
        ([0] * 47 + [2], "^part 2: accepted are 0 to 1"),
        ([0] * 47 + [2**40], "^part 1099511627776: accepted are 0 to 1"),
        ({"no": 0}, "^layer 'no': accepted are"),
        ({}, "^no parts of layer .*: accepted are parts of every layer"),
        (
            lambda: by_layer(**{names()[1]: [0, 1, 1]}),
            "^3 parts of layer .*: accepted are 16, one for each",
        ),
        (lambda: by_layer(**{names()[1]: "x"}), "^parts of layer .*: accepted are whole numbers"),
    ],
)
def test_what_are_no_parts_is_one_line(parts: Any, message: str) -> None:
    parts = parts() if isinstance(parts, Callable) else parts
    with pytest.raises(ArgumentError, match=message) as raised:
        partitioned_as(MODEL, EXAMPLE, parts, 2)
    assert "\n" not in str(raised.value)


def test_channels_of_filters_have_no_names() -> None:
    with pytest.raises(ArgumentError, match=r"^parts by layer, fine-grain: accepted is an array"):
        partitioned_as(MODEL, EXAMPLE, by_layer(), modelling=Modelling(grain="fine"))
