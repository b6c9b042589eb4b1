from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from operator_calls import effect, per_channel
from torch import fx
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from hgpart.operators.effects import Call, Channels, Constant, Matrices, Mix, SameIndex, Whole
from hgpart.operators.ids import compact
from hgpart.operators.products import attention_as_products, einsum_as_product
from hgpart.operators.table import macs_of

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default


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
    call = Call(fx.Graph().call_function(operator), (*map(Constant, shapes), *more), {}, made.shape)
    assert macs_of(call) == counter.get_total_flops() // 2 > 0


def test_batched_matrices_are_for_torch_to_count() -> None:
    call = Call(fx.Graph().call_function(aten.matmul.default), (), {}, (2, 3, 3))
    matrices = dataclasses.replace(call, args=(Constant((2, 3, 4)), Constant((2, 4, 3))))
    assert macs_of(matrices) is None


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


def test_weights_that_are_maps_are_whole() -> None:
    weight = Channels(per_channel(5, 4))
    assert effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), weight) == Whole()


def test_weights_computed_from_all_rows_are_shared() -> None:
    """They were kept whole, and so were weights that a scale of all of them normalises."""
    found = effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), COMPUTED)
    assert isinstance(found, Mix)
    assert (found.axis, found.partial, found.shared) == (1, False, (COMPUTED,))
    assert "weight" not in found.slices


def test_weights_computed_row_by_row_are_handed_out_row_by_row() -> None:
    by_row = dataclasses.replace(COMPUTED, rows=per_channel(5, 4, axis=0))
    found = effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), by_row)
    assert isinstance(found, Mix)
    assert not found.partial  # a row was made of all its columns: they can't be held apart
    assert found.shared == ()
    for rows in (per_channel(5, 4, axis=0).flip(0), per_channel(5, 4)):
        other = dataclasses.replace(COMPUTED, rows=rows)
        found = effect(aten.linear.default, (2, 5), Channels(per_channel(2, 4)), other)
        assert found.shared == (other,)


def test_rows_of_a_square_weight_count_tasks_along_one_dimension_alone() -> None:
    # mm's tasks have columns: its rows were taken for them where there are as many.
    square = Constant((4, 4), frozenset({"w"}), True, rows=per_channel(4, 4, axis=0))
    operand = Channels(per_channel(2, 4))
    assert effect(aten.mm.default, (2, 4), operand, square).shared == (square,)
    assert effect(aten.linear.default, (2, 4), operand, square).shared == ()


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


def of_heads(heads: int, tokens: int = 5, width: int = 3, first: int = 0) -> Channels:
    """A tensor with a channel for each feature of each head."""
    ids = torch.arange(first, first + heads * width, dtype=torch.int32)
    return Channels(ids.reshape(1, heads, 1, width).expand(2, heads, tokens, width))


def channels_of_heads(ids: torch.Tensor) -> list[list[int]]:
    return [head.unique().tolist() for head in ids[0]]


def test_an_attention_of_several_heads() -> None:
    query, key, value = (of_heads(2, first=first) for first in (0, 6, 12))
    found = effect(ATTENTION, (2, 2, 5, 3), query, key, value)
    assert isinstance(found, Matrices)
    assert [channels_of_heads(ids) for ids in found.operands] == [
        [[0, 1, 2], [3, 4, 5]],
        [[6, 7, 8], [9, 10, 11]],
        [[12, 13, 14], [15, 16, 17]],
    ]
    assert found.constants == ()


def test_heads_that_share_keys_and_values() -> None:
    found = effect(ATTENTION, (2, 4, 5, 3), of_heads(4), of_heads(2), of_heads(1), enable_gqa=True)
    assert isinstance(found, Matrices)
    _, keys, values = map(channels_of_heads, found.operands)
    assert keys == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]
    assert values == [[0, 1, 2]] * 4


