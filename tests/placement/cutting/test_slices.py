"""A slice takes the elements that it names, and puts them back where they were."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hgpart.placement.cutting.slices import Slice, overlap, slice_of


@st.composite
def slices(draw: st.DrawFn) -> Slice:
    """A box, or single elements, of a tensor of up to four dimensions."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    size = int(np.prod(shape))
    if draw(st.booleans()):
        chosen = draw(st.sets(st.integers(0, size - 1)))
        return Slice("weight", shape, elements=np.array(sorted(chosen), dtype=np.int64))
    positions = {
        dim: np.array(sorted(draw(st.sets(st.integers(0, count - 1)))), dtype=np.int64)
        for dim, count in enumerate(shape)
        if draw(st.booleans())
    }
    return Slice("weight", shape, positions)


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(int(np.prod(shape))).reshape(shape)


def wanted(held: Slice) -> np.ndarray:
    whole = numbered(held.shape).numpy()
    if held.elements is not None:
        return held.elements
    axes = [held.positions.get(dim, np.arange(size)) for dim, size in enumerate(held.shape)]
    return whole[np.ix_(*axes)] if axes else whole


@given(slices())
def test_takes_what_numpy_takes_as_a_copy(held):
    full = numbered(held.shape)
    taken = held.take(full)
    np.testing.assert_array_equal(taken.numpy(), wanted(held))
    assert tuple(taken.shape) == held.local_shape
    taken.fill_(-1)
    assert torch.equal(full, numbered(held.shape))


@given(slices())
def test_puts_back_what_it_took_and_nothing_else(held):
    full = torch.full(held.shape, -1)
    held.put(full, held.take(numbered(held.shape)))
    kept = np.isin(numbered(held.shape).numpy(), wanted(held))
    np.testing.assert_array_equal(full.numpy(), np.where(kept, numbered(held.shape).numpy(), -1))


@given(slices(), slices())
def test_keys_are_equal_for_equal_slices_alone(one, other):
    same = (
        (one.elements is None) == (other.elements is None)
        and one.positions.keys() == other.positions.keys()
        and all(np.array_equal(kept, other.positions[dim]) for dim, kept in one.positions.items())
        and (one.elements is None or np.array_equal(one.elements, other.elements))
    )
    assert (one.key == other.key) == same
    again = Slice(one.name, one.shape, dict(reversed(one.positions.items())), one.elements)
    assert again.key == one.key
    assert Slice("bias", one.shape, one.positions, one.elements).key != one.key


def test_takes_no_part_in_gradients():
    weight = torch.nn.Parameter(torch.zeros(4, 2))
    held = Slice("weight", (4, 2), {0: np.array([1, 2])})
    assert not held.take(weight).requires_grad
    held.put(weight.data, torch.ones(2, 2, requires_grad=True))
    assert weight.detach().sum(dim=1).tolist() == [0, 2, 2, 0]


@given(slices())
def test_numbers_are_those_of_the_elements_taken(held):
    assume(held.shape)
    np.testing.assert_array_equal(held.numbers, wanted(held))
    found = slice_of(held.name, held.shape, wanted(held).ravel())
    assert found.numbers.ravel().tolist() == sorted(wanted(held).ravel().tolist())
    if held.elements is None:
        assert found.elements is None  # a box is known as one


@given(st.lists(slices(), min_size=1, max_size=3))
def test_slices_overlap_where_an_element_is_in_two(several):
    several = [one for one in several if one.shape and one.shape == several[0].shape]
    numbers = [number for one in several for number in one.numbers.ravel().tolist()]
    assert overlap(several) == (len({*numbers}) < len(numbers))
