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
from placement_ranks import Finding

from hgpart.run.launch import launch

QUICK = ("lenet5",)
FULL = tuple(name for name in placement_ranks.MODELS if name not in QUICK)


@cache
def found(models):
    """What the processes found of some models, by model, grain and k."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        launch(placement_ranks.__file__, [str(file), *models], 3)
        return json.loads(file.read_text())


@pytest.mark.parametrize("grain_and_k", ["coarse 2", "coarse 3", "fine 2", "fine 3"])
@pytest.mark.parametrize(
    ("models", "name"),
    [
        *((QUICK, name) for name in QUICK),
        *(pytest.param(FULL, name, marks=pytest.mark.full) for name in FULL),
    ],
)
def test_parts_in_processes_are_the_model(models, name, grain_and_k):
    findings = [Finding(*each) for each in found(models)[f"{name} {grain_and_k}"]]
    assert [each.partition for each in findings] == ["blocks", *placement_ranks.MODELS[name]]
    for each in findings:
        assert max(each.outputs, each.gradients, each.buffers) <= placements.CLOSE, each
        assert each.wrong_figures == [], each
        assert each.held == each.elements, each
        assert each.volume > 0, each