def test_a_parameter_that_is_added_to_scores() -> None:
    query, bias = of_heads(2), Constant((2, 5, 5), frozenset({"bias"}))
    mask = Constant((5, 5))
    found = effect(ATTENTION, (2, 2, 5, 3), query, query, query, bias)
    assert isinstance(found, Matrices)
    ((constant, elements),) = found.constants
    assert constant is bias
    assert elements.shape == (2, 2, 5, 5)
    assert elements[1, 1, 0].tolist() == [25, 26, 27, 28, 29]
    assert effect(ATTENTION, (2, 2, 5, 3), query, query, query, mask).constants == ()


def test_one_head_needs_all_channels() -> None:
    one = of_heads(1)
    assert effect(ATTENTION, (2, 1, 5, 3), one, one, one) == Whole()


def test_scores_of_one_head_have_a_task_for_each_query() -> None:
    query, key = of_heads(1), of_heads(1, tokens=4, first=3)
    found = effect(aten.matmul.default, (2, 1, 5, 4), query, Channels(key.ids.mT))
    assert isinstance(found, Mix)
    assert (found.channels.tolist(), found.groups, found.axis) == ([0, 1, 2, 3, 4, 5], 1, 2)
    one_query = Channels(query.ids[:, :, :1])
    found = effect(aten.matmul.default, (2, 1, 1, 4), one_query, Channels(key.ids.mT))
    assert found.axis == 3


def lines_of(ids: torch.Tensor) -> list[list[int]]:
    return [line.unique().tolist() for line in ids[0, 0]]


def test_values_of_one_head_have_a_task_for_each_column() -> None:
    scores, values = Channels(per_channel(2, 1, 5, 4, axis=2)), of_heads(1, tokens=4, first=5)
    found = effect(aten.matmul.default, (2, 1, 5, 3), scores, values)
    assert isinstance(found, Matrices)
    assert (found.within, found.places) == ((-2,), (0, 1, 3))
    own, others = found.operands
    assert (lines_of(own), lines_of(others)) == ([[5], [6], [7]], [[0, 1, 2, 3, 4]] * 3)


def test_a_product_with_what_channels_do_not_tell_apart_is_by_rows() -> None:
    rows, others = Channels(per_channel(2, 1, 5, 4, axis=2)), Channels(per_channel(2, 1, 4, 3))
    found = effect(aten.matmul.default, (2, 1, 5, 3), rows, others)
    assert (found.within, found.places) == ((-1,), (0, 1, 2))
    assert lines_of(found.operands[0]) == [[0], [1], [2], [3], [4]]


def test_a_product_along_a_dimension_without_channels_shares_its_weight() -> None:
    """A mixer of tokens was whole from its residual add on."""
    weight, bias = Constant((7, 5), frozenset({"w"})), Constant((7,), frozenset({"b"}))
    maps = Channels(per_channel(2, 3, 5))
    found = effect(aten.linear.default, (2, 3, 7), maps, weight, bias)
    assert isinstance(found.by_place, SameIndex)
    assert found.by_place.shared == (weight, bias)
    assert torch.equal(found.by_place.operands[0], per_channel(2, 3, 7))
    tokens = Channels(per_channel(2, 5, 3, axis=2))
    along = effect(aten.linear.default, (2, 5, 4), tokens, Constant((4, 3), frozenset({"w"})))
    assert along.by_place is None


def test_a_lookup_has_a_task_for_each_column_of_its_table() -> None:
    table, places = Constant((9, 4), frozenset({"w"})), Channels(per_channel(2, 5))
    found = effect(aten.embedding.default, (2, 5, 4), table, places)
    assert isinstance(found, Mix)
    assert (found.channels.tolist(), found.axis) == ([0, 1, 2, 3, 4], 2)
    assert (found.slices, found.shared) == ({"weight": 1}, ())
    computed = dataclasses.replace(table, computed=True)
    assert effect(aten.embedding.default, (2, 5, 4), computed, places).shared == (computed,)
    assert effect(aten.embedding.default, (2, 5, 4), table, places, sparse=True) == Whole()


def test_products_of_matrices() -> None:
    left, right = of_heads(2), Channels(of_heads(2).ids.mT)
    merged = Channels(left.ids.reshape(4, 5, 3)), Channels(right.ids.reshape(4, 3, 5))
    for operator, shape, operands in (
        (aten.matmul.default, (2, 2, 5, 5), (left, right)),
        (aten.bmm.default, (4, 5, 5), merged),
        (aten.baddbmm.default, (4, 5, 5), (Constant((1, 5, 5)), *merged)),
    ):
        found = effect(operator, shape, *operands)
        assert isinstance(found, Matrices)
        assert [ids.shape[:-2] for ids in found.operands] == [shape[:-2]] * 2


