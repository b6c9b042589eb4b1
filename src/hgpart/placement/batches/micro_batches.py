"""A batch -> its micro-batches: inputs and random masks, cut where samples begin and end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, chain
from operator import add
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import ArgumentError, PlacementError
from hgpart.execution.step_run import Score
from hgpart.placement.batches.loss_counts import class_loss, is_sum
from hgpart.placement.building.blueprint import Blueprint
from hgpart.schedules.schedule import Schedule
from hgpart.tracing.arguments import has_dicts
from hgpart.tracing.batches import evenly, shape_said
from hgpart.tracing.traced_nodes import first_tensor


def divided_values(
    blueprint: Blueprint,
    values: Mapping[str, Any],
    sizes: Sequence[Sequence[int]],
    some: Sequence[Collection[int]] = (),
) -> list[list[dict[str, Any]]]:
    """Values of placeholders (inputs and masks) for each share of each micro-batch.

    A value has all samples, or only those of the shares in one entry of `some`; the other shares
    then go without it.

    Raises
    ------
    PlacementError
        If samples do not lie one after the other in one dimension of a value, or their number is
        wrong.
    """
    divided = iter(_divided_values(blueprint, values, _accepted(sizes, some)))
    return [[next(divided) for _ in shares] for shares in sizes]


def named_by_share(
    blueprints: Sequence[Blueprint], values: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Values of all shares of a micro-batch, under the names in the programs of parts."""
    return {
        f"{blueprint.prefix}{name}": value
        for blueprint, own in zip(blueprints, values, strict=True)
        for name, value in own.items()
    }


def _accepted(sizes: Sequence[Sequence[int]], some: Sequence[Collection[int]]) -> list[list[int]]:
    """Samples of each share of each micro-batch: of all shares, and of only those in `some`.

    The number of samples in a value tells which of these it has, as no two have the same total.

    >>> _accepted([(2, 3), (2, 2)], some=[(1,)])
    [[2, 3, 2, 2], [0, 3, 0, 2]]
    """
    all_shares = range(len(sizes[0]))
    return [
        [size if share in shares else 0 for batch in sizes for share, size in enumerate(batch)]
        for shares in (all_shares, *some)
    ]


