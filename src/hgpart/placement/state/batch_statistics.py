"""Programs of parts -> the same, whose norms have running statistics of batches, not micro-batches.

Each micro-batch is normalised by its own statistics; the running ones are updated when all of a
batch are done, by the mean and variance of all that the norm was given, as torchgpipe's
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
    """Raise an ArgumentError if running statistics can't be of that."""
    if norms not in NORMS:
        raise not_one_of("norms", norms, NORMS)


class OnceABatch(nn.Module):
    """What a step leaves to the end of a batch, in the place of an operator.

    Attributes
    ----------
    operands : tuple of str
        What it takes of the operator's arguments.
    """

    operands: tuple[str, ...]

    def begin(self) -> None:
        """Forget a batch that came to no end."""

    def finish(self) -> None:
        """All micro-batches of a batch are done."""


class BatchNorm(OnceABatch):
    """Batch norm in training."""

    operands = "input", "weight", "bias", "running_mean", "running_var", "momentum"

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self._momentum = 0.0
        self._found: list[tuple[int, Tensor, Tensor]] = []  # values per channel, mean, variance
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
        made: Tensor = aten.batch_norm(
            operand, weight, bias, *own, True, 1.0, self.eps, cudnn
        )  # by its momentum, `own` is what it has found
        running = running_mean, running_var
        self._note(made.numel() // len(running_mean), own, running, momentum)
        return made

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
        self._found.append((count, *own))
        self._running = running

    def begin(self) -> None:
        """Forget a batch that came to no end."""
        self._found.clear()
        self._running = None

    def finish(self) -> None:
        """Update running statistics; their variance is the unbiased one."""
        if self._running is None:  # of no micro-batch here
            return
        running_mean, running_var = self._running
        total = sum(count for count, _, _ in self._found)
        mean, squares = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        for count, own, _ in self._found:
            mean += own * (count / total)
        for count, own, variance in self._found:
            squares += variance * (count - 1) + (own - mean).square() * count
        running_mean.lerp_(mean, self._momentum)
        running_var.lerp_(squares / (total - 1), self._momentum)
        self.begin()


class SharedBatchNorm(BatchNorm):
    """What is left of a norm whose batch is in several shares: it is given what they make up."""

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
    """A new value of a buffer that all micro-batches find the same: a counter, or of parameters."""

    operands = "self", "src"

    def __init__(self) -> None:
        super().__init__()
        self._found: tuple[Tensor, Tensor] | None = None  # the buffer, and its new value

    def forward(self, buffer: Tensor, value: Tensor) -> Tensor:
        """Note it."""
        if notes_statistics():
            self._found = buffer, value
        return buffer

    def begin(self) -> None:
        """Forget a batch that came to no end."""
        self._found = None

    def finish(self) -> None:
        """Put it in place."""
        if self._found is not None:
            buffer, value = self._found
            buffer.copy_(value)
        self.begin()


def check_deferrable(traced: TracedModel) -> None:
    """Raise a PlacementError if something else than batch norms has running statistics."""
    for node in traced.graph_module.graph.nodes:
        if only_updated(node) and operator_of(node).cut != "norm":
            raise PlacementError(
                f"{module_of(node) or node.name} updates running statistics by {node.target}: "
                "accepted with norms of the batch are batch norms"
            )


def check_averages(traced: TracedModel) -> None:
    """Raise a PlacementError if a norm averages all batches, of which parts have no number."""
    for node in traced.graph_module.graph.nodes:
        if averages_batches(node):
            raise PlacementError(
                f"the norm {module_of(node) or node.name} has momentum=None, the mean of all "
                "batches: accepted in norms of the batch, which is in slices, is a number, as in "
                "momentum=0.1"
            )


def defer(
    program: PartProgram,
    slices: Mapping[str, Slice],
    traced: TracedModel,
    from_parameters: Collection[str],
) -> None:
    """Let a part's steps update statistics, and count batches, once a batch.

    And the buffers that are computed `from_parameters`, which all micro-batches find the same.
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
                    given = operands or [argument(node, one) for one in later.operands]
                    called = step.graph.call_module(attribute, tuple(given))
                called.meta = dict(node.meta)
                node.replace_all_uses_with(called)
                step.graph.erase_node(node)
        step.recompile()


def _is_written(node: fx.Node) -> bool:
    """Whether it gives a buffer a new value."""
    operator = node.target
    writes = isinstance(operator, torch._ops.OpOverload) and operator._schema.is_mutable
    return writes and getattr(node.args[0], "op", None) == "get_attr"


@contextmanager
def batch_of(programs: Mapping[int, PartProgram]) -> Iterator[None]:
    """Where all micro-batches of one batch are run."""
    waiting = [
        one
        for one in chain.from_iterable(program.module.modules() for program in programs.values())
        if isinstance(one, OnceABatch)
    ]
    for one in waiting:
        one.begin()
    yield
    with torch.no_grad():
        for one in waiting:
            one.finish()
