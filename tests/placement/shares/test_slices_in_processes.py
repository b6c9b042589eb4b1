"""Partitions over slices in processes: to the bit what threads make of them, and the same bytes."""

from __future__ import annotations

import json

import pytest
import sliced_ranks

from hgpart.run.processes.launch import launch


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("k", "known_by", "cases"),
    [
        (2, "", ["changes", "norms of the batch", "coarse", "two passes"]),
        (2, sliced_ranks.IN_SHORT_LANES, ["coarse", "tiles", "changes"]),
        (3, "", ["coarse", "fine", "shared layers"]),
        (3, sliced_ranks.BY_ORDER, ["coarse", "fine", "two passes"]),
        (2, "", ["bands", "tiles"]),
        (3, sliced_ranks.BY_ORDER, ["bands", "tiles"]),
    ],
)
def test_processes_do_what_threads_do(k, known_by, cases, tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, [f"threads{known_by}", str(file), *cases], k)
    assert json.loads(file.read_text()) == {case: [] for case in cases}


@pytest.mark.full
@pytest.mark.long
def test_data_parallelism_is_torchs(tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["ddp", str(file)], 2)
    found = json.loads(file.read_text())
    assert not found["ddp"]
    # Each computed samples of a batch of its own: some counted twice, others not at all.
    (said,) = found["sizes"]
    assert said == (
        "rank 0 begins a batch of 8 samples, rank 1 a batch of 6 samples: accepted is the same on "
        "all ranks, in one order"
    )


@pytest.mark.full
@pytest.mark.long
def test_batches_of_several_sizes_by_one_schedule_then_compiled_steps_and_a_refusal(
    tmp_path,
):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["loops", str(file)], 2)
    found = json.loads(file.read_text())
    assert not found["loops"]
    refused, after, *others = found["failing"]
    assert refused.startswith("rank 1: a hook on ")
    assert after.startswith("rank 0 begins a pass after a failed one, which ended its")
    assert others == ["copies"]
