"""Recurrent layers in parts: a unit is a task of each step."""

from __future__ import annotations

from typing import Any

import placements
import pytest
import torch
from torch import Tensor, nn

from hgpart import Modelling, trace
from hgpart.operators.composites import recurrent

SAMPLES, STEPS, HEIGHT, UNITS = 3, 3, 4, 6


class Recogniser(nn.Module):
    """Convolutions, a recurrent layer over the columns of what they make, and a linear layer."""

    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.maps = nn.Conv2d(1, 3, 3, padding=1)
        self.recurrent = kind(3 * HEIGHT, UNITS, **settings)
        self.scores = nn.LazyLinear(4)

    def forward(self, images: Tensor) -> Tensor:
        columns = self.maps(images).relu().permute(3, 0, 1, 2).flatten(2)
        if self.recurrent.batch_first:
            columns = columns.transpose(0, 1)
        made, last = self.recurrent(columns)
        of_last = last[0] if isinstance(last, tuple) else last
        scores: Tensor = self.scores(made)
        return scores.transpose(0, 1) if not self.recurrent.batch_first else scores + of_last.mean()


class Cells(nn.Module):
    """Cells in a loop of the model's own, and one written by hand."""

    def __init__(self, kind: type[nn.Module], written: bool = False) -> None:
        super().__init__()
        self.cell, self.scores = kind(HEIGHT, UNITS), nn.Linear(UNITS, 4)
        self.kept = nn.Linear(HEIGHT + UNITS, UNITS) if written else None

    def forward(self, images: Tensor) -> Tensor:
        state = None
        for columns in images[:, 0].unbind(2):
            state = self.cell(columns, state)
            if self.kept is not None:
                kept = self.kept(torch.cat([columns, state], 1)).sigmoid()
                state = kept * state
        return self.scores(state[0] if isinstance(state, tuple) else state)


MODELS = {
    "lstm": lambda: Recogniser(nn.LSTM),
    "gru without biases": lambda: Recogniser(nn.GRU, bias=False),
    "tanh": lambda: Recogniser(nn.RNN, bidirectional=True),
    "written by hand": lambda: Cells(nn.GRUCell, written=True),
    "projected": lambda: Recogniser(nn.LSTM, proj_size=2, num_layers=2),
    "stacked, both ways": lambda: Recogniser(nn.LSTM, num_layers=2, bidirectional=True),
    "without biases": lambda: Recogniser(nn.LSTM, bias=False, batch_first=True),
    "gru": lambda: Recogniser(nn.GRU),
    "gru, dropout": lambda: Recogniser(nn.GRU, num_layers=2, dropout=0.4, batch_first=True),
    "relu": lambda: Recogniser(nn.RNN, nonlinearity="relu"),
    "lstm cells": lambda: Cells(nn.LSTMCell),
    "gru cells": lambda: Cells(nn.GRUCell),
    "tanh cells": lambda: Cells(nn.RNNCell),
}


def made(name: str) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    images = torch.randn(SAMPLES, 1, HEIGHT, STEPS, dtype=torch.float64)
    model(images)  # its last layer has a weight from here on
    return model, [images]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MODELS)
def test_units_are_tasks(name: str) -> None:
    """All of a recurrent layer was one task."""
    traced, graph = placements.traced_model(*made(name))
    assert all(layer.kind != "whole" for layer in graph.layers)
    assert traced.batch_sizes.are_all
    weights = {name for name in traced.parameters.values() if "weight" in name}
    sent = {
        name
        for layer in graph.layers
        if layer.kind == "parameter"
        for name in layer.parameter_names
    }
    assert not weights & sent


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_units_in_parts_compute_what_the_layer_does(name: str) -> None:
    model, images = made(name)
    for training in (True, False):
        traced, graph = placements.traced_model(model.train(training), images)
        for seed, grain in enumerate(("coarse", "fine")):
            modelling = Modelling(grain=grain, batch_size=SAMPLES)
            plan = placements.of_single_tasks(traced, graph, modelling, 3, seed)
            placements.check_equal(model, images, plan)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["gru, dropout", "stacked, both ways", "gru cells"])
def test_what_is_placed_in_training_is_evaluated(name: str) -> None:
    """A dropout between layers was a layer of its own that evaluation lacked."""
    model, images = made(name)
    traced, graph = placements.traced_model(model.train(), images)
    plan = placements.of_single_tasks(traced, graph, Modelling(batch_size=SAMPLES), 3, 0)
    placed = placements.check_equal(model, images, plan)
    with torch.no_grad():
        torch.testing.assert_close(placed.eval()(*images), model.eval()(*images))


@pytest.mark.parametrize(
    "most", [3, pytest.param(recurrent.MOST_STEPS, marks=[pytest.mark.full, pytest.mark.long])]
)
def test_a_layer_of_many_steps_is_one_operator(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "MOST_STEPS", most)
    for steps in (1, most, most + 1):
        traced = trace(nn.RNN(2, 2, batch_first=True), torch.randn(2, steps, 2))
        targets = {node.target for node in traced.graph_module.graph.nodes}
        assert (torch.ops.aten.rnn_tanh.input in targets) == (steps > most)


def test_a_weight_of_units_that_are_zeros_has_a_gradient() -> None:
    """One step alone multiplies zeros by the weight: its gradient is zeros, not None."""
    model, images = nn.LSTMCell(3, 2).double(), [torch.randn(2, 3, dtype=torch.float64)]
    _, graph = placements.traced_model(model, images)
    weights = {name for layer in graph.layers for name in layer.parameter_names}
    assert weights == {name for name, _ in model.named_parameters()}
