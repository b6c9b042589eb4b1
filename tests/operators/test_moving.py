from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from operator_calls import effect, per_channel

from hgpart.operators.effects import Call, Channels, Constant, Reindex, Whole
from hgpart.operators.table import effect_of

aten = torch.ops.aten


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
