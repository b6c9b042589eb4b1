"""Placed models compute what the originals compute, and what they send is what the table says."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import partitioned_models as models
import placements
import pytest
import torch
from builtin_graphs import IMAGES, each_model
from hypothesis import given
from hypothesis import strategies as st
from placements import small
from torch import nn

import hgpart
from hgpart import Modelling, load_model, partition_graph, partition_model, place
from hgpart.errors import ArgumentError, PlacementError, PlanError
from hgpart.execution.program import receive, send
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.partitioned_model import PartitionedModel
from hgpart.plan import Plan
from hgpart.work.figures import flops

# Others are in test_placement_processes.py; benchmarks/placement_equality.py has them all.
MODELS = ["squeezenet1_1", "densenet121", "efficientnet_b0", "shufflenet_v2_x1_0"]


@given(
    name=st.sampled_from([*models.MODELS]),
    grain=st.sampled_from(["coarse", "fine"]),
    linear=st.sampled_from(["neuron", "layer"]),
    input_vertex=st.booleans(),
    output_vertex=st.booleans(),
    k=st.integers(1, 5),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_partition_of_small_models(
    name, grain, linear, input_vertex, output_vertex, k, single, seed
):
    model, inputs, traced, graph = small(name)
    modelling = Modelling(
        grain=grain, linear=linear, input_vertex=input_vertex, output_vertex=output_vertex
    )
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    placements.check_equal(model, inputs, draw(traced, graph, modelling, k, seed), seed)


@cache
def builtin(name: str):
    model, _ = load_model(name, seed=0)
    model = model.double()
    torch.manual_seed(1)
    inputs = [torch.randn(2, *IMAGES.get(name, (3, 64, 64)), dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "grain"),
    [
        *each_model("fine", names=MODELS, quick=["squeezenet1_1"]),
        *each_model("coarse", names=["lenet5"]),
    ],
)
def test_random_partition_of_builtin_models(name, grain):
    model, inputs, traced, graph = builtin(name)
    k = 2 + len(name) % 3
    plan = placements.of_random_blocks(traced, graph, Modelling(grain=grain), k, len(name))
    placements.check_equal(model, inputs, plan)


@given(
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.sampled_from([2, 3, 4, 8]),
    seed=st.integers(0, 2**16),
)
def test_lenet5_with_every_task_at_random(grain, k, seed):
    model, inputs, traced, graph = builtin("lenet5")
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), k, seed)
    placements.check_equal(model, inputs, plan, seed)


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["fine", "coarse"])
@pytest.mark.parametrize("k", [3, 8, *(pytest.param(k, marks=pytest.mark.full) for k in (2, 4))])
def test_good_partitions(grain, k):
    model, inputs, traced, graph = small("residual")
    modelling = Modelling(grain=grain)
    found = partition_graph(
        graph, flops(graph), k, 0.3, modelling=modelling, best_effort=True, effort=0.1
    )
    plan = PartitionedModel(traced, found, found.evaluation, {})
    placements.check_equal(model, inputs, plan)


def test_every_layer_cut_and_a_part_empty_of_layers():
    model, inputs, traced, graph = small("residual")
    modelling = Modelling()
    blocks = layer_blocks(modelling.views(graph))
    hypergraph = cnn_hypergraph(graph, flops(graph), blocks, modelling)
    every = (np.arange(hypergraph.hypergraph.vertices) % 3).astype(np.int32)  # never a neighbour
    plan = placements.partitioned(traced, graph, modelling, 4, hypergraph, every)
    placed = placements.check_equal(model, inputs, plan)
    assert "self." not in placed.programs.submodule(3).code  # part 3 has nothing to compute


def test_a_part_holds_its_slices_only_and_its_code_says_what_it_does():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    images = torch.randn(2, 3, 8, 8)
    plan = partition_model(model, images, k=2, eps=0.2, effort=0)
    placed = place(model, plan)
    sends, receives = (
        [
            sum(node.target is operator for node in placed.programs.submodule(part).graph.nodes)
            for part in range(2)
        ]
        for operator in (send, receive)
    )
    transfers = placed.programs.transfers
    assert sends == [sum(one.sender == part for one in transfers) for part in range(2)]
    assert receives == [sum(one.receiver == part for one in transfers) for part in range(2)]
    assert sum(sends) > 0
    sizes = [
        sum(p.numel() for p in placed.programs.submodule(part).parameters()) for part in range(2)
    ]
    assert sum(sizes) == sum(p.numel() for p in model.parameters())
    assert max(sizes) < sum(sizes)


def test_what_moves_moves_in_both_modes():
    # The tensors of the mode that was not current were left where they had been.
    model, images, traced, graph = small("residual")
    placed = place(model, placements.of_random_blocks(traced, graph, Modelling(), 2, 0))
    images = [one.double() for one in images]
    expected = copy.deepcopy(model).eval().double()(*images)
    placed.eval()
    placed.train()
    placed.double()
    placed.eval()
    placed.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    assert torch.allclose(placed(*images), expected, rtol=1e-10)


def test_only_the_parts_asked_for():
    model, _, traced, graph = small("residual")
    plan = placements.of_random_blocks(traced, graph, Modelling(), 3, 0)
    one = place(model, plan, parts=[1])
    whole = place(model, plan)
    assert [*one.programs.parts] == [1]
    assert one.programs.submodule(1).code == whole.programs.submodule(1).code
    assert [p.shape for p in one.parameters()] == [
        p.shape for p in whole.programs.submodule(1).parameters()
    ]
    with pytest.raises(PlacementError, match="1 of 3 parts"):
        one.state_dict()
    with pytest.raises(PlacementError, match="part 2"):
        one.programs.submodule(2)


def test_weights_from_a_file_into_a_model_without_any(tmp_path):
    model, images, *_ = small("residual")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    empty = copy.deepcopy(model).to("meta")
    plan = partition_model(empty, [one.to("meta") for one in images], k=2, eps=0.3, effort=0)
    placed = place(empty, plan)
    placed.load_checkpoint(tmp_path / "weights.pt")
    assert torch.allclose(placed(*images), model(*images), atol=1e-12)
    (tmp_path / "cut.pt").write_bytes((tmp_path / "weights.pt").read_bytes()[:1000])
    with pytest.raises(hgpart.HgpartError, match="no weights can be read"):
        placed.load_checkpoint(tmp_path / "cut.pt")


@pytest.mark.full
def test_a_plan_serves_for_other_float_types_and_no_other_model():
    model, shape = load_model("lenet5", seed=0)
    result = partition_model(model, hgpart.example_inputs(model, shape), k=2, eps=0.2, effort=0)
    plan = Plan(result.partition, "lenet5", shape)
    double = copy.deepcopy(model).double()
    images = torch.randn(2, *shape, dtype=torch.float64)
    assert torch.allclose(place(double, plan)(images), double(images), atol=1e-12)
    other, _ = load_model("alexnet", device="meta")
    with pytest.raises((PlanError, hgpart.HgpartError)):
        place(other, plan)


def test_without_a_plan_the_model_is_divided_first():
    model, images, _, _ = small("residual")
    placed = place(model, k=2, example=images)
    planned = place(model, partition_model(model, images, 2))
    assert {name: value.shape for name, value in placed.named_parameters()} == {
        name: value.shape for name, value in planned.named_parameters()
    }
    assert torch.allclose(placed(*images), copy.deepcopy(model)(*images), atol=1e-5)


def test_either_a_plan_or_k_and_an_example():
    model, images, traced, graph = small("residual")
    for left_out in ({}, {"k": 2}, {"example": images}):
        with pytest.raises(ArgumentError, match="without a plan"):
            place(model, **left_out)
    plan = placements.of_random_blocks(traced, graph, Modelling(), 2, 0)
    with pytest.raises(ArgumentError, match="one or the other"):
        place(model, plan, k=2)
    with pytest.raises(ArgumentError, match=r"is a str: accepted are .*load_plan\(path\)"):
        place(model, "plan.json")


def test_devices():
    model, _, traced, graph = small("residual")
    plan = placements.of_random_blocks(traced, graph, Modelling(), 2, 0)
    for one in ("meta", torch.device("meta")):
        assert {value.device.type for value in place(model, plan, one).parameters()} == {"meta"}
    with pytest.raises(PlacementError, match="'tpu'"):
        place(model, plan, "tpu")
    with pytest.raises(PlacementError, match="3 devices for 2 parts"):
        place(model, plan, ["cpu"] * 3)
    with pytest.raises(PlacementError, match="'cuda:99' is not there"):
        place(model, plan, ["cpu", "cuda:99"])
    with pytest.raises(PlacementError, match="'tpu'"):
        place(model, plan, ["cpu", "tpu"])


def test_a_copy_is_on_its_own():
    model, inputs, traced, graph = small("plain")
    placed = place(model, placements.of_random_blocks(traced, graph, Modelling(), 2, 3))
    expected = placed(*inputs)
    other = copy.deepcopy(placed)
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    assert torch.equal(placed(*inputs), expected)
    assert not other(*inputs).any()


def test_another_batch_than_a_fixed_one_is_traced_anew():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, image):
            if image.shape[0] == 2:
                return self.conv(image)
            return image

    model, images = Fixed(), torch.randn(2, 3, 8, 8)
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    assert torch.allclose(placed(images), model(images), atol=1e-6)
    other = torch.randn(5, 3, 8, 8)
    assert torch.equal(placed(other), other)
    assert torch.allclose(placed(images), model(images), atol=1e-6)


def test_an_example_of_one_image_is_as_good_as_of_two():
    """It fixed the batch at 1, and the report counted other bytes than the plan."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).double()
    images = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    split = placements.of_random_blocks(*placements.traced_model(model, images), Modelling(), 3, 2)
    placed = placements.check_equal(model, [torch.randn(5, 3, 8, 8, dtype=torch.float64)], split)
    report = placed.report()
    assert report.batch_size == split.partition.modelling.batch_size
    assert report.sent_bytes.sum() == placed.programs.expected(report.batch_size).volume


