"""Lightning's Trainer in processes does what it does in one: `lightning_ranks.py`."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hgpart.errors import MissingPackageError
from hgpart.run.processes.launch import launch

RANKS = str(Path(__file__).parents[2] / "lightning_ranks.py")
MODULE = "hgpart.run.loops.lightning_strategy"
REFUSED = {
    "beside_parts": "scale: of no DistributedModel",
    "torchs_quasi_newton": "accepted is hgpart.LBFGS",
    "half": "an optimizer of some parameters of its model",
    "unlogged": "item() of a result that rank 1 has",
    "failing": "no such batch",
    "copied": "DistributedDataParallel of a DistributedModel",
}


def of_ranks(folder, *names):
    if find_spec("lightning") is None:
        pytest.skip("lightning is not installed: pip install '.[examples]'")
    launch(RANKS, [str(folder), *names], 2)
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]


def test_without_lightning_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(MissingPackageError, match=r"needs lightning.*'\.\[examples\]'"):
        importlib.import_module(MODULE)


@pytest.mark.full
@pytest.mark.long
def test_weights_and_logged_values_are_those_of_one_process(tmp_path):
    names = "plain", "resumed", "adversaries", "slices", "quasi_newton"
    for found in of_ranks(tmp_path, *names):
        assert {name: apart for name, apart in found.items() if not apart < 1e-9} == {}


@pytest.mark.full
@pytest.mark.long
def test_in_mixed_precision(tmp_path):
    for found in of_ranks(tmp_path, "mixed", "scaled"):
        assert {name: apart for name, apart in found.items() if not apart < 2e-2} == {}


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_in_processes_is_refused_in_all(name, tmp_path):
    for found in of_ranks(tmp_path, name):
        assert REFUSED[name] in found[name]
