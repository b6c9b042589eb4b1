"""Borders are computed before the insides of tiles, and leave before these are computed."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import placements
import pytest
import torch
from banded_graphs import graph_of, modellings, random_parts
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgpart import Modelling, place
from hgpart.execution.instructions import Compute, Receive, Send, prepare
from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.placement.building import blueprint
from hgpart.placement.building.borders_first import borders_first
from hgpart.placement.building.channel_transfers import ChannelTransfer, channel_transfers
from hgpart.placement.shares.ownership import Tile, ownership
from hgpart.work.figures import flops


def cells(tile: Tile) -> list[tuple[int, int]]:
    return [*itertools.product(tile.tasks.tolist(), tile.rows.tolist())]


def sent(transfers: tuple[ChannelTransfer, ...]) -> Counter:
    """How often each channel of each row goes from one part to another."""
    return Counter(
        (item.layer, item.partial, item.sender, item.receiver, member, row)
        for item in transfers
        for piece in item.pieces
        for member in piece.members.tolist()
        for row in ([0] if piece.rows is None else piece.rows.tolist())
    )


@given(st.integers(0, 5), modellings(), st.integers(0, 99), st.integers(0, 9))
def test_tiles_and_transfers_are_the_same_in_other_pieces(seed, modelling, parts_seed, pays_seed):
    graph, modelling = graph_of(seed), replace(modelling, slices=1)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    parts = random_parts(model, parts_seed)
    partition = placements.partitioned(None, graph, modelling, 3, model, parts).partition
    owners = ownership(partition)
    whole = channel_transfers(graph, owners)
    paying = np.random.default_rng(pays_seed).random(len(graph.layers)) < 0.7
    divided = borders_first(graph, owners, whole, lambda at, inside: bool(paying[at]))
    assert sent(divided.transfers) == sent(whole)
    for (at, part), tiles in divided.tiles.items():
        assert paying[at]
        of_owners = [cell for tile in owners.tiles(at, part) for cell in cells(tile)]
        assert sorted(cell for tile in tiles for cell in cells(tile)) == sorted(of_owners)
        assert all((np.diff(tile.rows) == 1).all() for tile in tiles)
    for item in divided.transfers:
        tiles = divided.tiles.get((item.layer, item.sender))
        for piece in item.pieces if tiles else ():
            tile = tiles[piece.tile]
            assert np.isin(piece.members, tile.tasks).all() or graph.layers[item.layer].tasks == 1
            assert np.isin(piece.rows, tile.rows).all()


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The instructions of the upper half of three convolutions, chunk by chunk."""
    monkeypatch.setattr(blueprint, "MESSAGES_HIDDEN", 0)
    monkeypatch.setattr(blueprint, "CALLS_HIDDEN", 0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
    )
    traced, graph = placements.traced_model(model, [torch.randn(1, 3, 8, 8)])
    plan = placements.of_whole_tiles(traced, graph, Modelling(batch_size=1, bands=2), 2, 0)
    layers = plan.partition.model
    parts = np.zeros(len(plan.partition.parts), dtype=np.int32)
    for at in range(len(graph.layers)):
        parts[layers.in_bands[1:, layers.task_vertices[at]]] = 1
    plan = placements.partitioned(traced, graph, Modelling(batch_size=1, bands=2), 2, layers, parts)
    prepared = prepare(place(model, plan).programs.parts[0])
    return [[type(prepared.instructions[at][0]) for at in chunk] for chunk in prepared.forward]


def test_a_border_leaves_before_the_inside_is_computed(chain):
    """Back to what was received: of both convolutions the border comes first, then the insides."""
    kinds = [[kind for kind in chunk if kind in (Compute, Receive, Send)] for chunk in chain]
    assert [Receive, Compute, Compute, Send] in kinds
    after = kinds[kinds.index([Receive, Compute, Compute, Send]) + 1]
    assert after == [Compute, Compute]
