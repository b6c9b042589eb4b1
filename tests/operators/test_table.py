from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from hgpart.errors import ArgumentError, TraceError
from hgpart.operators import table
from hgpart.operators.calls import only_updated
from hgpart.operators.channelwise import same_place
from hgpart.operators.effects import Call, Channels, Constant, Mix, Reindex, SameIndex, Whole
from hgpart.operators.ids import compact, constant_along, core, distinct_in_order, mix_all
from hgpart.operators.products import Product
from hgpart.operators.table import channel_rule, effect_of, record_of

aten = torch.ops.aten


def per_channel(*shape: int, axis: int = 1) -> torch.Tensor:
    """Ids of a map with channels 0, 1, ... along an axis, expanded along the others."""
    view = [1] * len(shape)
    view[axis] = -1
    return torch.arange(shape[axis], dtype=torch.int32).reshape(view).expand(shape)


def effect(operator: Any, shape: tuple[int, ...], *args: Any, **kwargs: Any) -> Any:
    node = fx.Graph().call_function(operator)
    return effect_of(Call(node, args, kwargs, shape))


# ------------------------------------------------------------------ ids


@st.composite
def id_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Ids that repeat along some dimensions, some of them expanded, some not."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    small = [draw(st.sampled_from([1, size])) for size in shape]
    count = math.prod(small)
    values = draw(st.lists(st.integers(-1, 4), min_size=count, max_size=count))
    ids = torch.tensor(values, dtype=torch.int32).reshape(small).expand(shape)
    return ids if draw(st.booleans()) else ids.contiguous()


@given(id_tensors())
def test_compact_ids_are_equal_and_expanded_where_they_repeat(ids: torch.Tensor) -> None:
    result = compact(ids)
    assert torch.equal(result, ids)
    for dim in range(ids.dim()):
        repeats = bool((ids == ids.select(dim, 0).unsqueeze(dim)).all())
        assert constant_along(ids, dim) == repeats
        assert not repeats or result.shape[dim] == 1 or result.stride(dim) == 0
    assert torch.equal(core(result).expand(ids.shape), ids)


@given(id_tensors())
def test_reading_everything_counts_each_channel(ids: torch.Tensor) -> None:
    found, sizes = mix_all(compact(ids))
    values = ids.flatten().tolist()
    order = list(dict.fromkeys(value for value in values if value >= 0))
    assert found.tolist() == order
    counts = [values.count(value) for value in order]
    assert all(a * sizes[0] == b * counts[0] for a, b in zip(counts, sizes, strict=True))


@given(st.lists(st.integers(-1, 6)))
def test_distinct_in_order(values: list[int]) -> None:
    found, counts = distinct_in_order(np.array(values, dtype=np.int64))
    assert found.tolist() == list(dict.fromkeys(values))
    assert counts.tolist() == [values.count(value) for value in found]


# ------------------------------------------------------------------ re-index


