"""Model specs -> a line each: how large a model is, and how much it computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from hgpart.errors import ModelError
from hgpart.tracing.input_shape import InputShape, shape_text
from hgpart.tracing.traced_model import example_inputs
from hgpart.zoo import load_model


@dataclass(frozen=True)
class ModelSummary:
    """The size of a model.

    Attributes
    ----------
    input_shape : InputShape
        The inputs that the model takes for each sample.
    macs : int
        Multiply-accumulates of a forward pass of one sample.
    """

    name: str
    input_shape: InputShape
    parameters: int
    macs: int


def model_summary(spec: str) -> ModelSummary:
    """Count the parameters of a model, and the multiply-accumulates of its forward pass.

    A forward pass on the meta device is counted, which is 20 times faster than tracing the model
    and gives the same as adding up `flops`.

    Raises
    ------
    ModelError
        If there is no such model, it can't be built, or the shape of its input is not known.

    Examples
    --------
    >>> model_summary("vgg16")
    ModelSummary(name='vgg16', input_shape=(3, 224, 224), parameters=138357544, macs=15470264320)
    """
    model, shape = load_model(spec, device="meta")
    if shape is None:
        raise ModelError(f"{spec} does not say the shape of its input, which its work depends on")
    inputs = example_inputs(model, shape)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(*inputs)
    return ModelSummary(
        name=spec,
        input_shape=shape,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        macs=counter.get_total_flops() // 2 // len(inputs[0]),  # a multiply-accumulate is 2 FLOPs
    )


def print_models(summaries: Iterable[ModelSummary], names: Sequence[str], console: Console) -> None:
    """Print a line for each model as soon as it is counted; `names` says how wide they are."""
    width = max(map(len, ("model", *names)))
    console.print(f"{'model':<{width}}  {'input':>13}  {'parameters':>12}  {'MAC per sample':>15}")
    for summary in summaries:
        shape = shape_text(summary.input_shape)
        console.print(
            f"{summary.name:<{width}}  {shape:>13}  {summary.parameters:>12,}  {summary.macs:>15,}"
        )
