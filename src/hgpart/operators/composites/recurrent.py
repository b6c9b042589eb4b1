"""Recurrent layers and their cells, as what they compute step by step, for tracing.

In each step a weight that all steps share multiplies the last values of the units; all else is
computed unit by unit. So a unit is a task of each step, and its value in each step travels. Units
that begin as zeros begin as None: their product would have no operand, and so no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

# Of all layers and directions; with more, which take minutes, a recurrent layer stays one operator.
MOST_STEPS = 256

States = tuple[Tensor, ...]  # the values of the units; of an LSTM, what its cells hold, too
First = tuple[Tensor | None, ...]  # those before the first step


@dataclass(frozen=True)
class UnitWeights:
    """What a layer multiplies its inputs and the values of its units by, in one direction.

    `projection` is what an LSTM with fewer values than units multiplies the units by.
    """

    inputs: Tensor
    units: Tensor
    input_bias: Tensor | None = None
    unit_bias: Tensor | None = None
    projection: Tensor | None = None

    @classmethod
    def of(cls, given: Sequence[Tensor], has_biases: bool) -> UnitWeights:
        """Those of a layer and direction, in torch's order."""
        if has_biases:
            return cls(*given)
        inputs, units, *last = given
        return cls(inputs, units, projection=last[0] if last else None)

    def of_inputs(self, inputs: Tensor) -> Tensor:
        """The product with inputs, of one step or of all."""
        return aten.linear.default(inputs, self.inputs, self.input_bias)  # type: ignore[no-any-return]

    def of_units(self, values: Tensor) -> Tensor:
        """The product with the last values of the units."""
        return aten.linear.default(values, self.units, self.unit_bias)  # type: ignore[no-any-return]

    def with_units(self, products: Tensor, values: Tensor | None) -> Tensor:
        """The sum of products with inputs and with the last values of the units, or of zeros."""
        if values is not None:
            return products + self.of_units(values)
        return products if self.unit_bias is None else products + self.unit_bias


# The next states, given products with inputs.
Step = Callable[[Tensor, First, UnitWeights], States]


def _lstm_step(products: Tensor, states: First, weights: UnitWeights) -> States:
    values, cells = states
    takes, keeps, proposed, shows = weights.with_units(products, values).chunk(4, 1)
    taken = takes.sigmoid() * proposed.tanh()
    cells = taken if cells is None else keeps.sigmoid() * cells + taken
    values = shows.sigmoid() * cells.tanh()
    if weights.projection is not None:
        values = aten.linear.default(values, weights.projection)
    return values, cells


def _gru_step(products: Tensor, states: First, weights: UnitWeights) -> States:
    (values,) = states
    resets, keeps, proposed = products.chunk(3, 1)
    if values is not None:
        own_resets, own_keeps, own_proposed = weights.of_units(values).chunk(3, 1)
    elif weights.unit_bias is not None:
        own_resets, own_keeps, own_proposed = weights.unit_bias.chunk(3)
    else:
        return ((1 - keeps.sigmoid()) * proposed.tanh(),)
    keeps = (keeps + own_keeps).sigmoid()
    proposed = (proposed + (resets + own_resets).sigmoid() * own_proposed).tanh()
    return (proposed + keeps * (-proposed if values is None else values - proposed),)


def _tanh_step(products: Tensor, states: First, weights: UnitWeights) -> States:
    return (weights.with_units(products, states[0]).tanh(),)


def _relu_step(products: Tensor, states: First, weights: UnitWeights) -> States:
    return (weights.with_units(products, states[0]).relu(),)


def lstm(
    inputs: Tensor, hx: Sequence[Tensor | None], params: Sequence[Tensor], *settings: Any
) -> Any:
    """An LSTM step by step, or NotImplemented if it has too many steps."""
    return _layers(_lstm_step, inputs, hx, params, *settings)


def gru(inputs: Tensor, hx: Tensor | None, params: Sequence[Tensor], *settings: Any) -> Any:
    """A GRU step by step, or NotImplemented if it has too many steps."""
    return _layers(_gru_step, inputs, (hx,), params, *settings)


def rnn_tanh(inputs: Tensor, hx: Tensor | None, params: Sequence[Tensor], *settings: Any) -> Any:
    """A recurrent layer of tanh units step by step, or NotImplemented if it has too many steps."""
    return _layers(_tanh_step, inputs, (hx,), params, *settings)


def rnn_relu(inputs: Tensor, hx: Tensor | None, params: Sequence[Tensor], *settings: Any) -> Any:
    """A recurrent layer of ReLU units step by step, or NotImplemented if it has too many steps."""
    return _layers(_relu_step, inputs, (hx,), params, *settings)


def _layers(
    step: Step,
    inputs: Tensor,
    first: Sequence[Tensor | None],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """What each step of all layers returns, and the last states of each layer and direction."""
    of_steps = inputs.transpose(0, 1) if batch_first else inputs
    count, directions = of_steps.shape[0], 2 if bidirectional else 1
    if not isinstance(count, int) or count * num_layers * directions > MOST_STEPS:
        return NotImplemented
    own = len(params) // (num_layers * directions)
    last: list[States] = []
    for layer in range(num_layers):
        if layer and dropout:  # in evaluation, too, so that there are the same layers
            of_steps = aten.native_dropout.default(of_steps, dropout, train)[0]
        made = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = UnitWeights.of(params[at * own : (at + 1) * own], has_biases)
            order = -1 if direction else 1
            products = weights.of_inputs(of_steps)
            states: First = tuple(None if state is None else state[at] for state in first)
            values: list[Tensor] = []
            for number in range(count)[::order]:
                states = after = step(products[number], states, weights)
                values.append(after[0])
            made.append(torch.stack(values[::order]))
            last.append(after)
        of_steps = made[0] if directions == 1 else torch.cat(made, -1)
    result = of_steps.transpose(0, 1) if batch_first else of_steps
    return result, *(torch.stack(states) for states in zip(*last, strict=True))


# ------------------------------------------------------------------ cells


def lstm_cell(inputs: Tensor, hx: Sequence[Tensor | None], *weights: Tensor) -> States:
    """One step of an LSTM."""
    return _cell(_lstm_step, inputs, tuple(hx), weights)


def gru_cell(inputs: Tensor, hx: Tensor | None, *weights: Tensor) -> Tensor:
    """One step of a GRU."""
    return _cell(_gru_step, inputs, (hx,), weights)[0]


def rnn_tanh_cell(inputs: Tensor, hx: Tensor | None, *weights: Tensor) -> Tensor:
    """One step of tanh units."""
    return _cell(_tanh_step, inputs, (hx,), weights)[0]


def rnn_relu_cell(inputs: Tensor, hx: Tensor | None, *weights: Tensor) -> Tensor:
    """One step of ReLU units."""
    return _cell(_relu_step, inputs, (hx,), weights)[0]


def _cell(step: Step, inputs: Tensor, states: First, given: Sequence[Tensor]) -> States:
    weights = UnitWeights(*given)
    return step(weights.of_inputs(inputs), states, weights)
