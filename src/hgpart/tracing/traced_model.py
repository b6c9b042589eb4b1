"""nn.Module + example inputs -> TracedModel: a functional torch.fx GraphModule with shapes."""

from __future__ import annotations

import inspect
import io
import logging
import math
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from itertools import compress
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
)
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError, TraceError
from hgpart.operators.calls import only_updated
from hgpart.tracing import autograd_functions, forward_state
from hgpart.tracing.arguments import REGISTERED, Arguments, Inputs, arguments_of
from hgpart.tracing.batches import LEAST, BatchSizes, batch_sizes_of, grows_evenly
from hgpart.tracing.cache.graphs import Reader, plain, plain_expression, plain_graph, plain_values
from hgpart.tracing.cache.kept import NotKeptError, kept_or_new
from hgpart.tracing.cache.model_state import described, state_of
from hgpart.tracing.cache.origins import origin_of_model
from hgpart.tracing.code.followed_constants import FollowedConstants
from hgpart.tracing.code.model_lines import is_the_models
from hgpart.tracing.constant_sizes import settle_sizes
from hgpart.tracing.forms import Form, sizes_of_inputs
from hgpart.tracing.input_shape import FLOAT, InputShape, InputTensor
from hgpart.tracing.model_outline import ModelOutline, outline_of
from hgpart.tracing.norm_shapes import norms_by_shape
from hgpart.tracing.programs.divisible import divisible
from hgpart.tracing.programs.stand_ins import stand_ins, stood_for
from hgpart.tracing.traced_nodes import CUMULATIVE

LARGEST_TENSOR = 2**63 - 1  # bytes
_QUANTISED = "torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"
_QUANTISING = "torch.ao.quantization.fake_quantize"
EXAMPLE_BATCH = LEAST


