"""Rules for samples: what an operator does to a batch, where its channel rule can't tell.

A rule reads operands whose *ids* are numbers of samples, not of channels: for each element, the
sample that it belongs to. `SameIndex` and `Reindex` then mean that samples stay apart, `Average`
that the result is a mean over all of them, and any other effect that they are mixed.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hgpart.operators.channelwise import along, reduction
from hgpart.operators.effects import (
    Call,
    Channels,
    Constant,
    Effect,
    Reindex,
    SameIndex,
    Whole,
    operands_of,
)
from hgpart.operators.ids import constant_along
from hgpart.operators.moving import ids_of, overwritten


@dataclass(frozen=True)
class Average:
    """The result is a mean over elements, equally many of each sample; `ids` are theirs."""

    ids: tuple[torch.Tensor, ...]


def without(ids: torch.Tensor, dims: Sequence[int]) -> torch.Tensor | None:
    """Ids without some dimensions; None if they depend on them."""
    kept = alone_along(ids, dims)
    for dim in sorted((dim % ids.dim() for dim in dims), reverse=True) if kept is not None else ():
        kept = kept.select(dim, 0)  # type: ignore[union-attr]
    return kept


def alone_along(ids: torch.Tensor, dims: Sequence[int]) -> torch.Tensor | None:
    """Ids reduced to one element along some dimensions; None if they depend on them."""
    for dim in dims:
        if not constant_along(ids, dim):
            return None
        ids = ids.narrow(dim, 0, min(1, ids.shape[dim]))
    return ids


def together(call: Call, operands: Sequence[torch.Tensor | None]) -> Effect:
    """Operands whose ids broadcast to the result; None stands for ids that no rule can tell."""
    known = [ids for ids in operands if ids is not None]
    if len(known) < len(operands):
        return Whole()
    try:
        return SameIndex(tuple(ids.expand(call.shape) for ids in known))
    except RuntimeError:  # the operator does not broadcast as this rule takes it to
        return Whole()


def own_place(call: Call) -> Effect:
    """An element depends on the one at its own place, and on tensors without samples."""
    return together(call, [operand.ids for operand in operands_of(call)])


def written(call: Call) -> Effect:
    """The second operand in place of the first; a constant is written to every sample alike."""
    return overwritten(call) if isinstance(call.argument("src"), Channels) else own_place(call)


def broadcast(call: Call) -> Effect:
    """Several operands, all broadcast to one shape."""
    shape = torch.broadcast_shapes(*(operand.shape for operand in call.args[0]))  # type: ignore[no-untyped-call]
    ids = (ids_of(operand) for operand in call.args[0])
    return Reindex(tuple(numbers.expand(shape) for numbers in ids))


def by_first(call: Call) -> Effect:
    """Operators that treat each place along the first dimension of all operands by itself."""
    ids_of_operands: list[torch.Tensor | None] = []
    for operand in operands_of(call):
        ids = operand.ids
        first = alone_along(ids, range(1, ids.dim()))
        is_first = ids.dim() > 0 and call.shape[:1] == ids.shape[:1]
        known = first is not None and is_first
        ids_of_operands.append(first.reshape(-1, *[1] * (len(call.shape) - 1)) if known else None)  # type: ignore[union-attr]
    return together(call, ids_of_operands)


def along_dim(call: Call) -> Effect:
    """Operators along one dimension of all operands: sorting, picking, comparing."""
    dims = call.argument("dim", -1)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    ids_of_operands: list[torch.Tensor | None] = []
    for operand in operands_of(call):
        rank = operand.ids.dim()
        kept = alone_along if len(call.shape) == rank else without
        ids_of_operands.append(kept(operand.ids, dims or range(rank)))
    return together(call, ids_of_operands)


def scattered(call: Call) -> Effect:
    """Numbers written along one dimension, at all places along those that samples depend on."""
    index, dim = call.argument("index"), call.argument("dim") % len(call.shape)
    for at, (size, whole) in enumerate(zip(index.shape, call.shape, strict=True)):
        is_part = at != dim and size != whole
        if is_part and not all(constant_along(operand.ids, at) for operand in operands_of(call)):
            return Whole()  # samples are told apart by their places
    return along_dim(call)


def norms_along(call: Call) -> Effect:
    """A norm over all dimensions but one, for each place along that one."""
    rank = len(call.shape)
    kept = call.argument("dim") % rank
    return along(call, [dim for dim in range(rank) if dim != kept])


def over_last_two(call: Call) -> Effect:
    """Operators along the last two dimensions of all operands: attention, linear algebra."""
    ids_of_operands = []
    for operand in operands_of(call):
        ids = alone_along(operand.ids, range(-min(2, operand.ids.dim()), 0))
        if ids is not None and len(call.shape) < ids.dim():
            ids = ids[..., 0, 0] if len(call.shape) == ids.dim() - 2 else ids[..., 0]
        ids_of_operands.append(ids)
    return together(call, ids_of_operands)


def attention(call: Call) -> Effect:
    """An attention; where heads share keys and values, samples may not lie along heads."""
    if not call.argument("enable_gqa"):
        return over_last_two(call)
    return together(call, [alone_along(operand.ids, (-3, -2, -1)) for operand in operands_of(call)])


def factors(call: Call) -> Effect:
    """Several results of each matrix; matrices lie in the last two dimensions."""
    ids = without(call.args[0].ids, (-2, -1))
    if ids is None:
        return Whole()
    sizes = [result.shape[ids.dim() :] for result in call.node.meta["val"]]
    ids_of_results = (
        ids.reshape(*ids.shape, *[1] * len(size)).expand(*ids.shape, *size) for size in sizes
    )
    return Reindex(tuple(ids_of_results))


def solved(call: Call) -> Effect:
    """Equations: matrices in the last two dimensions, each with a vector or a matrix."""
    left, right = call.argument("A"), call.argument("B")
    vectors = len(right.shape) == 1 or right.shape == left.shape[:-1]
    if not vectors:
        return over_last_two(call)
    ids_of_operands = []
    for operand in operands_of(call):
        ids = without(operand.ids, (-1,) if operand is right else (-2, -1))
        ids_of_operands.append(None if ids is None else ids.unsqueeze(-1))
    return together(call, ids_of_operands)


def searched(call: Call) -> Effect:
    """Numbers that are each looked for in a sequence along the last dimension."""
    sought = call.argument("self")
    return together(
        call,
        [
            operand.ids if operand is sought else alone_along(operand.ids, (-1,))
            for operand in operands_of(call)
        ],
    )


def diagonals(call: Call) -> Effect:
    """The last dimension becomes the diagonal of matrices in two dimensions."""
    ids = without(call.args[0].ids, (-1,))
    if ids is None:
        return Whole()
    for dim in sorted(call.argument(name) % len(call.shape) for name in ("dim1", "dim2")):
        ids = ids.unsqueeze(dim)
    return together(call, [ids])


def instance_norm(call: Call) -> Effect:
    """A norm of each channel of each sample; with running statistics, element by element."""
    dims = range(2, len(call.shape)) if call.argument("use_input_stats") else ()
    return along(call, dims)


def group_norm(call: Call) -> Effect:
    """A norm over groups of channels of each sample."""
    return along(call, range(1, len(call.shape)))


def recurrent(call: Call) -> Effect:
    """A recurrent layer: all steps of a sample; states have their samples in dimension 1."""
    value = call.args[0]
    if len(value.shape) != 3:
        return Whole()
    batch = 0 if call.argument("batch_first") else 1
    samples = []
    for operand in operands_of(call):
        at = batch if operand is value else 1
        ids = alone_along(operand.ids, [dim for dim in range(operand.ids.dim()) if dim != at])
        if ids is None:
            return Whole()
        samples.append(ids.flatten())
    if any(not torch.equal(ids, samples[0]) for ids in samples):
        return Whole()
    made, *states = call.node.meta["val"]
    of_all = samples[0].view((1,) * batch + (-1,) + (1,) * (made.dim() - batch - 1))
    of_states = (
        samples[0].view(1, -1, 1).expand(len(state), -1, state.shape[2]) for state in states
    )
    return Reindex((of_all.expand(call.shape), *of_states))


def looked_up(call: Call) -> Effect:
    """Rows of a table, or bits, at numbers that have samples: the result has a dimension more."""
    value = call.argument("indices", call.args[0])
    by_counts = call.argument("scale_grad_by_freq")  # gradients depend on the whole batch
    if by_counts or not isinstance(value, Channels) or len(operands_of(call)) > 1:
        return Whole()
    return together(call, [value.ids.unsqueeze(-1)])


def product_of_matrices(call: Call, left: Any, right: Any, *added: Any) -> Effect:
    """A product along the last dimension of one operand and the last but one of the other."""
    ids_of_operands: list[torch.Tensor | None] = [
        operand.ids for operand in added if isinstance(operand, Channels)
    ]
    if isinstance(left, Channels):
        ids = alone_along(left.ids, (-1,))
        if ids is not None and (len(right.shape) == 1 or ids.dim() == 1):
            ids = ids.select(-1, 0)
        ids_of_operands.append(ids)
    if isinstance(right, Channels):
        ids = alone_along(right.ids, (-2 if right.ids.dim() > 1 else -1,))
        if ids is not None and (len(left.shape) == 1 or ids.dim() == 1):
            ids = ids.select(-2 if ids.dim() > 1 else -1, 0)
        ids_of_operands.append(ids)
    return together(call, ids_of_operands)


def matrices(call: Call) -> Effect:
    """A product of the last two operands; the first of three is added to it."""
    *added, left, right = (
        operand for operand in call.args if isinstance(operand, (Channels, Constant))
    )
    return product_of_matrices(call, left, right, *added)


def tensordot(call: Call) -> Effect:
    """Sums along dimensions of two operands; the first one's other dimensions come first."""
    left, right = call.argument("self"), call.argument("other")
    dims_left, dims_right = call.argument("dims_self"), call.argument("dims_other")
    ids_of_operands = []
    if isinstance(left, Channels):
        ids = without(left.ids, dims_left)
        behind = [1] * (len(right.shape) - len(dims_right))
        ids_of_operands.append(None if ids is None else ids.reshape(*ids.shape, *behind))
    if isinstance(right, Channels):
        ids_of_operands.append(without(right.ids, dims_right))
    return together(call, ids_of_operands)