def _divided_values(
    blueprint: Blueprint, values: Mapping[str, Any], accepted: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    sizes = accepted[0]
    if len(sizes) == 1:
        return [{**values, "batch_size": sizes[0]}]
    nodes = {name: blueprint.nodes[name] for name in blueprint.traced.inputs}
    nodes.update({name: node for node, name in blueprint.draws.items()})
    divided: list[dict[str, Any]] = [{"batch_size": size} for size in sizes]
    for name, value in values.items():
        pieces = _pieces(name, nodes[name], value, accepted)
        for batch, piece in zip(divided, pieces, strict=True):
            if piece is not None:
                batch[name] = piece
    return divided


Counts = tuple[float, float]  # what a mean divides by: with weights of targets, and without
Total = Callable[[Counts], Counts]
StandIn = Callable[[Sequence[torch.Tensor], int], Sequence[torch.Tensor]]


def score_of(
    build: Callable[[Sequence[Any]], Any],
    targets: Any,
    loss_fn: Callable[[Any, Any], Any] | None,
    sizes: Sequence[Sequence[int]],
    shares: Sequence[int] = (0,),
    some: Sequence[Collection[int]] = (),
    counted: Sequence[int] = (0,),
    total: Total | None = lambda counts: counts,
    stand_in: StandIn | None = None,
) -> Score:
    """A function from a micro-batch's results to a part's share of the loss, or results by share.

    The shares of all parts add up to the loss of the whole batch, over micro-batches and slices;
    see `_Parts`. `sizes` are the samples of each share of each micro-batch, `shares` those whose
    results the part has. Targets have all samples, or only those of the shares in one entry of
    `some`. `total` adds the counts of the targets in `counted` to those of other processes, if
    these can be asked. `stand_in` makes results with another number of samples, if all targets are
    in this process.

    Raises
    ------
    ArgumentError
        If targets can't be divided; from `score`, if a loss is not a number with gradients.
    """
    divided, per_batch = divided_targets(targets, _accepted(sizes, some)), len(sizes[0])
    own_targets = [number * per_batch + share for number in range(len(sizes)) for share in counted]
    parts = None
    if loss_fn is not None:
        parts = _Parts(loss_fn, divided, [*chain(*sizes)], own_targets, total)

    def score(micro_batch: int, results: Sequence[Any]) -> Any:
        count = len(results) // len(shares)
        own = [results[at * count : (at + 1) * count] for at in range(len(shares))]
        if parts is None:
            return own
        losses = []
        for share, results in zip(shares, own, strict=True):
            loss = parts.loss(micro_batch * per_batch + share, build, results, stand_in)
            check_loss(loss, learns=any(result.requires_grad for result in results))
            losses.append(loss)
        return reduce(add, losses)

    return score


class _Parts:
    """The parts of a batch's loss, which add up to it.

    A mean over samples is weighted by their number. Torch's own mean over classes is weighted by
    the targets that are not ignored and by their weights, a sum by 1, and (sum, count) by the count
    over all parts: these must follow from targets alone, as they are needed before all results are
    there.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Any],
        targets: Sequence[Any],
        sizes: Sequence[int],
        own: Sequence[int],
        total: Total | None,
    ) -> None:
        self._loss_fn, self._targets, self._sizes = loss_fn, targets, sizes
        self._alone = len(sizes) == 1
        self._is_sum = is_sum(loss_fn)
        self._divisor: float | None = None
        self._counts: list[Any] = []
        of_classes = None if self._alone else class_loss(loss_fn)
        if of_classes is None:
            return
        own_targets = [targets[at] for at in own]
        if not all(isinstance(target, torch.Tensor) for target in own_targets):
            own_targets = []
        indices = [target for target in own_targets if not target.is_floating_point()]
        counts = sum(map(of_classes.count, indices)), float(sum(map(torch.numel, indices)))
        if total is not None:
            counts = total(counts)
        elif counts[0] != counts[1] or (indices and of_classes.weight is not None):
            raise ArgumentError(
                "weights of classes or ignored targets in a stream of processes over slices: "
                "accepted is a mean over samples"
            )
        if counts[0] != counts[1] or (indices and of_classes.weight is not None):
            self._loss_fn, self._divisor = of_classes.total, counts[0]

    def loss(
        self,
        at: int,
        build: Callable[[Sequence[Any]], Any],
        results: Sequence[torch.Tensor],
        stand_in: StandIn | None,
    ) -> Any:
        """The loss of one share of one micro-batch, as its part of the whole."""
        target = self._to(self._targets[at], results)
        loss = self._loss_fn(build(results), target)
        if isinstance(loss, tuple):
            loss, count = _sum_and_count(loss)
            if self._alone:
                return loss / count
            return loss / self._count_of_all(at, count, build, results, stand_in)
        if self._alone or self._is_sum or not isinstance(loss, torch.Tensor):
            return loss
        if self._divisor is not None:
            return loss / self._divisor
        return loss * (self._sizes[at] / sum(self._sizes))

    def _count_of_all(
        self,
        at: int,
        count: Any,
        build: Callable[[Sequence[Any]], Any],
        results: Sequence[torch.Tensor],
        stand_in: StandIn | None,
    ) -> Any:
        """Sum of the counts of all parts, from their targets and results like this part's."""
        if stand_in is None:
            raise ArgumentError(
                "a loss of (sum, count) whose parts are in several processes: accepted there is a "
                "mean over samples, or torch's cross entropy in steps"
            )
        if not self._counts:
            with torch.no_grad():
                for size, target in zip(self._sizes, self._targets, strict=True):
                    results_of_size = build(stand_in(results, size))
                    self._counts.append(
                        _sum_and_count(self._loss_fn(results_of_size, self._to(target, results)))[1]
                    )
        if count != self._counts[at]:
            raise ArgumentError(
                f"a loss that counts {float(count):g} in place of {float(self._counts[at]):g}: "
                "accepted in micro-batches are counts that follow from targets alone"
            )
        return sum(self._counts)

    def _to(self, target: Any, results: Sequence[torch.Tensor]) -> Any:
        """Targets on the device of the results; those of other shares may be on other devices."""
        if self._alone:
            return target
        move = partial(_to, results[0].device)
        return pytree.tree_map_only(torch.Tensor, move, target)


def _sum_and_count(loss: Any) -> tuple[torch.Tensor, Any]:
    if not isinstance(loss, tuple) or len(loss) != 2:
        raise ArgumentError(f"a loss of {loss!r}: accepted is a tensor, or (sum, count)")
    total, count = loss
    return total, count.detach() if isinstance(count, torch.Tensor) else count


def _to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(device)


def joined_results(blueprint: Blueprint, by_share: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Results of a batch, joined from the results of its shares.

    Raises
    ------
    PlacementError
        If samples do not lie one after the other in a dimension of a result.
    """
    if len(by_share) == 1:
        return by_share[0]
    joined = []
    for node, pieces in zip(blueprint.traced.results, zip(*by_share, strict=True), strict=True):
        dim = dimension_of_samples(f"result {node.name}", node)
        if dim is None:
            raise PlacementError(
                f"result {node.name} has no samples: accepted in slices of the batch are results "
                "with a dimension for them"
            )
        device = pieces[0].device
        joined.append(torch.cat([piece.to(device) for piece in pieces], dim=dim))
    return joined


def stand_in(
    blueprint: Blueprint, results: Sequence[torch.Tensor], size: int
) -> Sequence[torch.Tensor]:
    """Results with another number of samples: copies of the first, in the same memory layout."""
    made = []
    for node, result in zip(blueprint.traced.results, results, strict=True):
        dim = dimension_of_samples(f"result {node.name}", node)
        tensor = result.detach()
        if dim is not None:
            shape = [*tensor.shape]
            shape[dim] = size
            order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__, reverse=True)
            empty = torch.empty_permuted(shape, order, dtype=tensor.dtype, device=tensor.device)
            tensor = empty.copy_(tensor.narrow(dim, 0, 1).expand(shape))
        made.append(tensor)
    return made


def check_loss(loss: Any, learns: bool) -> None:
    """Raise an ArgumentError if backward can't begin with a loss, where something learns."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        received = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
        raise ArgumentError(f"a loss of {received}: accepted is a tensor of one element")
    if learns and torch.is_grad_enabled() and not loss.requires_grad:
        raise ArgumentError(
            "a loss without gradients: accepted in grad mode is one that is computed from what the "
            "model returns, and not detached"
        )


def schedule_for_mode(schedule: Schedule, has_loss: bool) -> Schedule:
    """The schedule itself in grad mode; only its forward passes outside.

    Raises
    ------
    ArgumentError
        If it is not a schedule, or a schedule of a stream; in grad mode also if there is no loss
        or no backward pass.
    """
    if not isinstance(schedule, Schedule):
        raise ArgumentError(f"schedule {schedule!r}: accepted is what hgpart.schedule returns")
    if schedule.in_flight is not None:
        raise ArgumentError(
            f"a step by the rule {schedule.rule}, a rule of streams: accepted is a stream by it"
        )
    if not torch.is_grad_enabled():
        return schedule.forward_only
    if not has_loss or not schedule.backward:
        lacks = "no loss function" if not has_loss else "a schedule without backward passes"
        raise ArgumentError(
            f"a step in grad mode with {lacks}: accepted are both, or a step under torch.no_grad()"
        )
    return schedule


def divided_targets(targets: Any, accepted: Sequence[Sequence[int]]) -> list[Any]:
    """Targets of each micro-batch.

    Tensors have samples in their first dimension, also in dicts, lists and tuples. A list or tuple
    of dicts has one dict per sample, with any content. Each of them has the samples of all
    micro-batches, or of another of the accepted sizes.

    Raises
    ------
    ArgumentError
        If the number of samples is another one, or there is anything except tensors, None and lists
        of dicts. If a list has as many tensors as there are samples, and each tensor, too: it could
        be meant in two ways.
    """
    count = len(accepted[0])
    if count == 1:
        return [targets]
    leaves, structure = pytree.tree_flatten(targets, is_leaf=has_dicts)
    _check_lists(targets, accepted)
    divided = [_divided_target(leaf, accepted) for leaf in leaves]
    return [
        pytree.tree_unflatten([pieces[at] for pieces in divided], structure) for at in range(count)
    ]


def _divided_target(leaf: Any, accepted: Sequence[Sequence[int]]) -> Sequence[Any]:
    if leaf is None:
        return [None] * len(accepted[0])
    if has_dicts(leaf):
        sizes = _given(len(leaf), accepted)
        if sizes is None:
            raise ArgumentError(
                f"a target of {len(leaf)} dicts: accepted is one for each of {_numbers(accepted)} "
                "samples, to divide among micro-batches"
            )
        starts = accumulate(sizes, initial=0)
        return [leaf[start : start + size] for start, size in zip(starts, sizes, strict=False)]
    if not isinstance(leaf, torch.Tensor):
        raise ArgumentError(
            f"a target of type {type(leaf).__name__}: accepted are tensors, to divide among "
            "micro-batches, lists with a dict for each sample, and None"
        )
    sizes = _given(len(leaf), accepted) if leaf.dim() else None
    if sizes is None:
        raise ArgumentError(
            f"a target of shape {tuple(leaf.shape)}: accepted are {_numbers(accepted)} samples in "
            "its first dimension, to divide among micro-batches, or a list with a dict for each"
        )
    return torch.split(leaf, [*sizes])


def _check_lists(targets: Any, accepted: Sequence[Sequence[int]]) -> None:
    """Raise an ArgumentError for tensors that may be one per sample, or have all samples."""
    if has_dicts(targets):
        return
    if isinstance(targets, Mapping):
        targets = [*targets.values()]
    elif isinstance(targets, (list, tuple)) and not hasattr(targets, "_fields"):
        count, lengths = len(targets), {_length(target) for target in targets}
        if count > 1 and lengths == {count} and _given(count, accepted):
            raise ArgumentError(
                f"a target of {count} tensors of {count} each, for {count} samples, which may be "
                "one for each or have all of them: accepted are a list with a dict for each "
                "sample, and a dict of tensors that have all"
            )
    for target in targets if isinstance(targets, (list, tuple)) else ():
        _check_lists(target, accepted)


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, torch.Tensor) and value.dim() else None


def _given(samples: int, accepted: Sequence[Sequence[int]]) -> Sequence[int] | None:
    """The first of the accepted sizes with this number of samples in total."""
    return next((sizes for sizes in accepted if sum(sizes) == samples), None)


def _numbers(accepted: Sequence[Sequence[int]]) -> str:
    """Accepted numbers of samples, as text."""
    return " or ".join(str(number) for number in dict.fromkeys(map(sum, accepted)))


def dimension_of_samples(name: str, node: fx.Node) -> int | None:
    """Dimension of a value along which samples lie; None if its shape is the same for any batch.

    Raises
    ------
    PlacementError
        If they do not lie one after the other in one dimension.
    """
    shape = first_tensor(node.meta["val"]).shape
    growing = {
        dim: grows for dim, grows in enumerate(map(evenly, shape)) if grows is None or grows[0]
    }
    if not growing:
        return None
    (dim, grows), *more = growing.items()
    if more or grows != (1, 0):
        raise PlacementError(
            f"{name} has the shape {shape_said(shape)}, whose samples can't be told apart:"
            " accepted in micro-batches are values with a dimension of their own for samples"
        )
    return dim


def _pieces(
    name: str, node: fx.Node, value: torch.Tensor, accepted: Sequence[Sequence[int]]
) -> Sequence[Any]:
    """Pieces of a value for each share; None for shares whose samples it does not have."""
    dim = dimension_of_samples(name, node)
    if dim is None:
        return [value] * len(accepted[0])
    sizes = _given(value.shape[dim], accepted)
    if sizes is None:
        raise PlacementError(
            f"{name} of shape {tuple(value.shape)}: accepted are {_numbers(accepted)} samples"
        )
    starts = accumulate(sizes, initial=0)
    return [
        value.narrow(dim, start, size) if size else None
        for start, size in zip(starts, sizes, strict=False)
    ]
