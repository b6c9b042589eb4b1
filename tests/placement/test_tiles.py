"""Plans over bands compute what the model does, and send what the table says."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import numpy as np
import placements
import pytest
import torch
from attention_blocks import FEATURES, OF_WINDOWS, TOKENS, AttentionBlock, Patches, attentions
from banded_graphs import READ_APART
from hypothesis import given
from hypothesis import strategies as st
from originals import SEED, original
from tiled_networks import tiled_network
from torch import Tensor, nn
from torch.nn import functional

from hgpart import Modelling, Placement, place
from hgpart.errors import PlacementError
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.accounting import disagreements
from hgpart.placement.building import blueprint
from hgpart.run.verifying import verify
from hgpart.schedule_wanted import Scheduling
from hgpart.zoo import load_model

CLOSE = 1e-10
NONE_OF_ROWS = "none of the rows that its weights compute"  # as in a band of class tokens alone
REFUSED = (
    "rows that the layer's results do not need",
    "whose channels lie along dimensions",
    "bands of rows in evaluation",
    NONE_OF_ROWS,
)
REFUSED_TOKENS = (
    "samples can't be told apart",  # windows that lie beside samples, in slices
    NONE_OF_ROWS,
    "in a batch of 1, than where the model was placed",
)
MAKERS = {
    "whole tiles": placements.of_whole_tiles,
    "blocks": placements.of_random_blocks,
}


def in_tiles(
    model: nn.Module, images: Tensor, k: int, seed: int, make: str = "blocks", **settings: object
) -> tuple[Placement, PartitionedModel] | None:
    """A placement of a copy of the model, and its plan; None if no map has rows."""
    traced, graph = placements.traced_model(model, [images])
    if graph.most_rows == 1:
        return None
    bands = min(settings.pop("bands"), graph.most_rows)
    modelling = Modelling(batch_size=len(images), bands=bands, **settings)
    plan = MAKERS[make](traced, graph, modelling, k, seed)
    return place(copy.deepcopy(model), plan), plan


def check(model: nn.Module, images: Tensor, placed: Placement, plan: PartitionedModel) -> None:
    """Outputs, gradients, statistics and bytes of a step; afterwards what evaluation makes."""
    first = original(model, [images])
    differences = first.run(placed)
    assert max(differences[:3]) <= CLOSE, differences
    assert differences.held == first.elements
    traffic = placed.runtime.last.traffic
    wanted = placed.programs.expected_traffic([len(images)], True)
    for kind in ("forward_bytes", "forward_messages", "backward_bytes", "backward_messages"):
        np.testing.assert_array_equal(getattr(traffic, kind), getattr(wanted, kind))
    if len(images) > 1:  # in the trace of one sample, layers without a module may have other names
        assert traffic.forward_bytes.sum() == plan.partition.evaluation.volume
    assert disagreements(placed.report(len(images)), placed) == ()
    torch.manual_seed(SEED)
    model(images)
    model.eval(), placed.eval()
    with torch.no_grad():
        expected = model(images)
        torch.testing.assert_close(placed(images), expected, rtol=CLOSE, atol=CLOSE)


def attempt(seed: int, samples: int = 2, **settings: object) -> str:
    """Check a random network in random tiles: ``equal``, ``refused`` (by name), or ``no rows``."""
    if (drawn := tiled_network(seed, samples)) is None:
        return "no rows"
    try:
        placed = in_tiles(*drawn, 2 + seed % 2, seed, **settings)
        if placed is None:
            return "no rows"
        check(*drawn, *placed)
    except PlacementError as error:
        assert any(reason in str(error) for reason in REFUSED)
        return "refused"
    return "equal"


@given(
    seed=st.integers(0, 10_000),
    bands=st.integers(2, 6),
    make=st.sampled_from([*MAKERS]),
    norms=st.sampled_from(["slice", "batch"]),
    input_vertex=st.booleans(),
    output_vertex=st.booleans(),
    borders_first=st.booleans(),
)
def test_random_networks_in_random_tiles(seed, borders_first, **settings):
    with pytest.MonkeyPatch.context() as patch:
        if borders_first:  # however little time the inside takes
            patch.setattr(blueprint, "MESSAGES_HIDDEN", 0)
            patch.setattr(blueprint, "CALLS_HIDDEN", 0)
        attempt(seed, **settings)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_many_random_networks(first):
    found = Counter(
        attempt(seed, bands=2 + seed % 5, make=[*MAKERS][seed // 2 % 2])
        for seed in range(first, first + 20)
    )
    assert found["equal"] >= 11
    assert found["refused"] <= 4


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_networks_in_slices_and_bands(first):
    found = Counter(
        attempt(seed, samples=5, bands=2 + seed % 3, slices=2 + seed % 2, norms="batch")
        for seed in range(first, first + 20)
    )
    assert found["equal"] >= 11


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("norms", "slices"), [("slice", 2), ("batch", 2), ("slice", 1), ("slice", 3), ("batch", 3)]
)
def test_norms_of_slices_and_of_the_batch(norms, slices):
    """Each share beside the model with its samples, or all together; in micro-batches, too."""
    seed = slices
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(4, 5, 3, padding=1),
        nn.BatchNorm2d(5),
    ).double()
    images = torch.randn(6 * slices, 3, 9, 7, dtype=torch.float64)
    placed, plan = in_tiles(model, images, 3, seed, bands=3, slices=slices, norms=norms)
    for scheduling in (None, Scheduling("1f1b", 2)):
        verified = verify(model, placed, (images,), scheduling=scheduling)
        assert verified.failures == ()
        if scheduling is None:
            assert verified.traffic.forward_bytes.sum() == plan.partition.evaluation.volume


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("k", "bands", "slices"), [(2, 4, 1), (3, 5, 2), (3, 8, 3)])
def test_lenet5_in_random_tiles(k, bands, slices):
    model, images = load_model("lenet5")[0].double(), torch.randn(4, 1, 32, 32).double()
    placed, plan = in_tiles(model, images, k, seed=k, bands=bands, slices=slices)
    check(model, images, placed, plan)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("make", ["whole tiles", "blocks"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "unet", "shufflenet_v2_x1_0"])
def test_models_of_the_zoo_in_random_tiles(name, make):
    """In evaluation, as norms of few values magnify what is rounded otherwise."""
    for k in (2, 3):
        model, images = load_model(name)[0].double().eval(), torch.randn(1, 3, 64, 64).double()
        placed, plan = in_tiles(model, images, k, k, make, bands=4)
        assert verify(model, placed, (images,)).failures == ()
        assert placed.runtime.last.traffic.forward_bytes.sum() == plan.partition.evaluation.volume


class Calibrated(nn.Module):
    """A gate that is computed at one row, normed there, and made taller (SCNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(own, 4, 3, padding=1) for own in (3, 4))
        self.down, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        """Maps times the gate."""
        maps = self.first(images).relu()
        gate = self.norm(self.down(functional.avg_pool2d(maps, 4)))
        taller: Tensor = functional.interpolate(gate, size=maps.shape[2:])
        return self.last(maps) * torch.sigmoid(taller)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("norms", ["slice", "batch"])
