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
from torch import nn
from torch.nn import functional

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
MODELS = ["squeezenet1_1", "googlenet", "densenet121", "efficientnet_b0", "shufflenet_v2_x1_0"]


@cache
def small(name: str):
    model, examples = models.built(name)
    model = copy.deepcopy(model).double()
    torch.manual_seed(1)
    inputs = [torch.randn(3, *one.shape[1:], dtype=torch.float64) for one in examples]
    return model, inputs, *placements.traced_model(model, inputs)


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


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
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


# ------------------------------------------------------------------ operators and structures


class Everything(nn.Module):
    """Shared weights, dropout of both kinds, a counter, an unused layer, a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.third.weight = self.second.weight
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 64, 5)
        self.unused = nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(8, 1, 1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, image):
        self.steps += 1
        maps = functional.dropout(functional.relu(self.norm(self.first(image))), 0.3, self.training)
        maps = functional.relu(self.second(maps)) * self.scale
        maps = functional.dropout2d(self.third(maps), 0.2, self.training)
        return {"logits": self.head(maps.flatten(1)), "maps": maps, "number": 3}


@cache
def traced_everything():
    return placements.traced_model(Everything().double(), torch.zeros(4, 3, 8, 8).double())


def everything(grain: str, k: int = 3):
    torch.manual_seed(0)
    model = Everything().double()
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    plan = placements.of_random_blocks(*traced_everything(), Modelling(grain=grain), k, 0)
    return model, images, place(model, plan)


def loss_of(results):
    return results["logits"].pow(2).mean() + results["maps"].abs().mean()


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_trains_as_the_original_with_the_same_seed(grain):
    model, images, placed = everything(grain)
    assert list(placed.state_dict()) == list(model.state_dict())
    optimizers = [torch.optim.Adam(one.parameters(), 1e-2) for one in (model, placed)]
    for step in range(4):
        losses = []
        for one, optimizer in zip((model, placed), optimizers, strict=True):
            torch.manual_seed(step)
            results = one(images)
            assert results["number"] == 3
            optimizer.zero_grad()
            loss_of(results).backward()
            optimizer.step()
            losses.append(loss_of(results).item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert placed.state_dict()["steps"] == 4
    for name, value in model.state_dict().items():
        assert torch.allclose(placed.state_dict()[name].to(value.dtype), value, atol=1e-10), name


@pytest.mark.few(1)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_evaluation_and_back(grain):
    model, images, placed = everything(grain)
    for mode in (False, True, False):
        model.train(mode)
        placed.train(mode)
        torch.manual_seed(5)
        expected = model(images)
        torch.manual_seed(5)
        assert torch.allclose(placed(images)["logits"], expected["logits"], atol=1e-12)
    assert placed.state_dict()["steps"] == 3
    with torch.no_grad():
        assert not placed(images)["logits"].requires_grad


def test_other_types_and_batches():
    model, images, placed = everything("fine")
    placed.float().eval()
    model.float().eval()
    expected = model(images[:3].float())
    found = placed(images[:3].float())
    assert found["logits"].dtype == torch.float32
    assert torch.allclose(found["logits"], expected["logits"], atol=1e-6)
    assert {t.dtype for one in placed.programs.transfers for t in one.tensors} == {torch.float32}
    placed.train()
    placed(images[:3].float())
    counted = placed.runtime.last.traffic.forward_bytes
    np.testing.assert_array_equal(counted, placed.programs.expected(3).traffic)


def test_running_statistics_of_16_bits():
    """They are made in 32 bits, by one operator more in the trace: placing raised KeyError."""
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)).bfloat16()
    images = torch.randn(3, 2, 4, 4).bfloat16()
    placed = place(model, partition_model(model, images, k=2, eps=0.1))
    for _ in range(2):
        assert torch.equal(placed(images), model(images))
    found = placed.state_dict()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_state_round_trip_through_another_k():
    model, _, placed = everything("coarse")
    model.eval()
    _, _, other = everything("fine", k=4)
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
    other.load_state_dict(placed.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("head.bias"), "lacks head.bias"),
        (lambda state: state.update(other=torch.zeros(1)), "unknown other"),
        (lambda state: state.update({"head.bias": torch.zeros(6)}), r"\(6,\), expected \(5,\)"),
        (lambda state: state.update({"head.bias": [0.0] * 5}), "head.bias is a list, expected a t"),
    ],
)
def test_foreign_state_is_refused(change, message):
    model, _, placed = everything("coarse")
    before = placed.state_dict()
    state = {**model.state_dict()}
    change(state)
    with pytest.raises(PlacementError, match=message):
        placed.load_state_dict(state)
    assert all(torch.equal(before[name], value) for name, value in placed.state_dict().items())


def test_a_state_that_is_no_mapping_is_refused():
    _, _, placed = everything("coarse")
    with pytest.raises(PlacementError, match="the state is a list, expected tensors by name"):
        placed.load_state_dict([*placed.state_dict()])


def test_inside_another_module_it_loads_what_that_saves():
    """Torch asks each submodule to load: it found the names of the parts, not the model's."""
    model, inputs, traced, graph = small("residual")
    plan = placements.of_random_blocks(traced, graph, Modelling(grain="fine"), 3, 0)
    saved, loaded = (nn.Sequential(place(model, plan), nn.Linear(10, 2).double()) for _ in range(2))
    with torch.no_grad():
        for one in saved.parameters():
            one.mul_(1.5)
    state = saved.state_dict()
    assert [*state] == [*nn.Sequential(model, nn.Linear(10, 2)).state_dict()]
    for assign in (False, True):
        loaded.load_state_dict(state, assign=assign)
        assert torch.equal(loaded(*inputs), saved(*inputs))
        assert all(torch.equal(loaded.state_dict()[name], value) for name, value in state.items())
    left = loaded.load_state_dict({"0.body.9": state["0.head.bias"]}, strict=False)
    assert left.unexpected_keys == ["0.body.9"]
    assert left.missing_keys == [*state]
    with pytest.raises(RuntimeError, match=r"head\.bias has shape \(3,\), expected \(10,\)"):
        loaded.load_state_dict({**state, "0.head.bias": torch.zeros(3)})


