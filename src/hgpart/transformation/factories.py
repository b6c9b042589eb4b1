"""Transformation -> the text of a file whose factory makes the transformed model anew."""

from __future__ import annotations

from hgpart.tracing.input_shape import InputShape
from hgpart.transformation.transforming import KINDS, Transformation

FACTORY = '''"""{name}: {what}; written by hgpart transform."""

import torch

from hgpart import example_inputs, load_model, transform


def model():
    original, _ = load_model({name!r}, seed=torch.initial_seed())
    shape = {shape!r}
    example = example_inputs(original, shape)
    made = transform(
        original, {kind!r}, {parts!r}, example, stages={stages!r}, unequal={unequal!r}, fresh=True
    )
    return made, shape
'''


def factory_of(
    model: str,
    change: Transformation,
    shape: InputShape,
    stages: tuple[int, ...] | None,
    unequal: bool,
) -> str:
    """Python code with a function ``model`` that transforms a model, with weights of any seed."""
    return FACTORY.format(
        name=model,
        what=f"{KINDS[change.kind]}, {change.parts} of them",
        shape=tuple(shape),
        kind=change.kind,
        parts=change.parts,
        stages=stages,
        unequal=unequal,
    )
