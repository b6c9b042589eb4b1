"""Fused tiles compute what the model does, and exactly the work and bytes that are said."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiled_networks import tiled_network
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from hgpart import channel_graph, example_inputs, flops, load_model, trace
from hgpart.bench.ways.fused_tiles import TiledModel, called
from hgpart.bench.ways.tiles import FusedTiles, fused_tiles, nothing_to_fuse
from hgpart.errors import ArgumentError, PlacementError
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.work.figures import measured
from hgpart.zoo import builtin_models

# crnn takes grey images that are 32 pixels high, which leave no rows to be divided; the others have
# a thousand layers.
EXCEPT = ("crnn", "resnet1001", "densenet1000")

CLOSE = 1e-10
SMALL = {"lenet5": (1, 32, 32), "alexnet": (3, 96, 96), "inception_v3": (3, 107, 107)}
SMALL |= {"inception_resnet_v2": SMALL["inception_v3"], "alexnet_2012": SMALL["alexnet"]}
SMALL |= {"alexnet_tiny_imagenet": (3, 56, 56), "alexnet_dogs_vs_cats": (3, 128, 128)}


class Skipping(nn.Module):
    """A net whose fused layers end in two maps: a skip leaves them as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 4, 5, stride=2), nn.Conv2d(4, 4, 3, padding=1)
        self.last, self.after = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 3, 2, dilation=2)
        self.scores = nn.Linear(2, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.relu(self.first(images))
        inner = nn.functional.max_pool2d(torch.relu(self.inner(maps)), 3, 2, 1)
        maps = maps + nn.functional.interpolate(self.last(inner), maps.shape[2:])
        return self.scores(torch.relu(self.after(maps)).amax((2, 3)))


def run(
    facts: NodeFacts, model: nn.Module, tiles: FusedTiles, images: Tensor, counted: bool
) -> list[Tensor]:
    """What all processes compute; checks the bytes, and the work of each if that can be counted.

    Some operators are called on all rows; torch counts a transposed convolution by its operand.
    """
    pooled = sum(
        layer.macs * layer.tasks / rows.head.height
        for layer, rows in zip(facts.graph.layers, facts.graph.layer_rows, strict=True)
        if rows.head is not None and not rows.head.is_identity
    )
    cut, count = TiledModel(model, facts, tiles), len(tiles.own)
    values, made, sent = cut.inputs(images), dict[str, Tensor](), 0
    for part in range(count):
        with FlopCounterMode(display=False) as counter:
            results = called(cut.tile(part), values)
        more = counter.get_total_flops() / (2 * len(images)) - int(tiles.work[part])
        assert 0 <= more <= 2 * pooled or not counted
        empty = cut.results(part, len(images))
        for (name, like), result in zip(empty.items(), results, strict=True):
            assert (like.shape, like.dtype) == (result.shape, result.dtype)
            made[name] = result
            sent += result.nbytes if part else 0
    assert sent == tiles.sent_bytes
    with FlopCounterMode(display=False) as counter:
        results = called(cut.rest(), {**values, **made})
    assert counter.get_total_flops() == 2 * len(images) * tiles.rest or not counted
    return results


@torch.no_grad()
def check(
    model: nn.Module,
    images: Tensor,
    shares: list[float],
    *fused: int | None,
    counted: bool = True,
) -> None:
    """Compare the results of tiles with the model's, for some numbers of fused layers."""
    model = model.double().eval()
    images = images.double()
    traced = trace(model, example_inputs(model, tuple(images.shape[1:])))
    graph = channel_graph(traced)
    facts = NodeFacts(traced, graph)
    expected = tree_leaves(model(images))
    for depth in fused:
        tiles = fused_tiles(graph, flops(graph), shares, len(images), depth)
        for result, wanted in zip(run(facts, model, tiles, images, counted), expected, strict=True):
            torch.testing.assert_close(result, wanted, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("shares", [[1.0, 1.0], [1.0, 3.0, 1.0, 2.0]])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_skip_out_of_the_fused_layers_is_sent_as_well(shares: list[float], samples: int) -> None:
    torch.manual_seed(0)
    check(Skipping(), torch.randn(samples, 3, 31, 23), shares, 2, 3, 4, None)


def test_the_rest_begins_where_work_and_bytes_are_least() -> None:
    model, shape = load_model("lenet5", device="meta")
    graph = channel_graph(trace(model, example_inputs(model, shape)))
    every = [fused_tiles(graph, flops(graph), [1, 1], 1, depth) for depth in (2, 3)]
    assert fused_tiles(graph, flops(graph), [1, 1], 1).cost == min(tiles.cost for tiles in every)
    assert every[0].repeated == 0  # pooling by twos: a band begins where its rows do
    assert every[1].repeated > 0
    few, many = (fused_tiles(graph, flops(graph), [1, 1], samples) for samples in (1, 16))
    assert many.cost == 16 * few.cost
    assert many.sent_bytes == 16 * few.sent_bytes
    seconds = measured(graph, [layer.macs * layer.tasks * 1e-9 for layer in graph.layers], "")
    assert fused_tiles(graph, seconds, [1, 1], 1).fused == few.fused
    with pytest.raises(ArgumentError, match="4 fused layers: accepted are 2, 3"):
        fused_tiles(graph, flops(graph), [1, 1], 1, 4)


def test_more_processes_than_rows_leave_some_without() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, stride=4), nn.Flatten(), nn.Linear(18, 2))
    check(model, torch.randn(2, 2, 10, 12), [1.0] * 5, None)


def test_a_model_without_leading_rows_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    graph = channel_graph(trace(model, example_inputs(model, (3, 2, 2))))
    assert nothing_to_fuse(graph) is not None
    with pytest.raises(ArgumentError, match="no leading layer of the model has rows to divide"):
        fused_tiles(graph, flops(graph), [1, 1], 1)


def random_network(seed: int) -> None:
    if (drawn := tiled_network(seed, 1 + seed % 2)) is None:
        return
    model, images = drawn
    model = model.double().eval()
    try:
        check(model, images, [1.0] * (2 + seed % 3), None, counted=False)
    except ArgumentError as error:
        assert "no leading layer" in str(error)
    except PlacementError as error:
        assert "accepted in fused tiles" in str(error)


@given(st.integers(0, 10**6))
def test_random_networks(seed: int) -> None:
    random_network(seed)


@pytest.mark.full
@pytest.mark.long
@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_many_random_networks(seed: int) -> None:
    random_network(seed)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in builtin_models() if name not in EXCEPT])
def test_models(name: str) -> None:
    model, _ = load_model(name, seed=0)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    shape = SMALL.get(name, (3, 64, 64))
    check(model, torch.randn(1, *shape), [1.0, 1.0, 1.0], None, counted=name != "unet")