@pytest.mark.parametrize("k", [2, 3])
def test_a_norm_of_maps_of_one_row_in_a_layer_of_several(k: int, norms: str, slices: int) -> None:
    """The norm's rows were looked up where it had none: a KeyError."""
    torch.manual_seed(SEED)
    model = Calibrated().double()
    images = torch.randn(4, 3, 4, 4, dtype=torch.float64)
    for seed in range(3):
        placed, _ = in_tiles(model, images, k, seed, bands=4, norms=norms, slices=slices)
        assert verify(model, placed, (images,)).failures == ()


class Gated(nn.Module):
    """Maps times a sum over their rows, which is a layer of its own."""

    def __init__(self, summed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.gate = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.summed = summed

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images).relu()
        return maps * self.gate(self.summed(maps)).mean((2, 3), keepdim=True)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("sums", "has_partial_sums"),
    [
        (lambda maps: maps.sum((2, 3), True), True),  # a user's sum was averaged
        pytest.param(lambda maps: maps.mean((2, 3), True), True, marks=pytest.mark.full),
        pytest.param(
            lambda maps: functional.avg_pool2d(maps, (12, 8)), True, marks=pytest.mark.full
        ),
        # Of 16 channels, tasks are the first four: partial sums of these were mixed up.
        (lambda maps: functional.pixel_unshuffle(maps, 2).mean((2, 3), True)[:, :4], False),
    ],
    ids=["sum", "mean", "pooling", "some of its channels"],
)
def test_sums_over_rows(sums, has_partial_sums, make):
    model, images = Gated(sums).double(), torch.randn(2, 3, 12, 8).double()
    placed, plan = in_tiles(model, images, 3, 1, make, bands=4)
    assert any(view.total for view in plan.partition.model.views) == has_partial_sums
    check(model, images, placed, plan)