def test_a_map_of_pairs_of_samples_is_refused_by_name():
    """What travels would not be what the table says in any batch but that of the example."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            maps = self.first(x)
            return maps @ maps.T, self.second(maps)

    model = Pairs()
    split = placements.of_single_tasks(
        *placements.traced_model(model, torch.zeros(2, 4)), Modelling(), 3, 0
    )
    with pytest.raises(PlacementError, match="accepted are maps that grow evenly with the batch"):
        place(model, split)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.randn(2, 3, 8, 8).double(), r"^image of type torch.float64: accepted is torch"),
        (torch.randn(2, 4, 8, 8), "inputs of 4x8x8: accepted are 3x8x8, and others that the model"),
    ],
)
def test_inputs_other_than_traced_are_refused(images, message):
    model, _ = models.built("residual")
    placed = place(model, partition_model(model, torch.zeros(2, 3, 8, 8), k=2, eps=0.5, effort=0))
    with pytest.raises(PlacementError, match=message):
        placed(images)


def test_what_was_never_loaded_is_not_computed_with():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).to("meta")
    images = torch.randn(2, 3, 8, 8)
    placed = place(model, partition_model(model, images.to("meta"), k=2, eps=0.5, effort=0))
    with pytest.raises(PlacementError, match="has no value"):
        placed(images)
    model[0].register_buffer("mean", torch.zeros(8, 1, 1, device="meta"), persistent=False)
    model[0].forward = lambda image: nn.Conv2d.forward(model[0], image) - model[0].mean
    split = partition_model(model, images.to("meta"), k=2, eps=0.5, effort=0)
    with pytest.raises(PlacementError, match=r"0\.mean is on the meta device"):
        place(model, split)
    without_memory = place(model, split, ["meta"] * 2)  # its programs may be all that is wanted
    without_memory.load_state_dict(model.state_dict())
    with pytest.raises(PlacementError, match=r"0\.mean has no value"):
        without_memory(images)


def test_other_memory_formats():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4))
    images = torch.randn(2, 3, 8, 8)
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    images = images.to(memory_format=torch.channels_last)
    assert torch.allclose(placed(images), model(images), atol=1e-6)
    assert torch.equal(nn.Sequential(placed).state_dict()["0.0.weight"], model[0].weight)
