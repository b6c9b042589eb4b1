from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.analytic import (
    LinkSeconds,
    PipeDreamStage,
    data_parallel_seconds,
    gpipe_scalability,
    gpipe_seconds,
    gpipe_sending_seconds,
    pipedream_seconds,
    sequential_seconds,
)
from hgpart.errors import ArgumentError

COUNTS = st.integers(1, 20)
SECONDS = st.floats(0, 1e3)
SIZES = st.lists(st.integers(0, 10**6), max_size=6)


def link(latency: float, bandwidth: float) -> LinkSeconds:
    return lambda nbytes: latency + nbytes / bandwidth


EVEN = link(0.0, 1.0)  # a byte a second


def test_an_epoch_is_the_mean_of_the_measured_batches_times_all() -> None:
    assert sequential_seconds([1.0, 2.0, 6.0], 10) == 30.0
    assert sequential_seconds([0.5], 0) == 0.0


def test_data_parallelism_by_hand() -> None:
    """Three devices: 6 / 3 computing, 4 times a third of 90 bytes over the slowest link."""
    ring = [link(0.5, 60.0), link(1.0, 60.0), link(0.0, 100.0)]
    assert data_parallel_seconds(6.0, 90, ring) == 2.0 + 4 * (1.0 + 30 / 60)
    assert data_parallel_seconds(6.0, 90, ring, threshold=30) == 2.0 + 4 * (1.0 + 10 / 60)
    assert data_parallel_seconds(6.0, 90, ring[:1]) == 6.0


@given(SECONDS, st.integers(0, 10**9), COUNTS)
def test_an_all_reduce_sends_all_but_a_share_of_the_gradients_twice(
    seconds: float, gradient_bytes: int, workers: int
) -> None:
    found = data_parallel_seconds(seconds, gradient_bytes, [link(0.0, 1e6)] * workers)
    sent = 2 * gradient_bytes * (workers - 1) / workers
    assert found == pytest.approx(seconds / workers + sent / 1e6)


def test_scalability_is_that_of_table_6_1() -> None:
    found = [round(gpipe_scalability(4, each), 2) for each in (12, 12, 20, 28, 30)]
    assert found == [0.31, 0.31, 0.29, 0.28, 0.28]


@given(COUNTS, COUNTS)
def test_gpipe_computes_for_as_long_as_a_pipeline_of_equal_stages(
    workers: int, micro_batches: int
) -> None:
    """Counted: a stage begins a micro-batch when it and the stage before have done theirs."""
    ends = [0] * workers
    for _ in range(micro_batches):
        for stage in range(workers):
            ends[stage] = 1 + max(ends[stage], ends[stage - 1] if stage else 0)
    each = 1 / (workers * micro_batches)
    assert gpipe_scalability(workers, micro_batches) == pytest.approx(ends[-1] * each)
    assert gpipe_scalability(workers, 1) == 1
    assert gpipe_scalability(1, micro_batches) == 1


@given(SIZES, COUNTS)
def test_gpipe_sends_each_micro_batch_by_each_link(sizes: list[int], micro_batches: int) -> None:
    """In lockstep: link j has micro-batch i at step i + j, a step takes as long as its slowest."""
    if micro_batches < len(sizes):  # the formula takes some links for busy at each step
        return
    steps = [0.0] * (micro_batches + len(sizes))
    for at, size in enumerate(sizes):
        for each in range(micro_batches):
            steps[at + each] = max(steps[at + each], size)
    found = gpipe_sending_seconds([EVEN] * len(sizes), sizes, micro_batches)
    assert found == pytest.approx(2 * sum(steps))


@given(SECONDS, st.integers(0, 10**6), COUNTS)
def test_one_micro_batch_is_model_parallelism(seconds: float, size: int, workers: int) -> None:
    links = [EVEN] * (workers - 1)
    found = gpipe_seconds(seconds, links, [size] * len(links), 1)
    assert found == pytest.approx(seconds + 2 * size * len(links))


def test_pipedream_takes_as_long_as_the_slowest_stage_or_link() -> None:
    stages = [PipeDreamStage(6.0, 3, 9, EVEN), PipeDreamStage(1.0, 1, 9, EVEN)]
    assert pipedream_seconds(stages, [EVEN], [0.5]) == 12.0  # 2 * 2 / 3 * 9: gradients
    quick = link(0.0, 100.0)
    stages[0] = PipeDreamStage(6.0, 3, 9, quick)
    assert pipedream_seconds(stages, [EVEN], [0.5]) == 2.0  # 6 / 3: computing
    assert pipedream_seconds(stages, [EVEN], [5]) == 10.0  # maps, and their gradients
    assert pipedream_seconds(stages[1:], [], []) == 1.0


WRONG: list[tuple[Callable[[], float], str]] = [
    (lambda: sequential_seconds([], 1), "no measured batch"),
    (lambda: sequential_seconds([1.0], -1), "-1 batches"),
    (lambda: sequential_seconds([math.nan], 1), "a batch of nan s"),
    (lambda: data_parallel_seconds(1.0, 1, []), "0 links of a ring"),
    (lambda: data_parallel_seconds(-1.0, 1, [EVEN]), "a batch of -1.0 s"),
    (lambda: data_parallel_seconds(1.0, -1, [EVEN]), "gradients of -1 bytes"),
    (lambda: gpipe_scalability(0, 1), "0 workers"),
    (lambda: gpipe_scalability(1, 0), "0 micro-batches"),
    (lambda: gpipe_seconds(math.inf, [], [], 1), "a batch of inf s"),
    (lambda: gpipe_sending_seconds([EVEN], [], 1), "1 links and 0 sizes"),
    (lambda: gpipe_sending_seconds([EVEN], [-1], 1), "maps of -1 bytes"),
    (lambda: pipedream_seconds([], [], []), "0 stages"),
    (lambda: pipedream_seconds([PipeDreamStage(1.0, 0, 1, EVEN)], [], []), "0 workers of a stage"),
    (lambda: pipedream_seconds([PipeDreamStage(1.0, 1, 1, EVEN)], [EVEN], [1]), "for 1 stages"),
]


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_arguments_are_errors_of_one_line(call: Callable[[], float], said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as raised:
        call()
    assert "accepted" in str(raised.value) and "\n" not in str(raised.value)
