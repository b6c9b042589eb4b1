from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgpart.operators.ids import compact, constant_along, core, distinct_in_order, mix_all


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
