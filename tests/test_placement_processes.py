"""Built-in models in processes compute what they do in one, and send what the table says.

`placement_ranks.py` runs in the processes, once for all models, and compares.
"""

from __future__ import annotations

import json

import placement_ranks
import placements
import pytest
from placement_ranks import Finding

from hgpart.run.launch import launch


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the processes found, by model, grain and k."""
    file = tmp_path_factory.mktemp("processes") / "found.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        launch(placement_ranks.__file__, [str(file)], 3)
    return json.loads(file.read_text())


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", placement_ranks.MODELS)
def test_parts_in_processes_are_the_model(found, name, grain, k):
    findings = [Finding(*each) for each in found[f"{name} {grain} {k}"]]
    assert [each.partition for each in findings] == ["blocks", *placement_ranks.MODELS[name]]
    for each in findings:
        assert max(each.outputs, each.gradients, each.buffers) <= placements.CLOSE, each
        assert each.wrong_figures == [], each
        assert each.held == each.elements, each
        assert each.volume > 0, each
