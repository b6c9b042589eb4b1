"""What hgpart's packages say of themselves; `.ci/wheel` builds them and tries them."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

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
    assert sorted(found[1].split(",")) == sorted(
        EXTRAS.keys() - {"all", "docs", "examples", "test", "lint"}
    )


def test_what_messages_and_documents_say_to_install_are_extras() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("*.md")]
    said = {
        extra
        for file in files
        for named in re.findall(r"hgpart\[([\w,]+)\]", file.read_text(encoding="utf-8"))
        for extra in named.split(",")
    }
    assert {"all", "train"} <= said <= EXTRAS.keys()


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """`native/toolchain.py`, which is of the build and not of the package."""
    monkeypatch.syspath_prepend(ROOT / "native")
    return cast("Callable[..., str | None]", importlib.import_module("toolchain").missing)


def program(folder: Path, name: str, status: int) -> Path:
    """What stands for a compiler that reads a program and ends with this status."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\nread line || exit 2\nexit {status}\n")
    file.chmod(0o755)
    return file


def test_a_machine_without_a_compiler_is_told_so_in_one_line(
    missing: Callable[..., str | None], tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    line = missing({"PATH": str(tmp_path)}, tmp_path) or ""
    assert "no compiler for that was found (c++, g++, clang++)" in line
    assert "apt-get install g++" in line
    program(tmp_path, "c++", 1)
    assert missing({"PATH": str(tmp_path)}, tmp_path) == line  # there, but broken
    program(tmp_path, "clang++", 0)
    assert missing({"PATH": str(tmp_path)}, tmp_path) is None


def test_the_compiler_that_cxx_names_is_the_one_that_counts(
    missing: Callable[..., str | None], tmp_path: Path
) -> None:
    (tmp_path / "Python.h").touch()
    works = program(tmp_path / "path", "c++", 0)
    for named in ("nowhere/c++", str(program(tmp_path, "broken", 1))):
        line = missing({"PATH": str(works.parent), "CXX": named}, tmp_path) or ""
        assert f"CXX={named} does not compile" in line
        assert "\n" not in line
    assert missing({"PATH": "", "CXX": f"{works} -m64"}, tmp_path) is None
    # CMake may be told of another one in ways that are its own.
    assert missing({"PATH": "", "CMAKE_ARGS": "-DCMAKE_CXX_COMPILER=icpx"}, tmp_path) is None


def test_pythons_headers_are_asked_for_by_their_file(
    missing: Callable[..., str | None], tmp_path: Path
) -> None:
    compiler = {"CXX": str(program(tmp_path, "c++", 0))}
    line = missing(compiler, tmp_path / "include") or ""
    assert f"{tmp_path}/include/Python.h is missing: apt-get install python3-dev" in line