def test_unused_parameters_whose_names_differ_by_a_dot():
    """Part 0 held them under one name, where dots were underscores."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    model.a, model.a_b = nn.Module(), nn.Module()
    model.a.b_c, model.a_b.c = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(3))
    model.forward = model[0].forward
    images = torch.randn(2, 3, 4, 4)
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    for name, value in model.state_dict().items():
        assert torch.equal(placed.state_dict()[name], value), name


class Odd(nn.Module):
    """Operators that can't be cut as they stand: shuffles, softmax, norms, padding, data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.shuffle = nn.ChannelShuffle(3)
        self.grouped = nn.Conv2d(12, 24, 3, groups=4, padding=1)
        self.depthwise = nn.Conv2d(24, 48, 3, groups=24, padding=1)
        self.up = nn.ConvTranspose2d(48, 8, 2, stride=2)
        self.group_norm = nn.GroupNorm(4, 8)
        self.up_grouped = nn.ConvTranspose2d(8, 8, 2, groups=4)
        self.layer_norm = nn.LayerNorm([8, 17, 17])
        self.slope = nn.PReLU()
        self.slopes = nn.PReLU(8)
        self.gate = nn.Linear(8, 8)
        self.token = nn.Parameter(torch.randn(1, 8, 1, 1))
        self.normal = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 6, 1))
        self.instance = nn.InstanceNorm2d(6, affine=True)

    def forward(self, image):
        maps = self.depthwise(self.grouped(self.shuffle(self.stem(image)))).relu()
        maps = self.group_norm(self.up(maps))
        maps = self.slopes(self.slope(self.layer_norm(self.up_grouped(maps))))
        maps = maps * torch.sigmoid(self.gate(maps.mean((2, 3))))[:, :, None, None] + self.token
        maps = torch.softmax(maps, 1) + torch.cat([maps[:, 4:], maps[:, :4]], 1)
        maps = self.instance(self.normal(maps))
        variance, mean = torch.var_mean(maps, (2, 3), keepdim=True)
        maps = functional.pad((maps - mean) / (variance + 1).sqrt(), (0, 0, 0, 0, 1, 1)).sigmoid()
        values, indices = maps.flatten(1).max(1)
        return maps, values, indices