@pytest.mark.parametrize(
    ("move", "operator", "args"),
    [
        (lambda x: x.transpose(1, 2), aten.transpose.int, (1, 2)),
        (lambda x: x.permute(0, 2, 3, 1), aten.permute.default, ([0, 2, 3, 1],)),
        (lambda x: x[:, 1:6:2], aten.slice.Tensor, (1, 1, 6, 2)),
        (lambda x: x[:, 3], aten.select.int, (1, 3)),
        (lambda x: x.flip(1), aten.flip.default, ([1],)),
        (lambda x: x.roll(1, 1), aten.roll.default, ([1], [1])),
        (lambda x: x.repeat(1, 2, 1, 1), aten.repeat.default, ([1, 2, 1, 1],)),
        (lambda x: F.pixel_shuffle(x, 2), aten.pixel_shuffle.default, (2,)),
        (lambda x: F.pixel_unshuffle(x, 2), aten.pixel_unshuffle.default, (2,)),
        (lambda x: F.channel_shuffle(x, 4), aten.channel_shuffle.default, (4,)),
        (lambda x: x.unsqueeze(0), aten.unsqueeze.default, (0,)),
        (lambda x: x.reshape(2, 4, 8, 4), aten.view.default, ([2, 4, 8, 4],)),
        (lambda x: x.flatten(1), aten.view.default, ([2, 128],)),
        (lambda x: x.clone(), aten.clone.default, ()),
        (
            lambda x: F.pad(x, (0, 0, 0, 0, 2, 1)),
            aten.constant_pad_nd.default,
            ([0, 0, 0, 0, 2, 1],),
        ),
    ],
)
def test_reindexing_moves_ids_as_it_moves_elements(
    move: Callable[[torch.Tensor], torch.Tensor], operator: Any, args: tuple[Any, ...]
) -> None:
    ids = per_channel(2, 8, 4, 4)
    expected = move((ids + 1).to(torch.float32)) - 1  # zeros become -1: no channel
    found = effect(operator, tuple(expected.shape), Channels(ids), *args)
    assert isinstance(found, Reindex)
    assert torch.equal(found.ids.to(torch.float32), expected)


@pytest.mark.parametrize("shape", [(2, 6, 4, 4), (2, 6)])
@pytest.mark.parametrize("places", [[3, 1, 0], [5, 5, 0, 1, 2, 3, 4], [[0, 1], [4, 2]]])
def test_a_known_index_moves_ids_as_it_moves_elements(
    shape: tuple[int, ...], places: list[Any]
) -> None:
    ids, index = per_channel(*shape), torch.tensor(places)
    known = Constant(tuple(index.shape), value=index)
    expected = ids[:, index]
    size = tuple(expected.shape)
    found = effect(aten.index.Tensor, size, Channels(ids), [None, known])
    assert torch.equal(found.ids, expected)
    if index.dim() == 1:
        found = effect(aten.index_select.default, size, Channels(ids), -len(shape) + 1, known)
        assert torch.equal(found.ids, expected)


def test_an_index_of_two_dimensions_at_once() -> None:
    ids, (first, second) = per_channel(2, 6, 4), (torch.tensor([0, 1, 1]), torch.tensor([5, 0, 2]))
    known = [Constant((3,), value=value) for value in (first, second)]
    found = effect(aten.index.Tensor, (3, 4), Channels(ids), known)
    assert torch.equal(found.ids, ids[first, second])


@pytest.mark.parametrize("index", [Constant((3,)), Channels(per_channel(3, axis=0))])
def test_an_unknown_index_is_whole(index: Any) -> None:
    operand = Channels(per_channel(2, 6, 4, 4))
    assert effect(aten.index.Tensor, (2, 3, 4, 4), operand, [None, index]) == Whole()
    assert effect(aten.index_select.default, (2, 3, 4, 4), operand, 1, index) == Whole()


@pytest.mark.parametrize(
    ("cut", "operator", "args"),
    [
        (lambda x: x.split(3, 1), aten.split.Tensor, (3, 1)),
        (lambda x: x.split([1, 7], 1), aten.split_with_sizes.default, ([1, 7], 1)),
        (lambda x: x.chunk(2, 1), aten.chunk.default, (2, 1)),
        (lambda x: x.unbind(1), aten.unbind.int, (1,)),
    ],
)
def test_splitting_moves_ids_as_it_moves_elements(
    cut: Callable[[torch.Tensor], Any], operator: Any, args: tuple[Any, ...]
) -> None:
    ids = per_channel(2, 8, 4, 4)
    parts = cut(ids)
    found = effect(operator, tuple(parts[0].shape), Channels(ids), *args)
    assert isinstance(found, Reindex)
    assert all(torch.equal(a, b) for a, b in zip(found.ids, parts, strict=True))


