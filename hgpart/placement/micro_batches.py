"""A batch -> its micro-batches: inputs and random masks, sliced where the samples lie.

And a stream of batches -> those of them that parts have begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.step_run import Score
from hgpart.placement.blueprint import Blueprint
from hgpart.schedules import check_recompute
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.batches import evenly
from hgpart.tracing.traced_nodes import first_tensor

GRADIENT_HOOKS = "_post_accumulate_grad_hooks"  # where torch keeps them


def divided_values(
    blueprint: Blueprint, values: Mapping[str, Any], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """The values of placeholders, inputs and masks, for each micro-batch.

    Raises
    ------
    PlacementError
        If samples do not lie one after the other in a dimension of a value.
    """
    if len(sizes) == 1:
        return [{**values, "batch_size": sizes[0]}]
    nodes = {name: blueprint.nodes[name] for name in blueprint.traced.inputs}
    nodes.update({name: node for node, name in blueprint.draws.items()})
    found: list[dict[str, Any]] = [{"batch_size": size} for size in sizes]
    for name, value in values.items():
        pieces = _pieces(name, nodes[name], value, sizes)
        for batch, piece in zip(found, pieces, strict=True):
            batch[name] = piece
    return found


def score_of(
    build: Callable[[Sequence[Any]], Any],
    targets: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    sizes: Sequence[int],
) -> Score:
    """What a step makes of a micro-batch's results: its share of the loss, or what `build` makes.

    A loss that is a mean over samples counts by their number, so that the sum over the
    micro-batches is that of the whole batch.

    Raises
    ------
    ArgumentError
        If targets can't be divided; from `score`, if a loss is no number that gradients begin with.
    """
    divided = divided_targets(targets, sizes)

    def score(micro_batch: int, results: Sequence[Any]) -> Any:
        made = build(results)
        if loss_fn is None:
            return made
        loss = loss_fn(made, divided[micro_batch])
        _check_loss(loss, learns=any(result.requires_grad for result in results))
        return loss if len(sizes) == 1 else loss * (sizes[micro_batch] / sum(sizes))

    return score


class StreamedBatches:
    """The batches of a stream, each drawn when it is asked for, and their losses.

    Parameters
    ----------
    batches : iterable of (inputs, targets)
    count : int
        How many of them there have to be.
    divided : callable
        Given inputs, the values of the placeholders.
    build : callable or None
        Given the results, what the model returns; None where they are not.
    loss_fn : callable
    """

    def __init__(
        self,
        batches: Iterable[tuple[Sequence[Any], Any]],
        count: int,
        divided: Callable[[Sequence[Any]], Mapping[str, Any]],
        build: Callable[[Sequence[Any]], Any] | None,
        loss_fn: Callable[[Any, Any], torch.Tensor],
    ) -> None:
        self._batches, self._count, self._divided = batches, count, divided
        self._build, self._loss_fn = build, loss_fn
        self._targets: dict[int, Any] = {}

    def values(self) -> Iterator[Mapping[str, Any]]:
        """Of the placeholders, batch by batch.

        Raises
        ------
        ArgumentError
            If there are too few.
        """
        batches = iter(self._batches)
        for number in range(self._count):
            batch = next(batches, None)
            if batch is None:
                raise ArgumentError(
                    f"{number} batches: accepted are {self._count}, as the schedule has"
                )
            inputs, targets = batch
            if self._build is not None:
                self._targets[number] = targets
            yield self._divided(inputs)

    def score(self, number: int, results: Sequence[Any]) -> torch.Tensor:
        """A batch's loss."""
        assert self._build is not None
        loss = self._loss_fn(self._build(results), self._targets.pop(number))
        _check_loss(loss, learns=any(result.requires_grad for result in results))
        return loss


