"""TracedModel -> Mixing: which operator computes a sample of a batch from other samples.

A batch can be divided, into slices or micro-batches, if each sample's result is computed from that
sample alone. The walk follows samples through the graph as `layering` follows channels, by the
rules of the operator table: an operator without a rule mixes the samples that it reads.

Two things do not count as mixing. One is a batch norm in training, whose statistics are those of
its input (`Modelling.norms`). The other is a mean over the batch that is returned, or a sum of such
means, like a model's own loss: a step adds those of its micro-batches, weighted by their samples. A
mean over targets counts as one as long as no target is ignored: `Mixing.ignored` says what to look
for in the inputs that hold them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import TraceError
from hgpart.layers.channel_graph import Mixing
from hgpart.layers.elements.constants import integers
from hgpart.operators import moving
from hgpart.operators.calls import argument, has_gradients, module_of, only_updated
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call, Channels, Constant, Reindex, SameIndex
from hgpart.operators.ids import constant_along, core, in_order
from hgpart.operators.sample_places import Positions, bags, picked, put
from hgpart.operators.samples import Average, by_first, loss, loss_of_classes
from hgpart.operators.table import effect_on_samples, operator_of
from hgpart.tracing.autograd_functions import operator_name
from hgpart.tracing.batches import at_batch, evenly
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    all_tensors,
    computed_nodes,
    first_tensor,
    holds_tensors,
    is_tensor,
)

SEEN = 3  # times the traced batch: with too few samples, swapping two could undo itself


class _MixedError(Exception):
    """A node mixes samples."""

    def __init__(self, node: fx.Node, does: str = "mixes samples of the batch") -> None:
        super().__init__(f"{_described(node)} {does}")


@dataclass(frozen=True)
class _Mean:
    """A mean over all samples, made by a node."""

    node: fx.Node
    shape: tuple[int, ...]


def mixed_samples(traced: TracedModel) -> Mixing:
    """Find the operator that computes samples of a batch from each other.

    >>> from torch import nn
    >>> from hgpart.tracing.traced_model import trace
    >>> class Centred(nn.Module):
    ...     def forward(self, x):
    ...         return x - x.mean(0)
    >>> mixed_samples(trace(Centred(), torch.zeros(2, 3))).operator.partition(",")[0]
    'aten.mean.dim (mean in the model itself'
    """
    if not traced.has_dynamic_batch:
        return Mixing(_fixed(traced))
    walk = _SampleWalk(traced)
    try:
        walk.run()
    except _MixedError as error:
        return Mixing(str(error), walk.norm)
    return Mixing("", walk.norm, tuple(walk.ignored))


def numbers_of_samples(traced: TracedModel) -> dict[fx.Node, torch.Tensor]:
    """For each node, the number of the sample that each element of its value belongs to.

    The batch is larger than the traced one. The first node that computes samples from each other
    is missing, and so are all nodes after it.
    """
    walk = _SampleWalk(traced)
    with suppress(_MixedError):
        walk.run()
    values = walk.values.items()
    return {node: value.ids for node, value in values if isinstance(value, Channels)}


def _fixed(traced: TracedModel) -> str:
    """The clause that code computes with the batch size, naming the dimension it was taken for."""
    arguments = traced.arguments
    first = arguments.names[arguments.batches.index(True)]
    return (
        f"the batch is the first dimension of {first}, and the model's code accepts only "
        f"{traced.batch_size} there"
    )


class _SampleWalk:
    def __init__(self, traced: TracedModel) -> None:
        self.traced = traced
        self.batch = SEEN * traced.batch_size
        self.values: dict[fx.Node, Any] = {}
        self.norm = ""
        self.ignored: dict[tuple[str, int], None] = {}

    def run(self) -> None:
        graph = self.traced.graph_module.graph
        computed = computed_nodes(graph, self.traced.results)
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._given(node)
            elif node.op == "get_attr":
                self.values[node] = Constant(())
            elif node in computed:
                self.values[node] = self._call(node)
        for node in self.traced.results:
            self._check_result(node)

    def _shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(at_batch(size, self.batch) for size in tensor.shape)

    def _given(self, node: fx.Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        if node.name in self.traced.inputs and _growing(value):
            return Channels(self._numbered(node, value))
        known = None if node.name in self.traced.updates else self.traced.values.get(node.name)
        return Constant(self._shape(value), value=integers(known))

    def _numbered(self, node: fx.Node, value: torch.Tensor) -> torch.Tensor:
        """Numbers of samples along the dimension that grows with the batch."""
        growing = _growing(value)
        if len(growing) != 1 or evenly(value.shape[growing[0]]) != (1, 0):
            raise _MixedError(node, "makes a tensor whose samples can't be told apart")
        view = [-1 if dim == growing[0] else 1 for dim in range(value.dim())]
        numbers = torch.arange(self.batch, dtype=torch.int32).reshape(view)
        return numbers.expand(self._shape(value))

    # -------------------------------------------------------------- calls

    def _call(self, node: fx.Node) -> Any:
        unread = only_updated(node)

        def value_of(operand: fx.Node) -> Any:
            return None if operand in unread else self.values[operand]

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
        known = operator_of(node)
        if not holds_tensors(node):  # a number
            of_data = any(
                isinstance(operand, (Channels, _Mean)) for operand in _leaves(args, kwargs)
            )
            if of_data and not known.is_size:
                raise _MixedError(node)
            return at_batch(node.meta["val"], self.batch)
        if node.target is operator.getitem:
            source, at = args
            return source[at]  # type: ignore[index]
        operands = _leaves(args, kwargs)
        if any(operand is _Unknown for operand in operands):
            raise _MixedError(node)
        call = Call(node, args, kwargs, self._shape(first_tensor(node.meta["val"])))
        growing = _growing(first_tensor(node.meta["val"]))
        draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        has_samples = any(isinstance(operand, Channels) for operand in operands)
        if known.makes or known.is_fill or (draws and not has_samples):
            if _growing_number(getattr(argument(node, "fill_value"), "meta", {}).get("val")):
                raise _MixedError(node, "computes with the number of samples")
            return self._made(node)
        self._check_numbers(node)
        if any(isinstance(operand, Positions) for operand in operands):
            return self._of_positions(call, operands)
        if any(isinstance(operand, _Mean) for operand in operands):
            return self._of_means(call, operands)
        if has_samples:
            return self._of_samples(call, growing)
        if growing:
            return self._spread(call, growing)
        return self._results(node, lambda part: Constant(self._shape(part)))

    def _results(self, node: fx.Node, value_of: Any) -> Any:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return value_of(value)
        return [value_of(part) if is_tensor(part) else part for part in value]

    def _made(self, node: fx.Node) -> Any:
        """A result with the batch's size but none of its data: alike for all samples, or drawn."""

        def part_of(part: torch.Tensor) -> Channels | Constant:
            if _growing(part):
                return Channels(self._numbered(node, part))
            return Constant(self._shape(part))

        return self._results(node, part_of)

    def _check_numbers(self, node: fx.Node) -> None:
        """Raise an error if the number of samples is used for more than shapes."""
        numbers = [number for number in node.all_input_nodes if not holds_tensors(number)]
        if not any(_growing_number(number.meta.get("val")) for number in numbers):
            return
        known = operator_of(node)
        shapes_alone = known.moves_only or known.rule is moving.on_ids or known.cut == "expand"
        sizes = known.samples is by_first or (known.product and not known.product.is_matrix)
        if not (shapes_alone or sizes or known.is_range):
            raise _MixedError(node, "computes with the number of samples")

    def _of_samples(self, call: Call, growing: Sequence[int]) -> Any:
        node, known = call.node, operator_of(call.node)
        try:
            effect = effect_on_samples(call)
        except TraceError:
            raise _MixedError(node) from None
        if isinstance(effect, Average):
            if growing or not _is_even(combined(effect.ids), self.batch):
                raise _MixedError(node)
            if known.samples is loss_of_classes:
                self._note_targets(node)
            return self._results(node, lambda part: _Mean(node, self._shape(part)))
        if isinstance(effect, Reindex):
            ids = effect.ids if isinstance(effect.ids, tuple) else (effect.ids,)
            for part, made in zip(ids, all_tensors(node.meta["val"]), strict=False):
                self._check_grows(node, part, _growing(made))
            results = [Channels(part) for part in ids]
            return results if isinstance(effect.ids, tuple) else results[0]
        together = combined(effect.operands) if isinstance(effect, SameIndex) else None
        if together is None and known.samples in (loss, loss_of_classes):
            raise _MixedError(node, "is a loss inside the model that is not a mean over samples")
        if together is None and known.rule is None and known.samples is None:
            raise _MixedError(
                node, "may mix samples of the batch: hgpart does not know this operator"
            )
        if together is None:
            raise _MixedError(node)
        together = together.expand(call.shape)
        self._check_grows(node, together, growing)
        if known.is_batch_norm and argument(node, "training", True):
            self._note_norm(node, call)

        def part_of(part: torch.Tensor) -> Any:
            shape = self._shape(part)
            if shape == call.shape:
                return Channels(together)
            if len(shape) != len(call.shape):
                return _Unknown
            own = together
            for dim, (size, first) in enumerate(zip(shape, call.shape, strict=True)):
                if size != first:
                    if not constant_along(own, dim):
                        return _Unknown
                    own = own.narrow(dim, 0, 1)
            return Channels(own.expand(shape))

        return self._results(node, part_of)

    def _note_norm(self, node: fx.Node, call: Call) -> None:
        """Note a norm without running statistics: it takes the batch's in evaluation as well."""
        running = argument(node, "running_mean")
        ids = call.argument("input").ids
        of_samples = not all(constant_along(ids, dim) for dim in range(ids.dim()) if dim != 1)
        if not self.traced.training and running is None and of_samples:
            self.norm = self.norm or f"{_described(node)} takes its statistics of the batch"

    def _note_targets(self, node: fx.Node) -> None:
        """Note the inputs that hold a loss's targets, or refuse targets from elsewhere.

        A step searches these inputs for classes that the loss ignores. Targets that are places,
        or the same for all samples, need no search: each sample has as many ignored ones.
        """
        ignored = argument(node, "ignore_index")
        waiting, seen = [argument(node, "target")], set[fx.Node]()
        if has_gradients(waiting[0].meta["val"].dtype):  # probabilities
            return
        while waiting:
            target = waiting.pop()
            if target in seen or not self._differs(target):
                continue
            seen.add(target)
            moved = _moved(target)
            if target.op == "placeholder":
                self.ignored[target.name, ignored] = None
            elif moved is None:
                raise _MixedError(
                    node,
                    f"is a loss inside the model that leaves targets of {ignored} out of its mean",
                )
            else:
                waiting += moved

    def _differs(self, target: fx.Node) -> bool:
        """Whether numbers may differ between samples and be negative."""
        value, known = self.values[target], operator_of(target)
        drawn = torch.Tag.nondeterministic_seeded in getattr(target.target, "tags", ())
        filled = (known.makes is not None or known.is_fill) and not drawn
        maker, at = target, 0
        if target.target is operator.getitem:
            (maker,), at = target.all_input_nodes, target.args[1]  # type: ignore[assignment]
        counts = operator_of(maker).places == at
        truths = first_tensor(target.meta["val"]).dtype == torch.bool
        return not (isinstance(value, Constant) or filled or counts or truths)

    def _check_grows(self, node: fx.Node, ids: torch.Tensor, growing: Sequence[int]) -> None:
        """Raise an error if samples do not lie along the dimensions that grow with the batch."""
        if any(dim < ids.dim() and constant_along(ids, dim) for dim in growing):
            raise _MixedError(node)

    def _spread(self, call: Call, growing: Sequence[int]) -> Any:
        """A constant for each sample: repeated, or computed from the batch's size."""
        node, known = call.node, operator_of(call.node)
        constants = [leaf for leaf in _leaves(call.args, call.kwargs) if isinstance(leaf, Constant)]
        step = argument(node, "step", 1)
        if known.is_range and argument(node, "start", 0) == 0 and isinstance(step, int):
            return Positions(self._numbered(node, first_tensor(node.meta["val"])), step)
        if len(growing) == 1 and known.rule is moving.on_ids and len(constants) == 1:
            (dim,), shape = growing, constants[0].shape
            per_sample = ((1,) * (len(call.shape) - len(shape)) + shape)[dim]
            value = first_tensor(node.meta["val"])
            if evenly(value.shape[dim]) == (per_sample, 0) and (
                known.cut != "expand" or per_sample == 1
            ):
                view = [-1 if at == dim else 1 for at in range(len(call.shape))]
                numbers = torch.arange(self.batch, dtype=torch.int32).repeat_interleave(per_sample)
                return Channels(numbers.reshape(view).expand(call.shape))
        raise _MixedError(node, "makes a tensor whose samples differ by their places")

    def _of_positions(self, call: Call, operands: Sequence[Any]) -> Any:
        known = operator_of(call.node)
        if known.samples in (picked, put, bags):
            return self._of_samples(call, _growing(first_tensor(call.node.meta["val"])))
        if known.moves_only or known.cut == "expand":
            effect = effect_on_samples(call)
            if isinstance(effect, Reindex) and isinstance(effect.ids, torch.Tensor):
                return Positions(effect.ids, operands[0].step)
        raise _MixedError(call.node, "computes with places in the batch")

    def _of_means(self, call: Call, operands: Sequence[Any]) -> Any:
        """Means over samples: a linear function of means is a mean as well."""
        known = operator_of(call.node)
        means = [operand for operand in operands if isinstance(operand, _Mean)]
        moves = known.moves_only or known.cut in ("expand", "join")
        scales = known.linear == "product" and len(means) == 1 and call.args[0] is means[0]
        if not (moves or known.linear == "sum" or scales) or any(
            isinstance(operand, Channels) for operand in operands
        ):
            raise _MixedError(means[0].node)
        return self._results(call.node, lambda part: _Mean(means[0].node, self._shape(part)))

    # -------------------------------------------------------------- results

    def _check_result(self, node: fx.Node) -> None:
        value, made = self.values[node], node.meta["val"]
        growing = _growing(made)
        if isinstance(value, Positions):
            raise _MixedError(node, "returns places in the batch")
        if not isinstance(value, Channels):
            return
        if not growing:
            raise _MixedError(node, "picks samples of the batch")
        dim = growing[0]
        if len(growing) == 1 and evenly(made.shape[dim]) == (1, 0):
            places = in_order(value.ids, dim)
            if places is None or places.tolist() != list(range(self.batch)):
                raise _MixedError(node, "returns samples in another order")
        elif not _is_even(value.ids, self.batch):
            raise _MixedError(node)


