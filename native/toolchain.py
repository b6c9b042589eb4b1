"""What compiling the core needs -> what of it is missing, in one line."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path

COMPILERS = ("c++", "g++", "clang++")  # of those that CMake tries, the ones found on Linux
PROGRAM = "#include <string_view>\nint main() { return std::string_view().size(); }\n"


def missing(environment: Mapping[str, str], headers: Path | None = None) -> str | None:
    """Say what keeps the core from being compiled here, and what to do about it.

    Parameters
    ----------
    environment
        Variables as in ``os.environ``: ``PATH``, and ``CXX`` where it names the compiler.
    headers
        The folder of ``Python.h``; without, this Python's.

    Returns
    -------
    One line, or None where nothing is missing, or CMake is told more than is known here.
    """
    if environment.keys() & {"CMAKE_ARGS", "CMAKE_TOOLCHAIN_FILE"}:
        return None
    if named := environment.get("CXX", "").strip():
        if not _compiles(shlex.split(named), environment):
            return (
                f"hgpart is compiled from C++17, which CXX={named} does not compile: "
                "set CXX to a C++ compiler (g++ 9 or later, clang++ 10 or later)"
            )
    else:
        found = [shutil.which(name, path=environment.get("PATH")) for name in COMPILERS]
        if not any(name and _compiles([name], environment) for name in found):
            return (
                "hgpart is compiled from C++17, and no compiler for that was found "
                f"({', '.join(COMPILERS)}): apt-get install g++, or set CXX, or install a wheel"
            )
    header = (headers or Path(sysconfig.get_path("include"))) / "Python.h"
    if not header.exists():
        return f"hgpart is compiled, and {header} is missing: apt-get install python3-dev"
    return None


def _compiles(compiler: list[str], environment: Mapping[str, str]) -> bool:
    command = [*compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    try:
        result = subprocess.run(
            command, input=PROGRAM, text=True, capture_output=True, env=dict(environment)
        )
    except OSError:
        return False
    return result.returncode == 0