def test_concatenation_with_a_constant() -> None:
    ids, zeros = per_channel(2, 3, 4), Constant((2, 2, 4))
    found = effect(aten.cat.default, (2, 5, 4), [Channels(ids), zeros], 1)
    assert found.ids[0, :, 0].tolist() == [0, 1, 2, -1, -1]
    assert found.ids.shape == (2, 5, 4)
    found = effect(aten.cat.default, (2, 3, 6), [zeros_like_rows(), Channels(ids)], 2)
    assert found.ids[1, 2].tolist() == [-1, -1, 2, 2, 2, 2]


def zeros_like_rows() -> Constant:
    return Constant((2, 3, 2))


def test_writing_into_a_slice() -> None:
    ids, source = per_channel(2, 4, 3), per_channel(2, 2, 3) + 10
    found = effect(aten.slice_scatter.default, (2, 4, 3), Channels(ids), Channels(source), 1, 1, 3)
    assert found.ids[0, :, 0].tolist() == [0, 10, 11, 3]


def test_of_what_is_overwritten_nothing_is_left() -> None:
    graph = torch.fx.Graph()

    def copied(dtype: torch.dtype) -> Any:
        over, source = (graph.placeholder(name) for name in ("over", "source"))
        over.meta["val"], source.meta["val"] = torch.zeros(2, 3), torch.zeros(3, dtype=dtype)
        node = graph.call_function(aten.copy.default, (over, source))
        ids = (Channels(per_channel(2, 3)), Channels(per_channel(3, axis=0) + 7))
        return effect_of(Call(node, ids, {}, (2, 3)))

    assert copied(torch.float32).ids.tolist() == [[7, 8, 9]] * 2
    (read,) = copied(torch.float64).operands  # into another type: that is to be computed
    assert read.tolist() == [[7, 8, 9]] * 2


def test_filling_leaves_constants() -> None:
    found = effect(aten.fill.Scalar, (2, 4), Channels(per_channel(2, 4)), 0.0)
    assert isinstance(found, Reindex)
    assert (found.ids == -1).all()


# ------------------------------------------------------------------ same index


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
        (aten.glu.default, (2, 6, 6, 2), (3,)),
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


# ------------------------------------------------------------------ mixing


def test_convolution() -> None:
    weight = Constant((6, 2, 3, 3), frozenset({"w"}))
    found = effect(
        aten.conv2d.default,
        (2, 6, 5, 5),
        Channels(per_channel(2, 4, 7, 7)),
        weight,
        None,
        [1, 1],
        [0, 0],
        [1, 1],
        2,
    )
    assert isinstance(found, Mix)
    assert (found.channels.tolist(), found.sizes.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])
    assert (found.groups, found.axis, found.partial) == (2, 1, True)


def test_linear_layer_behind_a_flattened_map() -> None:
    ids = compact(per_channel(2, 3, 7, 7).reshape(2, 147))
    weight = Constant((10, 147), frozenset({"w"}))
    found = effect(aten.linear.default, (2, 10), Channels(ids), weight)
    assert (found.channels.tolist(), found.sizes.tolist()) == ([0, 1, 2], [49, 49, 49])
    assert (found.groups, found.axis) == (1, 1)


