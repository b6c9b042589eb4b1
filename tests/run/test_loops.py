"""Training loops as people write them, in processes beside the model itself: `loop_ranks.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hgpart.run.processes.launch import launch

RANKS = str(Path(__file__).parents[1] / "loop_ranks.py")
EXACT = 1e-9  # float64; where Adam divides by roots of squares, rounding grows
SPREAD = 2e-2  # in 16 bits the order of additions shows


def differences(folder, k, plans, *loops):
    """How far each loop is from the model's, by plan and loop, on the rank where it is farthest."""
    launch(RANKS, [str(folder), "4", ",".join(plans), *loops], k)
    of_ranks = [json.loads(Path(folder, str(rank)).read_text()) for rank in range(k)]
    return {name: max((ranks[name] for ranks in of_ranks), key=_size) for name in of_ranks[0]}


def _size(apart):
    return float(apart) if apart[0].isdigit() else float("inf")


def assert_close(apart):
    far = {
        name: size
        for name, size in apart.items()
        if not _size(size) <= (SPREAD if "mixed" in name else EXACT)
    }
    assert not far


@pytest.mark.full
@pytest.mark.long
def test_loops_in_two_processes(tmp_path):
    loops = "two_losses", "adversaries", "mixed_bfloat16"
    assert_close(differences(tmp_path, 2, ["coarse"], *loops))


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("k", "plans"), [(2, ["horizontal", "data-parallel"]), (3, ["layerwise", "coarse"])]
)
def test_all_loops_by_all_plans(tmp_path, k, plans):
    apart = differences(tmp_path, k, plans)
    assert len(apart) > 30
    if "data-parallel" in plans:
        refused = apart.pop("data-parallel updated_norms")
        assert "momentum=None, the mean of all batches: accepted in norms of the batch" in refused
    assert_close(apart)
