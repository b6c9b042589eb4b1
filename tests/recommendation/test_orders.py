"""Schedules that are tried: as the batch allows, and those that pay for a division."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hgpart.recommendation.orders import orders


def of(k: int, slices: int, batch_size: int, goal: str = "time") -> Any:
    modelling = SimpleNamespace(slices=slices, batch_size=batch_size)
    partition: Any = SimpleNamespace(k=k, modelling=modelling)
    return orders(partition, goal=goal)


@pytest.mark.parametrize("goal", ["time", "memory", "throughput"])
@pytest.mark.parametrize(("k", "slices"), [(1, 1), (2, 1), (16, 1), (4, 4)])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_each_fits_the_batch_and_comes_once(
    k: int, slices: int, batch_size: int, goal: str
) -> None:
    found = of(k, slices, batch_size, goal)
    assert found
    assert len(set(found)) == len(found)
    assert all(one.micro_batches <= batch_size for one in found)
    assert any(one.is_stream for one in found) == (goal == "throughput" and k > 1)
    assert any(one.recompute for one in found) == (goal == "memory" and k > 1)


@pytest.mark.parametrize(("k", "slices"), [(1, 1), (4, 1), (4, 4)])
def test_a_batch_that_can_not_be_divided_is_whole(k: int, slices: int) -> None:
    modelling = SimpleNamespace(slices=slices, batch_size=32)
    partition: Any = SimpleNamespace(k=k, modelling=modelling)
    found = orders(partition, goal="memory", divides_batch=False)
    assert {one.micro_batches for one in found} == {1}


def test_a_given_number_of_micro_batches_is_that_of_all_that_are_several_devices() -> None:
    modelling = SimpleNamespace(slices=1, batch_size=32)
    for k, expected in ((1, {1}), (4, {8})):
        partition: Any = SimpleNamespace(k=k, modelling=modelling)
        for goal in ("time", "throughput"):
            found = orders(partition, goal=goal, micro_batches=8)
            assert {one.micro_batches for one in found} == expected
            assert len(set(found)) == len(found)


def test_pipelines_alone_have_rules_of_their_own() -> None:
    assert {one.rule for one in of(4, 1, 32)} == {"greedy", "zero-bubble", "1f1b"}
    assert {one.rule for one in of(4, 4, 32)} == {"greedy"}
    assert max(one.micro_batches for one in of(8, 1, 32)) == 16