@pytest.mark.parametrize(
    ("operator", "shapes", "more"),
    [
        (aten.conv1d.default, [(2, 6, 9), (4, 6, 3)], ()),
        (aten.conv2d.default, [(2, 6, 9, 8), (4, 3, 3, 3), (4,)], ([2, 2], [1, 1], [1, 1], 2)),
        (aten.conv2d.default, [(6, 9, 8), (4, 6, 3, 1)], ()),
        (aten.conv2d.padding, [(2, 6, 9, 8), (4, 6, 3, 1), (4,)], ([1, 1], "same")),
        (aten.conv3d.default, [(2, 6, 5, 5, 5), (4, 6, 3, 1, 2)], ()),
        (aten.conv_transpose1d.default, [(2, 6, 9), (6, 4, 3)], ()),
        (aten.conv_transpose2d.input, [(2, 6, 5, 4), (6, 2, 3, 3), (4,)], ([2], [0], [0], 2)),
        (aten.conv_transpose3d.input, [(6, 5, 5, 5), (6, 4, 2, 2, 2)], ()),
        (aten.linear.default, [(2, 3, 6), (4, 6), (4,)], ()),
        (aten.linear.default, [(6,), (4, 6)], ()),
        (aten.mm.default, [(5, 6), (6, 4)], ()),
        (aten.matmul.default, [(2, 5, 6), (6, 4)], ()),
        (aten.addmm.default, [(4,), (5, 6), (6, 4)], ()),
    ],
)
def test_multiply_accumulates_of_products_are_those_that_torch_counts(
    operator: Any, shapes: list[tuple[int, ...]], more: tuple[Any, ...]
) -> None:
    with FlopCounterMode(display=False) as counter:
        made = operator(*(torch.empty(shape, device="meta") for shape in shapes), *more)
    known = record_of(operator)
    call = Call(fx.Graph().call_function(operator), (*map(Constant, shapes), *more), {}, made.shape)
    assert known.macs is not None
    assert known.macs(call) == counter.get_total_flops() // 2 > 0


def test_batched_matrices_are_for_torch_to_count() -> None:
    call = Call(fx.Graph().call_function(aten.matmul.default), (), {}, (2, 3, 3))
    matrices = dataclasses.replace(call, args=(Constant((2, 3, 4)), Constant((2, 4, 3))))
    assert record_of(aten.matmul.default).macs(matrices) is None


def test_a_weight_has_columns_of_channels_along_the_contracted_dimension_alone() -> None:
    def is_partial(operator: Any, ids: torch.Tensor, weight: tuple[int, ...], *shape: int) -> bool:
        found = effect(operator, shape, Channels(ids), Constant(weight, frozenset({"w"})))
        assert isinstance(found, Mix)
        return found.partial

    maps = per_channel(2, 3, 4, 4)
    assert is_partial(aten.conv2d.default, maps, (5, 3, 1, 1), 2, 5, 4, 4)
    twice = torch.cat([maps, maps.flip(1)], 3)
    assert not is_partial(aten.conv2d.default, twice, (5, 3, 1, 1), 2, 5, 4, 8)
    padded = torch.cat([maps[:, :2], torch.full_like(maps[:, :1], -1)], 1)
    assert not is_partial(aten.conv2d.default, padded, (5, 3, 1, 1), 2, 5, 4, 4)
    assert is_partial(aten.linear.default, maps.permute(0, 2, 3, 1), (5, 3), 2, 4, 4, 5)
    assert not is_partial(aten.linear.default, maps, (5, 4), 2, 3, 4, 5)
    assert is_partial(aten.mm.default, per_channel(2, 3), (3, 5), 2, 5)
    assert is_partial(aten.matmul.default, per_channel(2, 3)[0], (3, 5), 5)
    assert not is_partial(aten.mm.default, per_channel(2, 3).t(), (2, 5), 3, 5)


COMPUTED = Constant((5, 4), frozenset({"w"}), computed=True)


@pytest.mark.parametrize("weight", [Channels(per_channel(5, 4)), COMPUTED])
def test_weights_that_are_not_parameters_are_whole(weight: Any) -> None:
    assert effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), weight) == Whole()


def test_weights_computed_row_by_row_are_handed_out_row_by_row() -> None:
    by_row = dataclasses.replace(COMPUTED, rows=per_channel(5, 4, axis=0))
    found = effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), by_row)
    assert isinstance(found, Mix)
    assert not found.partial  # a row was made of all its columns: they can't be held apart
    for rows in (per_channel(5, 4, axis=0).flip(0), per_channel(5, 4)):
        other = dataclasses.replace(COMPUTED, rows=rows)
        assert effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), other) == Whole()


def test_rows_of_a_square_weight_count_tasks_along_one_dimension_alone() -> None:
    # mm's tasks have columns: its rows were taken for them where there are as many.
    square = Constant((4, 4), frozenset({"w"}), True, rows=per_channel(4, 4, axis=0))
    operand = Channels(per_channel(2, 4))
    assert effect(aten.mm.default, (2, 4), operand, square) == Whole()
    assert isinstance(effect(aten.linear.default, (2, 4), operand, square), Mix)