@cache
def odd():
    torch.manual_seed(0)
    model = Odd().double()
    inputs = [torch.randn(3, 3, 8, 8, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@given(
    grain=st.sampled_from(["coarse", "fine"]),
    k=st.integers(1, 5),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_odd_operators(grain, k, single, seed):
    model, inputs, traced, graph = odd()
    draw = placements.of_single_tasks if single else placements.of_random_blocks
    plan = draw(traced, graph, Modelling(grain=grain), k, seed)
    placements.check_equal(model, inputs, plan, seed)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 5, 3), nn.FractionalMaxPool2d(2, output_ratio=0.7)), (3, 9, 9)),
        (nn.Sequential(nn.Conv3d(1, 4, 1), nn.FractionalMaxPool3d(2, output_size=2)), (1, 5, 5, 5)),
    ],
)
def test_pooling_in_steps_that_are_drawn_for_each_map(model, shape):
    """The numbers drawn for all maps came to a part of them: torch refused what did not fit."""
    model = copy.deepcopy(model).double()
    images = torch.randn(3, *shape, dtype=torch.float64)
    traced, graph = placements.traced_model(model, images)
    assert [layer.kind for layer in graph.layers] == ["input", "dense", "output"]
    plan = placements.of_single_tasks(traced, graph, Modelling(), 3, seed=0)
    placements.check_equal(model, images, plan)


class Beside(nn.Module):
    """Maps of two layers in one, which parameters meet at different places.

    What some tasks hold of `map` is no box of it, nor of `positions`, of which a token's task has a
    row and each channel's the rest of a column.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(3, 4, 4, 4)
        self.map, self.scale = nn.Parameter(torch.randn(4, 2, 4)), nn.Parameter(torch.randn(64))
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 9, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, image):
        both = torch.cat([self.left(image), self.right(image.flip(3))], 3) + self.map
        both = (both.transpose(1, 3).flatten(1) * self.scale[::2].exp()).unflatten(1, (8, 4))
        token = self.token.expand(len(image), -1, -1)
        tokens = self.left(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([token, tokens], 1) + self.positions[:, ::2]
        return self.head(both.mean(1)), self.head(tokens.tanh().sum(1))


@cache
def beside():
    torch.manual_seed(0)
    model = Beside().double()
    inputs = [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    return model, inputs, *placements.traced_model(model, inputs)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
def test_parameters_that_meet_several_layers_at_different_places(grain):
    """Where a part's elements made up no box it held all of them, as others did."""
    model, inputs, traced, graph = beside()
    plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), k=3, seed=0)
    placed = placements.check_equal(model, inputs, plan)
    held = [one for part in range(3) for one, _ in placed.held(part)]
    assert {one.name for one in held if one.elements is not None} >= {"map", "positions"}


# ------------------------------------------------------------------ what the code says


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


class Branching(nn.Module):
    """Of equal parameters and channels, whatever its numbers."""

    def __init__(self, act=torch.relu, stride=1, skip=False, scale=2.0, order=(1, 0, 2, 3)):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, stride, 1)
        self.act, self.skip, self.scale = act, skip, scale
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x):
        y = self.act(self.first(x))[:, self.order] * torch.tensor(self.scale)
        return self.second(y) + y if self.skip else self.second(y)


@cache
def branching():
    return partition_model(Branching(), torch.randn(2, 3, 6, 6), k=2, eps=1, effort=0)


@pytest.mark.parametrize(
    "others",
    [
        {"act": torch.tanh},
        {"order": (0, 1, 2, 3)},
        *(pytest.param(one, marks=pytest.mark.full) for one in ({"stride": 2}, {"skip": True})),
    ],
)
def test_a_partitioned_model_is_for_no_other_model(others):
    """It computed what was traced, with the weights of the other."""
    with pytest.raises((PlanError, PlacementError), match=r"is another one|has other values"):
        place(Branching(**others), branching())


def test_a_partitioned_model_is_for_a_model_of_another_constant_with_its_constant():
    images, other = torch.randn(2, 3, 6, 6), Branching(scale=3.0)
    torch.testing.assert_close(place(other, branching())(images), other(images))


def test_a_partitioned_model_is_not_for_what_the_model_has_become():
    """Also where the tensor that was traced with was changed in place, or the model is narrower."""
    model, images = Branching(), torch.randn(2, 3, 6, 6)
    result = partition_model(model, images, k=2, eps=1, effort=0)
    model.order.copy_(torch.arange(4))
    with pytest.raises(PlacementError, match="order has other values"):
        place(model, result)
    model.first, model.second = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)
    model.order = torch.tensor([1, 0])
    with pytest.raises(PlanError, match='the plan is for "Branching" with fingerprint'):
        place(model, result)