@dataclass(frozen=True)
class ResultStructure:
    """How the tensors that a model returns make up its result: alone, in a tuple, in a dict.

    Attributes
    ----------
    leaves : tuple
        None for each tensor, in order; any other value that the model returns, in a tuple of one.
    """

    leaves: tuple[tuple[Any] | None, ...]
    spec: pytree.TreeSpec

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Put tensors together as the model does."""
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is None else leaf[0] for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


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
        Placeholder name -> tensor, for buffers and constants that are not on the meta device.
        Also, by their names, results of operators on these whose size depends on values.
    inputs : tuple of str
        Placeholder names of the tensors among the model's inputs, in order.
    updated : frozenset of str
        Placeholders of the buffers that a training step changes (running statistics).
    updates : mapping
        Placeholder name of each such buffer -> the node that holds its new value.
    results : tuple of fx.Node
        The nodes that the model returns (new batch-norm statistics are not among them).
    structure : ResultStructure
        Called with the values of `results`, it returns what the model returns.
    arguments : Arguments
        The call that was traced; tensors are on the meta device.
    batch_size : int
        Samples in the example that was traced.
    batch_sizes : BatchSizes
        The batch sizes for which the model computes what the graph does.
    training : bool
        The mode that the model was traced in.
    outline : ModelOutline
        Outline of the model as it was traced.
    settings : int
        Number of the settings; see `Form`.
    unheld : tuple of str
        What the forward pass does in Python, and the graph only repeats as it was this one time.
    lost_gradients : tuple of str
        Steps of the forward pass with a backward that the graph lacks.
    """

    graph_module: fx.GraphModule
    parameters: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    updated: frozenset[str]
    updates: Mapping[str, fx.Node]
    results: tuple[fx.Node, ...]
    structure: ResultStructure
    arguments: Arguments
    batch_size: int
    batch_sizes: BatchSizes
    training: bool
    outline: ModelOutline
    settings: int = 0
    unheld: tuple[str, ...] = ()
    lost_gradients: tuple[str, ...] = ()

    @property
    def example(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the inputs that were traced, without data."""
        return self.arguments.tensors

    @property
    def has_dynamic_batch(self) -> bool:
        """Whether the graph fits more batch sizes than that of its example."""
        return self.batch_sizes.fixed is None

    @property
    def form(self) -> Form:
        """The mode, settings, and sizes of inputs and batch that the graph was traced in."""
        return Form(self.training, sizes_of_inputs(self.example), self.batch_size, self.settings)


def example_inputs(model: nn.Module, input_shape: Sequence[int] | Sequence[str]) -> Any:
    """Return an example batch for a model, as `trace` takes it.

    The batch is on the model's own device, so a model on the meta device allocates nothing.

    Parameters
    ----------
    input_shape : sequence of int or str
        Sizes of the model's one input, without the batch; or a text for each of its inputs, as
        ``--input-shape`` takes it.

    Returns
    -------
    inputs : tuple of Tensor or dict
        Zeros, by position or by the names in the texts.

    >>> example_inputs(nn.Conv2d(3, 8, 3), (3, 32, 32))[0].shape
    torch.Size([2, 3, 32, 32])
    >>> example_inputs(nn.Bilinear(3, 4, 5), ["3", "input2=4"])["input2"].shape
    torch.Size([2, 4])
    """
    tensors = (*model.parameters(), *model.buffers())
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))

    def zeros(tensor: InputTensor) -> torch.Tensor:
        dtype = like.dtype if tensor.type == FLOAT else getattr(torch, tensor.type)
        if EXAMPLE_BATCH * math.prod(tensor.sizes) * dtype.itemsize > LARGEST_TENSOR:
            raise ArgumentError(
                f"input {tensor}: a batch of {EXAMPLE_BATCH} exceeds the {LARGEST_TENSOR} bytes "
                "that a tensor can have"
            )
        return torch.zeros((EXAMPLE_BATCH, *tensor.sizes), dtype=dtype, device=like.device)

    return InputShape(input_shape).inputs(inspect.signature(model.forward), zeros)


def trace(model: nn.Module, example: Inputs) -> TracedModel:
    """Trace `model` with torch.export, in its present mode, and make the graph functional.

    Parameters
    ----------
    model : nn.Module
        On any device; on ``meta`` nothing is allocated. Its mode (train or eval) is kept.
    example : tensor, sequence or mapping
        What the model is called with: its one input, inputs by position, or inputs by the names
        of its forward. Only shapes, dtypes and the device of tensors matter; they may be in lists
        and dicts. All other values, such as flags and numbers, are fixed, and so is what is left
        out.

        The first dimension of the first tensor that has one is the batch. So is that of every
        other tensor whose first dimension is as large, unless the tensor is in a list with a dict
        for each sample; all other tensors keep their sizes. In a list of images the batch is
        therefore the channels: such a model runs in parts, but its batch can't be divided.

        The batch stays dynamic where the model allows it. An example of one sample is doubled,
        because torch.export treats a size of 1 as a constant. The batch is fixed where sizes, or
        numbers that the model computes with, do not grow evenly with it (halves of a batch).

    Raises
    ------
    ArgumentError
        If the model's forward does not take the example, or there is no batch in it.
    TraceError
        If torch.export can't trace the model, or its code ends the process (the message says where
        and why), or if the model returns no tensor or changes an input in place.

    >>> class Masked(nn.Module):
    ...     def forward(self, image, *, mask=None, scale=1.0):
    ...         return image * scale if mask is None else image * scale * mask
    >>> image = torch.zeros(2, 3, 8, 8)
    >>> trace(Masked(), {"image": image, "mask": image[:, :1], "scale": 2.0}).inputs
    ('image', 'mask')
    """
    return trace_call(model, arguments_of(model, example))


def result_of(model: nn.Module, example: Inputs) -> Any:
    """What a model returns for an example; without data where both are on the meta device.

    Raises
    ------
    ArgumentError
        If the model's forward does not take the example.
    TraceError
        If the call fails.

    >>> result_of(nn.Linear(3, 4, device="meta"), torch.zeros(2, 3, device="meta")).shape
    torch.Size([2, 4])
    """
    arguments = arguments_of(model, example)
    # Stand-ins, as the model's code may make tensors that are not on the meta device.
    with _quiet(), stand_ins(model, arguments.tensors) as values:
        args, kwargs = arguments.with_tensors(values).call
        try:
            return model(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise TraceError(_explain(model, arguments, error)) from error


def trace_call(model: nn.Module, arguments: Arguments, *, any_batch: bool = True) -> TracedModel:
    """Like `trace`, from a call that is known; with `any_batch=False`, for its batch size only."""
    _check_modules(model)
    arguments.check_leaves()
    given = _apart(model, arguments.tensors)
    batch_size = arguments.batch_size(given)
    if batch_size is None:
        raise ArgumentError("the example holds no batch: give at least one tensor with a batch")
    origin = origin_of_model(model)
    call = pytree.tree_map_only(torch.Tensor, described, dict(arguments.given))
    return kept_or_new(
        origin,
        None if origin is None else ("trace", state_of(model), call, arguments.batches, any_batch),
        lambda: _trace_anew(model, arguments, given, batch_size, any_batch),
        _facts,
        lambda facts: _restored(facts, model, arguments),
    )


def _trace_anew(
    model: nn.Module,
    arguments: Arguments,
    given: Sequence[torch.Tensor],
    batch_size: int,
    any_batch: bool,
) -> TracedModel:
    with (
        _quiet(),
        _cumulative(model),
        torch.autocast("cpu", enabled=False),  # its casts would be in the graph for good
        torch.autocast("cuda", enabled=False),
        stand_ins(model, given) as values,
    ):
        exported = _export(model, arguments.with_tensors(values), batch_size, any_batch)
    program, arguments = exported.program, exported.arguments
    signature = program.graph_signature
    made: dict[OutputKind, list[tuple[str | None, fx.Node]]] = {kind: [] for kind in OutputKind}
    output = next(node for node in program.graph.nodes if node.op == "output")
    for node, spec in zip(output.args[0], signature.output_specs, strict=True):
        if isinstance(node, fx.Node):
            made[spec.kind].append((spec.target, node))
    returned = tuple(
        None if isinstance(node, fx.Node) else (node,)
        for node, spec in zip(output.args[0], signature.output_specs, strict=True)
        if spec.kind == OutputKind.USER_OUTPUT
    )
    changed = [name for name, _ in made[OutputKind.USER_INPUT_MUTATION]]
    if changed:
        raise TraceError(
            f"{type(model).__name__} changes its input {changed[0]!r} in place: accepted are "
            "models that leave their inputs as they are"
        )
    results = tuple(node for _, node in made[OutputKind.USER_OUTPUT])
    if not results:
        raise TraceError(f"{type(model).__name__} returns no tensor: there is nothing to compute")
    settled = settle_sizes(program)
    known = {**program.state_dict, **program.constants}
    tensors = {name: stood_for(tensor) for name, tensor in known.items()}
    placeholders = {name: placeholder for placeholder, name in signature.inputs_to_buffers.items()}
    updates = {placeholders[str(name)]: node for name, node in made[OutputKind.BUFFER_MUTATION]}
    named = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    parameters = dict(signature.inputs_to_parameters)
    for placeholder in _merge_shared(program.graph, parameters, model):
        del parameters[placeholder]
    without_data = [stood_for(value).detach().to("meta") for value in arguments.tensors]
    return TracedModel(
        graph_module=program.graph_module,
        parameters=parameters,
        buffers=dict(signature.inputs_to_buffers),
        constants={
            placeholder: tensors[name]
            for placeholder, name in signature.inputs_to_lifted_tensor_constants.items()
        },
        values={
            **settled,
            **{
                placeholder: _as_traced(tensors[name])
                for placeholder, name in named.items()
                if not tensors[name].is_meta
            },
        },
        inputs=tuple(
            spec.arg.name
            for spec in signature.input_specs
            if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
        ),
        updated=frozenset(updates),
        updates=updates,
        results=results,
        structure=ResultStructure(returned, program.call_spec.out_spec),
        arguments=arguments.with_tensors(without_data),
        batch_size=exported.batch_size,
        batch_sizes=exported.batch_sizes,
        training=model.training,
        outline=outline_of(model),
        unheld=(
            *exported.unheld,
            *(f"{name} is changed in place" for name, _ in made[OutputKind.PARAMETER_MUTATION]),
        ),
        lost_gradients=exported.lost_gradients,
    )


def _facts(traced: TracedModel) -> dict[str, Any]:
    """A trace as plain values, without what its model and its call tell."""
    if traced.unheld or traced.lost_gradients:
        raise NotKeptError("its graph lacks what its forward pass does")
    named = {*traced.buffers, *traced.constants}
    settled = {name: value for name, value in traced.values.items() if name not in named}
    return {
        "batch_size": traced.batch_size,
        "graph": plain_graph(traced.graph_module.graph),
        "parameters": dict(traced.parameters),
        "buffers": dict(traced.buffers),
        "constants": {name: plain_values(value) for name, value in traced.constants.items()},
        "settled": {name: plain_values(value) for name, value in settled.items()},
        "inputs": traced.inputs,
        "updates": {name: node.name for name, node in traced.updates.items()},
        "results": [node.name for node in traced.results],
        "leaves": [None if leaf is None else [plain(leaf[0])] for leaf in traced.structure.leaves],
        "spec": _plain_spec(traced.structure.spec),
        "tensors": [plain_values(tensor) for tensor in traced.arguments.tensors],
        "conditions": [*map(plain_expression, traced.batch_sizes.conditions)],
        "fixed": traced.batch_sizes.fixed,
    }


def _plain_spec(spec: pytree.TreeSpec) -> str:
    """The form of a result as JSON, which has no keys but texts and numbers."""
    try:
        text = pytree.treespec_dumps(spec)
        read = pytree.treespec_loads(text)
    except Exception as error:  # whatever other code that made a form known to torch raises
        raise NotKeptError("its result has a form without a name") from error
    if repr(read) != repr(spec):
        raise NotKeptError("the form of its result is another one as JSON")
    return text


def _restored(facts: Mapping[str, Any], model: nn.Module, arguments: Arguments) -> TracedModel:
    """The trace of a model and a call whose facts were kept."""
    read = Reader(facts["batch_size"])
    graph = read.graph(facts["graph"])
    buffers = dict(model.named_buffers(remove_duplicate=False))
    constants = {name: read.values(value) for name, value in facts["constants"].items()}
    named = {**{name: buffers[target] for name, target in facts["buffers"].items()}, **constants}
    conditions = tuple(map(read.expression, facts["conditions"]))
    return TracedModel(
        graph_module=fx.GraphModule(nn.Module(), graph),
        parameters=facts["parameters"],
        buffers=facts["buffers"],
        constants=constants,
        values={
            **{name: read.values(value) for name, value in facts["settled"].items()},
            **{name: _as_traced(value) for name, value in named.items() if not value.is_meta},
        },
        inputs=tuple(facts["inputs"]),
        updated=frozenset(facts["updates"]),
        updates={name: read.nodes[node] for name, node in facts["updates"].items()},
        results=tuple(read.nodes[name] for name in facts["results"]),
        structure=ResultStructure(
            tuple(None if leaf is None else (read.value(leaf[0]),) for leaf in facts["leaves"]),
            pytree.treespec_loads(facts["spec"]),
        ),
        arguments=arguments.with_tensors([read.values(value) for value in facts["tensors"]]),
        batch_size=facts["batch_size"],
        batch_sizes=BatchSizes(conditions, facts["fixed"]),
        training=model.training,
        outline=outline_of(model),
    )


def _as_traced(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of integers, whose values decide what is read; any other tensor itself."""
    return tensor if tensor.is_floating_point() else tensor.detach().clone()


