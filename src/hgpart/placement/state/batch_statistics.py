"""Programs of parts -> the same, with running statistics per batch instead of per micro-batch.

Each micro-batch is normalised by its own statistics. Running statistics are updated once all
micro-batches of a batch are done, by the mean and variance over all of them, as torchgpipe's
DeferredBatchNorm does (Kim et al., arXiv 2004.09910, section 3.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, fx, nn

from hgpart.errors import PlacementError, not_one_of
from hgpart.execution.batch_norms import unbiased, update_running
from hgpart.execution.program import PartProgram
from hgpart.execution.recomputation import notes_statistics
from hgpart.operators.calls import argument, module_of, only_updated
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.slices import Slice
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import COUNTER, averages_batches, is_norms_statistic

aten = torch.ops.aten

NORMS = ("micro-batch", "batch")


def check_norms(norms: str) -> None:
    """Raise an ArgumentError if this is not a known scope of running statistics."""
    if norms not in NORMS:
        raise not_one_of("norms", norms, NORMS)


class OnceABatch(nn.Module):
    """A module that replaces an operator and does some of its work at the end of a batch.

    Attributes
    ----------
    operands : tuple of str
        Names of the operator's arguments that it takes.
    """

    operands: tuple[str, ...]

    def begin(self) -> None:
        """Forget a batch that was not finished."""

    def finish(self) -> None:
        """Do what is left, after all micro-batches of a batch."""


class BatchNorm(OnceABatch):
    """Batch norm in training mode."""

    operands = "input", "weight", "bias", "running_mean", "running_var", "momentum"

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._momentum = 0.0
        # Values per channel, mean, variance.
        self._statistics: list[tuple[int, Tensor, Tensor]] = []
        self._running: tuple[Tensor, Tensor] | None = None

    def forward(
        self,
        operand: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
    ) -> Tensor:
        """Normalise a micro-batch."""
        own = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        cudnn = torch.backends.cudnn.enabled
        # With a momentum of 1, `own` becomes the statistics of this micro-batch.
        normalised: Tensor = aten.batch_norm(
            operand, weight, bias, *own, True, 1.0, self.eps, cudnn
        )
        running = running_mean, running_var
        self._note(normalised.numel() // len(running_mean), own, running, momentum)
        return normalised

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _note(
        self,
        count: int,
        own: tuple[Tensor, Tensor],
        running: tuple[Tensor, Tensor],
        momentum: float,
    ) -> None:
        if not notes_statistics():
            return
        self._momentum = momentum
        self._statistics.append((count, *own))
        self._running = running

    def begin(self) -> None:
        """Forget a batch that was not finished."""
        self._statistics.clear()
        self._running = None

    def finish(self) -> None:
        """Update running statistics, with the unbiased variance."""
        if self._running is None:  # no micro-batch was run here
            return
        running_mean, running_var = self._running
        total = sum(count for count, _, _ in self._statistics)
        mean, squares = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        for count, own, _ in self._statistics:
            mean += own * (count / total)
        for count, own, variance in self._statistics:
            squares += variance * (count - 1) + (own - mean).square() * count
        running_mean.lerp_(mean, self._momentum)
        running_var.lerp_(squares / (total - 1), self._momentum)
        self.begin()


class SharedBatchNorm(BatchNorm):
    """The update of a norm whose batch is in several shares, given their combined statistics."""

    def __init__(self) -> None:
        super().__init__(eps=0.0)

    def forward(  # type: ignore[override]
        self,
        running_mean: Tensor,
        running_var: Tensor,
        statistics: Tensor,
        samples: Sequence[int],
        values: int,
        momentum: float,
    ) -> None:
        """Note the statistics of a micro-batch."""
        count = sum(samples) * values
        self._note(count, unbiased(statistics, count), (running_mean, running_var), momentum)


class Update(OnceABatch):
    """A new value of a buffer that is the same in all micro-batches, such as a counter."""

    operands = "self", "src"

    def __init__(self) -> None:
        super().__init__()
        self._noted: tuple[Tensor, Tensor] | None = None  # the buffer, and its new value

    def forward(self, buffer: Tensor, value: Tensor) -> Tensor:
        """Note the value."""
        if notes_statistics():
            self._noted = buffer, value
        return buffer

    def begin(self) -> None:
        """Forget a batch that was not finished."""
        self._noted = None

    def finish(self) -> None:
        """Write the value to the buffer."""
        if self._noted is not None:
            buffer, value = self._noted
            buffer.copy_(value)
        self.begin()


def check_deferrable(traced: TracedModel) -> None:
    """Raise a PlacementError if anything except batch norms has running statistics."""
    for node in traced.graph_module.graph.nodes:
        if only_updated(node) and operator_of(node).cut != "norm":
            raise PlacementError(
                f"{module_of(node) or node.name} updates running statistics by {node.target}: "
                "accepted with norms of the batch are batch norms"
            )


def check_averages(traced: TracedModel) -> None:
    """Raise a PlacementError if a norm averages over all batches, as parts do not count them."""
    for node in traced.graph_module.graph.nodes:
        if averages_batches(node):
            raise PlacementError(
                f"the norm {module_of(node) or node.name} has momentum=None, the mean of all "
                "batches: accepted in norms over slices or bands is a number, as in momentum=0.1"
            )


def defer(
    program: PartProgram,
    slices: Mapping[str, Slice],
    traced: TracedModel,
    from_parameters: Collection[str],
) -> None:
    """Let a part's steps update statistics, and count batches, once per batch.

    The buffers that are computed `from_parameters` are updated once, too: all micro-batches have
    the same new value for them.
    """
    once = {
        f"{traced.buffers[placeholder].rpartition('.')[0]}.{COUNTER}".removeprefix(".")
        for placeholder, new in traced.updates.items()
        if is_norms_statistic(new)
    } | {*from_parameters}
    for name, step in program.module.named_children():
        if not isinstance(step, fx.GraphModule):
            continue
        for node in list(step.graph.nodes):
            later: OnceABatch | None = None
            operands: Sequence[Any] = ()
            if operator_of(node).is_batch_norm and argument(node, "training"):
                if argument(node, "running_mean") is not None:
                    later = BatchNorm(argument(node, "eps"))
            elif node.target is update_running:
                operands, later = node.args, SharedBatchNorm()
            elif _is_written(node):
                held = slices.get(f"{name}.{node.args[0].target}")
                later = Update() if held is not None and held.name in once else None
            if later is not None:
                attribute = f"once_a_batch_{len(list(step.children()))}"
                step.add_submodule(attribute, later)
                with step.graph.inserting_before(node):
                    arguments = operands or [argument(node, operand) for operand in later.operands]
                    call = step.graph.call_module(attribute, tuple(arguments))
                call.meta = dict(node.meta)
                node.replace_all_uses_with(call)
                step.graph.erase_node(node)
        step.recompile()


def _is_written(node: fx.Node) -> bool:
    """Whether an operator writes to a buffer."""
    operator = node.target
    writes = isinstance(operator, torch._ops.OpOverload) and operator._schema.is_mutable
    return writes and getattr(node.args[0], "op", None) == "get_attr"


@contextmanager
def batch_of(programs: Mapping[int, PartProgram]) -> Iterator[None]:
    """Run all micro-batches of one batch within this context."""
    modules = chain.from_iterable(program.module.modules() for program in programs.values())
    deferred = [module for module in modules if isinstance(module, OnceABatch)]
    for module in deferred:
        module.begin()
    yield
    with torch.no_grad():
        for module in deferred:
            module.finish()
