"""What a model takes for each sample is written as sizes or texts, and read from them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import ArgumentError
from hgpart.tracing.input_shape import MOST_VALUES, InputShape, InputTensor, input_tensor

TYPES = st.sampled_from(sorted(MOST_VALUES))
TENSORS = TYPES.flatmap(
    lambda type_: st.builds(
        InputTensor,
        name=st.sampled_from(["", "x", "pixel_values", "label2"]),
        sizes=st.lists(st.integers(1, 2**40), max_size=4).map(tuple),
        type=st.just(type_),
        values=st.none() | st.integers(1, MOST_VALUES[type_]),
    )
)


@given(TENSORS)
def test_a_tensor_is_read_as_it_was_written(tensor: InputTensor) -> None:
    assert input_tensor(str(tensor)) == tensor


@given(st.lists(TENSORS, min_size=1, max_size=4))
def test_so_are_several(tensors: list[InputTensor]) -> None:
    tensors = [
        replace(tensor, name=f"{tensor.name}{at}" if tensor.name else "")
        for at, tensor in enumerate(tensors)
    ]
    shape = InputShape(map(str, tensors))
    assert shape.tensors == tuple(tensors)
    assert InputShape(shape) == shape
    assert pickle.loads(pickle.dumps(shape)).tensors == shape.tensors


def test_one_image_is_its_sizes() -> None:
    for written in ((3, 8, 8), [3, 8, 8], "3,8,8", ["3,8,8"], ["3,8,8:float"]):
        assert InputShape(written) == (3, 8, 8)
        assert InputShape(written).image("training") == (3, 8, 8)
    assert InputShape("image=3,8,8").image("training") == (3, 8, 8)


@pytest.mark.parametrize("written", ["3,8,8:int64", ":float", "3,8,8:float:2", ["3,8,8", "y=1"]])
def test_other_inputs_are_no_image(written: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^training of a model with inputs .*: accepted are "):
        InputShape(written).image("training")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ((), "accepted are sizes"),
        ((3, "8"), "accepted are sizes"),
        ((3, 8.0), "accepted are sizes"),
        ((True, 8), "accepted are sizes"),
        ((3, 0), "input 3,0: every size must be at least 1"),
        ("3,0", "input 3,0: every size must be at least 1"),
        ("", "accepted is [NAME=]SIZES[:TYPE[:VALUES]], as in 3,224,224"),
        ("x=", "input 'x=': accepted is"),
        ("3x8", "input '3x8': accepted is"),
        ("2x=3", "input '2x=3': accepted is"),
        ("3,8:int64:", "input '3,8:int64:': accepted is"),
        ("3:int65", "input 3:int65: accepted types are float, int64, int32, uint8, bool"),
        (":uint8:257", "input :uint8:257: accepted are 1 to 256 values of uint8"),
        (":int64:0", "accepted are 1 to 9223372036854775807 values"),
        (["x=3", "x=4"], "inputs x, x: accepted is each name once"),
    ],
)
def test_what_is_neither_is_refused(written: Any, said: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        InputShape(written)
    assert said in str(raised.value)