class Unpooled(nn.Module):
    """Maxima are put back where they were among all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        maps, places = functional.max_pool2d(self.first(images), 2, return_indices=True)
        return self.last(functional.max_unpool2d(maps.relu(), places, 2))


def test_places_of_maxima_are_those_among_all_rows():
    model, images = Unpooled().double(), torch.randn(2, 3, 8, 6).double()
    for seed in range(2):
        check(model, images, *in_tiles(model, images, 3, seed, bands=2))


@pytest.mark.full
@pytest.mark.parametrize("bands", [1, 2])
def test_a_weight_that_several_layers_read_in_slices(bands):
    """A copy of a parameter without a task there counted as the part's share of the model."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.PReLU(), nn.Conv2d(4, 2, 1)).double()
    images = torch.randn(5, 3, 6, 4).double()
    for seed in range(2):
        check(model, images, *in_tiles(model, images, 3, seed, bands=bands, slices=3))


def test_sizes_at_which_a_layer_is_no_sum_over_rows_are_refused():
    """Bytes differed from the table, and a part had weights twice."""
    model = Gated(lambda maps: functional.avg_pool2d(maps, (12, 8))).double()
    images = torch.randn(2, 3, 12, 8).double()
    placed, _ = in_tiles(model, images, 2, 1, bands=4)
    with pytest.raises(PlacementError, match="sums all rows for inputs of some sizes and not for"):
        placed.for_inputs(torch.randn(2, 3, 24, 8).double())
    placed(images)