def check_stream(
    schedule: Schedule, modules: Iterable[fx.GraphModule], norms: str, stash: bool
) -> None:
    """Raise an ArgumentError unless a stream can go by a schedule, in the present grad mode."""
    check_norms_of_stream(norms)
    if not isinstance(schedule, Schedule) or schedule.in_flight is None:
        given = f"{schedule.rule} schedule" if isinstance(schedule, Schedule) else repr(schedule)
        raise ArgumentError(f"a stream by a {given}: accepted is one of the rule async")
    again = any(outline.again for outline in schedule.outlines)
    check_recompute(recompute=again, stash=stash)
    if not torch.is_grad_enabled():
        raise ArgumentError("a stream without grad mode: accepted is with, as it trains")
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter._backward_hooks or getattr(parameter, GRADIENT_HOOKS, None):
                raise ArgumentError(
                    f"a stream with a hook on {name}, whose gradients gather elsewhere: accepted "
                    "are parameters without hooks"
                )
        for step in module.children():
            if getattr(step, "_compiled_call_impl", None) is not None:
                raise ArgumentError(
                    "a stream of steps that torch.compile has compiled, which are bound to one "
                    "version of their weights: accepted are steps as they were placed"
                )


def check_norms_of_stream(norms: str) -> None:
    """Raise an ArgumentError for norms that update running statistics at the end of a batch."""
    if norms == "batch":
        raise ArgumentError(
            "norms of the batch with batches in flight, each of which is one micro-batch: accepted "
            "are those of micro-batches"
        )


def _check_loss(loss: Any, learns: bool) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        received = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise ArgumentError(f"a loss of {received}: accepted is a tensor of one element")
    if learns and torch.is_grad_enabled() and not loss.requires_grad:
        raise ArgumentError(
            "a loss without gradients: accepted in grad mode is one that is computed from what the "
            "model returns, and not detached"
        )


def schedule_for_mode(schedule: Schedule, has_loss: bool) -> Schedule:
    """The schedule in grad mode; its forward passes without.

    Raises
    ------
    ArgumentError
        If it is no schedule, or one of streams. In grad mode, if there is no loss or it has no
        backward passes.
    """
    if not isinstance(schedule, Schedule):
        raise ArgumentError(f"schedule {schedule!r}: accepted is what hgpart.schedule returns")
    if schedule.in_flight is not None:
        raise ArgumentError(
            f"a step by the rule {schedule.rule}, which has updates: accepted is a stream by it"
        )
    if not torch.is_grad_enabled():
        return schedule.forward_only
    if not has_loss or not schedule.backward:
        lacks = "no loss function" if not has_loss else "a schedule without backward passes"
        raise ArgumentError(
            f"a step in grad mode with {lacks}: accepted are both, or a step under torch.no_grad()"
        )
    return schedule


def divided_targets(targets: Any, sizes: Sequence[int]) -> list[Any]:
    """What results are compared with, for each micro-batch: tensors by their first dimension.

    Raises
    ------
    ArgumentError
        If a tensor has another number of samples, or there is anything but tensors and None.
    """
    if len(sizes) == 1:
        return [targets]
    leaves, structure = pytree.tree_flatten(targets)
    divided = [_divided_target(leaf, sizes) for leaf in leaves]
    return [
        pytree.tree_unflatten([pieces[at] for pieces in divided], structure)
        for at in range(len(sizes))
    ]


def _divided_target(leaf: Any, sizes: Sequence[int]) -> Sequence[Any]:
    if leaf is None:
        return [None] * len(sizes)
    if not isinstance(leaf, torch.Tensor):
        raise ArgumentError(
            f"a target of type {type(leaf).__name__}: accepted are tensors, to divide among "
            "micro-batches, and None"
        )
    if leaf.dim() == 0 or len(leaf) != sum(sizes):
        raise ArgumentError(
            f"a target of shape {tuple(leaf.shape)}: accepted are {sum(sizes)} samples, to divide "
            "among micro-batches"
        )
    return torch.split(leaf, [*sizes])


def _pieces(name: str, node: fx.Node, value: Any, sizes: Sequence[int]) -> Sequence[Any]:
    value_of_node = first_tensor(node.meta["val"])
    if not isinstance(value, torch.Tensor):
        return [value] * len(sizes)
    growing = {
        dim: grows
        for dim, grows in enumerate(map(evenly, value_of_node.shape))
        if grows is None or grows[0]
    }
    if not growing:
        return [value] * len(sizes)
    (dim, grows), *more = growing.items()
    if more or grows != (1, 0):
        raise PlacementError(
            f"{name} has the shape {tuple(value_of_node.shape)}, whose samples can't be told apart:"
            " accepted in micro-batches are values with a dimension of their own for samples"
        )
    starts = accumulate(sizes, initial=0)
    return [value.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=False)]
