"""Partitions over slices in processes: to the bit what threads make of them, and the same bytes."""

from __future__ import annotations

import json

import pytest
import sliced_ranks

from hgpart.run.processes.launch import launch


def test_processes_do_what_threads_do(tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["threads", str(file)], 3)
    assert json.loads(file.read_text()) == {
        "coarse 2": [],
        "fine 2": [],
        "changes": [],
        "shared layers 2": [],
        "coarse 3": [],
        "fine 3": [],
        "norms of the batch": [],
        "shared layers 3": [],
    }


@pytest.mark.full
def test_data_parallelism_is_torchs(tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["ddp", str(file)], 2)
    assert json.loads(file.read_text()) == {"ddp": []}


def test_batches_of_several_sizes_by_one_schedule_and_compiled_steps(tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["loops", str(file)], 2)
    assert json.loads(file.read_text()) == {"loops": []}


def test_no_pass_begins_after_one_that_has_failed(tmp_path):
    file = tmp_path / "found.json"
    launch(sliced_ranks.__file__, ["failing", str(file)], 2)
    first, *others = json.loads(file.read_text())["failing"]
    assert first.startswith("begins a pass after one that has failed, of which messages are still")
    assert others == ["copies", "no such target"]
