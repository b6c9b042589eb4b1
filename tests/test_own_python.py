"""Processes that are started import what their parent does, wherever they are started."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hgpart.own_python import own_python


def test_what_lies_in_the_present_folder_is_not_imported(tmp_path: Path) -> None:
    """`hgpart recommend` in a checkout took its sources for the installed package, and failed."""
    for name in ("hgpart", "colorsys"):
        tmp_path.joinpath(name).mkdir()
        tmp_path.joinpath(name, "__init__.py").write_text("raise ImportError('of the folder')")
    code = "import colorsys, hgpart; print(colorsys.__file__, hgpart.__file__, sys.argv[1:])"
    done = subprocess.run(
        [*own_python(code), "more"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout
    assert done.stdout.endswith("['more']\n")
