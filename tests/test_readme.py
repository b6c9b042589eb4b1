"""What the documents refer to is there; README.md's examples run as doctests of their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files_and_no_placeholder_is_left(name: str) -> None:
    text = (ROOT / name).read_text()
    assert re.findall(r"@[A-Z_0-9]+@", text) == []
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / name).parent.joinpath(link).exists(), link


def test_the_readme_shows_what_the_main_job_prints() -> None:
    """The command line's own test compares figures; here, that the block is such an output."""
    text = (ROOT / "README.md").read_text()
    assert "hgpart partition vgg16 --k 8 --eps 0.1" in text
    assert re.search(r"vgg16 on 8 devices, coarse-grain: imbalance 0\.0\d+ \(allowed 0\.1\)", text)
    for module in re.findall(r"`(\w+\.py)`", text):
        assert (ROOT / "hgpart" / module).exists() or list((ROOT / "hgpart").rglob(module)), module
