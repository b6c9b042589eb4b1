"""nn.Module + example inputs -> TracedModel: a functional torch.fx GraphModule with shapes."""

from __future__ import annotations

import io
import logging
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from hgpart.errors import ArgumentError, TraceError

EXAMPLE_BATCH = 2  # torch.export takes a batch of 1 for a constant


@dataclass(frozen=True)
class TracedModel:
    """A model as a functional torch.fx graph over ATen operators.

    Attributes
    ----------
    graph_module : torch.fx.GraphModule
        Placeholders are parameters, buffers, constants and inputs; nothing is changed in place.
    parameters, buffers : mapping
        Placeholder name -> name of the model's parameter or buffer.
    constants : mapping
        Placeholder name -> tensor that the model's code makes anew in each call.
    values : mapping
        Placeholder name -> the tensor itself, of buffers and constants that are not on the meta
        device.
    inputs : tuple of str
        Placeholder names of the model's inputs, in order.
    updated : frozenset of str
        Placeholders of the buffers that a training step changes (running statistics).
    results : tuple of fx.Node
        The nodes that the model returns (new batch-norm statistics are not among them).
    batch_size : int
        Samples in the example that was traced.
    """

    graph_module: fx.GraphModule
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    updated: frozenset[str]
    results: tuple[fx.Node, ...]
    batch_size: int


def example_inputs(model: nn.Module, input_shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return an example batch for a model with one input of `input_shape` (without the batch).

    The batch is on the model's own device, so a model on the meta device allocates nothing.

    >>> example_inputs(nn.Conv2d(3, 8, 3), (3, 32, 32))[0].shape
    torch.Size([2, 3, 32, 32])
    """
    if not input_shape or any(size < 1 for size in input_shape):
        raise ArgumentError(
            f"input shape {tuple(input_shape)}: every size must be at least 1, as in 3,224,224"
        )
    tensor = next(iter(model.parameters()), None)
    device = "cpu" if tensor is None else tensor.device
    dtype = torch.float32 if tensor is None else tensor.dtype
    return (torch.zeros((EXAMPLE_BATCH, *input_shape), dtype=dtype, device=device),)


def trace(model: nn.Module, example: torch.Tensor | Sequence[Any]) -> TracedModel:
    """Trace `model` with torch.export, in its own mode, and make the graph functional.

    Parameters
    ----------
    model : nn.Module
        On any device; on ``meta`` nothing is allocated. Its mode (train or eval) is kept.
    example : tensor or sequence of inputs
        Only shapes, dtypes and the device matter; the first dimension is the batch, which
        stays dynamic where the model allows it.

    Raises
    ------
    TraceError
        If torch.export can't trace the model; says where and why. If it returns no tensor.
    """
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    batches = [value for value in inputs if isinstance(value, torch.Tensor)]
    if not batches or any(value.dim() == 0 for value in batches):
        raise ArgumentError("the example holds no batch: give at least one tensor with a batch")
    with _quiet():
        program = _export(model, inputs)
    signature = program.graph_signature
    names = set(signature.user_outputs)
    output = next(node for node in program.graph.nodes if node.op == "output")
    results = tuple(
        node for node in output.args[0] if isinstance(node, fx.Node) and node.name in names
    )
    if not results:
        raise TraceError(f"{type(model).__name__} returns no tensor: there is nothing to compute")
    tensors = {**program.state_dict, **program.constants}
    named = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    return TracedModel(
        graph_module=program.graph_module,
        parameters=dict(signature.inputs_to_parameters),
        buffers=dict(signature.inputs_to_buffers),
        constants={
            placeholder: program.constants[name]
            for placeholder, name in signature.inputs_to_lifted_tensor_constants.items()
        },
        values={
            placeholder: tensors[name]
            for placeholder, name in named.items()
            if not tensors[name].is_meta
        },
        inputs=tuple(str(name) for name in signature.user_inputs),
        updated=frozenset(
            placeholder
            for placeholder, name in signature.inputs_to_buffers.items()
            if name in signature.buffers_to_mutate.values()
        ),
        results=results,
        batch_size=batches[0].shape[0],
    )


def _export(model: nn.Module, inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    dynamic = tuple(
        {0: torch.export.Dim.AUTO} if isinstance(value, torch.Tensor) else None for value in inputs
    )
    try:
        return _functional(torch.export.export(model, inputs, dynamic_shapes=dynamic))
    except Exception:
        # Models that compute with the batch size in Python trace only with a fixed one.
        try:
            return _functional(torch.export.export(model, inputs))
        except Exception as error:
            raise TraceError(_explain(model, inputs, error)) from error


def _functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace in-place operators; batch norm then returns its new statistics."""
    functional: torch.export.ExportedProgram = program.run_decompositions({})
    return functional


def _explain(model: nn.Module, inputs: tuple[Any, ...], error: Exception) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_the_models(frame.filename)
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).strip()
    why = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    shapes = ", ".join(
        "x".join(map(str, value.shape)) for value in inputs if isinstance(value, torch.Tensor)
    )
    return f"can't trace {type(model).__name__} with input {shapes}{where}: {why}"


def _is_the_models(filename: str) -> bool:
    """Whether a file is of the model's code: not torch's, Python's or this one."""
    path = Path(filename)
    library = Path(os.__file__).parent
    packages = {"site-packages", "dist-packages"}  # they may lie inside the standard library
    return not (
        filename.startswith("<")  # code made at run time
        or filename == __file__
        or path.is_relative_to(Path(torch.__file__).parent)
        or (path.is_relative_to(library) and packages.isdisjoint(path.parts))
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch.export's own warnings and log lines from the user, who can't act on them."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