def letters_of_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """A letter for each dimension of each operand, and of the result.

    Dots become letters that the equation lacks; those of operands with fewer of them are the last.

    >>> letters_of_einsum("bid, bjd", [3, 3])
    (['bid', 'bjd'], 'ij')
    >>> letters_of_einsum("...d,ed->...e", [4, 2])
    (['abcd', 'ed'], 'abce')
    """
    equation = equation.replace(" ", "")
    left, arrow, made = equation.partition("->")
    terms = left.split(",")
    spare = [letter for letter in string.ascii_letters if letter not in equation]
    dims_of_dots = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    letters_of_dots = "".join(spare[: max(dims_of_dots)])
    if not arrow:
        once = sorted(letter for letter in {*left} - {*".,"} if left.count(letter) == 1)
        made = "".join(("..." * ("..." in left), *once))
    in_operands = [
        term.replace("...", letters_of_dots[len(letters_of_dots) - count :])
        for term, count in zip(terms, dims_of_dots, strict=True)
    ]
    return in_operands, made.replace("...", letters_of_dots)


def einsum(call: Call) -> Effect:
    """Sums along the letters that the result lacks."""
    operands = call.args[1]
    terms, made = letters_of_einsum(call.args[0], [len(operand.shape) for operand in operands])
    ids_of_operands: list[torch.Tensor | None] = []
    for letters, operand in zip(terms, operands, strict=True):
        if not isinstance(operand, Channels):
            continue
        if len({*letters}) < len(letters):
            return Whole()
        ids = alone_along(
            operand.ids, [at for at, letter in enumerate(letters) if letter not in made]
        )
        if ids is not None:
            order = sorted(
                range(len(letters)),
                key=lambda at, own=letters: (own[at] not in made, made.find(own[at])),  # type: ignore[misc]
            )
            sizes = {letters[at]: ids.shape[at] for at in order}
            ids = ids.permute(order).reshape([sizes.get(letter, 1) for letter in made])
        ids_of_operands.append(ids)
    return together(call, ids_of_operands)


