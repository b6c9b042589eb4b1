"""Placed models train, are evaluated, saved and loaded as the originals."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import placements
import pytest
import torch
from placements import small
from torch import nn
from torch.nn import functional

from hgpart import Modelling, partition_model, place
from hgpart.errors import PlacementError
from hgpart.plan import Plan


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
