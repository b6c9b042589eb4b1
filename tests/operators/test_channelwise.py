from __future__ import annotations

from typing import Any

import pytest
import torch
from operator_calls import effect, per_channel

from hgpart.operators.effects import Channels, Constant, SameIndex, Whole

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "shape", "args"),
    [
        (aten.relu.default, (2, 4, 6, 6), ()),
        (aten.gelu.default, (2, 4, 6, 6), ()),
        (aten.add.Tensor, (2, 4, 6, 6), (3,)),
        (aten.max_pool2d.default, (2, 4, 3, 3), ([2, 2],)),
        (aten.avg_pool2d.default, (2, 4, 3, 3), ([2, 2],)),
        (aten.adaptive_avg_pool2d.default, (2, 4, 7, 7), ([7, 7],)),
        (aten.upsample_nearest2d.vec, (2, 4, 12, 12), ([12, 12], None)),
        (aten.mean.dim, (2, 4), ([2, 3],)),
        (aten.mean.dim, (2, 4, 1, 1), ([-1, -2], True)),
        (aten.softmax.int, (2, 4, 6, 6), (-1,)),
        (aten.constant_pad_nd.default, (2, 4, 8, 8), ([1, 1, 1, 1],)),
    ],
)
def test_operators_that_keep_channels_apart(
    operator: Any, shape: tuple[int, ...], args: tuple[Any, ...]
) -> None:
    found = effect(operator, shape, Channels(per_channel(2, 4, 6, 6)), *args)
    assert isinstance(found, SameIndex)
    (ids,) = found.operands
    assert torch.equal(ids, per_channel(*shape))


@pytest.mark.parametrize(
    ("operator", "shape", "args"),
    [
        (aten.mean.dim, (2, 6, 6), ([1],)),
        (aten.sum.default, (), ()),
        (aten.amax.default, (2, 1, 6, 6), ([1], True)),
    ],
)
def test_reductions_of_channels_are_known_to_be_whole(
    operator: Any, shape: tuple[int, ...], args: tuple[Any, ...]
) -> None:
    found = effect(operator, shape, Channels(per_channel(2, 4, 6, 6)), *args)
    assert found == Whole(known=True)


@pytest.mark.parametrize(
    ("operator", "shape", "args"),
    [
        (aten.max_pool2d.default, (2, 6, 3, 2), ([2, 2],)),
        (aten.cumsum.default, (2, 6, 6, 4), (3,)),
        (aten.sort.default, (2, 6, 6, 4), (3,)),
    ],
)
def test_mixing_along_channels_without_a_rule_is_whole(
    operator: Any, shape: tuple[int, ...], args: tuple[Any, ...]
) -> None:
    channels_last = Channels(per_channel(2, 6, 6, 4, axis=3))
    assert effect(operator, shape, channels_last, *args) == Whole()


def test_batch_norm_hands_each_channel_its_own_constants() -> None:
    weight, bias = Constant((4,), frozenset({"w"})), Constant((4,), frozenset({"b"}))
    mean = Constant((4,))  # a buffer that no step updates
    found = effect(
        aten.batch_norm.default,
        (2, 4, 3, 3),
        Channels(per_channel(2, 4, 3, 3)),
        weight,
        bias,
        mean,
        mean,
        True,
        0.1,
        1e-5,
        False,
    )
    assert [constant for constant, _ in found.constants] == [weight, bias]
    for _, elements in found.constants:
        assert torch.equal(elements.expand(2, 4, 3, 3), per_channel(2, 4, 3, 3))


def test_arguments_are_read_by_the_name_in_the_schema_of_the_overload() -> None:
    """The second argument of aten.var.default is `unbiased`; it was taken for a dimension."""
    operand = Channels(per_channel(2, 4, 6, 6))
    assert effect(aten.var.default, (), operand, False) == Whole(known=True)
    assert effect(aten.var.dim, (2, 6, 6), operand, [1], False) == Whole(known=True)
    assert isinstance(effect(aten.var.dim, (2, 4), operand, [2, 3], False), SameIndex)
    assert isinstance(effect(aten.std.correction, (2, 4), operand, [2, 3]), SameIndex)
    assert isinstance(effect(aten.var_mean.correction, (2, 4), operand, [2, 3]), SameIndex)
    assert isinstance(effect(aten.max.dim, (2, 4, 6), operand, -1), SameIndex)
    assert effect(aten.max.dim, (2, 6, 6), operand, 1) == Whole(known=True)
    assert effect(aten.max.default, (), operand) == Whole(known=True)
    norm = effect(aten.linalg_vector_norm.default, (2, 4), operand, 1, [2, 3])
    assert isinstance(norm, SameIndex)
