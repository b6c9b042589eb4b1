"""What is done to the modules that a placement lists: the model's own effect, or refused by name.

Each of these did nothing on a placement, without a word: its modules were those of the parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import fusion, parametrizations, prune
from torch.optim import swa_utils

from hgpart import Placement, partition_model, place, schedule
from hgpart.errors import HgpartError, PlacementError
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement.as_module.original_modules import SliceName


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.rest = nn.Sequential(nn.SiLU(), nn.Dropout(0.5), nn.Conv2d(6, 4, 1))
        self.bias, self.scale = nn.Parameter(torch.ones(4, 1, 1)), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.norm(self.first(x))) * self.scale + self.bias


IMAGES = [torch.randn(4, 3, 6, 6, dtype=torch.float64) + step for step in range(2)]


@cache
def divided() -> tuple[Net, PartitionedModel]:
    torch.manual_seed(0)
    model = Net().double()
    return model, partition_model(model, IMAGES[0], k=2, eps=0.2, effort=0.1)


def both() -> tuple[Net, Placement]:
    model, plan = divided()
    placed = place(model, plan)
    assert len(placed.held_state.slices_of("norm.weight")) == 2  # else little is tried
    return copy.deepcopy(model), placed


def trained(model: Any, groups: Any = None) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(groups or model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for images in IMAGES:
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found, dict(expected), rtol=1e-9, atol=1e-12)


def frozen(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
            module.requires_grad_(False)


SETTINGS: dict[str, Callable[[Any], object]] = {
    "norms in evaluation": frozen,
    "momentum": lambda model: model.apply(
        lambda one: setattr(one, "momentum", 0.5) if isinstance(one, nn.BatchNorm2d) else None
    ),
    "a rate": lambda model: setattr(model.rest[1], "p", 0.1),
    "a module of a sequence": lambda model: model.get_submodule("rest.1").eval(),
    "an attribute of the model": lambda model: setattr(model, "scale", 2.0),
    "a hook": lambda model: model.rest.register_forward_hook(lambda module, args, made: made * 2),
}
LONG = [*SETTINGS][2:]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.full] if one in LONG else []) for one in SETTINGS],
)
def test_what_is_set_on_modules_has_the_models_effect(name: str) -> None:
    model, placed = both()
    SETTINGS[name](model), SETTINGS[name](placed)
    assert_same(trained(placed), trained(model))


@pytest.mark.full
def test_a_mode_that_was_set_is_over_with_train_and_copies_have_their_own() -> None:
    model, placed = both()
    copied = copy.deepcopy(placed)
    frozen(copied)
    again = copy.deepcopy(copied)
    for one in (placed, again):
        expected = copy.deepcopy(model)
        if one is again:
            frozen(expected)
        assert_same(trained(one), trained(expected))
    again.train()
    assert again.forms.present == placed.forms.present


def test_running_statistics_are_reset() -> None:
    model, placed = both()
    for one in (model, placed):
        trained(one)
        norms = [module for module in one.modules() if isinstance(module, nn.BatchNorm2d)]
        norms[0].reset_running_stats()
    assert_same(placed.state_dict(), model.state_dict())
    assert not model.norm.running_mean.any()


@pytest.mark.parametrize("how", ["by kind and name", "by modules' own names"])
def test_groups_for_an_optimizer_by_modules(how: str) -> None:
    """A name of a divided parameter comes several times, and a dict of them loses none."""
    states = []
    for model in both():
        decays, others = [], []
        for module in model.modules():
            own = dict(module.named_parameters(recurse=False))
            if how == "by modules' own names" and module is not model:
                own = dict(module.named_parameters(prefix="p"))
                own = {name: one for name, one in own.items() if name.count(".") == 1}
            for name, parameter in own.items():
                norm = isinstance(module, nn.BatchNorm2d) or name in ("bias", "p.bias")
                (others if norm else decays).append(parameter)
        states.append(trained(model, [{"params": decays, "weight_decay": 0.5}, {"params": others}]))
    assert_same(states[1], states[0])


REFUSED: dict[str, Callable[[Any], object]] = {
    "initialise": lambda placed: placed.apply(
        lambda one: nn.init.zeros_(one.weight) if isinstance(one, nn.Conv2d) else None
    ),
    "initialise again": lambda placed: placed.first.reset_parameters(),
    "data": lambda placed: placed.first.weight.data.fill_(1.0),
    "statistics": lambda placed: placed.norm.running_mean.zero_(),
    "look for a bias": lambda placed: hasattr(placed.first, "bias"),
    "penalty": lambda placed: placed.bias.norm(),
    "prune": lambda placed: prune.l1_unstructured(placed.first, "weight", 0.5),
    "parametrize": lambda placed: parametrizations.weight_norm(placed.first),
    "norms among processes": nn.SyncBatchNorm.convert_sync_batchnorm,
    "fuse": lambda placed: fusion.fuse_conv_bn_eval(placed.first.eval(), placed.norm.eval()),
    "another head": lambda placed: setattr(placed, "first", nn.Conv2d(3, 6, 3)),
    "another activation": lambda placed: setattr(placed.rest, "0", nn.ReLU()),
    "one module more": lambda placed: setattr(placed, "head", nn.ReLU()),
    "another parameter": lambda placed: setattr(placed, "bias", nn.Parameter(torch.ones(4))),
    "one parameter more": lambda placed: placed.first.register_parameter("scale", None),
    "a module among modules": lambda placed: placed._modules.update(first=nn.ReLU()),
    "a module of a sequence's": lambda placed: placed.rest._modules.__setitem__("0", nn.ReLU()),
    "a module before others": lambda placed: placed.rest.insert(0, nn.ReLU()),
    "no module": lambda placed: placed.rest._modules.pop("0"),
    "a tensor among parameters": lambda placed: placed.first._parameters.clear(),
    "a tensor among buffers": lambda placed: placed.norm._buffers.__delitem__("running_mean"),
    "no bias": lambda placed: delattr(placed.first, "bias"),
    "another type": lambda placed: placed.first.half(),
    "a copy": lambda placed: copy.deepcopy(placed.first),
    "a state": lambda placed: placed.first.state_dict(),
    "another state": lambda placed: placed.first.load_state_dict({}),
}


@cache
def refusing() -> Placement:
    return both()[1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_tensors_as_a_whole_is_refused_by_name(name: str) -> None:
    placed = refusing()
    before = {name: one.clone() for name, one in placed.state_dict().items()}
    with pytest.raises(PlacementError, match=r"^(a copy of |moving or casting |the state of )?\w+"):
        REFUSED[name](placed)
    assert_same(placed.state_dict(), before)


def test_modules_have_the_names_and_kinds_of_the_models_and_all_parameters_once() -> None:
    model, placed = both()
    named = [(name, type(one).__name__) for name, one in placed.named_modules()]
    assert named[1:] == [(name, type(one).__name__) for name, one in model.named_modules()]
    assert repr(placed.rest) == repr(model.rest)
    assert placed.norm is placed.get_submodule("norm") and placed.rest[2].stride == (1, 1)
    outer = nn.Sequential(placed, nn.ReLU())
    for found in (placed.parameters(), outer.parameters(), dict(outer.named_parameters()).values()):
        assert {*map(id, found)} == {*map(id, placed.parameters())}
    assert SliceName("weight", 0) != SliceName("weight", 1)
    with pytest.raises(AttributeError, match="nothing"):
        _ = placed.nothing


class Held:
    """An object that a model computes with."""

    def __init__(self) -> None:
        self.rates = {"last": [1.0, 2.0]}


class NetWithHeld(Net):
    def __init__(self) -> None:
        super().__init__()
        self.cfg, self.factor, self.words = Held(), torch.tensor(2.0).double(), ["a", "b"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor * self.cfg.rates["last"][0]
        return super().forward(x) * factor


def set_within(model: Any) -> None:
    model.cfg.rates["last"][0] = 3.0
    model.factor.fill_(5.0)


CHANGES: dict[str, Callable[[Any], object]] = {
    "an object's attribute": lambda placed: setattr(placed.cfg, "rates", {}),
    "deep within": lambda placed: placed.cfg.rates["last"].append(3.0),
    "a tensor in place": lambda placed: placed.factor.add_(1.0),
    "a list": lambda placed: placed.words.append("c"),
    "a hook that is given": lambda placed: placed.rest.register_forward_pre_hook(lambda *_: ()),
    "a backward hook": lambda placed: placed.first.register_full_backward_hook(lambda *_: None),
    "vars": lambda placed: vars(placed.norm).update(momentum=0.3),
    "the model": lambda placed: placed.original.norm.eval(),
    "a mode": lambda placed: placed.norm.eval(),
    "an attribute less": lambda placed: delattr(placed.norm, "momentum"),
}


@cache
def with_held() -> tuple[NetWithHeld, Placement]:
    torch.manual_seed(0)
    model = NetWithHeld().double()
    return model, place(model, k=2, example=IMAGES[0])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_set_on_modules_or_within_what_they_hand_out_is_noticed(name: str) -> None:
    """What was more than one step within an attribute was not followed, without a word."""
    placed = copy.deepcopy(with_held()[1])
    for module in placed.modules():
        _ = module.training, [*module.parameters(recurse=False)], repr(module)
    assert placed.words == ["a", "b"] and not placed.model_settings.have_changed
    CHANGES[name](placed)
    assert placed.model_settings.have_changed and copy.deepcopy(placed).model_settings.have_changed
    placed.model_settings.note()
    assert not placed.model_settings.have_changed


def test_hooks_that_are_taken_away_are_noticed() -> None:
    placed = copy.deepcopy(with_held()[1])
    handle = placed.rest.register_forward_hook(lambda *_: None)
    placed.model_settings.note()
    handle.remove()
    assert placed.model_settings.have_changed


@pytest.mark.full
def test_what_is_set_within_attributes_has_the_models_effect() -> None:
    model, placed = (copy.deepcopy(one).eval() for one in with_held())
    set_within(model), set_within(placed)
    torch.testing.assert_close(placed(IMAGES[0]), model(IMAGES[0]))


def test_backward_hooks_that_modules_are_given_are_refused_by_name() -> None:
    placed = both()[1]
    placed.first.register_full_backward_hook(lambda *_: None)
    with pytest.raises(PlacementError, match="a hook on the module first"):
        placed(IMAGES[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook"])
def test_hooks_that_parts_would_not_call_are_refused_by_name(kind: str) -> None:
    """One that counts or prints was taken, and never called."""
    placed = copy.deepcopy(refusing())
    handle = getattr(placed.rest, f"register_{kind}")(lambda *_: None)
    with pytest.raises(HgpartError, match="a hook on the module rest, which returns nothing"):
        placed(IMAGES[0])
    handle.remove()
    assert placed(IMAGES[0]).shape == (4, 4, 4, 4)


def test_a_process_with_some_of_the_parts_does_not_follow_alone() -> None:
    placed = place(*divided(), parts=[0])
    placed.norm.eval()
    with pytest.raises(PlacementError, match="modules were given other attributes"):
        placed.passes.check_batch(4, [IMAGES[0]])


def test_statistics_are_taken_anew_of_all_batches() -> None:
    """`update_bn` has norms average the batches: it was refused after it had reset them."""
    model, placed = both()
    for one in (model, placed):
        one.eval()
        swa_utils.update_bn(IMAGES, one)
        assert not one.training
    assert_same(placed.state_dict(), model.state_dict())
    assert placed.norm.momentum == model.norm.momentum
    assert_same(trained(placed), trained(model))


def test_norms_that_average_batches_count_batches_not_micro_batches() -> None:
    model, plan = divided()
    placed = place(model, plan, norms="batch")
    model = copy.deepcopy(model)
    for one in (model, placed):
        one.norm.momentum = None
    for images in IMAGES:
        model(images)
        placed.step(images, None, lambda made, _: made.mean(), schedule(placed, micro_batches=2))
    assert_same(placed.state_dict(), model.state_dict())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rest = nn.BatchNorm2d(4, momentum=None), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.rest(self.norm(x)))


@pytest.mark.full
def test_a_norm_that_averages_batches_is_called_once() -> None:
    with pytest.raises(PlacementError, match=r"^the norm norm has momentum=None, .* than once"):
        place(Twice(), k=2, example=torch.zeros(2, 4, 3, 3))