def convolution(call: Call, value: Any, weight: Any, row_dim: int) -> Effect:
    """A convolution whose groups keep samples apart, as samples may lie along its channels."""
    shape, groups = call.shape, call.argument("groups", 1)
    channels = len(shape) + 1 - len(weight.shape)  # 0 where there is no batch
    ids_of_operands: list[torch.Tensor | None] = []
    if isinstance(value, Channels):
        ids = alone_along(value.ids, range(channels + 1, value.ids.dim()))
        if ids is not None:
            ids = alone_along(ids.reshape(*ids.shape[:channels], groups, -1), (-1,))
        ids_of_operands.append(ids)
    if isinstance(weight, Channels):
        ids = alone_along(weight.ids, range(1 if row_dim == 0 else 2, weight.ids.dim()))
        if ids is not None:
            columns = 1 if row_dim == 0 else ids.shape[1]  # those of a group
            ids = alone_along(ids.reshape(groups, -1, columns), (1,) if row_dim else ())
            ids = None if ids is None else ids.reshape(*[1] * channels, groups, -1)
        ids_of_operands.append(ids)
    if any(ids is None for ids in ids_of_operands):
        return Whole()
    rows_of_group = shape[channels] // groups
    grouped = [
        ids.expand(*ids.shape[:-1], rows_of_group).flatten(channels)
        for ids in ids_of_operands
        if ids is not None
    ]
    spatial = [1] * (len(shape) - channels - 1)
    return together(call, [ids.reshape(*ids.shape, *spatial) for ids in grouped])


