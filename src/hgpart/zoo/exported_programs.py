"""``model.pt2``, a file of torch.export.save -> the model in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch.export.graph_signature import InputKind

from hgpart.errors import ModelError, first_line
from hgpart.tracing.input_shape import FLOAT, TYPES, InputShape, InputTensor
from hgpart.zoo.factories import Model


def program_factory(path: str) -> Callable[[], Model]:
    """Return a function that reads an exported model, with its weights.

    The file is opened by torch, which unpickles what is in it: it is to be trusted like code. What
    is trained or not (batch norm, dropout) is fixed in its graph, whatever its mode.

    Raises
    ------
    ModelError
        If the file can't be read, or its program takes anything but tensors with a batch of any
        size, of the type of its weights or whole numbers.
    """
    if not Path(path).is_file():
        raise ModelError(f"there is no file {path!r}; accepted is one of torch.export.save")

    def build() -> Model:
        try:
            program = torch.export.load(path)
        except Exception as error:
            raise ModelError(
                f"{path} can't be read: {first_line(error)}; accepted is a file of "
                "torch.export.save"
            ) from error
        taken = [
            spec.arg.name
            for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        ]
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        floats = {
            tensor.dtype for tensor in program.state_dict.values() if tensor.is_floating_point()
        }
        tensors = [_input_tensor(path, name, values.get(name), floats) for name in taken]
        module = program.module()
        names = [*inspect.signature(module.forward).parameters]
        if not tensors or len(names) != len(tensors):
            raise ModelError(
                f"{path} takes {', '.join(taken) or 'nothing'} as {', '.join(names)}: accepted are "
                "tensors, each by itself"
            )
        if len(tensors) > 1 or not tensors[0].is_image:
            tensors = [
                replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)
            ]
        # Else it refuses by position what was exported by name.
        vars(module)["validate_inputs"] = False
        for mode in ("train", "eval"):  # torch's own refuse to be called
            vars(module).pop(mode, None)
        return module, InputShape(map(str, tensors))

    return build


def _input_tensor(
    path: str, name: str, value: object, floats: Collection[torch.dtype]
) -> InputTensor:
    """An input of a program, whose weights have the types `floats`."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        raise ModelError(f"{path} takes {name}, which has no batch: accepted are tensors with one")
    batch, *sizes = value.shape
    if isinstance(batch, int) or not all(isinstance(size, int) for size in sizes):
        raise ModelError(
            f"{path} takes {name} of {' x '.join(map(str, value.shape))}: accepted is a "
            "batch of any size, and other sizes fixed, as exported with "
            f'dynamic_shapes={{"{name}": {{0: torch.export.Dim.AUTO}}}}'
        )
    dtype = str(value.dtype).removeprefix("torch.")
    if value.is_floating_point() and (value.dtype in floats or not floats):
        dtype = FLOAT
    if dtype not in TYPES:
        raise ModelError(
            f"{path} takes {name} of {value.dtype}: accepted are the type of its weights, "
            f"{', '.join(list(TYPES)[1:])}"
        )
    return InputTensor("", tuple(sizes), dtype)