@pytest.mark.parametrize(
    "bias",
    [
        Constant((5,), frozenset({"b"}), computed=True),  # each element of all rows
        Constant((1,), frozenset({"b"})),
        Constant((), frozenset({"b"})),
    ],
)
def test_a_bias_that_is_not_one_element_for_each_task_is_shared(bias: Constant) -> None:
    weight, operand = Constant((5, 4), frozenset({"w"})), Channels(per_channel(2, 4))
    found = effect(aten.linear.default, (2, 5), operand, weight, bias)
    assert isinstance(found, Mix)
    assert found.shared == (bias,)
    each = Constant((5,), frozenset({"b"}))
    assert effect(aten.linear.default, (2, 5), operand, weight, each).shared == ()


def test_a_bias_of_each_sample_is_shared() -> None:
    weight, bias = Constant((4, 5), frozenset({"w"})), Constant((2, 1), frozenset({"b"}))
    found = effect(aten.addmm.default, (2, 5), bias, Channels(per_channel(2, 4)), weight)
    assert found.shared == (bias,)


def test_weights_of_buffers_alone_are_split_whatever_computed_them() -> None:
    """Nobody owns a buffer that no step updates, so there is nothing to hand out."""
    weight = Constant((4, 1, 3, 3), computed=True)
    arguments = (weight, None, [1, 1], [0, 0], [1, 1], 4)
    found = effect(aten.conv2d.default, (2, 4, 5, 5), Channels(per_channel(2, 4, 7, 7)), *arguments)
    assert isinstance(found, Mix)
    assert found.partial


def test_bias_that_depends_on_the_input_is_whole() -> None:
    bias, weight = Channels(per_channel(2, 5)), Constant((4, 5))
    found = effect(aten.addmm.default, (2, 5), bias, Channels(per_channel(2, 4)), weight)
    assert found == Whole()


def test_only_operators_that_keep_every_element_move_parameters() -> None:
    assert record_of(aten.view.default).moves_only
    assert record_of(aten.t.default).moves_only
    assert record_of(aten.split.Tensor).moves_only
    assert not record_of(aten.expand.default).moves_only  # one element in many places
    assert not record_of(aten.repeat.default).moves_only
    assert not record_of(aten.mul.Tensor).moves_only
    assert not record_of(aten.cat.default).moves_only


# ------------------------------------------------------------------ the registry


def test_rules_can_be_added_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    operand = Channels(per_channel(2, 4))
    assert isinstance(effect(aten.relu.default, (2, 4), operand), SameIndex)
    assert effect(aten.cholesky.default, (2, 4), operand) == Whole()

    @channel_rule(aten.relu, aten.cholesky.default)
    def rule(call: Call) -> Reindex:
        return Reindex(call.args[0].ids)

    assert isinstance(effect(aten.relu.default, (2, 4), operand), Reindex)
    assert isinstance(effect(aten.cholesky.default, (2, 4), operand), Reindex)

    @channel_rule(aten.relu.default)
    def for_the_overload(call: Call) -> Whole:
        return Whole(known=True)

    assert effect(aten.relu.default, (2, 4), operand) == Whole(known=True)


def test_a_product_of_the_user_says_how_it_is_cut_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    product = channel_rule(aten.addbmm)(Product("batch1", "batch2", "self", row_dim=1))
    known = record_of(aten.addbmm.default)
    assert (known.rule, known.product, known.macs) == (product, product, product.macs)
    assert channel_rule(aten.addbmm.default, macs=lambda call: 7)(same_place) is same_place
    known = record_of(aten.addbmm.default)
    assert (known.rule, known.product) == (same_place, product)
    assert known.macs(Call(fx.Graph().call_function(aten.addbmm.default), (), {}, ())) == 7