def _moved(node: fx.Node) -> list[fx.Node] | None:
    """The operands that an operator only moves, or converts to integers; else None."""
    known, operands = operator_of(node), [*filter(holds_tensors, node.all_input_nodes)]
    dtype = first_tensor(node.meta["val"]).dtype
    if node.target is operator.getitem:
        return operands
    if known.rule is same_place and argument(node, "dtype") == torch.int64:
        return operands
    rule = known.samples or known.rule
    moves = known.moves_only or rule in (moving.on_ids, moving.joined, moving.padded)
    alike = all(first_tensor(operand.meta["val"]).dtype == dtype for operand in operands)
    return operands if moves and alike else None


class _Unknown:
    """Stands for a result whose samples no rule can tell apart."""


def combined(operands: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """The sample that several operands' elements belong to; None if they belong to two."""
    samples: torch.Tensor | None = None
    for ids in operands:
        ids = core(ids)
        if samples is None:
            samples = ids
            continue
        before, added = torch.broadcast_tensors(samples, ids)  # type: ignore[no-untyped-call]
        if bool(((before != added) & (before >= 0) & (added >= 0)).any()):
            return None
        samples = core(torch.maximum(samples, ids))
    return samples


def _is_even(ids: torch.Tensor | None, batch: int) -> bool:
    """Whether elements belong to samples, equally many to each."""
    if ids is None:
        return False
    ids = core(ids)
    if ids.numel() == 0 or int(ids.min()) < 0:
        return False
    counts = torch.bincount(ids.flatten().long(), minlength=batch)
    return bool((counts == counts[0]).all())


def _leaves(*values: Any) -> list[Any]:
    return list(chain(*(pytree.tree_leaves(value) for value in values)))


def _growing(tensor: torch.Tensor) -> list[int]:
    """The dimensions whose size depends on the batch."""
    return [dim for dim, size in enumerate(tensor.shape) if _growing_number(size)]


def _growing_number(value: Any) -> bool:
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return symbolic and evenly(value) != (0, at_batch(value, 2))


def _described(node: fx.Node) -> str:
    """A node, its module and the model's line."""
    frames = [
        line.strip()
        for line in (node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith('File "')
    ]
    line = ""
    if frames:
        path, number = frames[-1].removeprefix('File "').split('"', 1)
        line = f", {path.rpartition('/')[2]}:{number.removeprefix(', line ').partition(',')[0]}"
    module = module_of(node) or "the model itself"
    called = operator_name(node.target).partition(" of ")[0]  # for a Function, leaves out its calls
    return f"{called} ({node.name} in {module}{line})"