def _check_modules(model: nn.Module) -> None:
    """Raise a TraceError that names the first module that can't be traced, and says why."""
    for path, module in model.named_modules():
        kind, named = type(module).__name__, path or "the model itself"
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{named} is a {kind} of TorchScript: accepted are modules as they were before "
                "torch.jit.script or torch.jit.trace"
            )
        if type(module).__module__.startswith(_QUANTISED):
            raise TraceError(
                f"{named} is a quantised {kind}, which computes with integers: accepted is the "
                "model as it was before it was quantised"
            )


@contextmanager
def _cumulative(model: nn.Module) -> Iterator[None]:
    """Mark norms that average all batches by a number: the count of batches is not constant."""
    norms = [
        norm
        for norm in model.modules()
        if isinstance(norm, _BatchNorm)
        and norm.momentum is None
        and norm.training
        and norm.num_batches_tracked is not None
    ]
    for norm in norms:
        norm.momentum = CUMULATIVE
    try:
        yield
    finally:
        for norm in norms:
            norm.momentum = None


def _apart(model: nn.Module, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same tensors, each as an object of its own: torch.export merges objects that repeat."""
    taken = {id(weight) for weight in (*model.parameters(), *model.buffers())}
    apart = []
    for tensor in tensors:
        if id(tensor) in taken:
            tensor = _another(tensor)
        taken.add(id(tensor))
        apart.append(tensor)
    return apart


def _another(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor as another object."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _merge_shared(graph: fx.Graph, parameters: Mapping[str, str], model: nn.Module) -> list[str]:
    """Let all uses of a parameter with several names read one placeholder.

    Returns the placeholders that nothing reads any more.
    """
    tensors = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, fx.Node] = {}
    merged = []
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in parameters:
            kept = first.setdefault(id(tensors[parameters[node.name]]), node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                merged.append(node.name)
    return merged


@dataclass(frozen=True)
class _Exported:
    """What torch.export makes of a model and its inputs, with facts for `TracedModel`."""

    program: torch.export.ExportedProgram
    arguments: Arguments
    batch_size: int
    batch_sizes: BatchSizes
    unheld: tuple[str, ...]
    lost_gradients: tuple[str, ...]


def _export(model: nn.Module, arguments: Arguments, batch_size: int, any_batch: bool) -> _Exported:
    """Export a model for any batch; if that fails or is not wanted, for the given batch size."""
    if any_batch and (exported := _export_for_any_batch(model, arguments, batch_size)):
        return exported
    # Models that compute with the batch size in Python trace only with a fixed one.
    try:
        return _exported(model, arguments, None, batch_size)
    except (Exception, SystemExit) as error:
        raise TraceError(_explain(model, arguments, error)) from error


def _export_for_any_batch(
    model: nn.Module, arguments: Arguments, batch_size: int
) -> _Exported | None:
    """Export a model with a dynamic batch; None where that fails."""
    is_one = batch_size == 1
    # Copies, because torch.export leaves a mark on tensors where it fails.
    several = arguments.with_tensors(
        [
            torch.cat([value] * EXAMPLE_BATCH) if is_one and is_batch else _another(value)
            for value, is_batch in zip(arguments.tensors, arguments.batches, strict=True)
        ]
    )
    dynamic: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for value in compress(several.tensors, arguments.batches):
        dynamic[value] = {0: torch.export.Dim.AUTO}
    try:
        shapes = dynamic.dynamic_shapes(model, *several.call)  # as forward takes them, as *x too
        exported = _exported(model, several, shapes, max(batch_size, EXAMPLE_BATCH))
    except (Exception, SystemExit):
        return None
    any_batch = exported.batch_sizes.fixed is None
    return exported if grows_evenly(exported.program) and (any_batch or not is_one) else None


@contextmanager
def _unread_kept() -> Iterator[None]:
    """Keep operators that draw random numbers or update statistics where nothing reads them.

    torch.export drops operators without readers, and treats a norm that updates its buffers as one
    that only returns a result.
    """
    is_impure = fx.Node.is_impure

    def is_kept(node: fx.Node, *args: Any, **kwargs: Any) -> bool:
        draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        own = node.op == "call_function" and (draws or bool(only_updated(node)))
        return own or is_impure(node, *args, **kwargs)

    with mock.patch.object(fx.Node, "is_impure", is_kept):
        yield


def _exported(model: nn.Module, arguments: Arguments, shapes: Any, batch_size: int) -> _Exported:
    try:
        return _exported_within(nullcontext(), model, arguments, shapes, batch_size)
    except Exception as error:
        if not _waits_for_values(error):
            raise
    return _exported_within(FollowedConstants(are_kept=True), model, arguments, shapes, batch_size)


def _exported_within(
    constants: AbstractContextManager[Any],
    model: nn.Module,
    arguments: Arguments,
    shapes: Any,
    batch_size: int,
) -> _Exported:
    unheld: dict[str, None] = {}
    lost: dict[str, None] = {}
    with (
        torch.inference_mode(False),
        torch.enable_grad(),  # so that what the model does about gradients shows
        forward_state.watched(model, arguments, unheld.setdefault, lost.setdefault),
        autograd_functions.functions_kept(model, lost.setdefault),
        _unread_kept(),
        norms_by_shape(),
        constants,
    ):
        args, kwargs = arguments.call
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    with _unread_kept():
        functional = divisible(program, of_one=shapes is None and batch_size == 1)
    sizes = batch_sizes_of(functional, batch_size)
    return _Exported(functional, arguments, batch_size, sizes, tuple(unheld), tuple(lost))


def _explain(model: nn.Module, arguments: Arguments, error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if is_the_models(frame.filename)
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).strip()
    why = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if unknown := re.match(r"Found <class '(.*)'> in output, which is not a known type", why):
        why = f"it returns a {unknown[1]}: {REGISTERED}"
    if _waits_for_values(error):
        why = (
            "it needs the values of tensors, as a number (float(), int(), bool(), item(), an if) "
            "or for a size (nonzero(), a mask): accepted are passes that compute with tensors "
            "there, or where constants decide these values"
        )
    if why.startswith("We found a fake tensor in the exported program constant's list"):
        kept = re.search(r"model attribute: ([\w.]*?)\.?lifted_tensor", text)
        why = (
            f"{kept[1] if kept and kept[1] else 'its code'} makes a tensor in a way that "
            "torch.export does not see, such as by an assignment to .data"
        )
    quantises = any(type(module).__module__ == _QUANTISING for module in model.modules())
    if quantises and _waits_for_values(error):  # such modules read a buffer to see if they are on
        why = "it quantises: accepted is the model without fake quantisation, as before prepare_qat"
    if isinstance(error, SystemExit):
        why = f"its code ends the process: sys.exit({text})"
    shapes = ", ".join("x".join(map(str, value.shape)) for value in arguments.tensors)
    return f"can't trace {type(model).__name__} with input {shapes}{where}: {why}"


def _waits_for_values(error: BaseException) -> bool:
    """Whether torch.export failed for want of the values of tensors."""
    return isinstance(error, (GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound)) or (
        "data-dependent" in str(error)
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
