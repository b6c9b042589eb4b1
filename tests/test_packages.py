"""What hgpart's packages say of themselves; `.ci/wheel` builds them and tries them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import hgpart

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = SETTINGS["project"]["optional-dependencies"]


def test_the_version_is_that_of_pyproject_wherever_it_is_said() -> None:
    version = SETTINGS["project"]["version"]
    assert hgpart.__version__ == version
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [version]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S*)", changelog, re.MULTILINE)
    assert released[:1] in ([], [version])


def test_all_are_the_extras_but_those_for_work_on_hgpart_itself() -> None:
    (everything,) = EXTRAS["all"]
    found = re.fullmatch(r"hgpart\[(.*)\]", everything)
    assert found is not None
    assert sorted(found[1].split(",")) == sorted(EXTRAS.keys() - {"all", "test", "lint"})


def test_what_messages_and_documents_say_to_install_are_extras() -> None:
    files = [*(ROOT / "hgpart").rglob("*.py"), *ROOT.glob("*.md")]
    said = {
        extra
        for file in files
        for named in re.findall(r"hgpart\[([\w,]+)\]", file.read_text(encoding="utf-8"))
        for extra in named.split(",")
    }
    assert {"all", "report", "train"} <= said <= EXTRAS.keys()