@pytest.mark.full
@pytest.mark.parametrize("planned", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_plan_of_the_other_mode(planned):
    """What was partitioned in training computed as in training, though the model no longer did."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    images = 3 * torch.randn(2, 3, 8, 8) + 1
    result = partition_model(model.train(planned), images, k=2, eps=0.5, effort=0)
    plan = Plan(result.partition, "model", (3, 8, 8))
    model.train(not planned)
    for given_ in (result, plan):
        placed = place(model, given_)
        assert placed.training == model.training
        assert torch.allclose(placed(images), copy.deepcopy(model)(images), atol=1e-5)
    placed = place(model.double(), plan)
    assert torch.allclose(placed(images.double()), model(images.double()), atol=1e-12)


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


def test_data_dependent_buffers_are_refused_by_name():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("average", torch.zeros(4))

        def forward(self, image):
            maps = self.conv(image)
            self.average.mul_(0.9).add_(maps.detach().mean((0, 2, 3)), alpha=0.1)
            return maps

    model, images = Average(), torch.randn(2, 3, 8, 8)
    plan = partition_model(model, images, k=2, eps=0.5, effort=0)
    with pytest.raises(PlacementError, match="buffer average"):
        place(model, plan)


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", ["residual", "branches", "grouped"])
def test_gradients_of_inputs(name, grain):
    model, inputs, traced, graph = small(name)
    plan = placements.of_random_blocks(traced, graph, Modelling(grain=grain), 3, 1)
    placed = place(model, plan)
    gradients = []
    for one in (copy.deepcopy(model), placed):
        given = [value.clone().requires_grad_() for value in inputs]
        results = one(*given)
        loss = results if isinstance(results, torch.Tensor) else sum(r.sum() for r in results)
        loss.sum().backward()
        gradients.append([value.grad for value in given])
    for expected, found in zip(*gradients, strict=True):
        assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.full
def test_compiled_steps():
    model, inputs, traced, graph = small("residual")
    placed = place(model, placements.of_random_blocks(traced, graph, Modelling(), 2, 3))
    placed.compile(backend="aot_eager")
    assert torch.allclose(placed(*inputs), model(*inputs), atol=1e-12)
    placed(*inputs).sum().backward()
    assert all(one.grad is not None for one in placed.parameters())


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


class NormsBeside(nn.Module):
    """Norms whose results nothing reads: of a map, of a layer for nothing else, of two calls."""

    def __init__(self, twice):
        super().__init__()
        self.twice = twice
        self.first = nn.Conv2d(3, 6, 3)
        self.beside = nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 4, 1))
        self.last = nn.Conv2d(6, 6, 1)
        self.norm, self.of_beside = nn.BatchNorm2d(6), nn.BatchNorm2d(4, affine=False)
        self.shared = nn.BatchNorm2d(6)

    def forward(self, image):
        maps = self.first(image)
        self.norm(maps).relu()
        self.of_beside(self.beside(maps))
        if self.twice:
            self.shared(maps)
        return self.shared(self.last(maps.relu()))


@pytest.mark.full
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("twice", [False, True])
def test_norms_that_nothing_reads_update_their_statistics(grain, twice):
    """What no result depends on was left out, and the norms' new statistics with it."""
    torch.manual_seed(0)
    model, images = NormsBeside(twice).double(), torch.randn(5, 3, 7, 7, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [images[:2]])
    found = {layer.name: (layer.tasks, layer.map_elements) for layer in graph.layers}
    assert (found["norm"], found["beside"]) == ((6, 0), (4, 0))
    for seed in range(2):
        plan = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed)
        placed, whole = placements.check_equal(model, [images], plan), copy.deepcopy(model)
        whole(images)
        torch.testing.assert_close(placed(2 * images), whole(2 * images))
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(placed.state_dict()[name], buffer)
    if not twice:  # whose layers are others in evaluation
        torch.testing.assert_close(placed.eval()(images), whole.eval()(images))