def test_a_cut_that_there_is_not() -> None:
    says = "cut 'across': accepted are copy, reshape, permutation"
    with pytest.raises(ArgumentError, match=says):
        channel_rule(aten.relu, cut="across")  # type: ignore[arg-type]


def test_no_operator_is_in_the_table_twice() -> None:
    named = [operator for _, *operators in table._ATEN for operator in operators]
    assert len(set(named)) == len(named)
    packets = {getattr(one, "overloadpacket", None) for one in named}
    assert packets.isdisjoint(named)  # else an overload would have a record beside its packet's
    assert {record.cut for record, *_ in table._ATEN if isinstance(record.cut, str)} == set(
        get_args(table.Cut)
    )


def test_argument_by_position_or_name() -> None:
    node = fx.Graph().call_function(aten.softmax.int)
    assert Call(node, (1, 2), {}, ()).argument("dim") == 2
    assert Call(node, (1,), {"dim": 3}, ()).argument("dim") == 3
    assert Call(node, (1, 2), {}, ()).argument("dtype", "none given") is None  # as in the schema
    assert Call(node, (1, 2), {}, ()).argument("weight", "no such argument") == "no such argument"
    conv = fx.Graph().call_function(aten.conv2d.default)
    assert Call(conv, (1, 2), {}, ()).argument("groups") == 1


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


@pytest.mark.parametrize(
    "failure", [ValueError("no\nsuch  thing"), NotImplementedError(), SystemExit(0)]
)
def test_rule_that_raises_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))

    @channel_rule(aten.relu)
    def broken(call: Call) -> Whole:
        raise failure

    node = fx.Graph().call_function(aten.relu.default)
    node.meta["nn_module_stack"] = {"first": ("features", None), "second": ("features.3", None)}
    with pytest.raises(TraceError) as caught:
        effect_of(Call(node, (Channels(per_channel(2, 4)),), {}, (2, 4)))
    reason = " ".join(f"{type(failure).__name__}: {failure}".split())
    assert str(caught.value) == (
        "can't trace aten.relu.default (relu_default in features.3): "
        f"its channel rule broken raises {reason}"
    )


def test_rule_that_returns_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_records", dict(table._records))
    channel_rule(aten.relu)(lambda call: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TraceError, match="<lambda> returns None: accepted are Reindex, SameIndex"):
        effect(aten.relu.default, (2, 4), Channels(per_channel(2, 4)))


def test_statistics_that_training_replaces_are_no_data() -> None:
    graph = fx.Graph()
    value, mean, variance = (graph.placeholder(name) for name in ("x", "mean", "variance"))
    rest = (0.1, 1e-5)

    def norm(operator: Any, *args: Any) -> frozenset[fx.Node]:
        return only_updated(graph.call_function(operator, (value, None, None, *args)))

    functional = aten._native_batch_norm_legit_functional.default
    assert norm(functional, mean, variance, True, *rest) == {mean, variance}
    assert norm(functional, mean, variance, False, *rest) == frozenset()
    assert norm(aten._native_batch_norm_legit.no_stats, True, *rest) == frozenset()
    no_training = aten._native_batch_norm_legit_no_training.default
    assert norm(no_training, mean, variance, *rest) == frozenset()


@pytest.mark.full  # a process of its own
def test_a_rule_of_the_user_comes_before_the_built_in_one_whenever_it_is_registered() -> None:
    """The built-in rules were registered when the first graph was made, after the user's."""
    code = (
        "import torch, hgpart\n"
        "from torch import nn\n"
        "from hgpart.operators.effects import Whole\n"
        "hgpart.channel_rule(torch.ops.aten.max_pool2d)(lambda call: Whole())\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2))\n"
        "graph = hgpart.channel_graph(hgpart.trace(model, torch.zeros(2, 3, 8, 8)))\n"
        "print([layer.kind for layer in graph.layers])\n"
    )
    here = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=here, check=True
    )
    assert ended.stdout == "['input', 'dense', 'whole', 'output']\n"
