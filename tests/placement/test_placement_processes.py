"""Built-in models in processes compute what they do in one, and send what the table says.

`placement_ranks.py` runs in the processes, once for the models of a run of tests, and compares.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import placement_ranks
import placements
import pytest
from placement_ranks import MODELS, Finding

from hgpart.run.processes.launch import launch

pytestmark = pytest.mark.full  # in the quick tests test_distributed.py and test_cli_run.py do it


@cache
def found():
    """What the processes found, by model, grain and k."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        launch(placement_ranks.__file__, [str(file), *MODELS], 3)
        return json.loads(file.read_text())


@pytest.mark.long
@pytest.mark.parametrize("grain_and_k", ["coarse 2", "coarse 3", "fine 2", "fine 3"])
@pytest.mark.parametrize("name", MODELS)
def test_parts_in_processes_are_the_model(name, grain_and_k):
    findings = [Finding(*each) for each in found()[f"{name} {grain_and_k}"]]
    assert [each.partition for each in findings] == ["blocks", *MODELS[name]]
    for each in findings:
        assert max(each.outputs, each.gradients, each.buffers) <= placements.CLOSE, each
        assert each.wrong_figures == [], each
        assert each.held == each.elements, each
        assert each.volume > 0, each