def test_a_product_with_one_matrix_is_a_linear_layer() -> None:
    weight = Constant((3, 7), frozenset({"w"}))
    assert isinstance(effect(aten.matmul.default, (2, 2, 5, 7), of_heads(2), weight), Mix)
    vector = Channels(per_channel(3, axis=0))
    assert effect(aten.matmul.default, (2, 2, 5), of_heads(2), vector) == Whole()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"is_causal": True},
        {"scale": 0.2},
        {"attn_mask": torch.randn(5, 4, dtype=torch.float64)},
        {"attn_mask": torch.arange(20).reshape(5, 4) % 7 > 3},  # one token sees nothing
        {"enable_gqa": True},
    ],
    ids=lambda given: ", ".join(given) or "plain",
)
def test_an_attention_as_products_is_that_of_torch(given: dict[str, object]) -> None:
    shared = 2 if "enable_gqa" in given else 4
    torch.manual_seed(0)
    query = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    key, value = (torch.randn(2, shared, 4, 3, dtype=torch.float64) for _ in range(2))
    torch.manual_seed(1)
    expected = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.4, **given)  # type: ignore[arg-type]
    torch.manual_seed(1)
    found = attention_as_products(query, key, value, dropout_p=0.4, **given)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)


def test_an_attention_of_one_head_is_traced_as_its_products() -> None:
    torch.manual_seed(0)
    for shape in ((2, 1, 5, 3), (2, 5, 3)):
        query, key, value = torch.randn(3, *shape, dtype=torch.float64)
        expected = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = attention_as_products(query, key, value, is_causal=True)
        torch.testing.assert_close(found, expected)


def test_an_attention_of_several_heads_without_dropout_stays_one_operator() -> None:
    tokens = torch.zeros(1, 2, 2, 2)
    assert attention_as_products(tokens, tokens, tokens) is NotImplemented


# ------------------------------------------------------------------ sums by letters

SIZES = {"a": 2, "b": 3, "c": 4, "d": 1, "e": 5}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@given(
    terms=st.lists(
        st.lists(st.sampled_from([*SIZES]), min_size=1, max_size=4, unique=True),
        min_size=2,
        max_size=2,
    ),
    data=st.data(),
)
def test_any_sum_of_two_operands(terms: list[list[str]], data: st.DataObject) -> None:
    letters = sorted({*terms[0], *terms[1]})
    made = data.draw(st.lists(st.sampled_from(letters), unique=True))
    equation = f"{','.join(map(''.join, terms))}->{''.join(made)}"
    operands = [random(*(SIZES[letter] for letter in term)) for term in terms]
    expected = torch.einsum(equation, operands)
    torch.testing.assert_close(einsum_as_product(equation, operands), expected)


@given(
    left=st.integers(0, 2), right=st.integers(0, 2), has_arrow=st.booleans(), summed=st.booleans()
)
def test_dots_stand_for_the_dimensions_that_have_no_letter(
    left: int, right: int, has_arrow: bool, summed: bool
) -> None:
    assume(left == right or left * right == 0)  # else torch aligns those of fewer with the last
    sizes = [3, 2]
    operands = [random(*sizes[:left], 4, 5), random(*sizes[:right], 5, 6)]
    equation = "...ij,...jk" + ("->...ik" if summed else "->...ijk") * has_arrow
    found = einsum_as_product(equation, operands)
    torch.testing.assert_close(found, torch.einsum(equation, operands))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ii,i->i", [(3, 3), (3,)]),
        ("ij->ji", [(2, 3)]),
        ("ij,j->i", [(2, 3), (1,)]),  # torch repeats a size of 1
    ],
)
def test_other_sums_stay_one_operator(equation: str, shapes: list[tuple[int, ...]]) -> None:
    assert einsum_as_product(equation, [random(*shape) for shape in shapes]) is NotImplemented