def test_a_norm_of_rows_that_no_part_can_compute_is_refused():
    """Without padding, the last row of the convolution needs one that the pooling leaves out."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)).double()
    with pytest.raises(PlacementError, match=r"^1 in 0 takes statistics of rows that the layer's"):
        in_tiles(model, torch.randn(2, 3, 9, 9).double(), 2, 0, bands=2)
    padded = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2))
    images = torch.randn(2, 3, 9, 9).double()
    check(padded.double(), images, *in_tiles(padded, images, 2, 0, bands=2))


@pytest.mark.full
@pytest.mark.long
@given(
    attention=attentions(),
    training=st.booleans(),
    k=st.integers(2, 3),
    bands=st.integers(2, 4),
    samples=st.sampled_from([1, 3]),
    slices=st.integers(1, 2),
    make=st.sampled_from([*MAKERS]),
    seed=st.integers(0, 2**16),
)
def test_rows_of_tokens(attention, training, k, bands, samples, slices, make, seed):
    """Each band of queries reads the keys and values of all."""
    torch.manual_seed(0)
    model = AttentionBlock(attention).double().train(training)
    tokens = torch.randn(samples, TOKENS, FEATURES, dtype=torch.float64)
    check_tokens(model, tokens, k, seed, make, bands=bands, slices=min(slices, samples))


@pytest.mark.full
@pytest.mark.long
@given(
    attention=attentions().filter(lambda own: not own.in_windows),
    is_pooled=st.booleans(),
    training=st.booleans(),
    bands=st.integers(2, 4),
    samples=st.sampled_from([1, 3]),
    make=st.sampled_from([*MAKERS]),
    seed=st.integers(0, 2**16),
)
def test_rows_of_patches(attention, is_pooled, training, bands, samples, make, seed):
    """Rows of maps become rows of tokens, of which several read one."""
    torch.manual_seed(0)
    model = Patches(attention, is_pooled).double().train(training)
    images = torch.randn(samples, 3, 4, 4, dtype=torch.float64)
    check_tokens(model, images, 2, seed, make, bands=bands)


class Tokens(nn.Module):
    """Something done to the features of tokens, between two linear layers."""

    def __init__(self, done: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 4), nn.LazyLinear(2)
        self.table = nn.Parameter(torch.randn(TOKENS, 4, 4))
        self.norm, self.slope = nn.BatchNorm1d(TOKENS), nn.PReLU(TOKENS)
        self.done = done

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.done(self, self.first(tokens)))


def heads(maps: Tensor) -> Tensor:
    return maps.unflatten(-1, (2, -1)).transpose(1, 2)


def attended(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    made = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return made.transpose(1, 2).flatten(2)


DONE = {
    "queries that are keys and values": lambda _, x: attended(*[heads(x)] * 3),
    "keys that are values": lambda own, x: attended(heads(x), *[heads(x.exp())] * 2),
    "causal attention": lambda _, x: attended(*map(heads, (x, x.exp(), x.sin())), is_causal=True),
    "cosine attention": lambda _, x: (
        (
            functional.normalize(heads(x), dim=-1)
            @ functional.normalize(heads(x.exp()), dim=-1).mT
            @ heads(x.sin())
        )
        .transpose(1, 2)
        .flatten(2)
    ),
    "a product of flattened tokens": lambda own, x: torch.addmm(
        own.table[0, 0], x.flatten(0, 1), own.table[0]
    ).view_as(x),
    "a vector": lambda own, x: x * (x @ own.table[0, 0])[..., None].softmax(1),
    "a matrix for each token": lambda own, x: torch.einsum("bid,ide->bie", x, own.table),
    "a norm of tokens": lambda own, x: own.norm(x),
    "a slope of each token": lambda own, x: own.slope(x),
}


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("bands", [2, 3])
@pytest.mark.parametrize("model", READ_APART, ids=["plain", "tied", "norm", "input", "many"])
@pytest.mark.parametrize("single", [True, False])
def test_channels_that_are_read_in_different_rows(model, bands, single, seed):
    """Rows were missed behind a norm, and bytes miscounted of inputs and tied layers."""
    torch.manual_seed(0)
    model, images = copy.deepcopy(model).double(), torch.randn(4, 3, 8, 5, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [images])
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    modelling = Modelling(batch_size=4, bands=bands, input_vertex=True)
    plan = draw(traced, graph, modelling, 3, seed)
    check(model.train(), images, place(copy.deepcopy(model), plan), plan)


@pytest.mark.few(1)
@pytest.mark.parametrize("samples", [3, 1, TOKENS])
@pytest.mark.parametrize("name", DONE)
def test_what_is_done_to_tokens(name, samples):
    torch.manual_seed(0)
    tokens = torch.randn(samples, TOKENS, FEATURES, dtype=torch.float64)
    model = Tokens(DONE[name]).double().train(samples > 1)
    model(tokens)
    for seed, make in enumerate(MAKERS):
        placed = in_tiles(model, tokens, 2, seed, make, bands=3)
        assert placed is not None
        check(model, tokens, *placed)


@pytest.mark.few(1)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("bands", "slices"), [(2, 2), (2, 1), (1, 2)])
@pytest.mark.parametrize("name", OF_WINDOWS)
def test_windows_that_lay_beside_samples(name, bands, slices, make):
    torch.manual_seed(0)
    model, images = OF_WINDOWS[name]().double(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    check(model, images, *in_tiles(model, images, 3, bands, make, bands=bands, slices=slices))


def check_tokens(model: nn.Module, images: Tensor, k: int, seed: int, make: str, **settings: int):
    """Check a model whose tokens are rows, in tiles at random, or that it is refused by name."""
    try:
        placed = in_tiles(model, images, k, seed, make, **settings)
        assert placed is not None
        check(model, images, *placed)
    except PlacementError as error:
        assert any(reason in str(error) for reason in REFUSED_TOKENS), error