def test_an_example_of_one_image_is_as_good_as_of_two():
    """It fixed the batch at 1, and the report counted other bytes than the plan."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).double()
    images = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    split = placements.of_random_blocks(*placements.traced_model(model, images), Modelling(), 3, 2)
    placed = placements.check_equal(model, [torch.randn(5, 3, 8, 8, dtype=torch.float64)], split)
    report = placed.report()
    assert report.batch_size == split.partition.modelling.batch_size
    assert report.sent_bytes.sum() == placed.programs.expected(report.batch_size).volume


class PerPass(nn.Module):
    """Has maps that are as large whatever the batch: of another input, and of all samples."""

    def __init__(self, fixed=False):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)
        self.table = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 6))
        self.fixed = fixed

    def forward(self, image, table):
        if self.fixed:
            image = image.reshape([2, 3, 7, 7])
        scale = self.table(table).mean(0)
        maps = self.first(image) * scale[:, None, None]
        centred = maps - maps.mean(0, keepdim=True).softmax(1)
        return self.second(centred), torch.cat([scale, centred.mean((0, 2, 3))])


@pytest.mark.full
@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize("fixed", [False, True])
def test_maps_that_do_not_grow_with_the_batch_cost_what_they_send(fixed, grain):
    """All were counted per sample: the bytes of another batch than that of the example differed."""
    torch.manual_seed(0)
    model, table = PerPass(fixed).double(), torch.randn(5, 4, dtype=torch.float64)
    images = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    traced, graph = placements.traced_model(model, (images, table))
    for seed in range(3):
        split = placements.of_single_tasks(traced, graph, Modelling(grain=grain), 3, seed)
        for batch in [images] if fixed else [images, torch.randn(7, 3, 7, 7, dtype=torch.float64)]:
            placed = placements.check_equal(model, (batch, table), split)
    report = placed.report()
    assert report.batch_size == 2 if fixed else 32
    assert (
        report.sent_bytes.tolist() == placed.programs.expected(report.batch_size).traffic.tolist()
    )
    with pytest.raises(PlacementError, match=r"\(2, 4\): accepted is \(5, 4\)"):
        placed(images, table[:2])


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


def test_a_parameter_that_is_returned():
    class Returned(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.scale = nn.Parameter(torch.randn(8, 1, 1))

        def forward(self, image):
            return self.conv(image) * self.scale, self.scale * 2, self.conv.bias

    torch.manual_seed(0)
    model = Returned().double()
    inputs = [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed in range(4):
        plan = placements.of_random_blocks(traced, graph, Modelling(), 3, seed)
        placements.check_equal(model, inputs, plan)


class Normed(nn.Module):
    """Running statistics of all kinds, a layer called unused, and one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.half_size = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.instance = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.unused = nn.Conv2d(6, 4, 1)
        self.other = nn.Linear(2, 2)

    def forward(self, image):
        return self.unused(self.instance(self.norm(self.half_size(image)).relu()))


@pytest.mark.few(1)
@pytest.mark.parametrize("first", [True, False])
def test_statistics_in_both_modes(first):
    torch.manual_seed(0)
    model, images = Normed().double().train(first), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    traced, graph = placements.traced_model(model, [images])
    plan = placements.of_single_tasks(traced, graph, Modelling(), 3, 2)
    placed = place(model, plan)
    for mode in (True, False, True):
        model.train(mode)
        placed.train(mode)
        assert torch.allclose(placed(images), model(images), atol=1e-12)
        for name, value in model.state_dict().items():
            found = placed.state_dict()[name]
            assert torch.allclose(found.to(value.dtype), value, atol=1e-12), (mode, name)
        names = {held.name for part in range(3) for held, _ in placed.held(part)}
        assert names == {*model.state_dict()}


