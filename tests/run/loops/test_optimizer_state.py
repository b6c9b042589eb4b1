"""An optimizer's state by names moves between plans and the model; in processes: test_loops."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import hgpart
from hgpart import gathered_optimizer_state, load_optimizer_state
from hgpart.errors import ArgumentError


def network():
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 4)).double()


X = torch.randn(4, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def grouped(model):
    """Two groups: matrices decay."""
    weights = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    return [{"params": weights, "lr": 0.01, "weight_decay": 0.1}, {"params": others, "lr": 0.02}]


def steps(model, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()


def placed(model, kind):
    if kind == "model":
        return model
    if kind == "slices":
        plan = hgpart.partition_model(model, X, 2, slices=2, eps=0.5, best_effort=True)
    else:
        plan = hgpart.partition_model(model, X, int(kind), eps=0.5, best_effort=True)
    return hgpart.place(model, plan)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Rprop])
@pytest.mark.parametrize(("before", "after"), [("model", "2"), ("2", "3"), ("3", "model")])
def test_training_goes_on_by_another_plan(before, after, kind):
    """The optimizer's own state_dict numbers parameters of parts: another plan has others."""
    torch.manual_seed(0)
    straight = network()
    first = placed(copy.deepcopy(straight), before)
    options = {} if kind is torch.optim.Rprop else {"weight_decay": 0.0}
    optimizer = kind(straight.parameters(), lr=0.01, **options)
    steps(straight, optimizer, 4)
    optimizer = kind(first.parameters(), lr=0.01, **options)
    steps(first, optimizer, 2)
    state = gathered_optimizer_state(first, optimizer)
    second = placed(network(), after)
    second.load_state_dict(first.state_dict())
    optimizer = kind(second.parameters(), lr=0.5, **options)
    load_optimizer_state(second, optimizer, state)
    steps(second, optimizer, 2)
    for name, value in second.state_dict().items():
        torch.testing.assert_close(value, straight.state_dict()[name], rtol=1e-9, atol=1e-12)


def test_it_is_torchs_state_of_the_plain_model():
    torch.manual_seed(0)
    model = network()
    parts = placed(copy.deepcopy(model), "2")
    first, second = (torch.optim.AdamW(model.parameters()), torch.optim.AdamW(parts.parameters()))
    steps(model, first, 2), steps(parts, second, 2)
    expected, state = (
        get_optimizer_state_dict(model, first),
        gathered_optimizer_state(parts, second),
    )
    assert state["state"].keys() == expected["state"].keys()
    for name, kept in expected["state"].items():
        for kind, value in kept.items():
            torch.testing.assert_close(state["state"][name][kind], value, rtol=1e-9, atol=1e-12)
    set_optimizer_state_dict(model, fresh := torch.optim.AdamW(model.parameters()), state)
    assert fresh.state[model[0].weight]["step"] == 2


def test_groups_keep_their_settings():
    torch.manual_seed(0)
    parts = placed(network(), "2")
    optimizer = torch.optim.AdamW(grouped(parts))
    steps(parts, optimizer, 1)
    state = gathered_optimizer_state(parts, optimizer)
    assert [group["params"] for group in state["param_groups"]] == [
        ["0.weight", "3.weight"],
        ["0.bias", "3.bias"],
    ]
    other = placed(network(), "3")
    resumed = torch.optim.AdamW(grouped(other))
    for group in resumed.param_groups:
        group["lr"] = 1.0
    load_optimizer_state(other, resumed, state)
    assert [group["lr"] for group in resumed.param_groups] == [0.01, 0.02]


def test_what_is_of_no_model_is_refused():
    parts = placed(network(), "2")
    with pytest.raises(ArgumentError, match=r"group 0 has a tensor of shape .* no parameter of"):
        gathered_optimizer_state(parts, torch.optim.SGD(network().parameters(), lr=0.1))
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="an optimizer's state of list: accepted is what"):
        load_optimizer_state(parts, optimizer, [])
    wrong = {"state": {"0.weight": {"momentum_buffer": torch.zeros(2, 2)}}, "param_groups": []}
    with pytest.raises(ArgumentError, match=r"momentum_buffer of 0.weight has shape \(2, 2\)"):
        load_optimizer_state(parts, optimizer, wrong)
