"""Source archive, wheel -> nothing, or what they hold too much or too little of, or say wrongly.

python .ci/archive_contents.py hgpart-*.tar.gz hgpart-*.whl
"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parent.parent
FOLDERS = ["src", "native", "tests", "benchmarks", "docs", "examples"]
DOCUMENTS = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE"]
SETTINGS = ["pyproject.toml", "constraints.txt", "mkdocs.yml"]


def written(folder: str, root: Path = ROOT) -> set[str]:
    """The files of a folder of the repository that somebody wrote."""
    return {
        file.relative_to(root).as_posix()
        for file in (root / folder).rglob("*")
        if file.is_file() and file.suffix not in (".pyc", ".so")
    }


def compare(archive: str, found: set[str], expected: set[str]) -> None:
    """End with what one of the two has and the other has not."""
    if found != expected:
        missing, more = sorted(expected - found), sorted(found - expected)
        sys.exit(f"{archive}: missing {missing or 'nothing'}, too much {more or 'nothing'}")


source, wheel = sys.argv[1:]

with tarfile.open(source) as archive:
    files = {member.name.partition("/")[2] for member in archive if member.isfile()}
expected = {"PKG-INFO", *DOCUMENTS, *SETTINGS}.union(*map(written, FOLDERS))
compare(source, files, expected)

with zipfile.ZipFile(wheel) as archive:
    files = {name for name in archive.namelist() if not name.endswith("/")}
    native = {name for name in files if re.fullmatch(r"hgpart/_native\.[\w.-]+\.so", name)}
    if len(native) != 1:
        sys.exit(f"{wheel}: {sorted(native)}, expected one compiled core")
    about = next(name for name in files if name.endswith(".dist-info/METADATA"))
    Metadata.from_email(archive.read(about), validate=True)
    named = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    expected = (
        written("hgpart", ROOT / "src")
        | native
        | {about.replace("METADATA", name) for name in named}
    )
    compare(wheel, files, expected)