class OtherInEvaluation(nn.Module):
    """An index, numbers in the code of each mode, and buffers that evaluation alone reads."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Conv2d(6, 4, 1)
        self.register_buffer("index", torch.tensor([5, 1, 1, 7, 0, 2]), persistent=persistent)
        self.register_buffer("offset", torch.randn(6, 1, 1), persistent=persistent)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]), persistent=persistent)

    def forward(self, image):
        maps = torch.index_select(self.conv(image), 1, self.index)
        if self.training:
            return self.head(maps * image.new_tensor([0.5] * 6)[:, None, None])
        maps = maps * image.new_tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[:, None, None]
        return self.head(maps + self.offset)[:, self.order]


@pytest.mark.few(1)
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_values_that_modes_do_not_share(first, persistent):
    # The copy that is traced for the other mode has weights on the meta device: its index was on
    # another, and buffers that no state has were lost. Numbers in the code were those of the
    # first mode.
    torch.manual_seed(0)
    model, images = OtherInEvaluation(persistent).double().train(first), torch.randn(3, 3, 8, 8)
    images = images.double()
    traced, graph = placements.traced_model(model, [images])
    placed = place(model, placements.of_single_tasks(traced, graph, Modelling(), 3, 2))
    for mode in (True, False, True):
        model.train(mode)
        placed.train(mode)
        assert torch.allclose(placed(images), model(images), atol=1e-12), mode
    placed.float()
    for mode in (True, False):
        model.float().train(mode)
        assert torch.allclose(placed.train(mode)(images.float()), model(images.float()), atol=1e-5)
    assert placed.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(placed.state_dict()[name], value), name


def test_a_plan_of_a_model_with_an_index_serves_for_other_float_types():
    model, images = OtherInEvaluation(persistent=True), torch.randn(2, 3, 8, 8)
    result = partition_model(model, images, k=2, eps=0.5, effort=0)
    plan = Plan(result.partition, "any", (3, 8, 8))
    double = copy.deepcopy(model).double()
    assert torch.allclose(place(double, plan)(images.double()), double(images.double()))


class Two(nn.Module):
    def __init__(self, second: int = 3) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.b = nn.Conv2d(6, 6, 1)
        self.c = nn.Conv2d(second, 6, 3, padding=1)


class WithoutGrad(Two):
    def forward(self, image):
        with torch.no_grad():
            maps = self.a(image)
        return self.b(maps) + self.b(self.c(image).detach())


class Expanded(Two):
    def forward(self, image):
        maps = self.a(image)
        return self.b(maps * maps.mean(1, keepdim=True).expand_as(maps))


class Normalised(Two):
    def forward(self, image):
        return self.b(functional.normalize(self.a(image), dim=1))


class Discarded(Two):
    """The second convolution's channels are cut off again."""

    def forward(self, image):
        return self.b(torch.cat([self.a(image), self.c(image)], 1)[:, :6])


class DiscardedChain(Two):
    def __init__(self) -> None:
        super().__init__(6)

    def forward(self, image):
        maps = self.a(image)
        return self.b(torch.cat([maps, self.c(maps)], 1)[:, :6])


class Compared(Two):
    def forward(self, image):
        return self.b(self.a(image)), self.c(image) > 0


class Squared(Two):
    def forward(self, image):
        maps = self.b(self.a(image))
        return (maps * maps).mean(1), (mixed := self.c(image)) + mixed.flip(1)


class Stacked(Two):
    """An operator of 130 operands: their positions together are more than 32 bits count."""

    def forward(self, image):
        return torch.stack([self.a(image)] * 130, 2).relu().sum(2)


class DroppedConstants(Two):
    """Dropout of a parameter, and of what is computed of some: its mask was taken for it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1, 6, 1, 1))
        self.table = nn.Linear(5, 6)
        self.register_buffer("places", torch.randn(64, 5))

    def forward(self, image):
        scale = functional.dropout(self.scale, 0.4)
        offsets = functional.dropout(self.table(self.places), 0.4).transpose(0, 1)
        return self.b(self.a(image) * scale + offsets.reshape(1, 6, 8, 8))


class WritesSlices(Two):
    """What a slice is overwritten by travels on; torch's `copy` has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, image):
        maps, other = self.a(image).clone(), self.c(image)
        maps[:, :2] = other[:, 3:5]
        maps[:, 2] = other.mean(1)
        maps[:, 3:5] = self.scale
        maps[:, 5, 1:3] = other[:, :1, :1].mean(3)
        return self.b(maps), torch.zeros_like(image).copy_(other[:, 1:4]).relu()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1)
        self.lstm = nn.LSTM(64, 5, batch_first=True)

    def forward(self, image):
        return self.lstm(self.a(image).flatten(2))[0]


class ConditionalFilters(Two):
    """Filters for each sample are a mixture of experts' (CondConv)."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(6, 4)
        self.experts = nn.Parameter(torch.randn(4, 6 * 6 * 3 * 3))

    def forward(self, image):
        maps = self.a(image)
        filters = torch.sigmoid(self.route(maps.mean((2, 3)))) @ self.experts
        filters = filters.view(-1, 6, 3, 3)
        made = functional.conv2d(maps.view(1, -1, 8, 8), filters, padding=1, groups=len(image))
        return self.b(made.view(-1, 6, 8, 8))


class LessExact(nn.Module):
    """Converts maps, which travel in half the bytes; the table had them in the model's type."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)

    def forward(self, image):
        integers = (64 * self.a(image)).ceil().float()  # exact in this type, too
        return self.b(integers.double() + integers.softmax(1).gt(0.5).double())


