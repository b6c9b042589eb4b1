"""Notebooks of examples/ run from top to bottom, and print what they were saved with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDED = "notebooks need pip install '.[examples]'"


def shown(cell: Any) -> str:
    """What a reader sees below it; of HTML the words."""
    texts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        html = re.sub(r"<[^>]*>", " ", data.get("text/html", ""))
        texts.append(output.get("text") or html or data.get("text/plain", ""))
    return " ".join(" ".join(texts).split())


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.ipynb")))
def test_a_notebook_prints_what_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason=NEEDED)
    nbclient = pytest.importorskip("nbclient", reason=NEEDED)
    pytest.importorskip("ipykernel", reason=NEEDED)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    saved = nbformat.read(EXAMPLES / name, as_version=4)
    wanted = [shown(cell) for cell in saved.cells]
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(saved, timeout=300, kernel_name="python3", resources=folder).execute()
    assert any(wanted)
    assert [shown(cell) for cell in saved.cells] == wanted