def averaged(call: Call) -> Effect | Average:
    """A mean, which may be over all samples."""
    effect, value = reduction(call), call.args[0]
    if not isinstance(effect, Whole) or not isinstance(value, Channels):
        return effect
    dim = call.argument("dim")
    dims = range(value.ids.dim()) if dim is None or dim == [] else dim
    dims = {dim % value.ids.dim() for dim in ([dims] if isinstance(dims, int) else dims)}
    kept = [dim for dim in range(value.ids.dim()) if dim not in dims]
    ids = alone_along(value.ids, kept)
    return effect if ids is None else Average((ids,))


MEAN = 1  # value of an argument `reduction`


def loss(call: Call) -> Effect | Average:
    """A loss of elements and targets, element by element or their mean."""
    value, target = call.args[:2]
    if call.argument("weight") is not None or not isinstance(value, Channels):
        return Whole()
    return _loss(
        [operand.ids for operand in (value, target) if isinstance(operand, Channels)], call
    )


def loss_of_classes(call: Call) -> Effect | Average:
    """A loss of scores of classes, place by place or the mean over places."""
    value, target = call.args[:2]
    counts_all = call.argument("ignore_index", -1) < 0 and call.argument("weight") is None
    if not isinstance(value, Channels) or not counts_all:
        return Whole()
    classes = 1 if value.ids.dim() > 1 else 0
    ids_of_operands = []
    for operand in (value, target):
        if isinstance(operand, Channels):
            has_classes = operand is value or operand.ids.dim() == value.ids.dim()
            ids = alone_along(operand.ids, (classes,)) if has_classes else operand.ids
            if ids is None:
                return Whole()
            ids_of_operands.append(ids.select(classes, 0) if has_classes else ids)
    return _loss(ids_of_operands, call)


def _loss(ids: Sequence[torch.Tensor], call: Call) -> Effect | Average:
    reduction = call.argument("reduction", MEAN)
    if reduction == 0:
        return together(call, ids)
    return Average(tuple(ids)) if reduction == MEAN else Whole()