@pytest.mark.parametrize("grain", [pytest.param("coarse", marks=pytest.mark.full), "fine"])
@pytest.mark.parametrize(
    "kind",
    [
        WithoutGrad,
        Expanded,
        Normalised,
        Discarded,
        DiscardedChain,
        Compared,
        Squared,
        Stacked,
        DroppedConstants,
        WritesSlices,
        Recurrent,
        ConditionalFilters,
        LessExact,
    ],
)
def test_structures_that_once_failed(kind, grain):
    torch.manual_seed(0)
    model, inputs = kind().double(), [torch.randn(2, 3, 8, 8, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed, draw in enumerate([placements.of_random_blocks, placements.of_single_tasks] * 2):
        plan = draw(traced, graph, Modelling(grain=grain), 2 + seed // 2, seed)
        placements.check_equal(model, inputs, plan, seed)


def test_random_numbers_that_depend_on_maps_are_refused_by_name():
    model, images = nn.Sequential(nn.Conv2d(3, 6, 3), nn.RReLU()), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"aten.rrelu.default \(1\) draws random numbers"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    model.eval()
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    assert torch.allclose(placed(images), model(images), atol=1e-6)


def test_random_numbers_that_depend_on_parameters_are_refused_by_name():
    # They were drawn from parameters without values.
    class Sampled(Two):
        def forward(self, image):
            return self.a(image) * torch.bernoulli(self.b.bias.sigmoid())[:, None, None]

    model, images = Sampled(), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"aten.bernoulli.*depend on maps, parameters or buf"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))


def test_the_mask_of_dropout_as_a_result_is_refused():
    # It was given the result itself.
    class Masked(Two):
        def forward(self, image):
            maps, mask = torch.native_dropout(self.a(image), 0.5, True)
            return self.b(maps) * mask

    model, images = Masked(), torch.randn(2, 3, 8, 8)
    with pytest.raises(PlacementError, match=r"reads result 1 of native_dropout"):
        place(model, partition_model(model, images, k=2, eps=0.5, effort=0))


def test_other_memory_formats():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4))
    images = torch.randn(2, 3, 8, 8)
    placed = place(model, partition_model(model, images, k=2, eps=0.5, effort=0))
    images = images.to(memory_format=torch.channels_last)
    assert torch.allclose(placed(images), model(images), atol=1e-6)
    assert torch.equal(nn.Sequential(placed).state_dict()["0.0.weight"], model[0].weight)


class Named(nn.Module):
    """A layer is called what a part calls a piece of another: that piece was lost to it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.a, self.name = nn.Conv2d(3, 4, 1), name
        self.add_module(name, nn.Conv2d(4, 4, 1))

    def forward(self, image):
        maps = self.a(image)
        values, indices = maps.topk(2, 1)
        return self.get_submodule(self.name)(maps), values + maps.mean(1, keepdim=True), indices


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["topk_1", "a_from_0", "channels_0", "batch_size"])
def test_layers_that_are_called_as_pieces_of_others(name):
    model, inputs = Named(name).double(), [torch.randn(2, 3, 4, 4, dtype=torch.float64)]
    traced, graph = placements.traced_model(model, inputs)
    for seed in range(3):
        plan = placements.of_single_tasks(traced, graph, Modelling(grain="fine"), 2, seed)
        placements.check_equal(model, inputs, plan)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["a\nb", 'q"uo\\te', "\r"])
def test_state_whose_name_torch_does_not_quote_in_the_code_that_it_writes(name):
    """A step reads what it holds by a name of its own: the state's ended a line or a text in it."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 1)
            self.register_parameter(name, nn.Parameter(torch.rand(4, 1, 1)))
            self.register_buffer(f"{name}_", torch.rand(4, 1, 1))

        def forward(self, images):
            return self.convolution(images) * getattr(self, name) + getattr(self, f"{name}_")

    model, images = Named(), torch.rand(2, 3, 2, 2)
    placed = place(model, partition_model(model, images, 2, 0.1, effort=0.1))
    torch.testing.assert_close(placed(images), model(images))
    assert placed.state_dict().keys() == model.state_dict().keys()
